//! Bytes of one record on disk: a version, then postcard.
//!
//! ```text
//! record = version u32 LE (CATALOGUE_VERSION of the writer), postcard body
//! ```
//!
//! Every record carries its version, so that a log written by several releases is read record by
//! record and a newer one is refused by name instead of being misread. redb checksums its pages;
//! this format adds none of its own.

use mneme_proto::version::CATALOGUE_VERSION;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the version in front of a record.
const VERSION_BYTES: usize = size_of::<u32>();

/// Why a record of the catalogue's store is not readable, or not writable.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Written by a newer release.
    #[error(
        "{what} is of catalogue format {found}, this build reads up to {CATALOGUE_VERSION}: \
         start the newer release again"
    )]
    Newer {
        /// The record.
        what: &'static str,
        /// Its version.
        found: u32,
    },
    /// Too short for a version, or of a version that never was.
    #[error("{what} is no catalogue record: {bytes} B, version {found}")]
    Unknown {
        /// The record.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The version it claims, 0 if it is too short for one.
        found: u32,
    },
    /// The body does not decode.
    #[error("{what} is damaged: {source}")]
    Damaged {
        /// The record.
        what: &'static str,
        /// As postcard puts it.
        source: postcard::Error,
    },
    /// The value does not encode.
    #[error("{what} cannot be written: {source}")]
    Encode {
        /// The record.
        what: &'static str,
        /// As postcard puts it.
        source: postcard::Error,
    },
}

/// Encodes `value` as a record of this build's version. `what` names it in errors.
///
/// # Errors
/// [`FormatError::Encode`].
pub fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, FormatError> {
    let version = CATALOGUE_VERSION.to_le_bytes().to_vec();
    postcard::to_extend(value, version).map_err(|source| FormatError::Encode { what, source })
}

/// Decodes a record. `what` names it in errors.
///
/// # Errors
/// [`FormatError`] for a newer or unknown version and for a damaged body.
pub fn decode<T: DeserializeOwned>(what: &'static str, record: &[u8]) -> Result<T, FormatError> {
    let bytes = record.len();
    let Some((version, body)) = record.split_first_chunk::<VERSION_BYTES>() else {
        return Err(FormatError::Unknown {
            what,
            bytes,
            found: 0,
        });
    };
    match u32::from_le_bytes(*version) {
        CATALOGUE_VERSION => {
            postcard::from_bytes(body).map_err(|source| FormatError::Damaged { what, source })
        }
        found if found > CATALOGUE_VERSION => Err(FormatError::Newer { what, found }),
        found => Err(FormatError::Unknown { what, bytes, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back() {
        let record = encode("pair", &(7u64, "x".to_string())).unwrap();
        assert_eq!(record[..4], CATALOGUE_VERSION.to_le_bytes());
        let (number, text): (u64, String) = decode("pair", &record).unwrap();
        assert_eq!((number, text.as_str()), (7, "x"));
    }

    #[test]
    fn a_newer_record_is_refused_by_name() {
        let mut record = encode("a log entry", &7u64).unwrap();
        record[..4].copy_from_slice(&(CATALOGUE_VERSION + 1).to_le_bytes());
        let error = decode::<u64>("a log entry", &record).unwrap_err();
        assert!(
            matches!(error, FormatError::Newer { found, .. } if found == CATALOGUE_VERSION + 1)
        );
        assert!(
            error
                .to_string()
                .starts_with("a log entry is of catalogue format 2")
        );
    }

    #[test]
    fn short_and_damaged_records_are_errors() {
        assert!(matches!(
            decode::<u64>("x", &[1, 0]),
            Err(FormatError::Unknown { bytes: 2, .. })
        ));
        let record = encode("x", &"text".to_string()).unwrap();
        assert!(matches!(
            decode::<String>("x", &record[..6]),
            Err(FormatError::Damaged { .. })
        ));
    }
}
