//! The `quic` path: one frame and its answer on a stream of the node's link.

use std::time::Instant;

use bytes::Bytes;
use mneme_net::{Answer, Body, NetError};
use mneme_proto::codec;
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::FrameKind;
use mneme_proto::refusal::Refusal;

use crate::error::NodeFault;
use crate::links::{Links, NodeLink};

/// What became of an exchange.
#[derive(Debug)]
pub(crate) enum Exchanged {
    /// Answered by a frame of the wanted kind.
    Answered(Body),
    /// The node refused the request as a whole; nothing of it took effect.
    Refused(Refusal),
    /// No answer, and the node cannot have taken the request up.
    NotSent(NodeFault),
    /// No answer; whether the node took the request up is not known.
    InDoubt(NodeFault),
}

/// Sends one frame and waits for its answer, until `deadline`.
pub(crate) async fn exchange(
    links: &Links,
    to: &NodeLink,
    send: FrameKind,
    want: FrameKind,
    body: Vec<Bytes>,
    deadline: Instant,
) -> Exchanged {
    let link = match links.link(to, deadline).await {
        Ok(link) => link,
        Err(fault) => return Exchanged::NotSent(fault),
    };
    let heard = to.heard();
    match link.call(send, to.next_request(), body, deadline).await {
        Ok(answer) => {
            to.answered();
            sort(answer, want)
        }
        Err(NetError::Deadline { waiting_for }) => {
            to.timed_out(&link, heard);
            let fault = NodeFault::Deadline(waiting_for);
            // Before a stream is there, not a byte has left.
            if waiting_for == "a stream slot" {
                Exchanged::NotSent(fault)
            } else {
                Exchanged::InDoubt(fault)
            }
        }
        Err(error @ NetError::TooLarge { .. }) => {
            Exchanged::NotSent(NodeFault::Malformed(error.to_string()))
        }
        Err(NetError::Frame(error)) => Exchanged::InDoubt(NodeFault::Malformed(error.to_string())),
        Err(error) => {
            if error.is_link_lost() {
                to.forget(&link);
            }
            Exchanged::InDoubt(NodeFault::Lost(error.to_string()))
        }
    }
}

fn sort(answer: Answer, want: FrameKind) -> Exchanged {
    match answer.kind {
        kind if kind == want => Exchanged::Answered(answer.body),
        FrameKind::Refused => match codec::decode::<Refusal>(&answer.body.into_contiguous()) {
            Ok(refusal) => Exchanged::Refused(refusal),
            Err(error) => Exchanged::InDoubt(NodeFault::Malformed(error.to_string())),
        },
        other => {
            let why = format!("it answered a {other:?} frame, not {want:?}");
            Exchanged::InDoubt(NodeFault::Malformed(why))
        }
    }
}

/// Why a control request was not done.
#[derive(Debug)]
pub(crate) enum ControlFault {
    /// Refused; nothing changed.
    Refused(Refusal),
    /// Not answered.
    Node(NodeFault),
}

impl ControlFault {
    /// Whether the same request may succeed a little later, or with a new map.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_transient() || refusal.wants_new_map(),
            Self::Node(fault) => !matches!(fault, NodeFault::Malformed(_)),
        }
    }
}

/// Sends one control request to a node.
pub(crate) async fn control(
    links: &Links,
    to: &NodeLink,
    request: &NodeRequest,
    deadline: Instant,
) -> Result<NodeResponse, ControlFault> {
    let body = vec![codec::encode_bytes(request)];
    let (send, want) = (FrameKind::Control, FrameKind::Control);
    match exchange(links, to, send, want, body, deadline).await {
        Exchanged::Answered(body) => match codec::decode(&body.into_contiguous()) {
            Ok(NodeResponse::Refused(refusal)) => Err(ControlFault::Refused(refusal)),
            Ok(response) => Ok(response),
            Err(error) => Err(ControlFault::Node(NodeFault::Malformed(error.to_string()))),
        },
        Exchanged::Refused(refusal) => Err(ControlFault::Refused(refusal)),
        Exchanged::NotSent(fault) | Exchanged::InDoubt(fault) => Err(ControlFault::Node(fault)),
    }
}
