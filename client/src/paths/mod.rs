//! Paths: the ways to reach a node's rows. Each has a file; a pull takes the cheapest one that
//! its node's descriptors offer.

pub(crate) mod quic;
