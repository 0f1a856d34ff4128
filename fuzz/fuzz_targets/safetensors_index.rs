//! libFuzzer over [`mneme_cli::files::fuzz::safetensors_index`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mneme_cli::files::fuzz::safetensors_index(data));
