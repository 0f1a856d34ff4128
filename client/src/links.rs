//! One link per node, dialed when first needed, by one caller for all, and again after a loss.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use dashmap::DashMap;
use mneme_net::{Endpoint, HostPort, Link, NetError, Principal, Role};
use mneme_proto::ids::{Incarnation, NodeId};
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use crate::cost::Observed;
use crate::error::NodeFault;
use crate::router::NodeRoute;

/// Links to nodes. A node with a new incarnation is another node.
#[derive(Debug)]
pub(crate) struct Links {
    endpoint: Endpoint,
    connect_timeout: Duration,
    by_node: DashMap<(NodeId, Incarnation), Arc<NodeLink>>,
}

/// The way to one life of a node.
pub(crate) struct NodeLink {
    pub(crate) route: Arc<NodeRoute>,
    current: ArcSwapOption<Link>,
    /// Held while dialing, with the outcome of the last dial that failed.
    dialing: Mutex<Option<(Instant, NodeFault)>>,
    /// Answers received, over all links: tells a slow node from a silent one.
    answers: AtomicU64,
    requests: AtomicU64,
    pub(crate) observed: Observed,
}

impl fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLink")
            .field("node", &self.route.name)
            .finish_non_exhaustive()
    }
}

impl Links {
    pub(crate) fn new(endpoint: Endpoint, connect_timeout: Duration) -> Self {
        Self {
            endpoint,
            connect_timeout,
            by_node: DashMap::new(),
        }
    }

    /// The way to a node; nothing is dialed yet.
    pub(crate) fn to(&self, route: &Arc<NodeRoute>) -> Arc<NodeLink> {
        let key = (route.id, route.incarnation);
        if let Some(found) = self
            .by_node
            .get(&key)
            .filter(|l| l.route.address == route.address)
        {
            return found.clone();
        }
        // Earlier lives of the node are over; their links close with their last call.
        self.by_node
            .retain(|(node, incarnation), _| *node != route.id || *incarnation > route.incarnation);
        let made = Arc::new(NodeLink {
            route: route.clone(),
            current: ArcSwapOption::empty(),
            dialing: Mutex::new(None),
            answers: AtomicU64::new(0),
            requests: AtomicU64::new(1),
            observed: Observed::default(),
        });
        self.by_node.insert(key, made.clone());
        made
    }

    /// The live link, or a new one. Many callers that find none make one link.
    pub(crate) async fn link(&self, to: &NodeLink, deadline: Instant) -> Result<Link, NodeFault> {
        if let Some(link) = to.live() {
            return Ok(link);
        }
        let asked = Instant::now();
        let waiting = timeout_at(deadline.into(), to.dialing.lock()).await;
        let mut last = waiting.map_err(|_| NodeFault::Deadline("another call's connection"))?;
        if let Some(link) = to.live() {
            return Ok(link);
        }
        if let Some((_, fault)) = last.as_ref().filter(|(at, _)| *at > asked) {
            return Err(fault.clone()); // it failed while this caller waited for it
        }
        let until = deadline.min(Instant::now() + self.connect_timeout);
        match self.dial(&to.route, until).await {
            Ok(link) => {
                *last = None;
                to.current.store(Some(Arc::new(link.clone())));
                Ok(link)
            }
            Err(fault) => {
                *last = Some((Instant::now(), fault.clone()));
                Err(fault)
            }
        }
    }

    async fn dial(&self, route: &NodeRoute, until: Instant) -> Result<Link, NodeFault> {
        let unreachable = |why: String| NodeFault::Unreachable(why);
        let target: HostPort = route
            .address
            .parse()
            .map_err(|e| unreachable(format!("{e}")))?;
        let expected = Principal {
            role: Role::Node,
            name: route.name.to_string(),
        };
        let dialed = self.endpoint.connect_host(&target, &expected, until).await;
        dialed.map_err(|error| match error {
            NetError::Deadline { waiting_for } => NodeFault::Deadline(waiting_for),
            other => unreachable(other.to_string()),
        })
    }
}

impl NodeLink {
    fn live(&self) -> Option<Link> {
        let link = self.current.load_full()?;
        (!link.is_closed()).then(|| Link::clone(&link))
    }

    /// Whether a call would find a link.
    pub(crate) fn is_connected(&self) -> bool {
        self.live().is_some()
    }

    /// A number for the next request.
    pub(crate) fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Answers so far; to be handed to [`NodeLink::timed_out`].
    pub(crate) fn heard(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// An answer arrived.
    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// A call on `link` timed out. If no call at all was answered meanwhile the link is suspect:
    /// the next call dials a new one, those under way keep theirs (B096).
    pub(crate) fn timed_out(&self, link: &Link, heard_before: u64) {
        if self.heard() == heard_before {
            self.forget(link);
        }
    }

    /// Drops `link`, unless it was replaced already.
    pub(crate) fn forget(&self, link: &Link) {
        let current = self.current.load();
        if let Some(found) = current.as_ref().filter(|found| found.is_same(link)) {
            self.current.compare_and_swap(&Some(found.clone()), None);
        }
    }
}
