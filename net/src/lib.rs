//! Links between principals: certificates, QUIC endpoints, and frames on streams.
//!
//! * [`addr`]: `host:port` as people write it.
//! * [`cert`], [`identity`]: a cluster's authority, the principals it names, and their files,
//!   reloaded when they change.
//! * [`endpoint`]: a UDP socket that dials and answers. Both ends of a link show certificates of
//!   one authority, over TLS 1.3; a dialer says which role it wants to reach.
//! * [`link`]: one request and one answer per stream, with a deadline.
//! * [`catalogue`]: the way to the catalogue's leader, for nodes and clients alike.
//! * [`body`]: what arrived, in the chunks in which it arrived, so that rows are copied once.
//!
//! Called by `meta` and `server` (both ends) and `client` (dialing). It knows frames, not what
//! is in them.
//!
//! What it promises: nothing is allocated on a claim, only on bytes received, and before a peer
//! is authenticated only a bounded little (I-12); no wait outlives its caller's deadline; a call
//! that is dropped takes back its own request and disturbs no other; whatever is refused is
//! refused by a typed error of one clear line.

#![deny(unsafe_code)]

pub mod addr;
pub mod body;
pub mod busy;
pub mod catalogue;
pub mod cert;
mod date;
mod dial;
pub mod endpoint;
pub mod error;
mod frames;
mod handshake;
pub mod identity;
pub mod limits;
pub mod link;
pub mod options;
pub mod request;
mod socket;
mod tls;

pub use addr::HostPort;
pub use body::Body;
pub use busy::BusyPoll;
pub use catalogue::{CatalogueError, CatalogueLink};
pub use cert::{CertError, Principal, Role, init_authority, issue};
pub use endpoint::{Endpoint, EndpointStats};
pub use error::{HandshakeFault, NetError};
pub use identity::Identity;
pub use link::{Answer, Link, LinkStats};
pub use options::LinkOptions;
pub use request::Request;
pub use tls::Expected;
