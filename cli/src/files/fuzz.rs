//! What a fuzzer calls: every parser of a file format over any bytes (I-12).
