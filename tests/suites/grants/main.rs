//! Grants from end to end: principals with certificates of their own at a cluster of processes
//! (I-13).

mod commands;
mod requests;
