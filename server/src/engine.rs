//! The node's engine: requests in, answers out, without a network and without waiting. The
//! service around it reads frames, waits for maps and buffers, and sends what this returns.

use std::sync::Arc;

use bytes::Bytes;
use mneme_memory::Slot;
use mneme_proto::frame::{PullView, PushView};
use mneme_proto::ids::{Epoch, SessionId, ShardIndex, TableGeneration, TableId};
use mneme_proto::refusal::Refusal;

use crate::clock::{Lease, now_ms};
use crate::metrics::Metrics;
use crate::pull::{self, Layout};
use crate::push::{self, refusals_archive};
use crate::replies::{Replies, ReplyPlace};
use crate::shard::effects::Effects;
use crate::table::{Table, Tables};

/// When a request is worked on, and whether the node's lease is live then.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Milliseconds of the node's clock.
    pub now_ms: u64,
    /// Whether mutable shards may be served.
    pub lease_live: bool,
}

impl Moment {
    /// Refuses mutable work without a live lease (I-3).
    ///
    /// # Errors
    /// [`Refusal::Unavailable`].
    pub fn check_lease(&self) -> Result<(), Refusal> {
        if self.lease_live {
            return Ok(());
        }
        let why = "the node's lease with the catalogue is over: mutable rows wait for it".into();
        Err(Refusal::Unavailable { why })
    }
}

/// Memory that a serving thread uses again for each request.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) places: Vec<u64>,
    pub(crate) slots: Vec<Option<Slot>>,
    pub(crate) effects: Effects<Slot>,
}

/// What requests work on.
#[derive(Debug, Default)]
pub struct Engine {
    /// The tables.
    pub tables: Tables,
    /// Buffers of answers.
    pub replies: Arc<Replies>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The node's lease.
    pub lease: Arc<Lease>,
}

impl Engine {
    /// Now, and whether the lease is live.
    #[must_use]
    pub fn moment(&self) -> Moment {
        let now_ms = now_ms();
        Moment {
            now_ms,
            lease_live: self.lease.is_live(now_ms),
        }
    }

    /// The table of a pull; none if the node must look at a newer map first.
    #[must_use]
    pub fn table_of_pull(&self, view: &PullView<'_>) -> Option<Arc<Table>> {
        let generation = TableGeneration(view.header.generation.get());
        let table = self.tables.get(TableId(view.header.table.get()))?;
        let known = if generation.0 == 0 && !table.is_sealed() {
            view.groups
                .iter()
                .all(|g| table.knows_epoch(g.shard.get(), g.epoch.get()))
        } else {
            table.knows_generation(generation)
        };
        known.then_some(table)
    }

    /// The table of a push; none if the node must look at a newer map first.
    #[must_use]
    pub fn table_of_push(&self, view: &PushView<'_>) -> Option<Arc<Table>> {
        let table = self.tables.get(TableId(view.header.table.get()))?;
        let known = view
            .parts
            .iter()
            .all(|p| table.knows_epoch(p.shard.get(), p.epoch.get()));
        known.then_some(table)
    }

    /// Answers a pull into a buffer of `layout.bytes`.
    #[must_use]
    pub fn pull(
        &self,
        table: &Table,
        view: &PullView<'_>,
        layout: Layout,
        place: ReplyPlace,
        scratch: &mut Scratch,
    ) -> Vec<Bytes> {
        let mut reply = self.replies.take(place);
        let bytes = reply.bytes_mut();
        let pulled = pull::answer(table, view, layout, self.moment(), bytes, scratch);
        let refusals = refusals_archive(&pulled.refusals);
        pull::finish(view, layout, refusals.len(), bytes);
        self.metrics.pulls.inc();
        self.metrics.pulled_rows.inc_by(pulled.found as u64);
        self.metrics.pulled_missing.inc_by(pulled.missing as u64);
        self.metrics.pulled_bytes.inc_by(layout.bytes as u64);
        pulled.refusals.iter().for_each(|r| self.metrics.refused(r));
        let mut body = vec![Bytes::from_owner(reply)];
        if !refusals.is_empty() {
            body.push(refusals);
        }
        body
    }

    /// Answers a push.
    #[must_use]
    pub fn push(&self, table: &Table, view: &PushView<'_>, scratch: &mut Scratch) -> Vec<Bytes> {
        let pushed = push::answer(table, view, self.moment(), scratch);
        self.metrics.pushes.inc();
        self.metrics.pushed_rows.inc_by(pushed.rows);
        self.metrics
            .pushed_bytes
            .inc_by(view.payload.len() as u64 + view.keys.len() as u64 * 8);
        pushed.refusals.iter().for_each(|r| self.metrics.refused(r));
        vec![pushed.body().into()]
    }

    /// Opens sessions on shards of a table, all or none (I-2).
    ///
    /// # Errors
    /// The first shard's refusal; no session is open then that anybody knows of.
    pub fn open_sessions(
        &self,
        table: &Table,
        shards: &[(ShardIndex, Epoch)],
    ) -> Result<Vec<SessionId>, Refusal> {
        let moment = self.moment();
        moment.check_lease()?;
        table.check_mutable()?;
        for (shard, epoch) in shards {
            let core = table.mutable(shard.0, *epoch)?.core();
            core.check_open(*epoch)?;
            core.order_room(moment.now_ms)?;
        }
        let open = |(shard, epoch): &(ShardIndex, Epoch)| {
            let mutable = table.mutable(shard.0, *epoch)?;
            mutable.core().open_session(*epoch, moment.now_ms)
        };
        shards.iter().map(open).collect()
    }

    /// Gives a sequence up (I-2).
    ///
    /// # Errors
    /// As of a push.
    pub fn void_sequence(
        &self,
        table: &Table,
        shard: ShardIndex,
        session: SessionId,
        sequence: u64,
    ) -> Result<(), Refusal> {
        let moment = self.moment();
        moment.check_lease()?;
        table.check_mutable()?;
        let epoch = table
            .places
            .get(shard.0 as usize)
            .map_or(Epoch(0), |place| place.epoch);
        table
            .mutable(shard.0, epoch)?
            .core()
            .void(session, sequence, moment.now_ms)
    }
}

#[cfg(test)]
mod tests;
