//! redis as a peer: its own server process on loopback TCP, RESP spoken directly with one
//! buffer each way, so that no client library's costs are counted against it.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::limits::PEER_START;
use crate::report::{Figure, measure};
use crate::workload::{Keys, fill_row, is_row};

/// A running redis-server and a connection to it; the server ends with this value.
#[derive(Debug)]
pub struct Redis {
    server: Child,
    answers: BufReader<TcpStream>,
    requests: TcpStream,
    buffer: Vec<u8>,
}

impl Drop for Redis {
    fn drop(&mut self) {
        // The server holds nothing that matters; a failed kill leaves it to its parent's end.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::other(why.into())
}

impl Redis {
    /// Starts a server on a free port, without persistence.
    ///
    /// # Errors
    /// When `redis-server` is not installed or does not answer.
    pub fn start() -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| bad(format!("redis-server: {e}: apt-get install redis-server")))?;
        let start = Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > PEER_START => return Err(error),
                Err(_) => std::thread::yield_now(),
            }
        };
        stream.set_nodelay(true)?;
        let answers = BufReader::with_capacity(1 << 20, stream.try_clone()?);
        Ok(Self {
            server,
            answers,
            requests: stream,
            buffer: Vec::new(),
        })
    }

    fn command(&mut self, arguments: usize) {
        self.buffer.clear();
        self.push_header(b'*', arguments);
    }

    fn push_header(&mut self, kind: u8, count: usize) {
        self.buffer.push(kind);
        write!(self.buffer, "{count}\r\n").expect("a Vec takes writes");
    }

    fn argument(&mut self, bytes: &[u8]) {
        self.push_header(b'$', bytes.len());
        self.buffer.extend_from_slice(bytes);
        self.buffer.extend_from_slice(b"\r\n");
    }

    fn send(&mut self) -> io::Result<()> {
        self.requests.write_all(&self.buffer)
    }

    /// Reads one header line such as `*1024` or `$264` and returns its kind and number.
    fn header(&mut self) -> io::Result<(u8, i64)> {
        let mut line = [0u8; 32];
        let mut filled = 0;
        loop {
            self.answers.read_exact(&mut line[filled..=filled])?;
            if line[filled] == b'\n' {
                break;
            }
            filled += 1;
            if filled == line.len() {
                return Err(bad("redis: a header line without end"));
            }
        }
        let text = std::str::from_utf8(&line[1..filled.saturating_sub(1)])
            .map_err(|e| bad(e.to_string()))?;
        let number = text
            .parse()
            .map_err(|_| bad(format!("redis answered {text:?}")))?;
        Ok((line[0], number))
    }

    /// Stores rows `first..first + rows` with one MSET.
    ///
    /// # Errors
    /// I/O, or an answer other than OK.
    pub fn mset(&mut self, keys: &[u64], row_bytes: usize) -> io::Result<()> {
        let mut row = vec![0; row_bytes];
        self.command(1 + 2 * keys.len());
        self.argument(b"MSET");
        for &key in keys {
            fill_row(key, &mut row);
            self.argument(&key.to_le_bytes());
            self.argument(&row);
        }
        self.send()?;
        let mut ok = [0; 5];
        self.answers.read_exact(&mut ok)?;
        if &ok == b"+OK\r\n" {
            Ok(())
        } else {
            Err(bad("redis refused MSET"))
        }
    }

    /// Reads rows with one MGET into `out`.
    ///
    /// # Errors
    /// I/O, or an answer of another shape.
    pub fn mget(&mut self, keys: &[u64], out: &mut [u8], row_bytes: usize) -> io::Result<()> {
        self.command(1 + keys.len());
        self.argument(b"MGET");
        for key in keys {
            self.argument(&key.to_le_bytes());
        }
        self.send()?;
        if self.header()? != (b'*', keys.len() as i64) {
            return Err(bad("redis: MGET answered another number of rows"));
        }
        for row in out.chunks_exact_mut(row_bytes) {
            if self.header()? != (b'$', row_bytes as i64) {
                return Err(bad("redis: a row is missing"));
            }
            self.answers.read_exact(row)?;
            self.answers.read_exact(&mut [0; 2])?;
        }
        Ok(())
    }
}

/// Loads `rows` rows, then times MGET at each batch size.
///
/// # Errors
/// I/O, or a row that is not the one asked for.
pub fn run_mget(
    redis: &mut Redis,
    rows: u64,
    row_bytes: usize,
    batch: usize,
    seconds: f64,
) -> io::Result<Figure> {
    let mut keys = Keys::new(rows, 7);
    let mut batch_keys = vec![0; batch];
    let mut out = vec![0; batch * row_bytes];
    let figure = measure(batch, seconds, || {
        keys.fill(&mut batch_keys);
        redis.mget(&batch_keys, &mut out, row_bytes)
    })?;
    let whole = batch_keys
        .iter()
        .zip(out.chunks_exact(row_bytes))
        .all(|(k, r)| is_row(*k, r));
    if whole {
        Ok(figure)
    } else {
        Err(bad("redis answered another row"))
    }
}

/// Times MSET of `batch` rows over the same keys.
///
/// # Errors
/// I/O, or a refusal.
pub fn run_mset(
    redis: &mut Redis,
    rows: u64,
    row_bytes: usize,
    batch: usize,
    seconds: f64,
) -> io::Result<Figure> {
    let mut keys = Keys::new(rows, 7);
    let mut batch_keys = vec![0; batch];
    measure(batch, seconds, || {
        keys.fill(&mut batch_keys);
        redis.mset(&batch_keys, row_bytes)
    })
}
