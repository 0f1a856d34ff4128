//! Control messages and maps as rkyv archives: written aligned, validated before access.
//!
//! bytecheck proves structure, not meaning: whoever decodes still checks what the values say.

use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

/// Bytes that are no valid archive of the wanted message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}: {why}")]
pub struct CodecError {
    /// The message's type.
    pub what: &'static str,
    /// What bytecheck found.
    pub why: String,
}

/// The last part of a type's path, for messages.
fn short_name<T>() -> &'static str {
    let full = std::any::type_name::<T>();
    full.rsplit("::").next().unwrap_or(full)
}

/// Archives `value`.
///
/// # Panics
/// Never for the types of this crate: their serialisation cannot fail except by exhausted
/// memory.
pub fn encode<T>(value: &T) -> AlignedVec
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    rkyv::to_bytes::<Error>(value).expect("archives of owned data cannot fail")
}

/// Archives `value` into shared bytes, ready for a frame.
pub fn encode_bytes<T>(value: &T) -> bytes::Bytes
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    bytes::Bytes::from_owner(encode(value))
}

/// Validates `bytes` as an archive of `T` and makes the owned value. The bytes may stand at
/// any alignment (a QUIC slice does): they are copied to an aligned buffer where they must be.
///
/// # Errors
/// [`CodecError`] naming the message.
pub fn decode<T>(bytes: &[u8]) -> Result<T, CodecError>
where
    T: Archive,
    T::Archived:
        for<'a> CheckBytes<HighValidator<'a, Error>> + Deserialize<T, HighDeserializer<Error>>,
{
    let aligned = align(bytes);
    rkyv::from_bytes::<T, Error>(&aligned).map_err(|error| CodecError {
        what: short_name::<T>(),
        why: error.to_string(),
    })
}

/// Validates `bytes` (aligned, as [`align`] returns them) and lends the archive in place.
///
/// # Errors
/// [`CodecError`] naming the message.
pub fn access<T>(bytes: &AlignedVec) -> Result<&T::Archived, CodecError>
where
    T: Archive,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, Error>>,
{
    rkyv::access::<T::Archived, Error>(bytes).map_err(|error| CodecError {
        what: short_name::<T>(),
        why: error.to_string(),
    })
}

/// Copies bytes to the alignment that archives need.
#[must_use]
pub fn align(bytes: &[u8]) -> AlignedVec {
    let mut aligned = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    aligned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Dtype, RowSchema};

    /// B084: an archive decodes from any alignment.
    #[test]
    fn decodes_at_every_offset() {
        let schema = RowSchema::single(Dtype::F32, 64);
        let bytes = encode(&schema);
        for offset in [0, 1, 2, 4, 8] {
            let mut moved = vec![0u8; offset];
            moved.extend_from_slice(&bytes);
            assert_eq!(
                decode::<RowSchema>(&moved[offset..]).expect("valid"),
                schema
            );
        }
    }

    #[test]
    fn damage_is_an_error_that_names_the_message() {
        let error = decode::<RowSchema>(&[7; 40]).expect_err("garbage");
        assert_eq!(error.what, "RowSchema");
    }
}
