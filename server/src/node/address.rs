//! The address that a node tells the world (B091).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use mneme_net::HostPort;

/// Documentation addresses (RFC 5737, RFC 3849): somewhere beyond the local network. Nothing is
/// sent there: connecting a UDP socket only asks the routing table which address it would use.
const BEYOND: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The address to register: as told; else the bound one; for an unspecified one that by which
/// this host reaches others.
///
/// # Errors
/// The line to show when the host has no such address.
pub(super) fn advertised(bound: SocketAddr, told: Option<&HostPort>) -> Result<String, String> {
    if let Some(told) = told {
        return Ok(told.to_string());
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound.to_string());
    }
    match BEYOND
        .iter()
        .find_map(|beyond| route_from(*beyond, bound.is_ipv4()))
    {
        Some(ip) => Ok(SocketAddr::new(ip, bound.port()).to_string()),
        None => Err(format!(
            "cannot tell others to reach this node at {bound}, and this host has no route to \
             others to take an address from: give --advertise HOST:PORT"
        )),
    }
}

fn route_from(beyond: IpAddr, v4_only: bool) -> Option<IpAddr> {
    if v4_only && beyond.is_ipv6() {
        return None;
    }
    let any: IpAddr = match beyond {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((beyond, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B090, B091.
    #[test]
    fn an_unspecified_address_is_never_advertised() {
        let bound = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(
            advertised(bound("127.0.0.1:7"), None).unwrap(),
            "127.0.0.1:7"
        );
        assert_eq!(advertised(bound("[::1]:7"), None).unwrap(), "[::1]:7");
        let told: HostPort = "storage-7.example:9000".parse().unwrap();
        assert_eq!(
            advertised(bound("0.0.0.0:7"), Some(&told)).unwrap(),
            told.to_string()
        );
        for any in ["0.0.0.0:7", "[::]:7"] {
            match advertised(bound(any), None) {
                Ok(found) => {
                    let found: SocketAddr = found.parse().unwrap();
                    assert!(!found.ip().is_unspecified() && found.port() == 7, "{found}");
                }
                Err(why) => assert!(why.contains("--advertise"), "{why}"),
            }
        }
    }
}
