//! Asking the catalogue: finds the member that leads, follows it, redials, forgets no seed.
//!
//! Nodes and clients share this. It must never sit on the data path: no pull or push calls it
//! while its map is good (I-9).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mneme_proto::codec::{CodecError, decode, encode_bytes};
use mneme_proto::control::{CatalogueRequest, CatalogueResponse};
use mneme_proto::frame::FrameKind;
use mneme_proto::refusal::Refusal;
use tokio::sync::Mutex;

use crate::addr::HostPort;
use crate::cert::Role;
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::limits::{CATALOGUE_BACKOFF, CATALOGUE_BACKOFF_MAX, CATALOGUE_DIAL};
use crate::link::{Answer, Link};

/// Why the catalogue did not answer what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It refused; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No member answered in time.
    #[error("the catalogue at {seeds} did not answer in time: {last}")]
    Unreachable {
        /// The seeds that were tried.
        seeds: String,
        /// What the last try said.
        last: String,
    },
    /// The peer turned this principal or protocol away: trying again is of no use.
    #[error("the catalogue refused the connection: {0}")]
    Rejected(NetError),
    /// An answer that is none of ours.
    #[error("the catalogue's answer cannot be read: {0}")]
    Codec(#[from] CodecError),
}

/// The way to the catalogue's leader. Cheap to clone; all clones share one link.
#[derive(Debug, Clone)]
pub struct CatalogueLink {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    seeds: Vec<HostPort>,
    requests: AtomicU64,
    /// Held while dialling, so that many callers make one link; never while waiting for answers.
    route: Mutex<Route>,
}

/// Where the next request goes.
#[derive(Debug, Default)]
struct Route {
    link: Option<Link>,
    /// The leader that the last member named; tried before the seeds.
    leader: Option<HostPort>,
    next_seed: usize,
}

impl CatalogueLink {
    /// A way to the catalogue behind `seeds` (at least one), dialled on first use.
    #[must_use]
    pub fn new(endpoint: Endpoint, seeds: Vec<HostPort>) -> Self {
        let requests = AtomicU64::new(1);
        Self {
            inner: Arc::new(Inner {
                endpoint,
                seeds,
                requests,
                route: Mutex::default(),
            }),
        }
    }

    /// The seeds, as given.
    #[must_use]
    pub fn seeds(&self) -> &[HostPort] {
        &self.inner.seeds
    }

    /// Asks until a leader answers, something is refused, or `deadline` passes. A request may
    /// arrive more than once: those that must not act twice carry a number of their own.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub async fn ask(
        &self,
        request: CatalogueRequest,
        deadline: Instant,
    ) -> Result<CatalogueResponse, CatalogueError> {
        let body = encode_bytes(&request);
        let mut backoff = CATALOGUE_BACKOFF;
        let mut last = String::from("no time was left to ask");
        while Instant::now() < deadline {
            match self.try_once(body.clone(), deadline).await {
                Ok(CatalogueResponse::NotLeader { leader }) => {
                    last = String::from("it has no leader");
                    self.follow(leader).await;
                }
                Ok(CatalogueResponse::Refused(refusal)) if refusal.is_transient() => {
                    last = refusal.to_string();
                }
                Ok(CatalogueResponse::Refused(refusal)) => return Err(refusal.into()),
                Ok(answer) => return Ok(answer),
                Err(Try::Net(error)) if error.is_rejection() => {
                    return Err(CatalogueError::Rejected(error));
                }
                Err(Try::Net(error)) => last = error.to_string(),
                Err(Try::Codec(error)) => return Err(error.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            tokio::time::sleep(jittered(backoff).min(left)).await;
            backoff = (backoff * 2).min(CATALOGUE_BACKOFF_MAX);
        }
        let seeds: Vec<String> = self.inner.seeds.iter().map(ToString::to_string).collect();
        Err(CatalogueError::Unreachable {
            seeds: seeds.join(","),
            last,
        })
    }

    async fn try_once(
        &self,
        body: bytes::Bytes,
        deadline: Instant,
    ) -> Result<CatalogueResponse, Try> {
        let link = self.link(deadline).await?;
        let number = self.inner.requests.fetch_add(1, Ordering::Relaxed);
        match link
            .call(FrameKind::Control, number, vec![body], deadline)
            .await
        {
            Ok(answer) => read_answer(answer),
            Err(error) => {
                self.forget(&link).await;
                Err(error.into())
            }
        }
    }

    /// The live link, or a new one to the named leader or the next seed.
    async fn link(&self, deadline: Instant) -> Result<Link, Try> {
        let mut route = self.inner.route.lock().await;
        if let Some(link) = route.link.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let target = route.leader.take().unwrap_or_else(|| {
            let seed = self.inner.seeds[route.next_seed % self.inner.seeds.len()].clone();
            route.next_seed = route.next_seed.wrapping_add(1);
            seed
        });
        let dial_by = deadline.min(Instant::now() + CATALOGUE_DIAL);
        let link = self
            .inner
            .endpoint
            .connect_host(&target, Role::Catalogue, dial_by)
            .await?;
        route.link = Some(link.clone());
        Ok(link)
    }

    /// Drops a link that failed, unless somebody has replaced it already.
    async fn forget(&self, failed: &Link) {
        let mut route = self.inner.route.lock().await;
        if route.link.as_ref().is_some_and(|link| link.is_same(failed)) {
            route.link = None;
        }
    }

    async fn follow(&self, leader: Option<(u64, String)>) {
        let mut route = self.inner.route.lock().await;
        route.link = None;
        route.leader = leader.and_then(|(_, address)| address.parse().ok());
    }
}

/// How one try failed.
enum Try {
    Net(NetError),
    Codec(CodecError),
}

impl From<NetError> for Try {
    fn from(error: NetError) -> Self {
        Self::Net(error)
    }
}

fn read_answer(answer: Answer) -> Result<CatalogueResponse, Try> {
    let kind = answer.kind;
    let body = answer.body.into_contiguous();
    if kind == FrameKind::Refused {
        return decode::<Refusal>(&body)
            .map(CatalogueResponse::Refused)
            .map_err(Try::Codec);
    }
    decode(&body).map_err(Try::Codec)
}

/// Half to the whole of `backoff`, so that many clients of a lost leader come back spread out.
fn jittered(backoff: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher};
    // RandomState is seeded per process and per call; no generator has to be carried along.
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    backoff / 2 + backoff.mul_f64(0.5 * (random as f64 / u64::MAX as f64))
}
