//! What stands under QUIC: the UDP socket, with receive buffers as large as the kernel can fill
//! and no larger, and the names of connections.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, UdpPoller};
use ring::rand::{SecureRandom, SystemRandom};

use crate::limits::RECEIVE_SEGMENTS_MAX;

/// Delegates to the runtime's socket, but asks for receive buffers of [`RECEIVE_SEGMENTS_MAX`]
/// largest packets: the library would take 64 of them, six times what one receive can bring.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments().min(RECEIVE_SEGMENTS_MAX)
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

const CONNECTION_ID_BYTES: usize = 8;

/// Random connection ids. The library's own are signed with a key of the process, and packets
/// for others are dropped; with these a restarted process answers the packets of its
/// predecessor's links with a reset, so that the peers dial again at once.
#[derive(Debug)]
pub(crate) struct RandomIds(pub(crate) SystemRandom);

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CONNECTION_ID_BYTES];
        self.0
            .fill(&mut id)
            .expect("the system's random source works, or TLS would not either");
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
