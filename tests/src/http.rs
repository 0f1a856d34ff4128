//! One HTTP GET over a plain socket.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use crate::limits::SOON;

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, as they came.
    pub head: String,
    /// The body.
    pub body: String,
}

/// GETs `path` from a local port; `None` if nothing there speaks HTTP.
#[must_use]
pub fn get(port: u16, path: &str) -> Option<Response> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Response {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// The value of a Prometheus series in `text`: its name with labels, exactly as exposed.
#[must_use]
pub fn series(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .find_map(|(series, value)| (series == name).then(|| value.parse().ok())?)
}

/// The sum of all series of a metric, whatever their labels.
#[must_use]
pub fn total(text: &str, metric: &str) -> f64 {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(series, _)| series.split('{').next() == Some(metric))
        .filter_map(|(_, value)| value.parse::<f64>().ok())
        .sum()
}
