//! The router: a table's map made ready for the hot path. Key to shard to node, in a few
//! arithmetic steps and one load.

use std::sync::Arc;

use mneme_proto::codec::{self, CodecError};
use mneme_proto::dense::DenseLayout;
use mneme_proto::ids::{Incarnation, NodeId, Revision, ShardIndex, TableGeneration, TableId};
use mneme_proto::limits::SHARDS_MAX;
use mneme_proto::map::{
    ArchivedTableMap, LOADING_REMEDY, PathCost, PathKind, TableMap, TableState,
};
use mneme_proto::mix64::mix64;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;
use rkyv::util::AlignedVec;

/// Why bytes are not a usable map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No archive of a map.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// An archive whose contents contradict each other.
    #[error("a map that contradicts itself: {0}")]
    Content(String),
}

/// A node as the router names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeRoute {
    pub(crate) id: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) name: Arc<str>,
    pub(crate) address: Arc<str>,
    /// Cost of the `quic` path, as its regions' descriptors say.
    pub(crate) cost: PathCost,
}

/// Where a shard is.
#[derive(Debug, Clone, Copy)]
struct ShardRoute {
    /// Index into `nodes`, or [`NO_NODE`].
    node: u32,
    epoch: u64,
}

/// A shard that has no replica at present.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// Assumed for a node none of whose regions is reported yet: a call of a few tens of µs.
const COST_UNKNOWN: PathCost = PathCost {
    fixed_ns: 60_000,
    row_ns: 150,
    kib_ns: 800,
    setup_us: 3_000,
    origin: mneme_proto::map::CostOrigin::Configured,
};

/// A map, validated once, in the form that pulls and pushes use.
#[derive(Debug)]
pub(crate) struct Router {
    archive: AlignedVec,
    pub(crate) table: TableId,
    pub(crate) revision: Revision,
    pub(crate) state: TableState,
    pub(crate) generation: TableGeneration,
    pub(crate) spec: Arc<TableSpec>,
    dense: Option<DenseLayout>,
    /// `64 - log2(shards)`, minus the one bit that is shifted before.
    hash_shift: u32,
    shards: Vec<ShardRoute>,
    /// Shards ordered by node, so that those of one node stand together.
    by_rank: Vec<u32>,
    /// The inverse of `by_rank`.
    rank: Vec<u32>,
    pub(crate) nodes: Vec<Arc<NodeRoute>>,
}

impl Router {
    /// Validates an archived [`TableMap`] and builds the router from it in place.
    pub(crate) fn new(map: &[u8]) -> Result<Self, MapError> {
        let archive = codec::align(map);
        let map = codec::access::<TableMap>(&archive)?;
        let spec: TableSpec = rkyv::deserialize::<TableSpec, rkyv::rancor::Error>(&map.spec)
            .map_err(|e| MapError::Content(e.to_string()))?;
        check(map, &spec)?;
        let nodes = nodes_of(map);
        let shards: Vec<ShardRoute> = map
            .shards
            .iter()
            .map(|shard| ShardRoute {
                node: shard
                    .replicas
                    .first()
                    .map_or(NO_NODE, |r| r.node.to_native()),
                epoch: shard.epoch.0.to_native(),
            })
            .collect();
        let mut by_rank: Vec<u32> = (0..shards.len() as u32).collect();
        by_rank.sort_by_key(|&s| shards[s as usize].node);
        let mut rank = vec![0; shards.len()];
        for (at, &shard) in by_rank.iter().enumerate() {
            rank[shard as usize] = at as u32;
        }
        Ok(Self {
            table: TableId(map.table.0.to_native()),
            revision: Revision(map.revision.0.to_native()),
            state: rkyv::deserialize::<TableState, rkyv::rancor::Error>(&map.state)
                .map_err(|e| MapError::Content(e.to_string()))?,
            generation: TableGeneration(map.generation.0.to_native()),
            dense: spec.dense_layout(),
            hash_shift: 63 - spec.shards.trailing_zeros(),
            spec: Arc::new(spec),
            shards,
            by_rank,
            rank,
            nodes,
            archive,
        })
    }

    /// The whole map, for those who want every detail.
    pub(crate) fn map(&self) -> TableMap {
        codec::decode(&self.archive).expect("it was validated when the router was built")
    }

    /// Shards of the table.
    pub(crate) fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The shard of a key whose `mix64` is known. A dense row out of range has none.
    #[inline]
    pub(crate) fn shard_of(&self, key: u64, mixed: u64) -> Result<u32, OutOfRange> {
        match &self.dense {
            None => Ok(((mixed >> 1) >> self.hash_shift) as u32),
            Some(layout) => match layout.locate(key) {
                Some((shard, _)) => Ok(shard),
                None => Err(OutOfRange {
                    row: key,
                    rows: layout.rows(),
                }),
            },
        }
    }

    /// The same from the key alone.
    pub(crate) fn shard(&self, key: u64) -> Result<u32, OutOfRange> {
        self.shard_of(key, mix64(key))
    }

    /// The layout of a dense table.
    pub(crate) fn dense(&self) -> Option<&DenseLayout> {
        self.dense.as_ref()
    }

    /// The place of a shard in the order by nodes.
    #[inline]
    pub(crate) fn rank(&self, shard: u32) -> u32 {
        self.rank[shard as usize]
    }

    /// The shard at a place of that order.
    #[inline]
    pub(crate) fn shard_at(&self, rank: u32) -> u32 {
        self.by_rank[rank as usize]
    }

    /// Index of the shard's primary in `nodes`, or [`NO_NODE`].
    #[inline]
    pub(crate) fn node_of(&self, shard: u32) -> u32 {
        self.shards[shard as usize].node
    }

    /// The shard's primary.
    pub(crate) fn node(&self, shard: u32) -> Option<&Arc<NodeRoute>> {
        self.nodes.get(self.node_of(shard) as usize)
    }

    /// The shard's epoch (I-3).
    #[inline]
    pub(crate) fn epoch(&self, shard: u32) -> u64 {
        self.shards[shard as usize].epoch
    }

    /// The nodes that hold a shard of the table.
    pub(crate) fn routes(&self) -> Vec<Arc<NodeRoute>> {
        let shards = self.shards_by_node();
        shards.into_iter().map(|(route, _)| route).collect()
    }

    /// Shards by their primary: `(node, shards)` for every node that has one.
    pub(crate) fn shards_by_node(&self) -> Vec<(Arc<NodeRoute>, Vec<ShardIndex>)> {
        let of = |slot: usize| {
            let mine = |&s: &u32| self.node_of(s) as usize == slot;
            (0..self.shards())
                .filter(mine)
                .map(ShardIndex)
                .collect::<Vec<_>>()
        };
        let all = self
            .nodes
            .iter()
            .enumerate()
            .map(|(slot, node)| (node.clone(), of(slot)));
        all.filter(|(_, shards)| !shards.is_empty()).collect()
    }

    /// What a table in this state refuses at once; reads and writes differ in `sealed` only.
    pub(crate) fn check_served(&self) -> Result<(), Refusal> {
        match self.state {
            TableState::Lost => Err(Refusal::TableLost {
                table: self.spec.name.clone(),
            }),
            TableState::Creating => Err(Refusal::TableState {
                table: self.spec.name.clone(),
                state: self.state.word().into(),
                remedy: "wait until its nodes have made its shards".into(),
            }),
            TableState::Loading => Err(Refusal::TableState {
                table: self.spec.name.clone(),
                state: self.state.word().into(),
                remedy: LOADING_REMEDY.into(),
            }),
            TableState::Mutable | TableState::Sealed => Ok(()),
        }
    }
}

/// A dense row id that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfRange {
    pub(crate) row: u64,
    pub(crate) rows: u64,
}

impl From<OutOfRange> for Refusal {
    fn from(OutOfRange { row, rows }: OutOfRange) -> Self {
        Self::RowOutOfRange { row, rows }
    }
}

/// bytecheck proved structure; this checks what the values say.
fn check(map: &ArchivedTableMap, spec: &TableSpec) -> Result<(), MapError> {
    let wrong = |why: String| Err(MapError::Content(why));
    spec.validate()
        .map_err(|e| MapError::Content(e.to_string()))?;
    if spec.shards == 0 || spec.shards > SHARDS_MAX || map.shards.len() != spec.shards as usize {
        return wrong(format!(
            "{} shards listed, {} said",
            map.shards.len(),
            spec.shards
        ));
    }
    for (index, shard) in map.shards.iter().enumerate() {
        for replica in shard.replicas.iter() {
            if replica.node.to_native() as usize >= map.nodes.len() {
                return wrong(format!("shard {index} names node {} of none", replica.node));
            }
        }
    }
    Ok(())
}

fn nodes_of(map: &ArchivedTableMap) -> Vec<Arc<NodeRoute>> {
    let cost_of = |slot: usize| {
        let regions = map.shards.iter().flat_map(|s| s.replicas.iter());
        let mut costs = regions
            .filter(|r| r.node.to_native() as usize == slot)
            .filter_map(|r| r.region.as_ref())
            .flat_map(|region| region.paths.iter())
            .filter_map(|path| {
                let path: mneme_proto::map::PathEntry =
                    rkyv::deserialize::<_, rkyv::rancor::Error>(path).ok()?;
                (path.kind == PathKind::Quic).then_some(path.cost)
            });
        costs.next().unwrap_or(COST_UNKNOWN)
    };
    let node_of = |(slot, node): (usize, &mneme_proto::map::ArchivedNodeEntry)| {
        Arc::new(NodeRoute {
            id: NodeId(node.node.0.to_native()),
            incarnation: Incarnation(node.incarnation.0.to_native()),
            name: node.name.as_str().into(),
            address: node.address.as_str().into(),
            cost: cost_of(slot),
        })
    };
    map.nodes.iter().enumerate().map(node_of).collect()
}

#[cfg(test)]
mod tests;
