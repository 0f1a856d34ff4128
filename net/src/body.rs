//! A frame's body as the chunks in which it arrived, so that rows are copied once: from the
//! decrypted packets to where they belong.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::CHUNK_BYTES_MIN;

/// Received bytes, in order, read from the front through [`Buf`]: `try_copy_to_slice` scatters
/// rows, `copy_to_bytes` lends what lies in one chunk without copying.
#[derive(Debug, Clone, Default)]
pub struct Body {
    chunks: VecDeque<Bytes>,
    bytes: usize,
}

impl Body {
    /// Bytes left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The chunks left, in order; none is empty.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// What is left as one piece: free if it is one already, else one copy.
    #[must_use]
    pub fn into_contiguous(mut self) -> Bytes {
        self.copy_to_bytes(self.bytes)
    }

    /// Adds what arrived. A chunk keeps its whole packet alive, so small ones are copied
    /// together: memory stays a small multiple of the bytes (I-12).
    pub(crate) fn push(&mut self, chunk: Bytes, small: &mut BytesMut) {
        if chunk.len() < CHUNK_BYTES_MIN {
            self.bytes += chunk.len();
            small.extend_from_slice(&chunk);
            return;
        }
        self.flush(small);
        self.bytes += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// Takes over the small chunks gathered so far; `len` counts them already.
    pub(crate) fn flush(&mut self, small: &mut BytesMut) {
        if !small.is_empty() {
            self.chunks.push_back(small.split().freeze());
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        let mut body = Self {
            bytes: bytes.len(),
            chunks: VecDeque::new(),
        };
        if !bytes.is_empty() {
            body.chunks.push_back(bytes);
        }
        body
    }
}

impl Buf for Body {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "advance past the end of a body");
        self.bytes -= count;
        while count > 0 {
            let front = self
                .chunks
                .front_mut()
                .expect("bytes counts what the chunks hold");
            if front.len() > count {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.chunks.pop_front();
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.bytes, "copy past the end of a body");
        if let Some(front) = self.chunks.front_mut().filter(|front| front.len() >= count) {
            let taken = front.split_to(count);
            if front.is_empty() {
                self.chunks.pop_front();
            }
            self.bytes -= count;
            return taken;
        }
        let mut whole = BytesMut::with_capacity(count);
        while whole.len() < count {
            let chunk = self.chunk();
            let more = chunk.len().min(count - whole.len());
            whole.extend_from_slice(&chunk[..more]);
            self.advance(more);
        }
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body_of(chunks: &[Vec<u8>]) -> Body {
        let (mut body, mut small) = (Body::default(), BytesMut::new());
        for chunk in chunks {
            body.push(Bytes::from(chunk.clone()), &mut small);
        }
        body.flush(&mut small);
        body
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_bytes_are_the_same(
            sizes in prop::collection::vec(0usize..3000, 0..12),
            reads in prop::collection::vec(0usize..4000, 0..12),
        ) {
            let mut next = 0u8;
            let chunks: Vec<Vec<u8>> = sizes
                .iter()
                .map(|&n| (0..n).map(|_| { next = next.wrapping_add(1); next }).collect())
                .collect();
            let whole = chunks.concat();
            let mut body = body_of(&chunks);
            prop_assert_eq!(body.len(), whole.len());
            prop_assert_eq!(&body.clone().into_contiguous()[..], &whole[..]);
            let mut at = 0;
            for (turn, read) in reads.into_iter().enumerate() {
                let count = read.min(body.len());
                let expected = &whole[at..at + count];
                if turn % 2 == 0 {
                    prop_assert_eq!(&body.copy_to_bytes(count)[..], expected);
                } else {
                    let mut out = vec![0; count];
                    body.try_copy_to_slice(&mut out).expect("count is what is left at most");
                    prop_assert_eq!(&out[..], expected);
                }
                at += count;
                prop_assert_eq!(body.len(), whole.len() - at);
            }
            let mut too_much = vec![0; body.len() + 1];
            prop_assert!(body.try_copy_to_slice(&mut too_much).is_err());
        }

        #[test]
        fn tiny_chunks_hold_no_packets(count in 1usize..5000) {
            // I-12: 1-byte pieces of large packets become a few chunks of their own.
            let chunks = vec![vec![7u8]; count];
            prop_assert_eq!(body_of(&chunks).chunks().count(), 1);
        }
    }
}
