//! libFuzzer over [`mneme_cli::files::fuzz::manifest`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mneme_cli::files::fuzz::manifest(data));
