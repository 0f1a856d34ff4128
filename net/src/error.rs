//! What goes wrong on a link. Each error is one line that says what, where and what to do.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::SystemTime;

use mneme_proto::frame::FrameError;

use crate::cert::{CertError, Principal, Role};
use crate::date::utc;

/// Why a link could not be opened, or a call on it not be answered.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No socket at this address.
    #[error("cannot use UDP at {addr}: {source}")]
    Socket {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A host's name that leads nowhere.
    #[error("cannot resolve '{target}': {why}")]
    Resolve {
        /// The `host:port` asked for.
        target: String,
        /// What the resolver said.
        why: String,
    },
    /// Nothing came back before the deadline.
    #[error(
        "UDP to {addr} unanswered: nobody listens there, or a firewall drops UDP between here \
         and there"
    )]
    Unreachable {
        /// The address dialed.
        addr: SocketAddr,
    },
    /// The peers could not agree on talking.
    #[error("handshake with {addr} failed: {why}")]
    Handshake {
        /// The peer's address.
        addr: SocketAddr,
        /// Why.
        why: HandshakeFault,
    },
    /// The caller's deadline passed while `waiting_for` was waited for.
    #[error("deadline exceeded while waiting for {waiting_for}")]
    Deadline {
        /// `a stream slot`, `the request to be sent`, `the answer`.
        waiting_for: &'static str,
    },
    /// The link is gone.
    #[error("the link to {addr} is closed: {why}")]
    Closed {
        /// The peer's address.
        addr: SocketAddr,
        /// Why it was closed.
        why: String,
    },
    /// The peer took the request back (a caller that gave up), or dropped it unanswered.
    #[error("the peer gave the request up")]
    Abandoned,
    /// What arrived is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that this end may not send.
    #[error("a body of {bytes} B is over the limit of {limit} B for one frame")]
    TooLarge {
        /// What was to be sent.
        bytes: u64,
        /// What a frame of this kind may hold.
        limit: u32,
    },
    /// This end's certificates do not serve.
    #[error(transparent)]
    Cert(#[from] CertError),
}

impl NetError {
    /// Whether the link is of no further use, and a new one may help.
    #[must_use]
    pub const fn is_link_lost(&self) -> bool {
        matches!(
            self,
            Self::Closed { .. } | Self::Unreachable { .. } | Self::Handshake { .. }
        )
    }

    /// Whether the peer, or this end's files, turned the caller away for good: the same dial
    /// will be refused again.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        match self {
            Self::Handshake { why, .. } => {
                !matches!(why, HandshakeFault::Busy | HandshakeFault::Other(_))
            }
            Self::Cert(_) | Self::Frame(FrameError::Version { .. }) => true,
            _ => false,
        }
    }
}

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandshakeFault {
    /// The peer does not speak this protocol.
    NoCommonProtocol,
    /// A certificate's time is over.
    Expired {
        /// `the peer's` or `this end's`.
        whose: &'static str,
        /// The end of its validity, where known.
        not_after: Option<SystemTime>,
    },
    /// The peer's certificate was issued by an authority that this end does not know.
    OtherAuthority,
    /// The peer does not know the authority that issued this end's certificate.
    NotKnownThere,
    /// The peer wants a certificate and got none.
    NoCertificate,
    /// The peer's certificate names no principal of mneme.
    NoPrincipal,
    /// The peer is something else than was dialed.
    Role {
        /// The role dialed.
        wanted: Role,
        /// Who answered.
        found: Principal,
    },
    /// The peer is somebody else than was dialed.
    Name {
        /// The name dialed.
        wanted: String,
        /// Who answered.
        found: Principal,
    },
    /// The peer refused this end's certificate for another reason.
    CertificateRefused,
    /// The peer has too many handshakes under way.
    Busy,
    /// The peer speaks another version of the frames.
    Version {
        /// The peer's.
        theirs: u16,
        /// This build's.
        ours: u16,
    },
    /// Anything else, in the library's words.
    Other(String),
}

impl fmt::Display for HandshakeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommonProtocol => f.write_str("no common protocol: the peer is not mneme/1"),
            Self::Expired {
                whose,
                not_after: Some(at),
            } => {
                write!(
                    f,
                    "{whose} certificate expired on {}: issue a new one",
                    utc(*at)
                )
            }
            Self::Expired {
                whose,
                not_after: None,
            } => {
                write!(f, "{whose} certificate expired: issue a new one")
            }
            Self::OtherAuthority => f.write_str(
                "the peer's certificate was issued by another authority than this end's ca.pem",
            ),
            Self::NotKnownThere => f.write_str(
                "the peer does not know the authority that issued this end's certificate",
            ),
            Self::NoCertificate => f.write_str("the peer wants a client certificate"),
            Self::NoPrincipal => f.write_str("the peer's certificate names no mneme principal"),
            Self::Role { wanted, found } => {
                write!(f, "a {wanted} was dialed, {found} answered")
            }
            Self::Name { wanted, found } => {
                write!(f, "'{wanted}' was dialed, {found} answered")
            }
            Self::CertificateRefused => f.write_str("the peer refused this end's certificate"),
            Self::Busy => f.write_str("the peer has too many handshakes under way: try again"),
            Self::Version { theirs, ours } => write!(
                f,
                "the peer speaks protocol version {theirs}, this end {ours}: upgrade the older one"
            ),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for HandshakeFault {}
