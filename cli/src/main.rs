//! The one binary, `mneme`.
mod files;
mod limits;
fn main() {}
