//! Duplicate keys of an import: found before the first row is stored (B089).

use crate::limits::NAMES_LISTED_MAX;

/// What an import does when a key stands in its file more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OnDuplicate {
    /// Store nothing and name the keys.
    #[default]
    Refuse,
    /// The row at the lowest position counts.
    First,
    /// The row at the highest position counts.
    Last,
}

/// Keys that stand in a file more than once.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.line())]
pub struct DuplicateKeys {
    /// Key and its first two positions, ascending by key; not all of them.
    pub named: Vec<(u64, usize, usize)>,
    /// How many keys stand more than once.
    pub total: usize,
}

impl DuplicateKeys {
    fn line(&self) -> String {
        let named: Vec<String> = self
            .named
            .iter()
            .map(|(key, a, b)| format!("key {key} at positions {a} and {b}"))
            .collect();
        let rest = self.total - self.named.len();
        let more = if rest > 0 {
            format!(" and {rest} more keys")
        } else {
            String::new()
        };
        format!(
            "duplicate keys: {}{more}; --on-duplicate first or last takes one row of each",
            named.join(", ")
        )
    }
}

/// Which positions of `keys` are imported: `None` when every key is there once.
///
/// # Errors
/// [`DuplicateKeys`] when `policy` is to refuse and a key stands more than once.
pub fn keep_mask(keys: &[u64], policy: OnDuplicate) -> Result<Option<Vec<bool>>, DuplicateKeys> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_unstable_by_key(|&at| (keys[at], at));
    let runs = || {
        order
            .chunk_by(|&a, &b| keys[a] == keys[b])
            .filter(|run| run.len() > 1)
    };
    let total = runs().count();
    if total == 0 {
        return Ok(None);
    }
    if policy == OnDuplicate::Refuse {
        let named = runs()
            .take(NAMES_LISTED_MAX)
            .map(|run| (keys[run[0]], run[0], run[1]))
            .collect();
        return Err(DuplicateKeys { named, total });
    }
    let mut keep = vec![true; keys.len()];
    for run in runs() {
        let dropped = match policy {
            OnDuplicate::Last => &run[..run.len() - 1],
            _ => &run[1..],
        };
        for &at in dropped {
            keep[at] = false;
        }
    }
    Ok(Some(keep))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B089.
    #[test]
    fn duplicates_are_refused_by_default_naming_key_and_positions() {
        let refused = keep_mask(&[1, 2, 1], OnDuplicate::Refuse).expect_err("1 stands twice");
        assert_eq!(refused.named, [(1, 0, 2)]);
        assert_eq!(
            refused.to_string(),
            "duplicate keys: key 1 at positions 0 and 2; --on-duplicate first or last takes one \
             row of each"
        );
    }

    /// B089.
    #[test]
    fn first_and_last_keep_one_row_of_each_key() {
        let keys = [1, 2, 1, u64::MAX, 1];
        let first = keep_mask(&keys, OnDuplicate::First).expect("first");
        assert_eq!(first, Some(vec![true, true, false, true, false]));
        let last = keep_mask(&keys, OnDuplicate::Last).expect("last");
        assert_eq!(last, Some(vec![false, true, false, true, true]));
    }

    #[test]
    fn unique_keys_need_no_mask() {
        assert_eq!(keep_mask(&[3, 1, 2, 0], OnDuplicate::Refuse), Ok(None));
        assert_eq!(keep_mask(&[], OnDuplicate::Refuse), Ok(None));
    }

    #[test]
    fn many_duplicates_are_counted_and_some_named() {
        let keys: Vec<u64> = (0..40).map(|i| i / 2).collect();
        let refused = keep_mask(&keys, OnDuplicate::Refuse).expect_err("twenty");
        assert_eq!((refused.named.len(), refused.total), (10, 20));
        assert!(refused.to_string().contains("and 10 more keys"));
    }
}
