//! A scan: all rows of a table, shard by shard, in slot order. For exports and a look.

use std::sync::Arc;
use std::time::Duration;

use mneme_proto::control::{NodeRequest, NodeResponse};
use mneme_proto::ids::ShardIndex;
use mneme_proto::limits::FRAME_KEYS_MAX;
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;

use crate::error::ClientError;
use crate::limits::SCAN_BYTES;
use crate::pull::served;
use crate::retry::Tries;
use crate::router::Router;
use crate::table::{Table, unexpected};

/// A scan under way. It keeps the generation that it began with: of a sealed table it sees one
/// whole (I-8); of a mutable one each row as it is when its turn comes.
#[derive(Debug)]
pub struct Scan {
    table: Table,
    router: Arc<Router>,
    deadline: Option<Duration>,
    shard: u32,
    cursor: u64,
}

/// Some rows of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRows {
    /// Their shard.
    pub shard: ShardIndex,
    /// Their keys: row ids of a dense table.
    pub keys: Vec<u64>,
    /// The rows in the same order, `stride_bytes` each.
    pub rows: Vec<u8>,
    /// `row_bytes`, and where the node sends them along the bytes of the optimizer's state.
    pub stride_bytes: usize,
}

impl Table {
    /// Begins a scan. `deadline` is that of each step; the client's without one.
    ///
    /// # Errors
    /// [`Refusal::TableLost`]; [`ClientError::Catalogue`] if the table is not served by the
    /// cached map and no newer one can be had.
    pub async fn scan(&self, deadline: Option<Duration>) -> Result<Scan, ClientError> {
        let router = served(self.shared(), self.shared().client.deadline(deadline)).await?;
        Ok(Scan {
            table: self.clone(),
            router,
            deadline,
            shard: 0,
            cursor: 0,
        })
    }
}

impl Scan {
    /// The next rows; `None` when all were seen. At most `rows_max` of them.
    ///
    /// # Errors
    /// [`Refusal::GenerationGone`] if the generation was replaced: scan again;
    /// [`ClientError::Unavailable`]. The same step may be tried again after an error.
    pub async fn next(&mut self, rows_max: u32) -> Result<Option<ScanRows>, ClientError> {
        while self.shard < self.router.shards() {
            let shard = ShardIndex(self.shard);
            let found = self.step(shard, rows_max).await?;
            match found.next {
                Some(cursor) => self.cursor = cursor,
                None => (self.shard, self.cursor) = (self.shard + 1, 0),
            }
            if !found.keys.is_empty() {
                let stride_bytes = found.rows.len() / found.keys.len();
                let (keys, rows) = (found.keys, found.rows);
                return Ok(Some(ScanRows {
                    shard,
                    keys,
                    rows,
                    stride_bytes,
                }));
            }
        }
        Ok(None)
    }

    async fn step(&mut self, shard: ShardIndex, rows_max: u32) -> Result<Step, ClientError> {
        let shared = self.table.shared().clone();
        let spec = &self.router.spec;
        let stride = (spec.row_bytes() + spec.state_bytes() + 8) as usize;
        let fitting = (SCAN_BYTES / stride).clamp(1, FRAME_KEYS_MAX as usize) as u32;
        let request = NodeRequest::Scan {
            table: self.router.table,
            shard,
            generation: self.router.generation,
            cursor: self.cursor,
            rows_max: rows_max.clamp(1, fitting),
        };
        shared.client.budget.earn();
        let mut tries = Tries::new(shared.client.deadline(self.deadline));
        loop {
            let by = tries.begin(std::time::Instant::now());
            let Some(route) = self.router.node(shard.0).cloned() else {
                let why = format!("shard {shard} has no replica at present");
                return Err(Refusal::Unavailable { why }.into());
            };
            let error = match self.table.ask_node(&route, &request, by).await {
                Ok(NodeResponse::Rows { keys, rows, next }) => {
                    if keys.is_empty() || rows.len() % keys.len() == 0 {
                        return Ok(Step { keys, rows, next });
                    }
                    let what = format!("{} keys with {} B of rows", keys.len(), rows.len());
                    let from = format!("node '{}'", route.name);
                    return Err(ClientError::Unexpected { from, what });
                }
                Ok(other) => return Err(unexpected(&route, &other)),
                Err(error) => error,
            };
            let stale = error.refusal().is_some_and(Refusal::wants_new_map);
            let passing = error.refusal().is_none_or(Refusal::is_transient);
            let now = std::time::Instant::now();
            let pause = tries.pause(now, &shared.client.budget, rand::random());
            let Some(pause) = pause.filter(|_| stale || passing) else {
                return Err(error);
            };
            tokio::time::sleep(pause).await;
            if stale {
                self.follow(shared.refresh(&self.router, by).await?, error)?;
            }
        }
    }

    /// Goes on with a newer map, if the contents are still the ones that the scan began with.
    fn follow(&mut self, fresh: Arc<Router>, error: ClientError) -> Result<(), ClientError> {
        let same = fresh.generation == self.router.generation
            && (fresh.state == TableState::Sealed || self.cursor == 0);
        if !same {
            return Err(error); // slots of another life of a mutable shard mean nothing
        }
        self.router = fresh;
        Ok(())
    }
}

struct Step {
    keys: Vec<u64>,
    rows: Vec<u8>,
    next: Option<u64>,
}
