//! The decoder asserts some of what a damaged file can get wrong (the fuzzer found a negative
//! offset of a column): its panics are refusals of the file, and nothing is printed for them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use super::super::FileError;

thread_local! {
    /// Whether this thread is in the decoder.
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Panics of this process are reported by a hook of the process: there is no narrower place to
/// keep those of the decoder from standing on stderr beside the one line of the refusal.
static QUIET: Once = Once::new();

/// Runs the decoder over a file.
///
/// # Errors
/// What `decode` returns; [`FileError::Malformed`] when it panics. Its state is not to be used
/// again then.
pub(super) fn guarded<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, FileError>,
) -> Result<T, FileError> {
    QUIET.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !DECODING.get() {
                before(panic);
            }
        }));
    });
    DECODING.set(true);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    DECODING.set(false);
    decoded.unwrap_or_else(|_| {
        let why = "its metadata and its pages do not fit together";
        Err(FileError::malformed(path, "parquet", why))
    })
}
