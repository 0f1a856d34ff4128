//! libFuzzer over [`mneme_cli::files::fuzz::npy`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mneme_cli::files::fuzz::npy(data));
