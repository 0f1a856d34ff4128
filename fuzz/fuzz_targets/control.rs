//! libFuzzer over [`mneme_proto::fuzz::control`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mneme_proto::fuzz::control(data));
