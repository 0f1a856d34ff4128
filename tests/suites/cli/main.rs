//! The command line as scripts rely on it: outputs, exit codes, files, ends.

mod by_hand;
mod dtypes;
mod examples;
mod files;
mod formats;
mod lifecycle;
mod readme;
mod rows;
mod tables;
mod web;
