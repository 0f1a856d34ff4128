//! Effects: what each key's row and state become. Worked out whole before anything is written,
//! so that a part is applied whole or not at all; kept in memory that is reused.

use mneme_proto::frame::PushMode;
use mneme_proto::refusal::Refusal;
use zerocopy::little_endian::{F32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::narrow::Salt;
use super::rows::Rows;
use super::rules::TableRules;
use crate::optimizer::{add, all_finite, all_finite_le};

/// The keys and values of one push part, as they stand in its frame.
#[derive(Debug, Clone, Copy)]
pub struct PartData<'a> {
    /// What to do.
    pub mode: PushMode,
    /// Strictly ascending keys.
    pub keys: &'a [U64],
    /// Payload, equally many bytes per key; sizes were checked by [`TableRules::check_push`].
    pub payload: &'a [u8],
    /// The step's number, where the caller counts them; else 0.
    pub step: u64,
}

/// What a part changes, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Rows changed, inserted or removed.
    pub rows: u32,
    /// Keys ignored: the padding key.
    pub ignored: u32,
}

/// The effects of one entry. One is kept per serving thread, not per shard: it grows to the
/// largest part seen, a few times the bytes of a frame at most. `S` is a store's slot.
#[derive(Debug)]
pub struct Effects<S> {
    keys: Vec<u64>,
    /// What the store looks each key up by; empty where that is the key itself.
    locals: Vec<u64>,
    /// `None` for a key that has no row yet.
    slots: Vec<Option<S>>,
    /// Which key of the part each effect comes from.
    sources: Vec<u32>,
    /// Row, then state, per effect, each rounded up to whole words. Never shrinks and is not
    /// cleared: every word of an effect is written before it is read.
    words: Vec<f32>,
    row_words: usize,
    state_words: usize,
    row_bytes: usize,
    state_bytes: usize,
    removes: bool,
    /// One row as f32, and its state, while it is worked on.
    values: Vec<f32>,
}

impl<S> Default for Effects<S> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            locals: Vec::new(),
            slots: Vec::new(),
            sources: Vec::new(),
            words: Vec::new(),
            row_words: 0,
            state_words: 0,
            row_bytes: 0,
            state_bytes: 0,
            removes: false,
            values: Vec::new(),
        }
    }
}

impl<S: Copy> Effects<S> {
    /// How many keys change.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.locals.clear();
        self.slots.clear();
        self.sources.clear();
    }

    fn shape(&mut self, rules: &TableRules) {
        self.clear();
        self.removes = false;
        self.row_bytes = rules.row_bytes;
        self.state_bytes = rules.state_bytes;
        self.row_words = rules.row_bytes.div_ceil(4);
        self.state_words = rules.state_bytes / 4;
    }

    /// Works out what a push part does to `rows`, and reserves the memory that it takes.
    /// Changes no row.
    ///
    /// # Errors
    /// The part's refusal: its keys are not strictly ascending or not this shard's, a gradient
    /// or a result is not finite (B017), or memory is short. Nothing of it is applied.
    pub fn of_push(
        &mut self,
        rules: &TableRules,
        shard: u32,
        rows: &mut impl Rows<Slot = S>,
        part: PartData<'_>,
        salt: Salt,
    ) -> Result<Tally, Refusal> {
        self.shape(rules);
        let ignored = self.locate(rules, shard, rows, part.keys)?;
        match part.mode {
            PushMode::Gradient => self.step(rules, rows, part, salt)?,
            PushMode::Add => self.add(rules, rows, part, salt)?,
            PushMode::Assign => self.assign(rules, rows, part.payload),
            PushMode::Delete => self.delete(rules),
        }
        self.reserve(rows)?;
        Ok(Tally {
            rows: self.len() as u32,
            ignored,
        })
    }

    /// Works out the initial rows of those of `keys` that have none (`missing = init`). The keys
    /// come in any order and may repeat; the padding key is skipped.
    ///
    /// # Errors
    /// [`Refusal::Limit`] when memory is short, or a key that is not this shard's.
    pub fn of_init(
        &mut self,
        rules: &TableRules,
        shard: u32,
        rows: &mut impl Rows<Slot = S>,
        keys: &[U64],
    ) -> Result<(), Refusal> {
        self.shape(rules);
        for key in keys.iter().map(|k| k.get()) {
            rules.place(key, shard)?;
            if rules.padding_key != Some(key) && rules.dense.is_none() {
                self.keys.push(key);
            }
        }
        self.keys.sort_unstable();
        self.keys.dedup();
        rows.locate_each(&self.keys, &mut self.slots);
        self.keep_where(Option::is_none);
        self.make_words();
        for at in 0..self.keys.len() {
            self.fresh(rules, at);
        }
        self.reserve(rows)
    }

    /// Applies the effects.
    pub fn apply(&self, rows: &mut impl Rows<Slot = S>) {
        for (at, (&place, &slot)) in self.places().iter().zip(&self.slots).enumerate() {
            if self.removes {
                rows.delete(place);
                continue;
            }
            let (row, state) = self.get(at);
            match slot {
                Some(slot) => rows.write(slot, row, state),
                None => rows.insert(place, row, state),
            }
        }
    }

    fn places(&self) -> &[u64] {
        if self.locals.is_empty() {
            &self.keys
        } else {
            &self.locals
        }
    }

    /// Keeps the keys of a hashed shard whose slot is as wanted.
    fn keep_where(&mut self, wanted: impl Fn(&Option<S>) -> bool) {
        let mut slots = self.slots.iter();
        self.keys.retain(|_| slots.next().is_some_and(&wanted));
        self.slots.retain(wanted);
    }

    fn locate(
        &mut self,
        rules: &TableRules,
        shard: u32,
        rows: &impl Rows<Slot = S>,
        keys: &[U64],
    ) -> Result<u32, Refusal> {
        let mut ignored = 0;
        let mut last = None;
        for (at, key) in keys.iter().map(|k| k.get()).enumerate() {
            if last.is_some_and(|last| last >= key) {
                let why = format!("keys of a push part must ascend strictly; {key} does not");
                return Err(Refusal::Malformed { why });
            }
            last = Some(key);
            let local = rules.place(key, shard)?;
            if rules.padding_key == Some(key) {
                ignored += 1;
                continue;
            }
            self.keys.push(key);
            if rules.dense.is_some() {
                self.locals.push(local);
            }
            self.sources.push(at as u32);
        }
        let places = if self.locals.is_empty() {
            &self.keys
        } else {
            &self.locals
        };
        rows.locate_each(places, &mut self.slots);
        Ok(ignored)
    }

    fn step(
        &mut self,
        rules: &TableRules,
        rows: &impl Rows<Slot = S>,
        part: PartData<'_>,
        salt: Salt,
    ) -> Result<(), Refusal> {
        let gradients = floats(part.payload);
        let gradient = |at: u32| &gradients[at as usize * rules.dim..][..rules.dim];
        if !all_finite_le(gradients)
            && let Some(at) = (0..part.keys.len() as u32).find(|at| !all_finite_le(gradient(*at)))
        {
            return Err(not_finite("the gradient", part.keys[at as usize].get()));
        }
        self.make_words();
        let mut steps = rules.rule.steps(part.step);
        for at in 0..self.keys.len() {
            self.current(rules, rows, at);
            let source = self.sources[at];
            let finite = self.change(rules, at, salt, |row, state| {
                steps.step(row, state, gradient(source));
            });
            if !finite {
                return Err(not_finite("the resulting row or state", self.keys[at]));
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        rules: &TableRules,
        rows: &impl Rows<Slot = S>,
        part: PartData<'_>,
        salt: Salt,
    ) -> Result<(), Refusal> {
        let values = floats(part.payload);
        self.make_words();
        for at in 0..self.keys.len() {
            let value = &values[self.sources[at] as usize * rules.dim..][..rules.dim];
            if !all_finite_le(value) {
                return Err(not_finite("the value to add", self.keys[at]));
            }
            self.current(rules, rows, at);
            let finite = self.change(rules, at, salt, |row, _| add(row, value));
            if !(finite && self.agree(rules, at)) {
                return Err(not_finite("the resulting row or state", self.keys[at]));
            }
        }
        Ok(())
    }

    /// Changes row and optimizer state of effect `at` by `act`, as f32. False if anything is not
    /// finite then.
    #[inline(always)]
    fn change(
        &mut self,
        rules: &TableRules,
        at: usize,
        salt: Salt,
        act: impl FnOnce(&mut [f32], &mut [f32]),
    ) -> bool {
        let Some(narrow) = &rules.narrow else {
            let (row, state) = self.get_mut(at);
            act(row, state);
            return all_finite(row) && all_finite(state);
        };
        let (key, row_bytes) = (self.keys[at], self.row_bytes);
        let mut values = std::mem::take(&mut self.values);
        values.resize(rules.dim, 0.0);
        let (row, state) = self.get_mut(at);
        let row = &mut row.as_mut_bytes()[..row_bytes];
        let (state, master) = state.split_at_mut(rules.optimizer_words());
        narrow.load(row, master, &mut values);
        act(&mut values, state);
        let finite = all_finite(&values)
            && all_finite(state)
            && narrow.store(key, salt, &values, row, master);
        self.values = values;
        finite
    }

    /// Makes the state of effect `at` agree with its row, which was set or added to. False if the
    /// state is not finite then.
    fn agree(&mut self, rules: &TableRules, at: usize) -> bool {
        let Some(narrow) = &rules.narrow else {
            let (row, state) = self.get_mut(at);
            return rules.rule.agree(row, state);
        };
        let row_bytes = self.row_bytes;
        let mut values = std::mem::take(&mut self.values);
        values.resize(rules.dim, 0.0);
        let (row, state) = self.get_mut(at);
        let (state, master) = state.split_at_mut(rules.optimizer_words());
        narrow.load(&row.as_bytes()[..row_bytes], master, &mut values);
        let finite = rules.rule.agree(&values, state);
        self.values = values;
        finite
    }

    /// A value that is not finite is stored as it is.
    fn assign(&mut self, rules: &TableRules, rows: &impl Rows<Slot = S>, payload: &[u8]) {
        self.make_words();
        for at in 0..self.keys.len() {
            if self.state_words > 0 {
                self.current(rules, rows, at);
            }
            let source = self.sources[at] as usize * self.row_bytes;
            let row_bytes = self.row_bytes;
            let (row, _) = self.get_mut(at);
            row.as_mut_bytes()[..row_bytes].copy_from_slice(&payload[source..][..row_bytes]);
            if self.state_words > 0 {
                self.assigned(rules, at);
            }
        }
    }

    /// State that is a function of the row follows an assigned one: the master copy, FTRL's z.
    fn assigned(&mut self, rules: &TableRules, at: usize) {
        if let Some(narrow) = &rules.narrow
            && narrow.master
        {
            let (row_bytes, words) = (self.row_bytes, rules.optimizer_words());
            let (row, state) = self.get_mut(at);
            rules
                .schema
                .widen_row(&row.as_bytes()[..row_bytes], &mut state[words..]);
        }
        self.agree(rules, at);
    }

    /// A dense table has every row from creation: a deleted one is as it was then.
    fn delete(&mut self, rules: &TableRules) {
        if rules.dense.is_some() {
            self.make_words();
            for at in 0..self.keys.len() {
                self.fresh(rules, at);
            }
            return;
        }
        self.removes = true;
        self.keep_where(Option::is_some);
    }

    fn reserve(&self, rows: &mut impl Rows<Slot = S>) -> Result<(), Refusal> {
        let fresh = self.slots.iter().filter(|slot| slot.is_none()).count();
        if fresh == 0 {
            Ok(())
        } else {
            rows.reserve(fresh as u64)
        }
    }

    fn make_words(&mut self) {
        let words = self.keys.len() * (self.row_words + self.state_words);
        if self.words.len() < words {
            self.words.resize(words, 0.0);
        }
    }

    /// Loads what `at` holds now: its row and state, or those of a new row.
    fn current(&mut self, rules: &TableRules, rows: &impl Rows<Slot = S>, at: usize) {
        let Some(slot) = self.slots[at] else {
            return self.fresh(rules, at);
        };
        let row_bytes = self.row_bytes;
        let (row, state) = self.get_mut(at);
        rows.read(
            slot,
            &mut row.as_mut_bytes()[..row_bytes],
            state.as_mut_bytes(),
        );
    }

    fn fresh(&mut self, rules: &TableRules, at: usize) {
        let (key, row_bytes) = (self.keys[at], self.row_bytes);
        let mut values = std::mem::take(&mut self.values);
        let (row, state) = self.get_mut(at);
        rules.fresh(
            key,
            &mut row.as_mut_bytes()[..row_bytes],
            state.as_mut_bytes(),
            &mut values,
        );
        self.values = values;
    }

    fn get_mut(&mut self, at: usize) -> (&mut [f32], &mut [f32]) {
        let stride = self.row_words + self.state_words;
        self.words[at * stride..][..stride].split_at_mut(self.row_words)
    }

    /// Row and state of effect `at`.
    fn get(&self, at: usize) -> (&[u8], &[u8]) {
        let stride = self.row_words + self.state_words;
        let (row, state) = self.words[at * stride..][..stride].split_at(self.row_words);
        (
            &row.as_bytes()[..self.row_bytes],
            &state.as_bytes()[..self.state_bytes],
        )
    }
}

fn floats(payload: &[u8]) -> &[F32] {
    // Whole floats: `check_push` has compared the payload's size with the table's.
    <[F32]>::ref_from_bytes(payload).unwrap_or_default()
}

fn not_finite(what: &str, key: u64) -> Refusal {
    Refusal::NonFinite {
        what: what.into(),
        key,
    }
}
