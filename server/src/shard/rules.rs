//! What a table's pushes and pulls need to know of it, worked out once per table.

use mneme_proto::dense::DenseLayout;
use mneme_proto::frame::PushMode;
use mneme_proto::ids::{ShardId, ShardIndex, TableId};
use mneme_proto::mix64::shard_of_key;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Optimizer, RowSchema, TableSpec};
use zerocopy::IntoBytes;

use super::narrow::Narrow;
use crate::optimizer::Rule;
use crate::optimizer::init::RowInit;

/// A table's fixed arithmetic: sizes, update rule, initializer, placement of keys.
#[derive(Debug, Clone)]
pub struct TableRules {
    /// The table.
    pub table: TableId,
    /// Its name, for refusals.
    pub name: String,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a row's optimizer state.
    pub state_bytes: usize,
    /// Elements of a row.
    pub dim: usize,
    /// What a gradient does.
    pub rule: Rule,
    /// How new rows are made.
    pub init: RowInit,
    /// How rows narrower than f32 are reckoned with; `None` where there is nothing to round.
    pub narrow: Option<Narrow>,
    /// Columns.
    pub schema: RowSchema,
    /// Reads as zeros, ignores pushes (B037).
    pub padding_key: Option<u64>,
    /// The row that answers an absent key.
    pub default_row: Vec<u8>,
    /// Number of shards.
    pub shards: u32,
    /// Placement of a dense table's rows; `None` for a hashed one.
    pub dense: Option<DenseLayout>,
    wants_step: bool,
}

impl TableRules {
    /// The rules of `table`. The spec was validated by the catalogue; a node checks it again
    /// before it makes anything of it.
    #[must_use]
    pub fn new(table: TableId, spec: &TableSpec) -> Self {
        Self {
            table,
            name: spec.name.clone(),
            row_bytes: spec.row_bytes() as usize,
            state_bytes: spec.state_bytes() as usize,
            dim: spec.schema.dim() as usize,
            rule: Rule::from(&spec.optimizer),
            init: RowInit::new(spec, table),
            narrow: Narrow::of(spec, table),
            schema: spec.schema.clone(),
            padding_key: spec.padding_key,
            default_row: spec.default_row(),
            shards: spec.shards,
            dense: spec.dense_layout(),
            wants_step: spec.optimizer.wants_step(),
        }
    }

    /// The id of one of its shards.
    #[must_use]
    pub fn shard_id(&self, shard: u32) -> ShardId {
        ShardId {
            table: self.table,
            shard: ShardIndex(shard),
        }
    }

    /// Words of the optimizer's state: the rest of the state is the master copy.
    #[must_use]
    pub fn optimizer_words(&self) -> usize {
        let master = self.narrow.as_ref().is_some_and(|narrow| narrow.master);
        self.state_bytes / 4 - if master { self.dim } else { 0 }
    }

    /// Writes row and state of a row that has taken no push. `words` is memory to work in.
    pub fn fresh(&self, key: u64, row: &mut [u8], state: &mut [u8], words: &mut Vec<f32>) {
        words.resize(self.dim + self.state_bytes / 4, 0.0);
        let (values, made) = words.split_at_mut(self.dim);
        self.init.fill(key, values);
        self.schema.narrow_row(values, row);
        let (own, master) = made.split_at_mut(self.optimizer_words());
        if let Some(narrow) = &self.narrow {
            narrow.reload(row, values);
            master.copy_from_slice(if narrow.master { values } else { &[] });
        }
        self.rule.fresh(values, own);
        state.copy_from_slice(made.as_bytes());
    }

    /// Checks that the table takes pushes of this mode with payloads of this size and this step
    /// number, 0 for none.
    ///
    /// # Errors
    /// [`Refusal::Mode`] or [`Refusal::Shape`], which names both sides (B050).
    pub fn check_push(&self, mode: PushMode, value_bytes: u32, step: u64) -> Result<(), Refusal> {
        let refused = |why: &str| {
            Err(Refusal::Mode {
                mode: mode.word().into(),
                why: why.into(),
            })
        };
        let wanted = match mode {
            PushMode::Gradient if self.rule == Rule::None => {
                return refused("the table has no optimizer: create it with --optimizer");
            }
            PushMode::Gradient | PushMode::Add if !self.schema.is_float() => {
                return refused(&format!(
                    "the table has {}: i8 and u8 take assign and delete only",
                    self.schema.words()
                ));
            }
            PushMode::Gradient if self.wants_step && step == 0 => {
                return refused("the table has step=caller: give the step's number, from 1");
            }
            _ if step != 0 && !(self.wants_step && mode == PushMode::Gradient) => {
                return refused("a step's number is for gradients of a table with step=caller");
            }
            PushMode::Gradient | PushMode::Add => self.dim * 4,
            PushMode::Assign => self.row_bytes,
            PushMode::Delete => 0,
        };
        if value_bytes as usize == wanted {
            return Ok(());
        }
        Err(Refusal::Shape {
            what: format!("the {} payload of a key", mode.word()),
            found: format!("{value_bytes} B"),
            wanted: format!("{wanted} B"),
        })
    }

    /// The local row of a dense row id in `shard`; a hashed key's check that it belongs there.
    ///
    /// # Errors
    /// [`Refusal::RowOutOfRange`] naming id and rows, or [`Refusal::Malformed`] for a key of
    /// another shard.
    #[inline]
    pub fn place(&self, key: u64, shard: u32) -> Result<u64, Refusal> {
        let (found, local) = match &self.dense {
            None => (shard_of_key(key, self.shards), 0),
            Some(layout) => match layout.locate(key) {
                Some(place) => place,
                None => {
                    return Err(Refusal::RowOutOfRange {
                        row: key,
                        rows: layout.rows(),
                    });
                }
            },
        };
        if found == shard {
            return Ok(local);
        }
        Err(Refusal::Malformed {
            why: format!("key {key} belongs to shard {found}, it was sent to shard {shard}"),
        })
    }
}

/// A spec that the node cannot work with, though a catalogue sent it.
///
/// # Errors
/// [`Refusal::Schema`] naming the field.
pub fn check_spec(spec: &TableSpec) -> Result<(), Refusal> {
    spec.validate()?;
    if spec.shards == 0 {
        return Err(Refusal::Schema {
            field: "shards".into(),
            why: "it must be effective".into(),
        });
    }
    debug_assert!(spec.optimizer == Optimizer::None || spec.schema.is_float());
    Ok(())
}
