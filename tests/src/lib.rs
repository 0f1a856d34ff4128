//! The harness of process tests: it runs the real `mneme` binary, kills it, stops it, feeds it
//! bytes, and reads what it prints. The tests themselves are in `suites/`.
//!
//! * [`process`]: one child process, its output kept for failures, and signals to it.
//! * [`dev`]: a `mneme dev` with free ports over a directory of its own.
//! * [`trio`]: a catalogue, two nodes and certificates, started by hand as the README shows.
//! * [`command`]: `mneme` commands that end: exit code, stdout (JSON), stderr.
//! * [`rows`]: tables as tests want them, over the blocking client.
//! * [`files`]: safetensors and npy, written and read without the product's own code.
//! * [`raw`]: QUIC connections that misbehave.
//! * [`http`]: one GET.
//! * [`wait`]: conditions with a deadline. No test sleeps to wait.
//!
//! What it must never do: use a fixed port, a directory outside its own, or the user's home.

#![forbid(unsafe_code)]

pub mod command;
pub mod dev;
pub mod files;
pub mod http;
pub mod limits;
pub mod process;
pub mod raw;
pub mod rows;
pub mod trio;
pub mod wait;

pub use command::{Mneme, Output};
pub use dev::Dev;
pub use process::{Process, Signal};
pub use trio::Trio;
pub use wait::wait_until;
