//! Loading a new generation beside the one that is served. Nothing of it is seen before it is
//! published whole (I-8); how is in `seal`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mneme_proto::codec;
use mneme_proto::control::{NodeRequest, NodeResponse, SealedReplica};
use mneme_proto::dense::DenseLayout;
use mneme_proto::frame::{FrameKind, LoadHeader};
use mneme_proto::ids::{ShardIndex, TableGeneration};
use mneme_proto::limits::FRAME_KEYS_MAX;
use mneme_proto::refusal::Refusal;
use tokio::task::JoinSet;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::error::ClientError;
use crate::limits::{FRAMES_IN_FLIGHT, PUSH_FRAME_BYTES, made_within};
use crate::paths::quic::{ControlFault, Exchanged, exchange};
use crate::retry::Tries;
use crate::router::Router;
use crate::seal::sealed_of;
use crate::table::Table;

/// What a load will bring, so that every node can make room, or refuse, before the first row.
#[derive(Debug, Clone, Copy)]
pub enum LoadRows<'a> {
    /// All rows of a dense table.
    Dense,
    /// These keys of a hashed table, in any order, none twice.
    Keys(&'a [u64]),
    /// This many rows per shard, in order of shards (see [`Table::rows_per_shard`]).
    PerShard(&'a [u64]),
}

/// Which rows a [`Loader::put`] brings.
#[derive(Debug, Clone, Copy)]
pub enum LoadAt<'a> {
    /// Rows of a dense table from this id on.
    Row(u64),
    /// The rows of these keys of a hashed table.
    Keys(&'a [u64]),
}

/// A generation being loaded. Nothing of it is seen before [`Loader::publish`]. Dropped
/// unfinished, its nodes are told to forget it.
#[derive(Debug)]
pub struct Loader {
    table: Table,
    router: Arc<Router>,
    generation: TableGeneration,
    deadline: Duration,
    /// Of the steps that go over all rows.
    whole: Duration,
    /// Rows put so far, per shard: the slot of a hashed shard's next one.
    put: Vec<u64>,
    /// Frames on their way, a few of them; they go on while the caller makes the next rows.
    sending: JoinSet<Result<(), ClientError>>,
    replicas: Vec<SealedReplica>,
    over: bool,
}

impl Table {
    /// Counts keys by shard, for [`LoadRows::PerShard`]; feed it all keys, in any portions.
    ///
    /// # Errors
    /// [`Refusal::RowOutOfRange`].
    pub fn rows_per_shard<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k u64>,
    ) -> Result<Vec<u64>, ClientError> {
        let router = self.shared().router();
        let mut rows = vec![0; router.shards() as usize];
        for &key in keys {
            rows[router.shard(key).map_err(Refusal::from)? as usize] += 1;
        }
        Ok(rows)
    }

    /// Begins to load a new generation. `deadline` is that of each step; the client's without
    /// one. Steps that go over all rows have longer, the more they are.
    ///
    /// # Errors
    /// [`Refusal::Limit`] if a node has no room; [`Refusal::TableState`]; [`Refusal::Shape`] for
    /// rows that do not fit the table's kind.
    pub async fn load(
        &self,
        rows: LoadRows<'_>,
        deadline: Option<Duration>,
    ) -> Result<Loader, ClientError> {
        let counts = self.load_counts(rows)?;
        let step = deadline.unwrap_or(self.shared().client.config.deadline);
        let (generation, router) = self.begin_generation(Instant::now() + step).await?;
        let put = vec![0; router.shards() as usize];
        let row_bytes = router.spec.row_bytes().into();
        let loader = Loader {
            table: self.clone(),
            router,
            generation,
            deadline: step,
            whole: step + made_within(counts.iter().sum::<u64>().saturating_mul(row_bytes)),
            put,
            sending: JoinSet::new(),
            replicas: Vec::new(),
            over: false,
        };
        let requests = loader
            .router
            .shards_by_node()
            .into_iter()
            .map(|(route, shards)| {
                let rows = |shard: ShardIndex| (shard, counts[shard.0 as usize]);
                let request = NodeRequest::BeginLoad {
                    table: loader.router.table,
                    generation,
                    shards: shards.into_iter().map(rows).collect(),
                };
                (route, request)
            });
        loader
            .table
            .ask_nodes(requests.collect(), Instant::now() + loader.whole)
            .await?;
        Ok(loader)
    }
}

impl Table {
    /// Rows to come, per shard.
    fn load_counts(&self, rows: LoadRows<'_>) -> Result<Vec<u64>, ClientError> {
        let router = self.shared().router();
        let shards = router.shards();
        match (rows, router.dense()) {
            (LoadRows::Dense, Some(layout)) => {
                Ok((0..shards).map(|s| layout.rows_of_shard(s)).collect())
            }
            (LoadRows::Dense, None) => Err(kind_error("dense rows", "keys: it is hashed")),
            (_, Some(_)) => Err(kind_error("keys", "rows: it is dense")),
            (LoadRows::Keys(keys), None) => self.rows_per_shard(keys),
            (LoadRows::PerShard(counts), None) if counts.len() == shards as usize => {
                Ok(counts.to_vec())
            }
            (LoadRows::PerShard(counts), None) => {
                let found = format!("{} counts", counts.len());
                Err(ClientError::shape(
                    "the load",
                    found,
                    format!("{shards} shards"),
                ))
            }
        }
    }
}

impl Loader {
    /// The generation being loaded.
    #[must_use]
    pub fn generation(&self) -> TableGeneration {
        self.generation
    }

    /// Sends rows, `row_bytes` each; they are copied. See [`Loader::put_bytes`].
    ///
    /// # Errors
    /// As there.
    pub async fn put(&mut self, at: LoadAt<'_>, rows: &[u8]) -> Result<(), ClientError> {
        self.put_bytes(at, Bytes::copy_from_slice(rows)).await
    }

    /// Sends rows, `row_bytes` each; those of a dense table are not copied. May be called many
    /// times; every row of the load comes exactly once. Returns when few enough frames are on
    /// their way for the next call: [`Loader::finish`] waits for all of them.
    ///
    /// # Errors
    /// [`Refusal::Shape`], [`Refusal::RowOutOfRange`], refusals of nodes,
    /// [`ClientError::Unavailable`], of these rows or of earlier ones. The load cannot be finished
    /// after an error.
    pub async fn put_bytes(&mut self, at: LoadAt<'_>, rows: Bytes) -> Result<(), ClientError> {
        let row_bytes = self.router.spec.row_bytes() as usize;
        let count = match at {
            LoadAt::Row(_) => rows.len() / row_bytes,
            LoadAt::Keys(keys) => keys.len(),
        };
        if rows.len() != count * row_bytes {
            let wanted = format!("{row_bytes} B a row");
            return Err(ClientError::shape(
                "the load",
                format!("{} B", rows.len()),
                wanted,
            ));
        }
        let frames = match (at, self.router.dense().copied()) {
            (LoadAt::Row(first), Some(layout)) => self.dense_frames(&layout, first, rows)?,
            (LoadAt::Keys(keys), None) => self.keyed_frames(keys, &rows)?,
            (LoadAt::Row(_), None) => return Err(kind_error("row ids", "keys: it is hashed")),
            (LoadAt::Keys(_), Some(_)) => return Err(kind_error("keys", "row ids: it is dense")),
        };
        for frame in frames {
            while self.sending.len() >= FRAMES_IN_FLIGHT {
                self.sent().await?;
            }
            let (table, router) = (self.table.clone(), Arc::clone(&self.router));
            let (generation, until) = (self.generation, self.until());
            let send = send(table, router, generation, frame, until);
            self.sending
                .spawn_on(send, &self.table.shared().client.runtime);
        }
        Ok(())
    }

    /// Waits for one of the frames on their way.
    async fn sent(&mut self) -> Result<(), ClientError> {
        match self.sending.join_next().await {
            Some(Ok(sent)) => sent,
            Some(Err(ended)) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is ending, and with it the client.
                Err(_) => Err(ClientError::Unexpected {
                    from: "the client's runtime".into(),
                    what: "its end".into(),
                }),
            },
            None => Ok(()),
        }
    }

    /// Has all nodes check, seal and keep what they got.
    ///
    /// # Errors
    /// Refusals of nodes: rows missing, a key twice; [`ClientError::Unavailable`].
    pub async fn finish(&mut self) -> Result<&[SealedReplica], ClientError> {
        while !self.sending.is_empty() {
            self.sent().await?;
        }
        let (table, generation) = (self.router.table, self.generation);
        let finish = |(route, _)| (route, NodeRequest::FinishLoad { table, generation });
        let requests = self
            .router
            .shards_by_node()
            .into_iter()
            .map(finish)
            .collect();
        let until = Instant::now() + self.whole;
        let answers = self.table.ask_nodes(requests, until).await?;
        self.replicas = sealed_of(answers)?;
        Ok(&self.replicas)
    }

    /// Makes the finished generation the one that everybody reads, whole (I-8). Finishes first
    /// where that was not done.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if a replica changed since it was finished.
    pub async fn publish(mut self) -> Result<TableGeneration, ClientError> {
        if self.replicas.is_empty() {
            self.finish().await?;
        }
        let replicas = std::mem::take(&mut self.replicas);
        let published = self
            .table
            .publish_replicas(self.generation, replicas, self.until())
            .await;
        // Unless the catalogue refused it is, or may be, published: not to be forgotten.
        self.over = !matches!(published, Err(ClientError::Refused(_)));
        published.map(|()| self.generation)
    }

    /// Forgets the load.
    pub async fn abandon(mut self) {
        self.over = true;
        self.sending.shutdown().await;
        self.table
            .abandon(&self.router.routes(), self.router.table, self.generation)
            .await;
    }

    /// Leaves the finished generation to wait for [`Table::publish`]: what waited before it is
    /// forgotten. Finishes first where that was not done. It waits for as long as its nodes live.
    ///
    /// # Errors
    /// As [`Loader::finish`].
    pub async fn stage(mut self) -> Result<TableGeneration, ClientError> {
        if self.replicas.is_empty() {
            self.finish().await?;
        }
        self.over = true;
        self.table.forget_staged_before(self.generation).await?;
        Ok(self.generation)
    }

    fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Cuts consecutive dense rows into frames: blocks stay together on their shard.
    fn dense_frames(
        &self,
        layout: &DenseLayout,
        first: u64,
        rows: Bytes,
    ) -> Result<Vec<LoadFrame>, ClientError> {
        let row_bytes = self.router.spec.row_bytes() as usize;
        let out_of_range = |row| Refusal::RowOutOfRange {
            row,
            rows: layout.rows(),
        };
        let count = (rows.len() / row_bytes) as u64;
        let last = first.saturating_add(count).saturating_sub(1);
        if count > 0 && last >= layout.rows() {
            return Err(out_of_range(last).into());
        }
        let mut frames = Vec::new();
        let (mut id, mut left) = (first, rows);
        while !left.is_empty() {
            let (shard, local) = layout.locate(id).ok_or_else(|| out_of_range(id))?;
            let in_block = layout.block_rows() - (id & (layout.block_rows() - 1));
            let run = (in_block as usize)
                .min(self.frame_rows())
                .min(left.len() / row_bytes);
            let here = left.split_to(run * row_bytes);
            frames.push(LoadFrame {
                shard,
                first: local,
                count: run,
                keys: Vec::new(),
                rows: here,
            });
            id += run as u64;
        }
        Ok(frames)
    }

    /// Groups keyed rows by shard; each takes the next slot of its shard.
    fn keyed_frames(&mut self, keys: &[u64], rows: &[u8]) -> Result<Vec<LoadFrame>, ClientError> {
        let row_bytes = self.router.spec.row_bytes() as usize;
        let frame_rows = self.frame_rows();
        let mut open: Vec<Option<usize>> = vec![None; self.router.shards() as usize];
        let mut frames: Vec<(LoadFrame, Vec<u8>)> = Vec::new();
        for (&key, row) in keys.iter().zip(rows.chunks_exact(row_bytes)) {
            let shard = self.router.shard(key).map_err(Refusal::from)?;
            let next = &mut self.put[shard as usize];
            let place = match open[shard as usize] {
                Some(place) if frames[place].0.count < frame_rows => place,
                _ => {
                    let frame = LoadFrame {
                        shard,
                        first: *next,
                        count: 0,
                        keys: Vec::new(),
                        rows: Bytes::new(),
                    };
                    frames.push((frame, Vec::new()));
                    open[shard as usize] = Some(frames.len() - 1);
                    frames.len() - 1
                }
            };
            *next += 1;
            let (frame, gathered) = &mut frames[place];
            frame.keys.push(key.into());
            gathered.extend_from_slice(row);
            frame.count += 1;
        }
        let whole = |(frame, rows): (LoadFrame, Vec<u8>)| LoadFrame {
            rows: rows.into(),
            ..frame
        };
        Ok(frames.into_iter().map(whole).collect())
    }

    fn frame_rows(&self) -> usize {
        let row_bytes = self.router.spec.row_bytes() as usize + 8;
        (PUSH_FRAME_BYTES / row_bytes).clamp(1, FRAME_KEYS_MAX as usize)
    }
}

/// Sends one frame; a repeat rewrites the same rows.
async fn send(
    table: Table,
    router: Arc<Router>,
    generation: TableGeneration,
    frame: LoadFrame,
    until: Instant,
) -> Result<(), ClientError> {
    let client = &table.shared().client;
    let Some(route) = router.node(frame.shard) else {
        let why = format!("shard {} has no replica at present", frame.shard);
        return Err(Refusal::Unavailable { why }.into());
    };
    let to = client.links.to(route);
    let header = LoadHeader {
        table: router.table.0.into(),
        generation: generation.0.into(),
        first: frame.first.into(),
        shard: frame.shard.into(),
        rows: (frame.count as u32).into(),
        keyed: u8::from(!frame.keys.is_empty()),
        reserved: [0; 7],
    };
    let head = [header.as_bytes(), frame.keys.as_bytes()].concat();
    let body = vec![Bytes::from(head), frame.rows];
    let mut tries = Tries::new(until);
    client.budget.earn();
    loop {
        let by = tries.begin(Instant::now());
        let (send, want) = (FrameKind::Load, FrameKind::Control);
        let exchanged = exchange(&client.links, &to, send, want, body.clone(), by).await;
        let fault = match exchanged {
            Exchanged::Answered(answer) => {
                match codec::decode::<NodeResponse>(&answer.into_contiguous()) {
                    Ok(NodeResponse::Done) => return Ok(()),
                    Ok(NodeResponse::Refused(refusal)) => ControlFault::Refused(refusal),
                    Ok(other) => return Err(crate::table::unexpected(route, &other)),
                    Err(error) => {
                        ControlFault::Node(crate::error::NodeFault::Malformed(error.to_string()))
                    }
                }
            }
            Exchanged::Refused(refusal) => ControlFault::Refused(refusal),
            Exchanged::NotSent(fault) | Exchanged::InDoubt(fault) => ControlFault::Node(fault),
        };
        match tries.pause(Instant::now(), &client.budget, rand::random()) {
            Some(pause) if fault.may_pass() => tokio::time::sleep(pause).await,
            _ => return Err(table.node_error(route, fault)),
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (table, router, generation) =
            (self.table.clone(), self.router.clone(), self.generation);
        self.table.shared().client.runtime.spawn(async move {
            let nodes = router.routes();
            table.abandon(&nodes, router.table, generation).await;
        });
    }
}

/// Rows of one shard, on their way.
struct LoadFrame {
    shard: u32,
    /// Local row or slot of the first one.
    first: u64,
    count: usize,
    keys: Vec<U64>,
    rows: Bytes,
}

fn kind_error(found: &str, wanted: &str) -> ClientError {
    ClientError::shape("the load", found.into(), wanted.into())
}
