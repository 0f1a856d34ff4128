//! The serving thread: accepts links, reads requests, sends answers. A thin shell around the
//! engine; what takes long goes to the background runtime, so that no pull waits behind it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mneme_net::{BusyPoll, Endpoint, Link, NetError, Principal, Request};
use mneme_proto::codec;
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{FrameHeader, FrameKind, PullView, PushView};
use mneme_proto::grant::Level;
use mneme_proto::ids::TableId;
use mneme_proto::refusal::Refusal;
use tokio::sync::Semaphore;

use crate::access;
use crate::engine::{Engine, Scratch};
use crate::limits::{LINKS_MAX, REQUESTS_PER_LINK};
use crate::node::{Node, loads};
use crate::pull;
use crate::push;
use crate::table::Table;

/// What all tasks of the serving thread share.
struct Service {
    node: Arc<Node>,
    engine: Arc<Engine>,
    /// Borrowed between awaits only.
    scratch: RefCell<Scratch>,
    busy: Arc<BusyPoll>,
}

/// An answer's kind and body, or the refusal of the whole request.
type Answered = Result<(FrameKind, Vec<Bytes>), Refusal>;

/// Accepts links until the endpoint is closed. Runs within a `LocalSet`.
pub(crate) async fn serve(endpoint: Endpoint, node: Arc<Node>, busy: Arc<BusyPoll>) {
    tokio::task::spawn_local(Arc::clone(&busy).run());
    let engine = Arc::clone(node.engine());
    let service = Rc::new(Service {
        node,
        engine,
        scratch: RefCell::default(),
        busy,
    });
    let places = Arc::new(Semaphore::new(LINKS_MAX));
    while let Some(link) = endpoint.accept().await {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            link.close("the node serves as many links as it may: try again later");
            continue;
        };
        let service = Rc::clone(&service);
        tokio::task::spawn_local(async move {
            service.engine.metrics.links.inc();
            service.serve_link(&link).await;
            service.engine.metrics.links.dec();
            drop(place);
        });
    }
}

impl Service {
    /// Serves a link's requests side by side. Those above the bound wait in their streams, where
    /// the transport's windows hold them back.
    async fn serve_link(self: &Rc<Self>, link: &Link) {
        let places = Arc::new(Semaphore::new(REQUESTS_PER_LINK));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Some(request) = link.next().await else {
                return;
            };
            let service = Rc::clone(self);
            tokio::task::spawn_local(async move {
                service.engine.metrics.requests.inc();
                // A link that is gone, or a caller that gave up, wants no answer.
                let served = service.serve_request(request).await;
                service.engine.metrics.requests.dec();
                if let Err(error) = served {
                    tracing::debug!(%error, "a request ended without its answer");
                }
                drop(place);
            });
        }
    }

    async fn serve_request(&self, mut request: Request) -> Result<(), NetError> {
        let (header, kind, body) = request.read().await?;
        self.busy.end();
        let peer = request.peer();
        let answered = match access::check_role(peer, kind_word(kind)) {
            Ok(()) => {
                self.answer(peer, header, kind, body.into_contiguous())
                    .await
            }
            Err(refusal) => Err(refusal),
        };
        let sent = match answered {
            Ok((kind, body)) => request.answer(kind, body).await,
            Err(refusal) => {
                self.engine.metrics.refused(&refusal);
                request.refuse(&refusal).await
            }
        };
        self.busy.begin();
        sent
    }

    /// Every kind of request asks [`Service::permitted`] for its table before it does anything.
    async fn answer(
        &self,
        peer: &Principal,
        header: FrameHeader,
        kind: FrameKind,
        body: Bytes,
    ) -> Answered {
        match kind {
            FrameKind::Pull => self.pull(peer, &body).await,
            FrameKind::Push => self.push(peer, &body).await,
            FrameKind::Load => self.load(peer, body).await,
            FrameKind::Control => {
                header.check_crc(&body).map_err(malformed)?;
                self.control(peer, &body).await
            }
            FrameKind::Pulled | FrameKind::Pushed | FrameKind::Refused => Err(Refusal::Malformed {
                why: format!("{kind:?} is an answer, not a request"),
            }),
        }
    }

    async fn pull(&self, peer: &Principal, body: &[u8]) -> Answered {
        let view = PullView::parse(body).map_err(malformed)?;
        let id = TableId(view.header.table.get());
        let (known, needs) = (
            self.engine.table_of_pull(&view),
            Level::of_pull(view.missing),
        );
        let table = self.permitted(peer, id, known, needs).await?;
        let layout = pull::layout(&table, &view)?;
        let place = match self.engine.replies.try_place(layout.bytes) {
            Ok(place) => place,
            Err(_) => self.engine.replies.place(layout.bytes).await?,
        };
        let scratch = &mut self.scratch.borrow_mut();
        let body = self.engine.pull(&table, &view, layout, place, scratch);
        Ok((FrameKind::Pulled, body))
    }

    async fn push(&self, peer: &Principal, body: &[u8]) -> Answered {
        let view = PushView::parse(body).map_err(malformed)?;
        let id = TableId(view.header.table.get());
        let known = self.engine.table_of_push(&view);
        let table = self.permitted(peer, id, known, Level::Write).await?;
        let untouched = push::untouched(&table, &view);
        if !untouched.is_empty() {
            let (node, table) = (Arc::clone(&self.node), Arc::clone(&table));
            self.background(async move { node.touch(&table, untouched).await })
                .await?;
        }
        let scratch = &mut self.scratch.borrow_mut();
        let body = self.engine.push(&table, &view, scratch);
        Ok((FrameKind::Pushed, body))
    }

    async fn load(&self, peer: &Principal, body: Bytes) -> Answered {
        let id = loads::table_of(&body)?;
        let known = self.engine.tables.get(id);
        self.permitted(peer, id, known, Level::Write).await?;
        let node = Arc::clone(&self.node);
        self.background(async move { node.load_rows(body).await })
            .await?;
        Ok(control_answer(&NodeResponse::Done))
    }

    async fn control(&self, peer: &Principal, body: &[u8]) -> Answered {
        let request: NodeRequest = codec::decode(body).map_err(malformed)?;
        let id = request.table();
        let known = self
            .engine
            .tables
            .get(id)
            .filter(|table| knows_sessions(table, &request));
        let table = self.permitted(peer, id, known, request.needs()).await?;
        let answer = match request {
            NodeRequest::OpenSessions { shards, .. } => {
                NodeResponse::Sessions(self.engine.open_sessions(&table, &shards)?)
            }
            NodeRequest::VoidSequence {
                shard,
                session,
                sequence,
                ..
            } => {
                self.engine
                    .void_sequence(&table, shard, session, sequence)?;
                NodeResponse::Done
            }
            other => {
                let node = Arc::clone(&self.node);
                self.background(async move { node.control(other).await })
                    .await?
            }
        };
        Ok(control_answer(&answer))
    }

    /// The table of a request, if the peer may do this with it. `known` is the table as the node
    /// knows it, or none if the request comes from a newer map. A grant that is not known may have
    /// been given a moment ago: as for a newer map, the catalogue is looked at once.
    async fn permitted(
        &self,
        peer: &Principal,
        id: TableId,
        known: Option<Arc<Table>>,
        needs: Level,
    ) -> Result<Arc<Table>, Refusal> {
        if let Some(table) = known.filter(|table| access::may(peer, table, needs)) {
            return Ok(table);
        }
        access::permitted(peer, id, self.newer(id).await, needs)
    }

    /// The table after one look at the catalogue: the request may come from a newer map.
    async fn newer(&self, table: TableId) -> Result<Arc<Table>, Refusal> {
        let node = Arc::clone(&self.node);
        self.background(async move { node.refresh(table).await })
            .await
    }

    /// Runs what may take long on the background runtime.
    async fn background<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let done = self.node.background().spawn(work).await;
        done.unwrap_or_else(|error| {
            Err(Refusal::Internal {
                why: error.to_string(),
            })
        })
    }
}

/// Whether sessions are asked for by a map that the node knows.
fn knows_sessions(table: &Table, request: &NodeRequest) -> bool {
    match request {
        NodeRequest::OpenSessions { shards, .. } => shards
            .iter()
            .all(|(shard, epoch)| table.knows_epoch(shard.0, epoch.0)),
        _ => true,
    }
}

fn kind_word(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Pull | FrameKind::Pulled => "pull",
        FrameKind::Push | FrameKind::Pushed => "push",
        FrameKind::Load => "load",
        FrameKind::Control => "control",
        FrameKind::Refused => "refused",
    }
}

fn control_answer(answer: &NodeResponse) -> (FrameKind, Vec<Bytes>) {
    (FrameKind::Control, vec![codec::encode_bytes(answer)])
}

fn malformed(error: impl std::error::Error) -> Refusal {
    Refusal::Malformed {
        why: error.to_string(),
    }
}
