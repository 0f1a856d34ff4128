//! The parts of the command line that other programs may use: the fuzz targets and the tests do.
//!
//! * [`files`]: files of rows, pure. [`limits`]: every bound of the command line.

#![forbid(unsafe_code)]

pub mod files;
pub mod limits;
