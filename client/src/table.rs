//! A table: pull, push, and what can be asked about it.

use std::sync::Arc;

use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::frame::{Missing, PushMode, Status};
use mneme_proto::ids::{NodeId, ShardIndex, TableGeneration, TableId};
use mneme_proto::limits::ERROR_KEYS_NAMED_MAX;
use mneme_proto::map::{Descriptor, PathKind, TableMap, TableState};
use mneme_proto::numeric::widen;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, StatePart, TableSpec};
use rustc_hash::FxHashSet;
use zerocopy::IntoBytes;

use crate::error::{ClientError, NodeFault, Unavailable, UnavailableKeys};
use crate::limits::CALL_KEYS_MAX;
use crate::map::TableShared;
use crate::merge::merge;
use crate::options::{
    PartialPull, PathReport, PullOptions, PushOptions, PushReport, Values, WhereReport,
};
use crate::paths::quic::{ControlFault, control};
use crate::plan::Ask;
use crate::pull::{pull, served};
use crate::push::push;
use crate::router::{NodeRoute, Router};
use crate::scatter::Out;

/// A handle to one table. Clones are cheap and share the cached map, the push sessions and the
/// coalescer.
#[derive(Debug, Clone)]
pub struct Table(Arc<TableShared>);

/// A table with its figures, as its nodes count them now.
#[derive(Debug, Clone, PartialEq)]
pub struct TableReport {
    /// What it is, everything effective included.
    pub spec: TableSpec,
    /// Its id.
    pub table: TableId,
    /// What its rows are doing.
    pub state: TableState,
    /// The published generation; 0 while mutable.
    pub generation: TableGeneration,
    /// The generation that a rollback goes back to; 0 when there is none.
    pub previous: TableGeneration,
    /// Rows held.
    pub rows: u64,
    /// Bytes held, headers and indexes included.
    pub bytes: u64,
    /// Every shard with its node and region, in order of shards.
    pub shards: Vec<ShardReport>,
}

/// A shard with its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardReport {
    /// Which shard.
    pub shard: ShardIndex,
    /// Its node.
    pub node: NodeId,
    /// The node's name.
    pub node_name: String,
    /// Its region.
    pub region: Descriptor,
}

impl Table {
    pub(crate) fn new(shared: Arc<TableShared>) -> Self {
        Self(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<TableShared> {
        &self.0
    }

    /// What the table is, by the cached map.
    #[must_use]
    pub fn spec(&self) -> Arc<TableSpec> {
        self.0.router().spec.clone()
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.0.router().table
    }

    /// What its rows are doing, by the cached map.
    #[must_use]
    pub fn state(&self) -> TableState {
        self.0.router().state
    }

    /// The whole cached map.
    #[must_use]
    pub fn map(&self) -> TableMap {
        self.0.router().map()
    }

    /// Bytes of one row in a pull with these options.
    #[must_use]
    pub fn pulled_row_bytes(&self, options: &PullOptions) -> usize {
        ask_of(options).row_bytes(&self.0.router())
    }

    /// Pulls the rows of `keys` into `out`, in request order, and returns one status per key. A
    /// repeated key fills every position and travels once. `out` takes `row_bytes` per key (see
    /// [`PullOptions::with_state`]); no key is fine.
    ///
    /// Dropping the future takes the pull back; no other call notices.
    ///
    /// # Errors
    /// [`Refusal::Shape`] for a buffer of the wrong size, [`Refusal::RowOutOfRange`], with
    /// [`Missing::Error`] [`Refusal::MissingKeys`], and what nodes refuse;
    /// [`ClientError::Unavailable`] when nodes do not answer within the deadline. What `out`
    /// holds after an error has no meaning.
    pub async fn pull(
        &self,
        keys: &[u64],
        out: &mut [u8],
        options: &PullOptions,
    ) -> Result<Vec<Status>, ClientError> {
        let mut statuses = vec![Status::Missing; keys.len()];
        self.pull_into(keys, out, &mut statuses, options).await?;
        Ok(statuses)
    }

    /// [`Table::pull`] with the caller's own buffer for statuses, one per key.
    ///
    /// # Errors
    /// As [`Table::pull`].
    pub async fn pull_into(
        &self,
        keys: &[u64],
        out: &mut [u8],
        statuses: &mut [Status],
        options: &PullOptions,
    ) -> Result<(), ClientError> {
        let faults = self.pull_what_can_be(keys, out, statuses, options).await?;
        if faults.is_empty() {
            return missing_is_an_error(keys, statuses, options);
        }
        Err(unavailable(self.spec().name.clone(), faults))
    }

    /// [`Table::pull`] of rows as f32, whatever their dtypes: `dim` numbers per key, then with
    /// [`PullOptions::with_state`] those of the state (see
    /// [`mneme_proto::schema::TableSpec::state_parts`]). Exact; counts above 2^24 are rounded.
    ///
    /// # Errors
    /// As [`Table::pull`].
    pub async fn pull_f32(
        &self,
        keys: &[u64],
        out: &mut [f32],
        options: &PullOptions,
    ) -> Result<Vec<Status>, ClientError> {
        let (spec, row_bytes) = (self.spec(), self.pulled_row_bytes(options));
        let state_bytes = row_bytes - spec.row_bytes() as usize;
        let parts = spec.state_parts();
        let counts = state_bytes > 0 && parts.iter().any(|part| part.count);
        if spec.schema.is_f32() && !counts {
            return self.pull(keys, out.as_mut_bytes(), options).await;
        }
        let width = spec.schema.dim() as usize + state_bytes / 4;
        if out.len() != keys.len() * width {
            let wanted = format!("{} x {width} numbers", keys.len());
            let found = format!("{} numbers", out.len());
            return Err(ClientError::shape("the buffer", found, wanted));
        }
        let mut rows = vec![0; keys.len() * row_bytes];
        let statuses = self.pull(keys, &mut rows, options).await?;
        for (row, out) in rows
            .chunks_exact(row_bytes)
            .zip(out.chunks_exact_mut(width))
        {
            let (row, state) = row.split_at(spec.row_bytes() as usize);
            let (values, out) = out.split_at_mut(spec.schema.dim() as usize);
            spec.schema.widen_row(row, values);
            if state_bytes > 0 {
                widen_state(&parts, state, out);
            }
        }
        Ok(statuses)
    }

    /// Pulls what can be had: rows whose nodes do not answer are reported, not an error.
    ///
    /// # Errors
    /// As [`Table::pull`], without [`ClientError::Unavailable`]. Keys that were not reached are
    /// not counted as missing.
    pub async fn pull_partial(
        &self,
        keys: &[u64],
        out: &mut [u8],
        options: &PullOptions,
    ) -> Result<PartialPull, ClientError> {
        let mut statuses = vec![Status::Found; keys.len()];
        let unavailable = self
            .pull_what_can_be(keys, out, &mut statuses, options)
            .await?;
        let mut known: Vec<Option<Status>> = statuses.iter().copied().map(Some).collect();
        for &position in unavailable.iter().flat_map(|fault| &fault.positions) {
            known[position as usize] = None;
            statuses[position as usize] = Status::Found; // not known to be missing
        }
        missing_is_an_error(keys, &statuses, options)?;
        Ok(PartialPull {
            statuses: known,
            unavailable,
        })
    }

    async fn pull_what_can_be(
        &self,
        keys: &[u64],
        out: &mut [u8],
        statuses: &mut [Status],
        options: &PullOptions,
    ) -> Result<Vec<UnavailableKeys>, ClientError> {
        let ask = ask_of(options);
        let row_bytes = ask.row_bytes(&self.0.router());
        let wanted = || format!("{} x {row_bytes} B", keys.len());
        if keys.len() > CALL_KEYS_MAX || out.len() != keys.len() * row_bytes {
            return Err(ClientError::shape(
                "the buffer",
                format!("{} B", out.len()),
                wanted(),
            ));
        }
        if statuses.len() != keys.len() {
            let found = format!("{} statuses", statuses.len());
            return Err(ClientError::shape(
                "the buffer",
                found,
                format!("{}", keys.len()),
            ));
        }
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut out = Out {
            rows: out,
            statuses,
            row_bytes,
        };
        let deadline = self.0.client.deadline(options.deadline);
        pull(&self.0, keys, ask, &mut out, deadline).await
    }

    /// Pushes. Values stand in key order; a repeated key is merged first (sums in f32 in request
    /// order, the last `assign`), so that it makes one step. A push of no keys is no step.
    ///
    /// The whole push is checked before anything is sent. What is sent is split by shard and
    /// size; each part is atomic and takes effect exactly once. Dropping the future leaves each
    /// part applied once or not at all.
    ///
    /// # Errors
    /// [`ClientError::NonFinite`], [`Refusal::Shape`], [`Refusal::Mode`],
    /// [`Refusal::RowOutOfRange`] before anything is sent; [`ClientError::Refused`] and
    /// [`ClientError::Unavailable`] if nothing was applied; [`ClientError::PartlyRefused`] if
    /// some parts were; [`ClientError::InDoubt`] if that is not known.
    pub async fn push(
        &self,
        mode: PushMode,
        keys: &[u64],
        values: impl Into<Values<'_>>,
        options: &PushOptions,
    ) -> Result<PushReport, ClientError> {
        let deadline = self.0.client.deadline(options.deadline);
        let merged = merge(&self.0.router(), mode, keys, values.into(), options.step)?;
        if merged.parts.is_empty() {
            return Ok(PushReport::default());
        }
        push(&self.0, &merged, mode, options.step, deadline).await
    }

    /// Where a key's row is, and what every path to it costs.
    ///
    /// # Errors
    /// [`Refusal::RowOutOfRange`]; [`Refusal::Unavailable`] while its shard has no node.
    pub async fn where_key(&self, key: u64) -> Result<WhereReport, ClientError> {
        let router = served(&self.0, self.0.client.deadline(None)).await?;
        let shard = router.shard(key).map_err(Refusal::from)?;
        let Some(route) = router.node(shard) else {
            let why = format!("shard {shard} has no replica at present");
            return Err(Refusal::Unavailable { why }.into());
        };
        let map = router.map();
        let replica = map.shards[shard as usize].replicas.first();
        let region = replica.and_then(|replica| replica.region.as_ref());
        Ok(WhereReport {
            table: router.spec.name.clone(),
            key,
            shard,
            node: route.name.to_string(),
            region: region.map(|r| r.region.0),
            generation: region.map(|r| r.generation.0),
            offset: region.and_then(|r| offset_of(&router, r, key)),
            tier: region.map(|r| r.tier),
            paths: self.paths(&router, route, region),
        })
    }

    fn paths(
        &self,
        router: &Router,
        route: &Arc<NodeRoute>,
        region: Option<&Descriptor>,
    ) -> Vec<PathReport> {
        let bytes = u64::from(router.spec.row_bytes());
        let us = |ns: u64| ns as f64 / 1000.0;
        let link = self.0.client.links.to(route);
        let report = |path: PathKind, cost: &mneme_proto::map::PathCost| PathReport {
            path,
            predicted_us: us(cost.predict_ns(1, bytes)),
            observed_us: (path == PathKind::Quic)
                .then(|| link.observed.estimate_ns(cost, 1, bytes).map(us))
                .flatten(),
            chosen: path == PathKind::Quic,
        };
        match region {
            Some(region) => region
                .paths
                .iter()
                .map(|p| report(p.kind, &p.cost))
                .collect(),
            None => vec![report(PathKind::Quic, &route.cost)],
        }
    }

    /// The table with its rows and bytes, as its nodes count them now.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`]; refusals of nodes.
    pub async fn describe(&self) -> Result<TableReport, ClientError> {
        let deadline = self.0.client.deadline(None);
        let router = self.0.refresh(&self.0.router(), deadline).await?;
        let map = router.map();
        let mut shards = Vec::new();
        if router.check_served().is_ok() {
            let request = NodeRequest::Describe {
                table: router.table,
            };
            for (route, _) in router.shards_by_node() {
                let response = self.ask_node(&route, &request, deadline).await?;
                let NodeResponse::Shards(found) = response else {
                    return Err(unexpected(&route, &response));
                };
                shards.extend(found.into_iter().map(|(shard, region)| ShardReport {
                    shard,
                    node: route.id,
                    node_name: route.name.to_string(),
                    region,
                }));
            }
        }
        shards.sort_by_key(|report| report.shard);
        Ok(TableReport {
            spec: map.spec,
            table: map.table,
            state: map.state,
            generation: map.generation,
            previous: map.previous,
            rows: shards.iter().map(|s| s.region.rows).sum(),
            bytes: shards.iter().map(|s| s.region.bytes).sum(),
            shards,
        })
    }

    /// One control request to one node.
    pub(crate) async fn ask_node(
        &self,
        route: &Arc<NodeRoute>,
        request: &NodeRequest,
        deadline: std::time::Instant,
    ) -> Result<NodeResponse, ClientError> {
        let links = &self.0.client.links;
        let answer = control(links, &links.to(route), request, deadline).await;
        answer.map_err(|fault| self.node_error(route, fault))
    }

    pub(crate) fn node_error(&self, route: &NodeRoute, fault: ControlFault) -> ClientError {
        match fault {
            ControlFault::Refused(refusal) => refusal.of_table(&self.spec().name).into(),
            ControlFault::Node(why) => ClientError::Unavailable(Unavailable {
                table: self.spec().name.clone(),
                faults: vec![UnavailableKeys {
                    node: route.name.to_string(),
                    address: route.address.to_string(),
                    positions: Vec::new(),
                    why,
                }],
            }),
        }
    }
}

/// A node answered something else than was asked.
pub(crate) fn unexpected(route: &NodeRoute, answer: &NodeResponse) -> ClientError {
    let text = format!("{answer:?}");
    let word = text.split([' ', '(', '{']).next().unwrap_or_default();
    ClientError::Unexpected {
        from: format!("node '{}'", route.name),
        what: format!("'{word}'"),
    }
}

/// The state behind a row as f32: counts as numbers.
fn widen_state(parts: &[StatePart], state: &[u8], out: &mut [f32]) {
    widen(Dtype::F32, state, out);
    let mut first = 0;
    for part in parts {
        let own = &mut out[first..][..part.elements as usize];
        if part.count {
            own.iter_mut().for_each(|n| *n = n.to_bits() as f32);
        }
        first += part.elements as usize;
    }
}

fn ask_of(options: &PullOptions) -> Ask {
    Ask {
        missing: options.missing,
        with_state: options.with_state,
    }
}

/// What a pull ends with that could not be had: where all nodes refused, their word.
fn unavailable(table: String, faults: Vec<UnavailableKeys>) -> ClientError {
    let refusal = |fault: &UnavailableKeys| match &fault.why {
        NodeFault::Refused(refusal) if !refusal.is_transient() => Some(refusal.clone()),
        _ => None,
    };
    let refusals: Option<Vec<Refusal>> = faults.iter().map(refusal).collect();
    match refusals.and_then(|all| all.into_iter().next()) {
        Some(refusal) => ClientError::Refused(refusal),
        None => ClientError::Unavailable(Unavailable { table, faults }),
    }
}

/// Where the row's first element stands, for tables whose slots arithmetic gives.
fn offset_of(router: &Router, region: &Descriptor, key: u64) -> Option<u64> {
    let (_, local) = router.dense()?.locate(key)?;
    let plane = region.planes.first()?;
    Some(plane.offset + local * u64::from(plane.stride))
}

/// B040: names up to ten of the keys without a row, each once.
fn missing_is_an_error(
    keys: &[u64],
    statuses: &[Status],
    options: &PullOptions,
) -> Result<(), ClientError> {
    if options.missing != Missing::Error || !statuses.contains(&Status::Missing) {
        return Ok(());
    }
    let mut seen = FxHashSet::default();
    let missing = keys
        .iter()
        .zip(statuses)
        .filter(|(_, s)| **s == Status::Missing);
    let mut named: Vec<u64> = missing
        .map(|(&key, _)| key)
        .filter(|&k| seen.insert(k))
        .collect();
    let total = named.len() as u64;
    named.truncate(ERROR_KEYS_NAMED_MAX);
    Err(Refusal::MissingKeys { keys: named, total }.into())
}
