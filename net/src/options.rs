//! What a link can be told, and how that becomes QUIC transport parameters and a UDP socket.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{AckFrequencyConfig, MtuDiscoveryConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Type};

use crate::limits::{
    ACK_AFTER_PACKETS, ACK_DELAY, IDLE_TIMEOUT, INITIAL_RTT, INITIAL_WINDOW_BYTES, KEEP_ALIVE,
    LINK_WINDOW_BYTES, LOOPBACK_MTU_BYTES, MTU_BYTES_MAX, MTU_BYTES_MIN, RELOAD_INTERVAL,
    SEND_WINDOW_BYTES, SOCKET_BUFFER_BYTES, STREAM_WINDOW_BYTES, STREAMS_DEFAULT,
};

/// Options of an endpoint's links.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Requests that a peer may have in flight on one link; the next one waits for a slot.
    pub streams_max: u32,
    /// Send several packets with one system call (GSO). Off for network cards that lose them.
    pub segmentation_offload: bool,
    /// Largest UDP payload tried; clamped to 1200..=6500.
    pub mtu_bytes_max: u16,
    /// A dialer sends something this often on an idle link.
    pub keep_alive: Duration,
    /// Silence after which a link is dead.
    pub idle_timeout: Duration,
    /// Kernel buffers asked for, each way.
    pub socket_buffer_bytes: usize,
    /// How often the certificate files are looked at.
    pub reload_interval: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            streams_max: STREAMS_DEFAULT,
            segmentation_offload: true,
            mtu_bytes_max: MTU_BYTES_MAX,
            keep_alive: KEEP_ALIVE,
            idle_timeout: IDLE_TIMEOUT,
            socket_buffer_bytes: SOCKET_BUFFER_BYTES,
            reload_interval: RELOAD_INTERVAL,
        }
    }
}

/// Which end of a link the parameters are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Dialer,
    Server,
}

/// Transport parameters for peers on this host and for all others.
#[derive(Debug, Clone)]
pub(crate) struct Transports {
    near: Arc<TransportConfig>,
    far: Arc<TransportConfig>,
}

impl Transports {
    pub(crate) fn new(options: &LinkOptions, end: End) -> Self {
        let mtu_max = options.mtu_bytes_max.clamp(MTU_BYTES_MIN, MTU_BYTES_MAX);
        let near_start = if loopback_mtu_bytes() >= LOOPBACK_MTU_BYTES {
            mtu_max
        } else {
            MTU_BYTES_MIN
        };
        Self {
            near: Arc::new(transport(options, end, near_start, mtu_max)),
            far: Arc::new(transport(options, end, MTU_BYTES_MIN, mtu_max)),
        }
    }

    pub(crate) fn towards(&self, peer: SocketAddr) -> Arc<TransportConfig> {
        if peer.ip().to_canonical().is_loopback() {
            self.near.clone()
        } else {
            self.far.clone()
        }
    }
}

/// The loopback interface's MTU; 0 where it cannot be read, so that discovery starts low.
fn loopback_mtu_bytes() -> u32 {
    fs::read_to_string("/sys/class/net/lo/mtu")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

fn transport(options: &LinkOptions, end: End, mtu_start: u16, mtu_max: u16) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(mtu_max);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(INITIAL_WINDOW_BYTES);
    // The peer answers most requests anyway, and its answer carries the acknowledgement.
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(ACK_AFTER_PACKETS.into())
        .max_ack_delay(Some(ACK_DELAY));
    let idle = VarInt::try_from(options.idle_timeout.as_millis() as u64).unwrap_or(VarInt::MAX);

    let mut config = TransportConfig::default();
    config
        .initial_mtu(mtu_start)
        .mtu_discovery_config(Some(discovery))
        .enable_segmentation_offload(options.segmentation_offload)
        .congestion_controller_factory(Arc::new(congestion))
        .ack_frequency_config(Some(acks))
        .initial_rtt(INITIAL_RTT)
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(LINK_WINDOW_BYTES.into())
        .send_window(SEND_WINDOW_BYTES)
        .max_idle_timeout(Some(idle.into()))
        .datagram_receive_buffer_size(None);
    match end {
        // A server opens one stream towards its dialer, for its greeting.
        End::Dialer => config
            .keep_alive_interval(Some(options.keep_alive))
            .max_concurrent_bidi_streams(0u32.into())
            .max_concurrent_uni_streams(1u32.into()),
        End::Server => config
            .max_concurrent_bidi_streams(options.streams_max.into())
            .max_concurrent_uni_streams(0u32.into()),
    };
    config
}

/// A bound UDP socket with large buffers. `[::]` takes IPv4 too.
pub(crate) fn udp_socket(
    addr: SocketAddr,
    options: &LinkOptions,
) -> io::Result<std::net::UdpSocket> {
    let domain = Domain::for_address(addr);
    let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    let asked = options.socket_buffer_bytes;
    socket.set_recv_buffer_size(asked)?;
    socket.set_send_buffer_size(asked)?;
    // Linux reports twice of what it granted, for its own bookkeeping.
    let granted = socket.recv_buffer_size()?.min(socket.send_buffer_size()?) / 2;
    if granted < asked {
        warn_of_small_buffers(granted, asked);
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

fn warn_of_small_buffers(granted_bytes: usize, asked_bytes: usize) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            granted_bytes,
            asked_bytes,
            "the kernel grants smaller UDP buffers than asked: packets may be lost in bursts; \
             raise net.core.rmem_max and net.core.wmem_max"
        );
    });
}
