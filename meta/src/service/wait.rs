//! Answers that wait: for a table's shards to serve, and for something to happen.

use std::time::Duration;

use mneme_net::Principal;
use mneme_proto::control::{CatalogueResponse, TableRef};
use mneme_proto::ids::{Revision, TableId};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use tokio::time::{Instant, timeout_at};

use crate::limits::{SERVE_WAIT, WATCH_WAIT};
use crate::service::access;
use crate::service::member::{Declined, Member};
use crate::state::State;
use crate::state::command::Command;
use crate::state::events::Since;

/// How far the making of a table has come.
enum Making {
    /// All shards serve, or the table is lost and its map says so.
    Over,
    /// A node cannot make its shard.
    Failed(Refusal),
    /// `serving` of `all` shards serve.
    UnderWay { serving: usize, all: usize },
}

fn making(state: &State, table: TableId) -> Result<Making, Refusal> {
    let record = state.table(&TableRef::Id(table))?;
    if record.state() != TableState::Creating {
        return Ok(Making::Over);
    }
    if let Some((shard, node, why)) = record.failure() {
        let name = state.node(node).map(|n| n.entry.name.clone());
        return Ok(Making::Failed(Refusal::ShardFailed {
            table: record.spec.name.clone(),
            shard: shard.into(),
            node: name.unwrap_or_default(),
            why: why.into(),
        }));
    }
    let (serving, all) = record.serving();
    Ok(Making::UnderWay { serving, all })
}

impl Member {
    /// Waits until every shard of a new (or emptied) table serves. A created table that a node
    /// cannot hold is removed again, so that its name is free.
    pub(super) async fn wait_until_served(
        &self,
        table: TableId,
        created: bool,
    ) -> Result<(), Declined> {
        let mut revisions = self.view.revisions();
        let deadline = Instant::now() + SERVE_WAIT;
        loop {
            revisions.borrow_and_update();
            let (serving, all) = match self.view.read(|state| making(state, table))? {
                Making::Over => return Ok(()),
                Making::Failed(refusal) => {
                    if created {
                        self.write(Command::AbandonTable { table }).await?;
                    }
                    return Err(refusal.into());
                }
                Making::UnderWay { serving, all } => (serving, all),
            };
            if timeout_at(deadline, revisions.changed()).await.is_err() {
                return Err(Refusal::Unavailable {
                    why: format!(
                        "{serving} of {all} shards serve after {} s; are all nodes up?",
                        SERVE_WAIT.as_secs()
                    ),
                }
                .into());
            }
        }
    }

    /// What changed after `from`, of what `peer` may read; waits for something to, up to
    /// `wait_ms`.
    pub(super) async fn watch(
        &self,
        peer: &Principal,
        from: Revision,
        wait_ms: u32,
    ) -> CatalogueResponse {
        let mut revisions = self.view.revisions();
        let wait = Duration::from_millis(wait_ms.into()).min(WATCH_WAIT);
        let deadline = Instant::now() + wait;
        loop {
            revisions.borrow_and_update();
            let (since, revision) = self.view.read(|state| {
                let mut since = state.since(from);
                if let Since::Changes(changes) = &mut since {
                    changes.retain(|change| access::may_hear(peer, change, state));
                }
                (since, state.revision())
            });
            match since {
                Since::Compacted => return CatalogueResponse::Compacted { revision },
                Since::Changes(changes) => {
                    let waited = changes.is_empty()
                        && timeout_at(deadline, revisions.changed()).await.is_ok();
                    if !waited {
                        return CatalogueResponse::Changes { revision, changes };
                    }
                }
            }
        }
    }
}
