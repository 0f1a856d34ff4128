//! libFuzzer over [`mneme_cli::files::fuzz::parquet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mneme_cli::files::fuzz::parquet(data));
