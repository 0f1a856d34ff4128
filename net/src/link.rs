//! A link: one QUIC connection between two principals, one stream per request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mneme_proto::frame::{FrameError, FrameHeader, FrameKind};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use tokio::time::timeout_at;

use crate::body::Body;
use crate::cert::Principal;
use crate::error::NetError;
use crate::frames::{ReadFault, frame_parts, read_frame, write_frame};
use crate::request::Request;

/// The caller gave its request up.
pub(crate) const CODE_CANCELLED: VarInt = VarInt::from_u32(1);
/// The server dropped a request without an answer.
pub(crate) const CODE_ABANDONED: VarInt = VarInt::from_u32(2);
/// A link is closed in good order.
pub(crate) const CODE_CLOSED: VarInt = VarInt::from_u32(0);

/// A link to a peer. Clones share it; it closes when the last clone, call and request is gone.
#[derive(Debug, Clone)]
pub struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: quinn::Connection,
    peer: Principal,
    addr: SocketAddr,
    /// Calls and requests under way.
    open: AtomicUsize,
}

/// The answer to a call.
#[derive(Debug)]
pub struct Answer {
    /// The answer's header.
    pub header: FrameHeader,
    /// Its kind: the one that was wanted, or `Refused`.
    pub kind: FrameKind,
    /// Its body.
    pub body: Body,
}

/// Figures of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkStats {
    /// Estimated round-trip time.
    pub rtt: Duration,
    /// Largest UDP payload in use.
    pub mtu_bytes: u16,
    /// Congestion window.
    pub window_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets lost.
    pub lost_packets: u64,
    /// UDP payload sent.
    pub sent_bytes: u64,
    /// UDP payload received.
    pub received_bytes: u64,
    /// Calls (dialer) or requests (server) under way.
    pub open: usize,
}

impl Link {
    pub(crate) fn new(connection: quinn::Connection, peer: Principal) -> Self {
        let addr = connection.remote_address();
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        Self(Arc::new(Inner {
            connection,
            peer,
            addr,
            open: AtomicUsize::new(0),
        }))
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &Principal {
        &self.0.peer
    }

    /// Where it was when the link was made.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// Sends a request and waits for its answer. `body` is sent in order without being copied.
    /// Dropping the future takes the request back, and disturbs no other call.
    ///
    /// # Errors
    /// [`NetError::TooLarge`] before anything is sent; [`NetError::Deadline`] at `deadline`,
    /// also while the peer's stream limit holds the request back; [`NetError::Closed`];
    /// [`NetError::Abandoned`]; [`NetError::Frame`] for an answer that is none. A refusal is an
    /// answer, of kind `Refused`.
    pub async fn call(
        &self,
        kind: FrameKind,
        request: u64,
        body: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<Answer, NetError> {
        let mut parts = frame_parts(kind, request, body)?;
        let mut waiting_for = "a stream slot";
        let exchange = async {
            let streams = self.0.connection.open_bi().await;
            let (send, recv) = streams.map_err(|e| self.closed(&e))?;
            let mut call = Call {
                link: self,
                send,
                recv,
                done: false,
            };
            self.0.open.fetch_add(1, Ordering::Relaxed);
            waiting_for = "the request to be sent";
            match write_frame(&mut call.send, &mut parts).await {
                // A peer that refuses early stops reading; its answer says why.
                Ok(()) | Err(WriteError::Stopped(_)) => {}
                Err(error) => return Err(self.write_error(&error)),
            }
            waiting_for = "the answer";
            let read = read_frame(&mut call.recv).await;
            let (header, kind, body) = read.map_err(|fault| self.read_error(fault))?;
            call.done = true;
            if header.request.get() != request {
                let why = format!("answers request {}, not {request}", header.request);
                return Err(FrameError::Malformed {
                    what: "answer",
                    why,
                }
                .into());
            }
            Ok(Answer { header, kind, body })
        };
        match timeout_at(deadline.into(), exchange).await {
            Ok(result) => result,
            Err(_) => Err(NetError::Deadline { waiting_for }),
        }
    }

    /// Whether both are clones of one link.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The peer's next request; `None` when the link is closed and what had arrived before was
    /// handed out.
    pub async fn next(&self) -> Option<Request> {
        let (send, recv) = self.0.connection.accept_bi().await.ok()?;
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Some(Request::new(self.clone(), send, recv))
    }

    /// Whether the link is closed, by either end or by silence.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.connection.close_reason().is_some()
    }

    /// Why the link is closed; `None` while it is open.
    #[must_use]
    pub fn close_reason(&self) -> Option<String> {
        self.0.connection.close_reason().as_ref().map(reason_text)
    }

    /// Waits until the link is closed, and says why.
    pub async fn closed_for(&self) -> String {
        reason_text(&self.0.connection.closed().await)
    }

    /// Closes the link at once; calls under way fail with [`NetError::Closed`] at both ends,
    /// with `why` in it.
    pub fn close(&self, why: &str) {
        self.0.connection.close(CODE_CLOSED, why.as_bytes());
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let stats = self.0.connection.stats();
        LinkStats {
            rtt: stats.path.rtt,
            mtu_bytes: stats.path.current_mtu,
            window_bytes: stats.path.cwnd,
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            open: self.0.open.load(Ordering::Relaxed),
        }
    }

    /// A call or request ended.
    pub(crate) fn one_less(&self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn closed(&self, error: &ConnectionError) -> NetError {
        NetError::Closed {
            addr: self.0.addr,
            why: reason_text(error),
        }
    }

    pub(crate) fn write_error(&self, error: &WriteError) -> NetError {
        match error {
            WriteError::ConnectionLost(error) => self.closed(error),
            WriteError::Stopped(_) | WriteError::ClosedStream | WriteError::ZeroRttRejected => {
                NetError::Abandoned
            }
        }
    }

    pub(crate) fn read_error(&self, fault: ReadFault) -> NetError {
        match fault {
            ReadFault::Frame { error, .. } => error.into(),
            ReadFault::Stream(ReadError::ConnectionLost(error)) => self.closed(&error),
            ReadFault::Stream(_) => NetError::Abandoned,
        }
    }
}

fn reason_text(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TimedOut => "nothing was heard from it for too long".into(),
        ConnectionError::LocallyClosed => "this end closed it".into(),
        ConnectionError::Reset => "it was restarted".into(),
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => {
            "it closed the link".into()
        }
        ConnectionError::ApplicationClosed(close) => {
            format!(
                "it closed the link: {}",
                String::from_utf8_lossy(&close.reason)
            )
        }
        other => other.to_string(),
    }
}

/// A call under way. Dropped before its end, it takes the request back.
struct Call<'a> {
    link: &'a Link,
    send: SendStream,
    recv: RecvStream,
    done: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.done {
            // Fails only where the stream is over, which is what is wanted.
            let _ = self.send.reset(CODE_CANCELLED);
            let _ = self.recv.stop(CODE_CANCELLED);
        }
        self.link.one_less();
    }
}
