//! The client against a fake cluster: real links, answers and faults by script.

mod cluster;
mod faults;
mod lanes;
mod node;
mod pulls;
mod pushes;
mod sealed;
