//! openraft as the catalogue uses it: its types and its timing.

use std::sync::Arc;

use openraft::{Config, SnapshotPolicy};

use crate::limits::{
    ELECTION_MAX_MS, ELECTION_MIN_MS, ENTRIES_KEPT, HEARTBEAT_MS, INSTALL_SNAPSHOT_MS,
    SNAPSHOT_EVERY_ENTRIES,
};
use crate::state::command::{Command, Outcome};

/// The number of a catalogue member, `--id`.
pub type MemberId = u64;

openraft::declare_raft_types!(
    /// The catalogue's Raft group: commands in, outcomes out, snapshots as one record.
    pub TypeConfig:
        D = Command,
        R = Outcome,
        NodeId = MemberId,
        Node = openraft::BasicNode,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = Vec<u8>,
        AsyncRuntime = openraft::TokioRuntime,
);

/// A running member.
pub type Raft = openraft::Raft<TypeConfig>;

/// Timing and snapshot policy, from [`limits`](crate::limits).
#[must_use]
pub fn config() -> Arc<Config> {
    let config = Config {
        cluster_name: "mneme-catalogue".into(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MIN_MS,
        election_timeout_max: ELECTION_MAX_MS,
        install_snapshot_timeout: INSTALL_SNAPSHOT_MS,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY_ENTRIES),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        ..Config::default()
    };
    Arc::new(
        config
            .validate()
            .expect("limits.rs asserts the relations that validate checks"),
    )
}
