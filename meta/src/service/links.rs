//! Links in, requests off them, answers back.

use std::sync::Arc;

use bytes::Bytes;
use mneme_net::{Endpoint, Link, Request};
use mneme_proto::codec;
use mneme_proto::control::{CatalogueRequest, CatalogueResponse};
use mneme_proto::frame::FrameKind;
use mneme_proto::limits::CONTROL_BODY_BYTES_MAX;
use mneme_proto::refusal::Refusal;
use tokio::task::JoinSet;

use crate::service::member::Member;

/// Serves links until the endpoint is closed. Dropped, it takes all its work along.
pub(super) async fn serve(member: Arc<Member>, endpoint: Endpoint) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            link = endpoint.accept() => match link {
                Some(link) => drop(links.spawn(serve_link(member.clone(), link))),
                None => break,
            },
            Some(_) = links.join_next() => {}
        }
    }
}

/// The number of requests under way is bounded by the link's streams.
async fn serve_link(member: Arc<Member>, link: Link) {
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            request = link.next() => match request {
                Some(request) => drop(requests.spawn(serve_request(member.clone(), request))),
                None => break,
            },
            Some(_) = requests.join_next() => {}
        }
    }
}

async fn serve_request(member: Arc<Member>, mut request: Request) {
    // What is no frame was refused by the link already.
    let Ok((_, kind, body)) = request.read().await else {
        return;
    };
    let asked = match kind {
        FrameKind::Control => codec::decode::<CatalogueRequest>(&body.into_contiguous())
            .map_err(|error| error.to_string()),
        other => Err(format!("the catalogue takes control frames, not {other:?}")),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(why) => {
            send(request, Err(Refusal::Malformed { why })).await;
            return;
        }
    };
    let given_up = request.given_up();
    let peer = request.peer().clone();
    // A command that is under way when its caller leaves may still be committed; callers that
    // ask again are answered by the request number, or find it done.
    let response = tokio::select! {
        response = member.answer(&peer, asked) => response,
        () = given_up => return,
    };
    send(request, encode(&response)).await;
}

fn encode(response: &CatalogueResponse) -> Result<Bytes, Refusal> {
    let bytes = codec::encode_bytes(response);
    if bytes.len() > CONTROL_BODY_BYTES_MAX as usize {
        return Err(Refusal::Limit {
            what: "bytes of one answer".into(),
            asked: bytes.len() as u64,
            used: 0,
            limit: u64::from(CONTROL_BODY_BYTES_MAX),
        });
    }
    Ok(bytes)
}

async fn send(request: Request, answer: Result<Bytes, Refusal>) {
    let sent = match answer {
        Ok(bytes) => request.answer(FrameKind::Control, vec![bytes]).await,
        Err(refusal) => request.refuse(&refusal).await,
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "an answer was not taken");
    }
}
