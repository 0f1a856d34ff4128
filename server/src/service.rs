//! The serving thread: accepts links, reads requests, sends answers. A thin shell around the
//! engine; what takes long goes to the background runtime, so that no pull waits behind it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use mneme_net::{BusyPoll, Endpoint, Link, NetError, Request, Role};
use mneme_proto::codec;
use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{FrameHeader, FrameKind, PullView, PushView};
use mneme_proto::ids::TableId;
use mneme_proto::refusal::Refusal;
use tokio::sync::Semaphore;

use crate::engine::{Engine, Scratch};
use crate::limits::{LINKS_MAX, REQUESTS_PER_LINK};
use crate::node::Node;
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
        let answered = match self.permit(&request, kind) {
            Ok(()) => self.answer(header, kind, body.into_contiguous()).await,
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

    /// Rows are a client's business; nodes and the catalogue have none with a node yet.
    fn permit(&self, request: &Request, kind: FrameKind) -> Result<(), Refusal> {
        let peer = request.peer();
        if peer.role == Role::Client {
            return Ok(());
        }
        Err(Refusal::PermissionDenied {
            principal: peer.to_string(),
            action: format!("send {kind:?} requests to a node"),
        })
    }

    async fn answer(&self, header: FrameHeader, kind: FrameKind, body: Bytes) -> Answered {
        match kind {
            FrameKind::Pull => self.pull(&body).await,
            FrameKind::Push => self.push(&body).await,
            FrameKind::Load => self.load(body).await,
            FrameKind::Control => {
                header.check_crc(&body).map_err(malformed)?;
                self.control(&body).await
            }
            FrameKind::Pulled | FrameKind::Pushed | FrameKind::Refused => Err(Refusal::Malformed {
                why: format!("{kind:?} is an answer, not a request"),
            }),
        }
    }

    async fn pull(&self, body: &[u8]) -> Answered {
        let view = PullView::parse(body).map_err(malformed)?;
        let table = match self.engine.table_of_pull(&view) {
            Some(table) => table,
            None => self.newer(TableId(view.header.table.get())).await?,
        };
        let layout = pull::layout(&table, &view)?;
        let place = match self.engine.replies.try_place(layout.bytes) {
            Ok(place) => place,
            Err(_) => self.engine.replies.place(layout.bytes).await?,
        };
        let scratch = &mut self.scratch.borrow_mut();
        let body = self.engine.pull(&table, &view, layout, place, scratch);
        Ok((FrameKind::Pulled, body))
    }

    async fn push(&self, body: &[u8]) -> Answered {
        let view = PushView::parse(body).map_err(malformed)?;
        let table = match self.engine.table_of_push(&view) {
            Some(table) => table,
            None => self.newer(TableId(view.header.table.get())).await?,
        };
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

    async fn load(&self, body: Bytes) -> Answered {
        let node = Arc::clone(&self.node);
        self.background(async move { node.load_rows(body).await })
            .await?;
        Ok(control_answer(&NodeResponse::Done))
    }

    async fn control(&self, body: &[u8]) -> Answered {
        let request: NodeRequest = codec::decode(body).map_err(malformed)?;
        let answer = match request {
            NodeRequest::OpenSessions { table, shards } => {
                let table = self.table_for_sessions(table, &shards).await?;
                NodeResponse::Sessions(self.engine.open_sessions(&table, &shards)?)
            }
            NodeRequest::VoidSequence {
                table,
                shard,
                session,
                sequence,
            } => {
                let table = match self.engine.tables.get(table) {
                    Some(table) => table,
                    None => self.newer(table).await?,
                };
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

    async fn table_for_sessions(
        &self,
        table: TableId,
        shards: &[(mneme_proto::ids::ShardIndex, mneme_proto::ids::Epoch)],
    ) -> Result<Arc<Table>, Refusal> {
        let known = |t: &Arc<Table>| shards.iter().all(|(s, epoch)| t.knows_epoch(s.0, epoch.0));
        match self.engine.tables.get(table).filter(known) {
            Some(table) => Ok(table),
            None => self.newer(table).await,
        }
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

fn control_answer(answer: &NodeResponse) -> (FrameKind, Vec<Bytes>) {
    (FrameKind::Control, vec![codec::encode_bytes(answer)])
}

fn malformed(error: impl std::error::Error) -> Refusal {
    Refusal::Malformed {
        why: error.to_string(),
    }
}
