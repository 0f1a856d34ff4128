//! The tables of a node as requests find them: immutable snapshots, replaced as a whole when the
//! catalogue's map changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use mneme_memory::{MutableReader, MutableWriter, SealedShard};
use mneme_proto::ids::{Epoch, Generation, ShardIndex, TableGeneration, TableId};
use mneme_proto::map::{LOADING_REMEDY, TableState};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;
use rustc_hash::FxHashMap;

use crate::access::Grants;
use crate::shard::rules::TableRules;
use crate::shard::{Gate, Shard};

/// One mutable shard: lock-free reads, and pushes one at a time.
#[derive(Debug)]
pub struct MutableShard {
    /// The epoch that it follows.
    pub epoch: Epoch,
    /// Reads beside the writer.
    pub reader: MutableReader,
    /// Its region's generation.
    pub generation: Generation,
    /// Held shortly, never across an await.
    core: Mutex<Shard<MutableWriter>>,
    /// Whether the data directory says that pushes were let in.
    touched: AtomicBool,
}

impl MutableShard {
    /// Wraps a shard's core.
    #[must_use]
    pub fn new(core: Shard<MutableWriter>, generation: Generation) -> Self {
        Self {
            epoch: core.epoch(),
            reader: core.rows().reader(),
            generation,
            core: Mutex::new(core),
            touched: AtomicBool::new(false),
        }
    }

    /// The core, to order and apply.
    pub fn core(&self) -> MutexGuard<'_, Shard<MutableWriter>> {
        // A panic inside leaves an entry unapplied, which its caller saw as no answer.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether pushes may be let in: the data directory says so durably.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire)
    }

    /// The data directory says so now.
    pub fn set_touched(&self) {
        self.touched.store(true, Ordering::Release);
    }

    /// Refuses pushes from now on: the shard is at another epoch.
    pub fn replace(&self, current: Epoch) {
        self.core().set_gate(Gate::Replaced(current));
    }
}

/// A shard's place on this node.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The shard's epoch in the newest map that the node has seen.
    pub epoch: Epoch,
    /// Whether a replica of it belongs here.
    pub mine: bool,
    /// Whether its rows are lost.
    pub lost: bool,
    /// Its mutable rows.
    pub mutable: Option<Arc<MutableShard>>,
}

/// The shards of one sealed generation on this node, by shard index.
pub type SealedSet = BTreeMap<ShardIndex, Arc<SealedShard>>;

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its id.
    pub id: TableId,
    /// What it is.
    pub spec: Arc<TableSpec>,
    /// Its arithmetic.
    pub rules: Arc<TableRules>,
    /// Who may do what with it.
    pub grants: Arc<Grants>,
    /// The published generation; 0 while mutable.
    pub generation: TableGeneration,
    /// Whether it has no rows until a generation is published.
    pub loading: bool,
    /// The generation before, which is kept.
    pub previous: TableGeneration,
    /// One per shard.
    pub places: Vec<Place>,
    /// Sealed generations that may be read: the published one and the one before.
    pub sealed: BTreeMap<TableGeneration, Arc<SealedSet>>,
}

/// Where a pull's rows come from.
#[derive(Debug)]
pub enum Source<'a> {
    /// A mutable shard.
    Mutable(&'a MutableShard),
    /// A shard of a sealed generation.
    Sealed(&'a SealedShard),
}

impl Table {
    /// Whether the table is sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.generation.0 != 0
    }

    /// Whether its rows can be changed: it is neither sealed nor waiting for its first generation.
    #[must_use]
    pub fn is_mutable(&self) -> bool {
        !self.is_sealed() && !self.loading
    }

    /// Whether a request that names this generation comes from a newer map than the node's.
    #[must_use]
    pub fn knows_generation(&self, asked: TableGeneration) -> bool {
        asked == self.generation || self.sealed.contains_key(&asked)
    }

    /// Whether a request about `shard` at `epoch` comes from a newer map than the node's.
    #[must_use]
    pub fn knows_epoch(&self, shard: u32, epoch: u64) -> bool {
        self.places
            .get(shard as usize)
            .is_none_or(|p| p.mine && epoch <= p.epoch.0)
    }

    /// The rows that a pull of `shard` reads: those of the generation that it names (I-8), or of
    /// the mutable shard at the epoch that it names (I-3).
    ///
    /// # Errors
    /// [`Refusal::GenerationGone`], [`Refusal::NotServed`], [`Refusal::WrongEpoch`],
    /// [`Refusal::TableLost`]; [`Refusal::TableState`] while nothing is published.
    pub fn source(
        &self,
        asked: TableGeneration,
        shard: u32,
        epoch: Epoch,
    ) -> Result<Source<'_>, Refusal> {
        if asked.0 == 0 && !self.is_sealed() {
            self.check_mutable()?;
            return self.mutable(shard, epoch).map(Source::Mutable);
        }
        let current = self.generation;
        let set = self
            .sealed
            .get(&asked)
            .filter(|_| asked.0 != 0 && self.is_sealed());
        let set = set.ok_or(Refusal::GenerationGone { asked, current })?;
        let place = self.place(shard)?;
        match set.get(&ShardIndex(shard)) {
            Some(sealed) => Ok(Source::Sealed(sealed)),
            None if place.lost => Err(self.lost()),
            None => Err(Refusal::NotServed {
                shard: ShardIndex(shard),
            }),
        }
    }

    /// The mutable shard of a request.
    ///
    /// # Errors
    /// As [`Table::source`].
    pub fn mutable(&self, shard: u32, asked: Epoch) -> Result<&MutableShard, Refusal> {
        let place = self.place(shard)?;
        if place.lost {
            return Err(self.lost());
        }
        let index = ShardIndex(shard);
        if asked != place.epoch {
            return Err(Refusal::WrongEpoch {
                shard: index,
                asked,
                current: place.epoch,
            });
        }
        place
            .mutable
            .as_deref()
            .ok_or_else(|| Refusal::Unavailable {
                why: format!("shard {shard} of '{}' is being made", self.spec.name),
            })
    }

    /// Refuses pushes to a table that is sealed, or waits for its first generation.
    ///
    /// # Errors
    /// [`Refusal::TableState`].
    pub fn check_mutable(&self) -> Result<(), Refusal> {
        let (state, remedy) = if self.is_sealed() {
            let remedy = "its rows never change; import a new version of them";
            (TableState::Sealed, remedy)
        } else if self.loading {
            (TableState::Loading, LOADING_REMEDY)
        } else {
            return Ok(());
        };
        Err(Refusal::TableState {
            table: self.spec.name.clone(),
            state: state.word().into(),
            remedy: remedy.into(),
        })
    }

    /// The refusal of a table whose rows went with an earlier life of the node.
    #[must_use]
    pub fn lost(&self) -> Refusal {
        Refusal::TableLost {
            table: self.spec.name.clone(),
        }
    }

    /// Rows held on this node, of what is served.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match self.sealed.get(&self.generation) {
            Some(set) => set.values().map(|s| s.rows()).sum(),
            None => self.shards().map(|(_, m)| m.reader.rows()).sum(),
        }
    }

    /// Bytes held on this node, all generations together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let sealed = self.sealed.values().flat_map(|set| set.values());
        let mutable = self.shards().map(|(_, m)| m.core().rows().bytes());
        sealed.map(|s| s.bytes()).sum::<u64>() + mutable.sum::<u64>()
    }

    /// Mutable shards that are here.
    pub fn shards(&self) -> impl Iterator<Item = (ShardIndex, &Arc<MutableShard>)> {
        let held = self.places.iter().enumerate();
        held.filter_map(|(i, p)| p.mutable.as_ref().map(|m| (ShardIndex(i as u32), m)))
    }

    fn place(&self, shard: u32) -> Result<&Place, Refusal> {
        self.places
            .get(shard as usize)
            .filter(|place| place.mine)
            .ok_or(Refusal::NotServed {
                shard: ShardIndex(shard),
            })
    }
}

/// All tables of a node. Requests load the map once; changes replace it.
#[derive(Debug, Default)]
pub struct Tables {
    map: ArcSwap<FxHashMap<TableId, Arc<Table>>>,
}

impl Tables {
    /// A table.
    #[must_use]
    pub fn get(&self, table: TableId) -> Option<Arc<Table>> {
        self.map.load().get(&table).cloned()
    }

    /// Puts a table in place of its former self.
    pub fn put(&self, table: Arc<Table>) {
        self.map.rcu(|map| {
            let mut map = FxHashMap::clone(map);
            map.insert(table.id, Arc::clone(&table));
            map
        });
    }

    /// Takes a table out.
    pub fn remove(&self, table: TableId) {
        self.map.rcu(|map| {
            let mut map = FxHashMap::clone(map);
            map.remove(&table);
            map
        });
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Table>> {
        self.map.load().values().cloned().collect()
    }
}
