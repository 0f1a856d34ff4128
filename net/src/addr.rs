//! Addresses as people write them: `host:port`, with IPv6 in brackets.
//!
//! Parsing is pure; only [`HostPort::resolve`] asks the system. A bare IPv6 address is refused:
//! in `::1:7400` nobody can tell the port from the address.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

/// Why a string is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddrError {
    /// More than one colon outside brackets.
    #[error("'{0}' is ambiguous: write an IPv6 address in brackets, as in [::1]:7400")]
    Ambiguous(String),
    /// Nothing after the host.
    #[error("'{0}' has no port: write HOST:PORT")]
    NoPort(String),
    /// The port is no number from 0 to 65535.
    #[error("'{addr}': the port '{port}' is not a number from 0 to 65535")]
    Port {
        /// The whole string.
        addr: String,
        /// What stands where the port should.
        port: String,
    },
    /// The host is empty, or not a name or address.
    #[error("'{addr}': '{host}' is not a host name or address")]
    Host {
        /// The whole string.
        addr: String,
        /// What stands where the host should.
        host: String,
    },
}

/// A host and a port. Displays as it parses, brackets included.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Host {
    /// A name or an IPv4 address.
    Name(String),
    V6 {
        ip: Ipv6Addr,
        zone: Option<String>,
    },
}

impl HostPort {
    /// The host without brackets, the zone of a link-local address included.
    #[must_use]
    pub fn host(&self) -> String {
        match &self.host {
            Host::Name(name) => name.clone(),
            Host::V6 { ip, zone: None } => ip.to_string(),
            Host::V6 {
                ip,
                zone: Some(zone),
            } => format!("{ip}%{zone}"),
        }
    }

    /// The port; 0 asks the system for a free one when listening.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The socket addresses behind it, at least one, in the system's order of preference.
    ///
    /// # Errors
    /// The resolver's, or `NotFound` for a name without addresses and a zone that is no
    /// interface here; the text names the host.
    pub async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match &self.host {
            Host::Name(name) => {
                let found = tokio::net::lookup_host((name.as_str(), self.port))
                    .await
                    .map_err(|e| io::Error::new(e.kind(), format!("cannot resolve '{name}': {e}")))?
                    .collect::<Vec<_>>();
                if found.is_empty() {
                    let text = format!("'{name}' has no address");
                    return Err(io::Error::new(io::ErrorKind::NotFound, text));
                }
                Ok(found)
            }
            Host::V6 { ip, zone } => {
                let scope = zone.as_deref().map_or(Ok(0), scope_of)?;
                Ok(vec![SocketAddrV6::new(*ip, self.port, 0, scope).into()])
            }
        }
    }
}

/// The interface index of a zone: a number, or an interface's name.
fn scope_of(zone: &str) -> io::Result<u32> {
    if let Ok(index) = zone.parse() {
        return Ok(index);
    }
    let socket = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    rustix::net::netdevice::name_to_index(&socket, zone).map_err(|_| {
        let text = format!("zone '{zone}' is no network interface of this host");
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

impl From<SocketAddr> for HostPort {
    fn from(addr: SocketAddr) -> Self {
        let host = match addr {
            SocketAddr::V4(v4) => Host::Name(v4.ip().to_string()),
            SocketAddr::V6(v6) => Host::V6 {
                ip: *v6.ip(),
                zone: (v6.scope_id() != 0).then(|| v6.scope_id().to_string()),
            },
        };
        Self {
            host,
            port: addr.port(),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::V6 { .. } => write!(f, "[{}]:{}", self.host(), self.port),
        }
    }
}

impl FromStr for HostPort {
    type Err = AddrError;

    fn from_str(addr: &str) -> Result<Self, AddrError> {
        if let Some(rest) = addr.strip_prefix('[') {
            let (inside, after) = rest.split_once(']').ok_or_else(|| AddrError::Host {
                addr: addr.into(),
                host: addr.into(),
            })?;
            let port = match after.strip_prefix(':') {
                Some(port) => port_of(addr, port)?,
                None if after.is_empty() => return Err(AddrError::NoPort(addr.into())),
                None => {
                    return Err(AddrError::Port {
                        addr: addr.into(),
                        port: after.into(),
                    });
                }
            };
            return Ok(Self {
                host: v6_of(addr, inside)?,
                port,
            });
        }
        let (host, port) = addr
            .rsplit_once(':')
            .ok_or_else(|| AddrError::NoPort(addr.into()))?;
        if host.contains(':') {
            return Err(AddrError::Ambiguous(addr.into()));
        }
        let port = port_of(addr, port)?;
        Ok(Self {
            host: name_of(addr, host)?,
            port,
        })
    }
}

fn port_of(addr: &str, port: &str) -> Result<u16, AddrError> {
    let wrong = || AddrError::Port {
        addr: addr.into(),
        port: port.into(),
    };
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    port.parse().map_err(|_| wrong())
}

fn v6_of(addr: &str, inside: &str) -> Result<Host, AddrError> {
    let wrong = || AddrError::Host {
        addr: addr.into(),
        host: inside.into(),
    };
    let (ip, zone) = match inside.split_once('%') {
        Some((ip, zone)) if is_name(zone) => (ip, Some(zone.to_owned())),
        Some(_) => return Err(wrong()),
        None => (inside, None),
    };
    let ip = ip.parse().map_err(|_| wrong())?;
    Ok(Host::V6 { ip, zone })
}

fn name_of(addr: &str, host: &str) -> Result<Host, AddrError> {
    let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let wrong_v4 = numeric && host.parse::<std::net::Ipv4Addr>().is_err();
    if !is_name(host) || wrong_v4 {
        return Err(AddrError::Host {
            addr: addr.into(),
            host: host.into(),
        });
    }
    Ok(Host::Name(host.to_owned()))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parses_displays_as_it_was_written() {
        for text in [
            "[::1]:7400",
            "[2605:340:cd51::1]:9000",
            "[fe80::1%lo]:9000",
            "localhost:9000",
            "127.0.0.1:7400",
            "node-3.rack_2.example.org:65535",
            "0.0.0.0:0",
        ] {
            let parsed: HostPort = text.parse().expect(text);
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn what_is_not_an_address_is_refused_by_its_own_error() {
        let ambiguous = |s: &str| AddrError::Ambiguous(s.into());
        let no_port = |s: &str| AddrError::NoPort(s.into());
        let cases = [
            ("::1:9000", ambiguous("::1:9000")),
            ("fe80::1", ambiguous("fe80::1")),
            ("localhost", no_port("localhost")),
            ("[::1]", no_port("[::1]")),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<HostPort>(), Err(expected), "{text}");
        }
        for text in [
            "localhost:",
            "localhost:+1",
            "localhost:65536",
            "localhost:http",
            "[::1]x",
            "[::1]:-1",
        ] {
            let parsed = text.parse::<HostPort>();
            let is_port = matches!(
                parsed,
                Err(AddrError::Port { .. }) | Err(AddrError::NoPort(_))
            );
            assert!(is_port, "{text}: {parsed:?}");
        }
        for text in [
            ":7400",
            "a b:1",
            "[::1:7400",
            "[1.2.3.4]:1",
            "[::1%]:1",
            "1.2.3:4",
            "a/b:1",
        ] {
            let parsed = text.parse::<HostPort>();
            assert!(
                matches!(parsed, Err(AddrError::Host { .. })),
                "{text}: {parsed:?}"
            );
        }
    }

    #[tokio::test]
    async fn addresses_resolve_with_their_zone() {
        let plain: HostPort = "[::1]:7400".parse().expect("an address");
        assert_eq!(
            plain.resolve().await.expect("resolves")[0].to_string(),
            "[::1]:7400"
        );
        let zoned: HostPort = "[fe80::1%7]:7400".parse().expect("an address");
        let found = zoned.resolve().await.expect("resolves");
        assert_eq!(found[0].to_string(), "[fe80::1%7]:7400");
        assert_eq!(HostPort::from(found[0]), zoned);
        let unknown: HostPort = "[fe80::1%nosuch0]:7400".parse().expect("an address");
        let error = unknown
            .resolve()
            .await
            .expect_err("no such interface")
            .to_string();
        assert!(error.contains("nosuch0"), "{error}");
    }
}
