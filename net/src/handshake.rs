//! Becoming a link: what both ends do between the first packet and the first request.
//!
//! With TLS 1.3 a dialer is done before the server has seen its certificate. So the server
//! greets, on a stream of its own, once it is satisfied, and a dialer is connected when it has
//! read the greeting: a refusal reaches whoever asked for the link, not its first call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use mneme_proto::frame::FRAME_MAGIC;
use mneme_proto::version::WIRE_VERSION;
use quinn::{Connection, ConnectionError, Incoming, ReadExactError};
use rustls::pki_types::CertificateDer;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::cert::Principal;
use crate::error::{HandshakeFault, NetError};
use crate::limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_BEFORE_RETRY, HANDSHAKES_MAX};
use crate::link::Link;
use crate::tls;

/// Magic, version u16, reserved u16.
const GREETING_BYTES: usize = 8;

/// TLS alerts (RFC 8446, section 6) as QUIC error codes: 0x100 + alert (RFC 9001, 4.8).
const CRYPTO: u64 = 0x100;
/// QUIC's CONNECTION_REFUSED (RFC 9000, 20.1).
const CONNECTION_REFUSED: u64 = 0x2;

/// Counts of an endpoint's handshakes as server.
#[derive(Debug, Default)]
pub(crate) struct HandshakeCounts {
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Chooses the server's configuration for a peer at this address.
pub(crate) type ConfigFor = dyn Fn(SocketAddr) -> Arc<quinn::ServerConfig> + Send + Sync;

/// Takes connection attempts until the endpoint is closed; links go to `accepted`. Each
/// handshake runs in its own task; their number is bounded, and from a number on a dialer must
/// first prove its address (I-12).
pub(crate) async fn accept_loop(
    endpoint: quinn::Endpoint,
    config_for: Arc<ConfigFor>,
    counts: Arc<HandshakeCounts>,
    accepted: mpsc::Sender<Link>,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let place = places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let Some(incoming) = endpoint.accept().await else {
            return;
        };
        let under_way = HANDSHAKES_MAX - places.available_permits();
        if under_way > HANDSHAKES_BEFORE_RETRY
            && !incoming.remote_address_validated()
            && incoming.may_retry()
        {
            incoming.retry().expect("may_retry was asked");
            continue;
        }
        let config = config_for(incoming.remote_address());
        let (counts, accepted) = (counts.clone(), accepted.clone());
        tokio::spawn(async move {
            let addr = incoming.remote_address();
            let outcome = timeout(HANDSHAKE_TIMEOUT, serve(incoming, config)).await;
            let link = match outcome {
                Ok(Ok(link)) => link,
                Ok(Err(why)) => return failed(&counts, addr, &why),
                Err(_) => return failed(&counts, addr, "it took too long"),
            };
            counts.done.fetch_add(1, Ordering::Relaxed);
            // A closed queue means that the endpoint is gone, and the link with it.
            let _ = accepted.send(link).await;
            drop(place);
        });
    }
}

fn failed(counts: &HandshakeCounts, addr: SocketAddr, why: &str) {
    counts.failed.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(%addr, why, "handshake failed");
}

async fn serve(incoming: Incoming, config: Arc<quinn::ServerConfig>) -> Result<Link, String> {
    let connecting = incoming.accept_with(config).map_err(|e| e.to_string())?;
    let connection = connecting.await.map_err(|e| e.to_string())?;
    let peer = peer_of(&connection).ok_or("its certificate names no principal")?;
    let mut greeting = connection.open_uni().await.map_err(|e| e.to_string())?;
    let sent = greeting.write_all(&greeting_bytes()).await;
    sent.map_err(|e| e.to_string())?;
    greeting.finish().map_err(|e| e.to_string())?;
    Ok(Link::new(connection, peer))
}

/// The principal of the certificate that the peer showed in the handshake.
pub(crate) fn peer_of(connection: &Connection) -> Option<Principal> {
    let shown = connection.peer_identity()?;
    let chain = shown.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    tls::principal_of_chain(&chain)
}

fn greeting_bytes() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..4].copy_from_slice(&FRAME_MAGIC);
    bytes[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    bytes
}

/// Why a greeting was not one.
pub(crate) enum GreetingFault {
    Lost(ConnectionError),
    Fault(HandshakeFault),
}

/// Waits for the server's greeting.
pub(crate) async fn read_greeting(connection: &Connection) -> Result<(), GreetingFault> {
    let stream = connection.accept_uni().await;
    let mut stream = stream.map_err(GreetingFault::Lost)?;
    let mut bytes = [0; GREETING_BYTES];
    match stream.read_exact(&mut bytes).await {
        Ok(()) => {}
        Err(ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error))) => {
            return Err(GreetingFault::Lost(error));
        }
        Err(_) => return Err(GreetingFault::Fault(HandshakeFault::NoCommonProtocol)),
    }
    let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
    if bytes[..4] != FRAME_MAGIC {
        return Err(GreetingFault::Fault(HandshakeFault::NoCommonProtocol));
    }
    if theirs != WIRE_VERSION {
        let ours = WIRE_VERSION;
        return Err(GreetingFault::Fault(HandshakeFault::Version {
            theirs,
            ours,
        }));
    }
    Ok(())
}

/// What a dialer tells its caller of a connection that did not come to be. `not_after` is the
/// end of the dialer's own certificate.
pub(crate) fn dial_error(
    addr: SocketAddr,
    error: &ConnectionError,
    verdict: Option<&HandshakeFault>,
    not_after: SystemTime,
) -> NetError {
    let code = match error {
        ConnectionError::TimedOut => return NetError::Unreachable { addr },
        ConnectionError::ConnectionClosed(close) => Some(u64::from(close.error_code)),
        ConnectionError::TransportError(error) => Some(u64::from(error.code)),
        _ => None,
    };
    let why = match (verdict, code, error) {
        (Some(verdict), ..) => verdict.clone(),
        (None, _, ConnectionError::VersionMismatch) => HandshakeFault::NoCommonProtocol,
        (None, Some(CONNECTION_REFUSED), _) => HandshakeFault::Busy,
        (None, Some(code), _) if code >= CRYPTO => of_alert(code - CRYPTO, not_after)
            .unwrap_or_else(|| HandshakeFault::Other(error.to_string())),
        _ => HandshakeFault::Other(error.to_string()),
    };
    NetError::Handshake { addr, why }
}

/// What a TLS alert from the peer says of this end.
fn of_alert(alert: u64, not_after: SystemTime) -> Option<HandshakeFault> {
    Some(match alert {
        45 => HandshakeFault::Expired {
            whose: "this end's",
            not_after: Some(not_after),
        },
        48 | 51 => HandshakeFault::NotKnownThere,
        42 | 43 | 44 | 46 | 49 => HandshakeFault::CertificateRefused,
        116 => HandshakeFault::NoCertificate,
        120 => HandshakeFault::NoCommonProtocol,
        _ => return None,
    })
}
