//! Buffers of answers: reused, bounded, and accounted apart from the pools (I-12, B048).
//!
//! An answer is written once, into one buffer, and handed to the link without a copy. When the
//! peer has acknowledged it the buffer comes back, with its old contents: it is not cleared
//! again, so whoever fills one writes every byte of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mneme_proto::refusal::Refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{REPLY_BYTES_MAX, REPLY_IDLE_BYTES_MAX, REPLY_UNIT_BYTES, REPLY_WAIT};

/// All answer buffers of a node.
#[derive(Debug)]
pub struct Replies {
    units: Arc<Semaphore>,
    limit_bytes: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Buffers by the power of two that is their size.
    by_size: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

/// A place among the answers under way: `bytes` of them.
#[derive(Debug)]
pub struct ReplyPlace {
    _permit: OwnedSemaphorePermit,
    bytes: usize,
}

/// One answer. Dropped, its memory serves the next.
#[derive(Debug)]
pub struct Reply {
    buffer: Vec<u8>,
    len: usize,
    home: Arc<Replies>,
    _place: ReplyPlace,
}

impl Default for Replies {
    fn default() -> Self {
        Self::with_limit(REPLY_BYTES_MAX)
    }
}

impl Replies {
    /// Buffers of which `limit_bytes` may be under way at a time.
    #[must_use]
    pub fn with_limit(limit_bytes: usize) -> Self {
        Self {
            units: Arc::new(Semaphore::new(limit_bytes / REPLY_UNIT_BYTES)),
            limit_bytes,
            idle: Mutex::default(),
        }
    }

    /// Waits for a place for `bytes` of answer: slow readers of earlier answers are waited for,
    /// a little.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when none comes free.
    pub async fn place(&self, bytes: usize) -> Result<ReplyPlace, Refusal> {
        let units = bytes.div_ceil(REPLY_UNIT_BYTES) as u32;
        let acquire = Arc::clone(&self.units).acquire_many_owned(units);
        match tokio::time::timeout(REPLY_WAIT, acquire).await {
            Ok(Ok(permit)) => Ok(ReplyPlace {
                _permit: permit,
                bytes,
            }),
            Ok(Err(_)) | Err(_) => Err(self.full()),
        }
    }

    /// [`Replies::place`] without waiting.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when there is none.
    pub fn try_place(&self, bytes: usize) -> Result<ReplyPlace, Refusal> {
        let units = bytes.div_ceil(REPLY_UNIT_BYTES) as u32;
        match Arc::clone(&self.units).try_acquire_many_owned(units) {
            Ok(permit) => Ok(ReplyPlace {
                _permit: permit,
                bytes,
            }),
            Err(_) => Err(self.full()),
        }
    }

    /// A buffer of the place's length, with arbitrary contents.
    #[must_use]
    pub fn take(self: &Arc<Self>, place: ReplyPlace) -> Reply {
        let len = place.bytes;
        let class = len.max(REPLY_UNIT_BYTES).next_power_of_two();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let reused = idle.by_size.get_mut(&class).and_then(Vec::pop);
        if reused.is_some() {
            idle.bytes -= class;
        }
        drop(idle);
        let buffer = reused.unwrap_or_else(|| vec![0; class]);
        Reply {
            buffer,
            len,
            home: Arc::clone(self),
            _place: place,
        }
    }

    /// Bytes of answers under way.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.limit_bytes - self.units.available_permits() * REPLY_UNIT_BYTES
    }

    fn full(&self) -> Refusal {
        let why = format!(
            "{} B of answers are under way to slow readers, {} are allowed: try again",
            self.used_bytes(),
            self.limit_bytes
        );
        Refusal::Unavailable { why }
    }
}

impl Reply {
    /// The whole answer, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let class = buffer.len();
        let mut idle = self
            .home
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if idle.bytes + class <= REPLY_IDLE_BYTES_MAX {
            idle.bytes += class;
            idle.by_size.entry(class).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_and_the_cap_holds() {
        let replies = Arc::new(Replies::with_limit(4 * REPLY_UNIT_BYTES));
        let reply = replies.take(replies.try_place(3 * REPLY_UNIT_BYTES).expect("room"));
        let at = reply.as_ref().as_ptr();
        assert_eq!(replies.used_bytes(), 3 * REPLY_UNIT_BYTES);
        assert!(replies.try_place(2 * REPLY_UNIT_BYTES).is_err());
        // Handed to a link: the bytes live until the peer has them.
        let sent = bytes::Bytes::from_owner(reply);
        assert_eq!(replies.used_bytes(), 3 * REPLY_UNIT_BYTES);
        drop(sent);
        assert_eq!(replies.used_bytes(), 0);
        let again = replies.take(replies.try_place(3 * REPLY_UNIT_BYTES - 1).expect("room"));
        assert_eq!(again.as_ref().as_ptr(), at);
        assert_eq!(again.as_ref().len(), 3 * REPLY_UNIT_BYTES - 1);
    }
}
