//! The one binary, `mneme`: everything that users and scripts type.
//!
//! * [`cli`]: the command line as a whole. [`settings`]: options from the environment and a file.
//! * [`commands`]: one module per command, its arguments beside what it does.
//! * [`cluster`]: a whole cluster in one process, for `dev` and `demo`.
//! * [`files`]: files of rows, pure. [`values`], [`output`], [`failure`]: what is printed.
//!
//! It promises: exit code 0 only for success, 1 for failure, 2 for wrong usage; errors are one
//! line on stderr; stdout holds results only, with `--json` one JSON document; a file that is
//! refused has changed nothing.

#![forbid(unsafe_code)]
// Comments of arguments are help texts that a terminal shows as they are: `dram:SIZE[,numa=N]`.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

/// The system's own gives packet buffers back to the kernel after each answer and has them cleared
/// again for the next.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod cli;
mod cluster;
mod commands;
mod failure;
mod output;
mod settings;
mod values;

use mneme_cli::{files, limits};

fn main() -> std::process::ExitCode {
    cli::main()
}
