//! Changes kept for watchers: a bounded ring, and an honest answer when it no longer reaches back.

use std::collections::VecDeque;

use mneme_proto::control::Change;
use mneme_proto::ids::Revision;
use serde::{Deserialize, Serialize};

use crate::limits::EVENTS_KEPT;

/// The newest changes with their revisions, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Events {
    ring: VecDeque<(Revision, Change)>,
    /// The revision of the newest change that is no longer kept.
    compacted: Revision,
}

/// What a watcher missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    /// All of it, oldest first; empty when nothing happened.
    Changes(Vec<Change>),
    /// Part of it is no longer kept: reload everything.
    Compacted,
}

impl Events {
    pub(super) fn push(&mut self, revision: Revision, change: Change) {
        if self.ring.len() == EVENTS_KEPT
            && let Some((revision, _)) = self.ring.pop_front()
        {
            self.compacted = revision;
        }
        self.ring.push_back((revision, change));
    }

    /// The changes after revision `from`, if all of them are kept.
    #[must_use]
    pub fn since(&self, from: Revision) -> Since {
        if from < self.compacted {
            return Since::Compacted;
        }
        let start = self.ring.partition_point(|(revision, _)| *revision <= from);
        Since::Changes(self.ring.range(start..).map(|(_, c)| c.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use mneme_proto::ids::TableId;

    use super::*;

    fn change(n: u64) -> Change {
        Change::Table(TableId(n))
    }

    #[test]
    fn a_watcher_gets_what_came_after() {
        let mut events = Events::default();
        events.push(Revision(1), change(1));
        events.push(Revision(3), change(2));
        events.push(Revision(3), change(3));
        assert_eq!(
            events.since(Revision(0)),
            Since::Changes(vec![change(1), change(2), change(3)])
        );
        assert_eq!(
            events.since(Revision(2)),
            Since::Changes(vec![change(2), change(3)])
        );
        assert_eq!(events.since(Revision(3)), Since::Changes(vec![]));
    }

    #[test]
    fn a_gap_is_told_never_skipped() {
        let mut events = Events::default();
        for n in 1..=EVENTS_KEPT as u64 + 10 {
            events.push(Revision(n), change(n));
        }
        assert_eq!(events.since(Revision(9)), Since::Compacted);
        let Since::Changes(all) = events.since(Revision(10)) else {
            panic!("revision 10 is the newest that is compacted: all after it is kept")
        };
        assert_eq!(all.len(), EVENTS_KEPT);
        assert_eq!(all[0], change(11));
    }

    /// One command may change more tables than the ring keeps.
    #[test]
    fn a_revision_is_never_told_in_part() {
        let mut events = Events::default();
        for n in 1..=EVENTS_KEPT as u64 + 1 {
            events.push(Revision(7), change(n));
        }
        assert_eq!(events.since(Revision(6)), Since::Compacted);
        assert_eq!(events.since(Revision(7)), Since::Changes(vec![]));
    }
}
