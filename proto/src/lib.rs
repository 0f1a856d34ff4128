//! What crosses a boundary in mneme: ids, table schemas, maps, frames, refusals and the
//! arithmetic that every party must agree on (`mix64`, dense addressing, number formats).
//!
//! Called by every other crate. It does no I/O, has no async and no unsafe code, and reads no
//! clock. What it promises: decoding checks every length against [`limits`] before anything is
//! allocated (I-12), and encodings are fixed by golden bytes in `tests/golden.rs`.

#![forbid(unsafe_code)]

pub mod codec;
pub mod control;
pub mod dense;
pub mod dtype;
pub mod frame;
pub mod fuzz;
pub mod grant;
pub mod ids;
pub mod init;
pub mod limits;
pub mod map;
pub mod mix64;
pub mod numeric;
pub mod optimizer;
pub mod refusal;
pub mod schema;
pub mod version;
pub mod views;
