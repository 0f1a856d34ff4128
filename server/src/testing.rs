//! What the tests of this crate share: specs, a plain model of rows, an engine with tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use mneme_memory::mutable::create_filled;
use mneme_memory::{
    MutableKind, MutableSpec, PlaneLayout, Pool, PoolSpec, SealedBuilder, SealedSpec,
};
use mneme_proto::frame::{
    Missing, PullGroup, PullHeader, PullView, PushHeader, PushMode, PushPart, PushView,
};
use mneme_proto::ids::{
    ClusterId, Epoch, Generation, RegionId, SessionId, ShardIndex, TableGeneration, TableId,
};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, RowSchema, TableKind, TableSpec};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::engine::{Engine, Scratch};
use crate::shard::Shard;
use crate::shard::rows::Rows;
use crate::shard::rules::TableRules;
use crate::table::{MutableShard, Place, SealedSet, Table};

/// A hashed f32 table of dim 1 and one shard, without an optimizer.
pub fn spec(name: &str) -> TableSpec {
    TableSpec {
        shards: 1,
        tenant: "default".into(),
        ..TableSpec::new(name, TableKind::Hashed, RowSchema::single(Dtype::F32, 1))
    }
}

/// Rows in a map: the plain store that the memory crate's is compared with.
#[derive(Debug, Default)]
pub struct PlainRows {
    slots: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    /// Inserts that still find memory.
    pub room: Option<u64>,
}

impl PlainRows {
    /// Row and state of a key.
    pub fn get(&self, key: u64) -> Option<(Vec<f32>, Vec<f32>)> {
        self.slots
            .get(&key)
            .map(|(row, state)| (floats(row), floats(state)))
    }

    /// Everything.
    pub fn all(&self) -> &BTreeMap<u64, (Vec<u8>, Vec<u8>)> {
        &self.slots
    }
}

impl Rows for PlainRows {
    type Slot = u64;

    fn locate_each(&self, places: &[u64], slots: &mut Vec<Option<u64>>) {
        let slot = |place: &u64| self.slots.contains_key(place).then_some(*place);
        slots.clear();
        slots.extend(places.iter().map(slot));
    }

    fn read(&self, slot: u64, row: &mut [u8], state: &mut [u8]) {
        let (held_row, held_state) = &self.slots[&slot];
        row.copy_from_slice(held_row);
        state.copy_from_slice(held_state);
    }

    fn reserve(&mut self, rows: u64) -> Result<(), Refusal> {
        match self.room {
            Some(limit) if limit < rows => Err(Refusal::Limit {
                what: "rows".into(),
                asked: rows,
                used: 0,
                limit,
            }),
            _ => Ok(()),
        }
    }

    fn write(&mut self, slot: u64, row: &[u8], state: &[u8]) {
        self.slots.insert(slot, (row.to_vec(), state.to_vec()));
    }

    fn insert(&mut self, place: u64, row: &[u8], state: &[u8]) {
        let before = self.slots.insert(place, (row.to_vec(), state.to_vec()));
        assert!(before.is_none(), "{place} had a row");
    }

    fn delete(&mut self, place: u64) {
        assert!(self.slots.remove(&place).is_some(), "{place} had no row");
    }
}

/// Bytes of f32 values.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// f32 values of bytes.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// An engine with a live lease and the tables that [`table`] makes.
pub fn engine(tables: Vec<Table>) -> Engine {
    let engine = Engine::default();
    engine.lease.renewed(crate::clock::now_ms() + 3_600_000);
    tables
        .into_iter()
        .for_each(|table| engine.tables.put(Arc::new(table)));
    engine
}

/// The epoch of every shard of [`table`].
pub const EPOCH: Epoch = Epoch(1);

/// A mutable table with all its shards here, in a small pool.
pub fn table(id: u64, spec: TableSpec) -> Table {
    spec.validate().expect("a valid spec");
    let rules = Arc::new(TableRules::new(TableId(id), &spec));
    let pool = Pool::open(PoolSpec::dram(64 << 20)).expect("a pool");
    let place = |shard: u32| {
        let kind = match &rules.dense {
            Some(layout) => MutableKind::Dense {
                rows: layout.rows_of_shard(shard),
            },
            None => MutableKind::Hashed,
        };
        let mut words = Vec::new();
        let fill = |local, row: &mut [u8], state: &mut [u8]| {
            let layout = rules.dense.as_ref().expect("dense");
            rules.fresh(layout.row_of(shard, local), row, state, &mut words);
        };
        let spec = MutableSpec {
            cluster: ClusterId(1),
            shard: rules.shard_id(shard),
            region: RegionId(1),
            state_region: RegionId(2),
            generation: Generation(1),
            kind,
            row_bytes: rules.row_bytes as u32,
            state_bytes: rules.state_bytes as u32,
            seed: 5,
            planes: PlaneLayout::of_schema(&spec.schema),
        };
        let (writer, _) = create_filled(&pool, &spec, fill).expect("room");
        let core = Shard::new(Arc::clone(&rules), shard, EPOCH, writer);
        let mutable = Some(Arc::new(MutableShard::new(core, Generation(1))));
        Place {
            epoch: EPOCH,
            mine: true,
            lost: false,
            mutable,
        }
    };
    Table {
        grants: Arc::default(),
        id: TableId(id),
        places: (0..spec.shards).map(place).collect(),
        spec: Arc::new(spec),
        rules: Arc::clone(&rules),
        generation: TableGeneration(0),
        loading: false,
        previous: TableGeneration(0),
        sealed: BTreeMap::new(),
    }
}

/// The same table with `rows` (key or local row, and row) sealed as `generation`, in one shard.
pub fn sealed_table(table: Table, generation: u64, rows: &[(u64, Vec<u8>)]) -> Table {
    let pool = Pool::open(PoolSpec::dram(64 << 20)).expect("a pool");
    let keyed = table.rules.dense.is_none();
    let spec = SealedSpec {
        cluster: ClusterId(1),
        shard: table.rules.shard_id(0),
        region: RegionId(3),
        generation: Generation(3),
        row_bytes: table.rules.row_bytes as u32,
        rows: rows.len() as u64,
        keyed,
        seed: 5,
        planes: PlaneLayout::of_schema(&table.spec.schema),
    };
    let mut builder = SealedBuilder::new(&pool, &spec).expect("room");
    for (at, (key, row)) in rows.iter().enumerate() {
        let keys: &[u64] = if keyed { &[*key] } else { &[] };
        builder.put(at as u64, keys, row).expect("in range");
    }
    let set: SealedSet = [(ShardIndex(0), Arc::new(builder.finish().expect("whole")))].into();
    let mut sealed = table.sealed.clone();
    sealed.insert(TableGeneration(generation), Arc::new(set));
    Table {
        generation: TableGeneration(generation),
        previous: table.generation,
        sealed,
        ..table
    }
}

/// A pull's body.
pub fn pull_body(
    table: u64,
    generation: u64,
    missing: Missing,
    flags: u8,
    groups: &[(u32, u64, &[u64])],
) -> Vec<u8> {
    let keys: Vec<U64> = groups
        .iter()
        .flat_map(|(_, _, keys)| keys.iter().map(|k| U64::new(*k)))
        .collect();
    let header = PullHeader {
        table: table.into(),
        generation: generation.into(),
        groups: (groups.len() as u32).into(),
        keys: (keys.len() as u32).into(),
        missing: missing as u8,
        flags,
        reserved: [0; 6],
    };
    let group = |(shard, epoch, keys): &(u32, u64, &[u64])| PullGroup {
        shard: (*shard).into(),
        keys: (keys.len() as u32).into(),
        epoch: (*epoch).into(),
    };
    let groups: Vec<PullGroup> = groups.iter().map(group).collect();
    [header.as_bytes(), groups.as_bytes(), keys.as_bytes()].concat()
}

/// A push's body with one part.
pub fn push_body(
    table: u64,
    shard: u32,
    session: SessionId,
    sequence: u64,
    mode: PushMode,
    keys: &[u64],
    payload: &[u8],
) -> Vec<u8> {
    let header = PushHeader {
        table: table.into(),
        step: 0.into(),
        parts: 1.into(),
        keys: (keys.len() as u32).into(),
        value_bytes: ((payload.len() / keys.len().max(1)) as u32).into(),
        mode: mode as u8,
        reserved: [0; 3],
    };
    let part = PushPart {
        shard: shard.into(),
        keys: (keys.len() as u32).into(),
        epoch: EPOCH.0.into(),
        session: session.0.into(),
        sequence: sequence.into(),
    };
    let keys: Vec<U64> = keys.iter().map(|k| (*k).into()).collect();
    [header.as_bytes(), part.as_bytes(), keys.as_bytes(), payload].concat()
}

/// What the service does with a pull's body, without a network.
pub fn pull(engine: &Engine, body: &[u8]) -> Result<Vec<u8>, Refusal> {
    let view = PullView::parse(body).map_err(|e| Refusal::Malformed { why: e.to_string() })?;
    let unknown = || Refusal::UnknownTable {
        table: view.header.table.to_string(),
    };
    let table = engine
        .tables
        .get(TableId(view.header.table.get()))
        .ok_or_else(unknown)?;
    let layout = crate::pull::layout(&table, &view)?;
    let place = engine.replies.try_place(layout.bytes)?;
    Ok(engine
        .pull(&table, &view, layout, place, &mut Scratch::default())
        .concat())
}

/// What the service does with a push's body, without a network.
pub fn push(engine: &Engine, body: &[u8]) -> Result<Vec<u8>, Refusal> {
    let view = PushView::parse(body).map_err(|e| Refusal::Malformed { why: e.to_string() })?;
    let unknown = || Refusal::UnknownTable {
        table: view.header.table.to_string(),
    };
    let table = engine
        .tables
        .get(TableId(view.header.table.get()))
        .ok_or_else(unknown)?;
    Ok(engine.push(&table, &view, &mut Scratch::default()).concat())
}
