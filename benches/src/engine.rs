//! The engine alone, in process and without a network: pulls out of sealed and mutable slabs
//! against the bare gather loop, and pushes through the shard's core with its optimizer.

use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use mneme_memory::{
    MutableKind, MutableReader, MutableSpec, MutableWriter, Pool, PoolSpec, SealedBuilder,
    SealedShard, SealedSpec,
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

const TABLE: TableId = TableId(1);
const SHARD: ShardId = ShardId {
    table: TABLE,
    shard: ShardIndex(0),
};
const EPOCH: Epoch = Epoch(1);

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

/// Times gradient pushes of `batch` distinct keys through the shard's core: order, optimizer,
/// apply, on a hashed f32 table of `rows` rows that are all there.
///
/// # Errors
/// When a push is refused.
pub fn push(optimizer: &str, rows: u64, dim: u32, batch: usize, seconds: f64) -> Result<Figure> {
    let spec = TableSpec {
        shards: 1,
        optimizer: Optimizer::from_options(optimizer, &[])?,
        tenant: "default".into(),
        ..TableSpec::new(
            "bench",
            TableKind::Hashed,
            RowSchema::single(Dtype::F32, dim),
        )
    };
    let (row_bytes, state_bytes) = (spec.row_bytes(), spec.state_bytes());
    let bytes = rows * u64::from(row_bytes + state_bytes);
    let kind = mutable_spec(MutableKind::Hashed, row_bytes, state_bytes);
    let (mut writer, _) = mneme_memory::mutable::create(&pool(bytes)?, &kind)?;
    let (row, state) = (vec![0; row_bytes as usize], vec![0; state_bytes as usize]);
    for key in 0..rows {
        writer.insert(key, &row, &state)?;
    }
    let mut shard = Shard::new(Arc::new(TableRules::new(TABLE, &spec)), 0, EPOCH, writer);
    let session = shard.open_session(EPOCH, 0)?;
    push_batches(&mut shard, session, rows, dim, batch, seconds)
}

fn push_batches(
    shard: &mut Shard<MutableWriter>,
    session: SessionId,
    rows: u64,
    dim: u32,
    batch: usize,
    seconds: f64,
) -> Result<Figure> {
    let gradients = vec![0.01f32; batch * dim as usize];
    let mut keys = Keys::new(rows / batch as u64, 7);
    let mut start = [0];
    let mut batch_keys = vec![U64::ZERO; batch];
    let mut effects = Effects::default();
    let mut sequence = 0;
    measure(batch, seconds, || {
        // Random rows, ascending and distinct as the client sends them: one of each stretch.
        keys.fill(&mut start);
        for (i, key) in batch_keys.iter_mut().enumerate() {
            *key = U64::new(i as u64 * (rows / batch as u64) + start[0]);
        }
        sequence += 1;
        let part = PushPart {
            shard: 0.into(),
            keys: (batch as u32).into(),
            epoch: EPOCH.0.into(),
            session: session.0.into(),
            sequence: sequence.into(),
        };
        let payload = gradients.as_bytes();
        let data = PartData {
            mode: PushMode::Gradient,
            keys: &batch_keys,
            payload,
            step: 0,
        };
        let outcome = shard
            .push(&part, Ok(()), data, 0, &mut effects)
            .map_err(|r| anyhow!(r))?;
        std::hint::black_box(outcome);
        anyhow::Ok(())
    })
}
