//! What a pool is made of, as its operator writes it: `dram:8GiB,huge=2M,numa=0`.

use std::fmt;
use std::str::FromStr;

use crate::limits::EXTENT_BYTES;

/// A pool as configured. Parsed from and shown as `dram:SIZE[,huge=2M][,numa=N]`; `SIZE` is bytes
/// or a number with `KiB`, `MiB`, `GiB` or `TiB`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSpec {
    /// Limit of the pool: all regions together never take more.
    pub limit_bytes: u64,
    /// Whether the memory is made of explicit 2 MiB pages (hugetlb).
    pub huge: bool,
    /// The NUMA node that the memory is bound to; `None` leaves it to the system.
    pub numa: Option<u32>,
}

/// Why a pool's description was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pool '{spec}': {why}; expected dram:SIZE[,huge=2M][,numa=N], as in dram:8GiB,numa=0")]
pub struct PoolSpecError {
    /// The whole description.
    pub spec: String,
    /// What is wrong with it.
    pub why: String,
}

impl PoolSpec {
    /// A DRAM pool of `limit_bytes` with ordinary pages on any NUMA node.
    #[must_use]
    pub const fn dram(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            huge: false,
            numa: None,
        }
    }
}

impl FromStr for PoolSpec {
    type Err = PoolSpecError;

    fn from_str(spec: &str) -> Result<Self, PoolSpecError> {
        let refuse = |why: String| PoolSpecError {
            spec: spec.to_owned(),
            why,
        };
        let (kind, rest) = spec
            .split_once(':')
            .ok_or_else(|| refuse("a kind and a colon must come first".into()))?;
        match kind {
            "dram" => {}
            "file" | "dax" | "numa" => {
                return Err(refuse(format!(
                    "pools of kind '{kind}' do not exist in this version; it has: dram"
                )));
            }
            other => return Err(refuse(format!("kind '{other}' is unknown; known: dram"))),
        }
        let mut parts = rest.split(',');
        let size = parts.next().unwrap_or_default();
        let mut pool = Self::dram(parse_size(size).map_err(&refuse)?);
        if pool.limit_bytes < EXTENT_BYTES {
            return Err(refuse(format!(
                "a pool has at least {EXTENT_BYTES} bytes, not {}",
                pool.limit_bytes
            )));
        }
        for part in parts {
            match part.split_once('=') {
                Some(("huge", "2M")) => pool.huge = true,
                Some(("huge", page)) => {
                    return Err(refuse(format!("huge pages of '{page}': only 2M exist")));
                }
                Some(("numa", node)) => {
                    let node = node
                        .parse()
                        .map_err(|_| refuse(format!("NUMA node '{node}' is not a number")))?;
                    pool.numa = Some(node);
                }
                _ => return Err(refuse(format!("option '{part}' is unknown"))),
            }
        }
        Ok(pool)
    }
}

impl fmt::Display for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dram:")?;
        let units = [
            (1u64 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ];
        match units
            .iter()
            .find(|(unit, _)| self.limit_bytes.is_multiple_of(*unit))
        {
            Some((unit, word)) => write!(f, "{}{word}", self.limit_bytes / unit)?,
            None => write!(f, "{}", self.limit_bytes)?,
        }
        if self.huge {
            f.write_str(",huge=2M")?;
        }
        if let Some(node) = self.numa {
            write!(f, ",numa={node}")?;
        }
        Ok(())
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => {
            return Err(format!("size '{text}': units are B, KiB, MiB, GiB and TiB"));
        }
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(scale))
        .ok_or_else(|| format!("size '{text}' is not a number of bytes below 2^64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_shows() {
        for (text, bytes, shown) in [
            ("dram:8GiB", 8 << 30, "dram:8GiB"),
            ("dram:512MiB", 512 << 20, "dram:512MiB"),
            ("dram:1048577000", 1_048_577_000, "dram:1048577000"),
            ("dram:4194304", 4 << 20, "dram:4MiB"),
        ] {
            let spec: PoolSpec = text.parse().unwrap();
            assert_eq!(spec, PoolSpec::dram(bytes), "{text}");
            assert_eq!(spec.to_string(), shown);
        }
        let all: PoolSpec = "dram:1TiB,huge=2M,numa=3".parse().unwrap();
        assert_eq!((all.huge, all.numa), (true, Some(3)));
        assert_eq!(all.to_string(), "dram:1TiB,huge=2M,numa=3");
    }

    #[test]
    fn refuses_by_name() {
        for (text, part) in [
            ("8GiB", "kind and a colon"),
            ("file:/dev/shm/x,size=8GiB", "it has: dram"),
            ("dax:/dev/dax0.0", "it has: dram"),
            ("numa:2,size=256GiB", "it has: dram"),
            ("ram:1GiB", "'ram' is unknown"),
            ("dram:", "not a number"),
            ("dram:8GB", "units are"),
            ("dram:-1", "units are"),
            ("dram:64KiB", "at least"),
            ("dram:18446744073709551616", "below 2^64"),
            ("dram:17000000TiB", "below 2^64"),
            ("dram:8GiB,huge=1G", "only 2M"),
            ("dram:8GiB,numa=x", "not a number"),
            ("dram:8GiB,fast", "'fast' is unknown"),
        ] {
            let error = text.parse::<PoolSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
    }
}
