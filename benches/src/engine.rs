//! The engine alone, in process and without a network: pulls out of sealed and mutable slabs
//! against the bare gather loop, and pushes through the shard's core with its optimizer.

use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use mneme_memory::{
    MutableKind, MutableReader, MutableSpec, MutableWriter, Pool, PoolSpec, SealedBuilder,
    SealedShard, SealedSpec, Slot,
};
use mneme_proto::frame::{PushMode, PushPart};
use mneme_proto::ids::{
    ClusterId, Epoch, Generation, RegionId, SessionId, ShardId, ShardIndex, TableId,
};
use mneme_proto::schema::{Dtype, Optimizer, RowSchema, TableKind, TableSpec};
use mneme_server::shard::Shard;
use mneme_server::shard::effects::{Effects, PartData};
use mneme_server::shard::rules::TableRules;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::report::{Figure, measure};
use crate::workload::{Keys, fill_row, is_row};

/// The table of all shards here.
pub const TABLE: TableId = TableId(1);
const SHARD: ShardId = ShardId {
    table: TABLE,
    shard: ShardIndex(0),
};
/// The epoch of all shards here.
pub const EPOCH: Epoch = Epoch(1);

/// A pool that holds `bytes` of rows twice over.
fn pool(bytes: u64) -> Result<Arc<Pool>> {
    Ok(Pool::open(PoolSpec::dram(
        (2 * bytes).next_multiple_of(2 << 20) + (256 << 20),
    ))?)
}

/// A sealed dense shard of `rows` rows.
///
/// # Errors
/// When the machine has no memory for it.
pub fn sealed(rows: u64, row_bytes: usize) -> Result<SealedShard> {
    let spec = SealedSpec {
        cluster: ClusterId(1),
        shard: SHARD,
        region: RegionId(1),
        generation: Generation(1),
        row_bytes: row_bytes as u32,
        rows,
        keyed: false,
        seed: 1,
        planes: vec![],
    };
    let mut builder = SealedBuilder::new(&pool(rows * row_bytes as u64)?, &spec)?;
    let mut row = vec![0; row_bytes];
    let no_keys: &[u64] = &[];
    for key in 0..rows {
        fill_row(key, &mut row);
        builder.put(key, no_keys, &row)?;
    }
    Ok(builder.finish()?)
}

/// A mutable shard of `rows` rows, hashed or dense, without optimizer state.
///
/// # Errors
/// When the machine has no memory for it.
pub fn mutable(rows: u64, row_bytes: usize, hashed: bool) -> Result<MutableWriter> {
    let kind = if hashed {
        MutableKind::Hashed
    } else {
        MutableKind::Dense { rows }
    };
    let spec = mutable_spec(kind, row_bytes as u32, 0);
    let (mut writer, _) = mneme_memory::mutable::create(&pool(rows * row_bytes as u64)?, &spec)?;
    let mut row = vec![0; row_bytes];
    for key in 0..rows {
        fill_row(key, &mut row);
        writer.insert(key, &row, &[])?;
    }
    Ok(writer)
}

fn mutable_spec(kind: MutableKind, row_bytes: u32, state_bytes: u32) -> MutableSpec {
    MutableSpec {
        cluster: ClusterId(1),
        shard: SHARD,
        region: RegionId(1),
        state_region: RegionId(2),
        generation: Generation(1),
        kind,
        row_bytes,
        state_bytes,
        seed: 0x5eed,
        planes: vec![],
    }
}

/// Times batches of random rows out of a sealed shard.
///
/// # Errors
/// When a row is not the one asked for.
pub fn pull_sealed(shard: &SealedShard, batch: usize, seconds: f64) -> Result<Figure> {
    pull(
        shard.rows(),
        shard.row_bytes(),
        batch,
        seconds,
        |keys, out, status| Ok(shard.read_batch(keys, out, status).map(drop)?),
    )
}

/// Times batches of random rows out of a mutable shard.
///
/// # Errors
/// When a row is not the one asked for.
pub fn pull_mutable(reader: &MutableReader, batch: usize, seconds: f64) -> Result<Figure> {
    pull(
        reader.rows(),
        reader.row_bytes(),
        batch,
        seconds,
        |keys, out, status| Ok(reader.read_batch(keys, out, status).map(drop)?),
    )
}

fn pull(
    rows: u64,
    row_bytes: usize,
    batch: usize,
    seconds: f64,
    mut read: impl FnMut(&[u64], &mut [u8], &mut [u8]) -> Result<()>,
) -> Result<Figure> {
    let mut keys = Keys::new(rows, 7);
    let mut batch_keys = vec![0; batch];
    let mut out = vec![0; batch * row_bytes];
    let mut status = vec![0; batch];
    let figure = measure(batch, seconds, || {
        keys.fill(&mut batch_keys);
        let read = read(&batch_keys, &mut out, &mut status);
        std::hint::black_box(&mut out);
        read
    })?;
    let whole = batch_keys
        .iter()
        .zip(out.chunks_exact(row_bytes))
        .all(|(k, r)| is_row(*k, r));
    ensure!(whole, "the engine answered another row");
    Ok(figure)
}

/// A hashed table of `dim` f32 in one shard.
///
/// # Errors
/// When there is no such optimizer.
pub fn spec(optimizer: &str, dim: u32) -> Result<TableSpec> {
    Ok(TableSpec {
        shards: 1,
        optimizer: Optimizer::from_options(optimizer, &[])?,
        tenant: "default".into(),
        ..TableSpec::new(
            "bench",
            TableKind::Hashed,
            RowSchema::single(Dtype::F32, dim),
        )
    })
}

/// An empty shard of `spec`, in a pool with room for `rows` rows twice over.
///
/// # Errors
/// When the machine has no memory for it.
pub fn empty(spec: &TableSpec, rows: u64) -> Result<MutableWriter> {
    let (row_bytes, state_bytes) = (spec.row_bytes(), spec.state_bytes());
    let pool = pool(rows * u64::from(row_bytes + state_bytes))?;
    let made = mutable_spec(MutableKind::Hashed, row_bytes, state_bytes);
    Ok(mneme_memory::mutable::create(&pool, &made)?.0)
}

/// One session that pushes to a shard's core: order, optimizer, apply.
#[derive(Debug)]
pub struct Pusher {
    shard: Shard<MutableWriter>,
    session: SessionId,
    sequence: u64,
    effects: Effects<Slot>,
    keys: Vec<U64>,
}

impl Pusher {
    /// Opens the session.
    ///
    /// # Errors
    /// When the shard refuses it.
    pub fn new(mut shard: Shard<MutableWriter>) -> Result<Self> {
        let session = shard.open_session(EPOCH, 0)?;
        Ok(Self {
            shard,
            session,
            sequence: 0,
            effects: Effects::default(),
            keys: Vec::new(),
        })
    }

    /// The rows behind the shard.
    #[must_use]
    pub fn rows(&self) -> &MutableWriter {
        self.shard.rows()
    }

    /// Goes on with the growth of the index by `steps` steps; false when it is over.
    ///
    /// # Errors
    /// When the machine has no memory for it.
    pub fn settle(&mut self, steps: u32) -> Result<bool> {
        Ok(self.shard.settle_index(steps)?)
    }

    /// Pushes `keys`, ascending and distinct as the client sends them.
    ///
    /// # Errors
    /// When the push is refused.
    pub fn push(&mut self, mode: PushMode, keys: &[u64], payload: &[u8]) -> Result<()> {
        self.sequence += 1;
        self.keys.clear();
        self.keys.extend(keys.iter().map(|key| U64::new(*key)));
        let part = PushPart {
            shard: 0.into(),
            keys: (keys.len() as u32).into(),
            epoch: EPOCH.0.into(),
            session: self.session.0.into(),
            sequence: self.sequence.into(),
        };
        let data = PartData {
            mode,
            keys: &self.keys,
            payload,
            step: 0,
        };
        let pushed = self.shard.push(&part, Ok(()), data, 0, &mut self.effects);
        std::hint::black_box(pushed.map_err(|refusal| anyhow!(refusal))?);
        Ok(())
    }
}

/// Times gradient pushes of `batch` distinct keys through the shard's core: order, optimizer,
/// apply, on a hashed f32 table of `rows` rows that are all there.
///
/// # Errors
/// When a push is refused.
pub fn push(optimizer: &str, rows: u64, dim: u32, batch: usize, seconds: f64) -> Result<Figure> {
    let spec = spec(optimizer, dim)?;
    let mut writer = empty(&spec, rows)?;
    let row = vec![0; spec.row_bytes() as usize];
    let state = vec![0; spec.state_bytes() as usize];
    for key in 0..rows {
        writer.insert(key, &row, &state)?;
    }
    let rules = Arc::new(TableRules::new(TABLE, &spec));
    let mut pusher = Pusher::new(Shard::new(rules, 0, EPOCH, writer))?;
    let gradients = vec![0.01f32; batch * dim as usize];
    let mut draws = Keys::new(rows / batch as u64, 7);
    let mut start = [0];
    let mut keys = vec![0; batch];
    measure(batch, seconds, || {
        // Random rows: one of each stretch.
        draws.fill(&mut start);
        for (i, key) in keys.iter_mut().enumerate() {
            *key = i as u64 * (rows / batch as u64) + start[0];
        }
        pusher.push(PushMode::Gradient, &keys, gradients.as_bytes())
    })
}
