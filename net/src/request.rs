//! A peer's request, at the end that answers it.

use bytes::Bytes;
use mneme_proto::codec;
use mneme_proto::frame::{FrameError, FrameHeader, FrameKind};
use mneme_proto::refusal::Refusal;
use quinn::{RecvStream, SendStream};
use tokio::time::timeout;

use crate::body::Body;
use crate::cert::Principal;
use crate::error::NetError;
use crate::frames::{ReadFault, frame_parts, read_frame, write_frame};
use crate::limits::REQUEST_READ_TIMEOUT;
use crate::link::{CODE_ABANDONED, Link};

/// A request under way: read it, then answer or refuse it. Dropped without either, the caller
/// gets [`NetError::Abandoned`].
#[derive(Debug)]
pub struct Request {
    link: Link,
    send: SendStream,
    recv: RecvStream,
    /// The id that the answer echoes; known once read.
    id: u64,
    answered: bool,
}

impl Request {
    pub(crate) fn new(link: Link, send: SendStream, recv: RecvStream) -> Self {
        Self {
            link,
            send,
            recv,
            id: 0,
            answered: false,
        }
    }

    /// Who asks.
    #[must_use]
    pub fn peer(&self) -> &Principal {
        self.link.peer()
    }

    /// The link that it came on.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Reads the whole request. What is no frame, or one of another version or over a limit, is
    /// refused here already, so that the peer learns why.
    ///
    /// # Errors
    /// [`NetError::Frame`] after such a refusal; [`NetError::Abandoned`] if the caller took it
    /// back; [`NetError::Closed`]; [`NetError::Deadline`] if its bytes do not arrive.
    pub async fn read(&mut self) -> Result<(FrameHeader, FrameKind, Body), NetError> {
        let waiting_for = "the bytes of a request";
        let read = timeout(REQUEST_READ_TIMEOUT, read_frame(&mut self.recv))
            .await
            .map_err(|_| NetError::Deadline { waiting_for })?;
        match read {
            Ok((header, kind, body)) => {
                self.id = header.request.get();
                Ok((header, kind, body))
            }
            Err(ReadFault::Frame { request, error }) => {
                self.id = request;
                // The fault of the request counts, not that of a peer that does not listen.
                let _ = self.send_refusal(&refusal_of(&error)).await;
                Err(error.into())
            }
            Err(fault) => Err(self.link.read_error(fault)),
        }
    }

    /// Answers. `body` is sent in order without being copied; returns once it is handed to the
    /// link, which may be before the peer has it.
    ///
    /// # Errors
    /// [`NetError::TooLarge`] (the request can then still be refused by a new one only);
    /// [`NetError::Abandoned`] if the caller gave up; [`NetError::Closed`].
    pub async fn answer(mut self, kind: FrameKind, body: Vec<Bytes>) -> Result<(), NetError> {
        self.write(kind, body).await
    }

    /// Refuses the whole request.
    ///
    /// # Errors
    /// As [`Request::answer`].
    pub async fn refuse(mut self, refusal: &Refusal) -> Result<(), NetError> {
        self.send_refusal(refusal).await
    }

    /// Resolves when the caller has given up or the link is gone; for work that is worth
    /// stopping.
    pub fn given_up(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopped = self.send.stopped();
        async move {
            let _ = stopped.await;
        }
    }

    async fn send_refusal(&mut self, refusal: &Refusal) -> Result<(), NetError> {
        let body = codec::encode_bytes(refusal);
        self.write(FrameKind::Refused, vec![body]).await
    }

    async fn write(&mut self, kind: FrameKind, body: Vec<Bytes>) -> Result<(), NetError> {
        let mut parts = frame_parts(kind, self.id, body)?;
        let written = write_frame(&mut self.send, &mut parts).await;
        written.map_err(|error| self.link.write_error(&error))?;
        self.answered = true;
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            // Fails only where the stream is over, which is what is wanted.
            let _ = self.send.reset(CODE_ABANDONED);
        }
        self.link.one_less();
    }
}

/// What a peer is told of bytes that are no request.
fn refusal_of(error: &FrameError) -> Refusal {
    match error {
        FrameError::Version { theirs, ours } => Refusal::Version {
            theirs: *theirs,
            ours: *ours,
        },
        other => Refusal::Malformed {
            why: other.to_string(),
        },
    }
}
