//! The sealed store: loading in any order, refusals, reads, digests and files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::Path;
use std::sync::Arc;

use mneme_memory::header::LayoutKind;
use mneme_memory::{
    LoadAs, Pool, PoolError, ReadError, RegionState, SealError, SealedBuilder, SealedFileError,
    SealedShard, SealedSpec, plan,
};
use mneme_proto::ids::{ClusterId, Generation, RegionId, ShardIndex};
use proptest::prelude::*;
use support::{pool, row_of, shard};
use zerocopy::little_endian::U64;

fn spec(rows: u64, row_bytes: u32, keyed: bool) -> SealedSpec {
    SealedSpec {
        cluster: ClusterId(1),
        shard: shard(),
        region: RegionId(20),
        generation: Generation(21),
        row_bytes,
        rows,
        keyed,
        seed: 77,
        planes: Vec::new(),
    }
}

const fn load_as() -> LoadAs {
    LoadAs {
        cluster: ClusterId(1),
        shard: mneme_proto::ids::ShardId {
            table: mneme_proto::ids::TableId(9),
            shard: ShardIndex(2),
        },
        region: RegionId(30),
        generation: Generation(31),
        seed: 78,
    }
}

/// Key of row `i` of a hashed load: scattered over all 64 bits.
fn key_of(i: u64) -> u64 {
    mneme_proto::mix64::mix64(i)
}

fn sealed(pool: &Arc<Pool>, rows: u64, row_bytes: u32, keyed: bool) -> SealedShard {
    let mut builder = SealedBuilder::new(pool, &spec(rows, row_bytes, keyed)).unwrap();
    for i in 0..rows {
        let key = if keyed { key_of(i) } else { i };
        let row = row_of(key, row_bytes as usize);
        if keyed {
            builder.put(i, &[key], &row).unwrap();
        } else {
            builder.put::<[u64]>(i, &[], &row).unwrap();
        }
    }
    assert_eq!(builder.bytes(), plan::sealed_bytes(rows, row_bytes, keyed));
    builder.finish().unwrap()
}

#[test]
fn dense_rows_come_back_bit_for_bit() {
    let pool = pool(64 << 20);
    for (rows, row_bytes) in [(1, 1), (1000, 264), (5000, 80), (777, 13)] {
        let shard = sealed(&pool, rows, row_bytes, false);
        let keys: Vec<u64> = (0..rows).rev().collect();
        let mut out = vec![0; keys.len() * row_bytes as usize];
        let mut status = vec![0; keys.len()];
        let outcome = shard.read_batch(&keys, &mut out, &mut status).unwrap();
        assert_eq!((outcome.found, outcome.missing), (keys.len(), 0));
        assert!(status.iter().all(|s| *s == 1));
        for (row, key) in out.chunks(row_bytes as usize).zip(&keys) {
            assert_eq!(row, row_of(*key, row_bytes as usize));
        }
        for row in [rows, u64::MAX] {
            assert_eq!(
                shard.read_one(row, &mut vec![0; row_bytes as usize]),
                Err(ReadError::OutOfRange { row, rows })
            );
        }
        assert_eq!(shard.header().kind, LayoutKind::SealedDense);
        assert_eq!(shard.iter().count() as u64, rows);
        assert!(shard.verify());
    }
    assert_eq!(pool.usage().used_bytes, 0);
}

#[test]
fn hashed_rows_are_found_by_key_and_frame_keys_are_read_in_place() {
    let pool = pool(64 << 20);
    let shard = sealed(&pool, 50_000, 20, true);
    let keys: Vec<U64> = (0..60_000).map(|i| U64::new(key_of(i))).collect();
    let mut out = vec![0xEE; keys.len() * 20];
    let mut status = vec![0; keys.len()];
    let outcome = shard.read_batch(&keys[..], &mut out, &mut status).unwrap();
    assert_eq!((outcome.found, outcome.missing), (50_000, 10_000));
    for (i, row) in out.chunks(20).enumerate() {
        if i < 50_000 {
            assert_eq!((status[i], row), (1, &row_of(key_of(i as u64), 20)[..]));
            assert_eq!(shard.locate(key_of(i as u64)), Some(i as u64));
        } else {
            assert_eq!((status[i], row), (3, &[0xEE; 20][..]));
        }
    }
    for (i, (key, row)) in shard.iter().enumerate() {
        assert_eq!((key, row), (key_of(i as u64), &row_of(key, 20)[..]));
    }
    assert_eq!(pool.usage().resident_bytes, pool.usage().used_bytes);
}

/// I-8, I-12: nothing incomplete is sealed; what does not fit is refused by name and changes
/// nothing.
#[test]
fn refuses_what_is_incomplete_out_of_range_or_twice() {
    let pool = pool(4 << 20);
    let mut builder = SealedBuilder::new(&pool, &spec(100, 8, true)).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    let rows = vec![1; 800];
    for first in [1, 100, u64::MAX] {
        assert_eq!(
            builder.put(first, &keys, &rows),
            Err(SealError::OutOfRange {
                first,
                count: 100,
                rows: 100
            })
        );
    }
    assert!(matches!(
        builder.put(0, &keys[1..], &rows),
        Err(SealError::Shape { .. })
    ));
    assert!(matches!(
        builder.put(0, &keys, &rows[1..]),
        Err(SealError::Shape { .. })
    ));
    assert_eq!(builder.written_rows(), 0);
    builder.put(0, &keys[..70], &rows[..560]).unwrap();
    builder.put(0, &keys[..70], &rows[..560]).unwrap();
    assert_eq!(builder.written_rows(), 70);
    builder.put(71, &keys[71..], &rows[568..]).unwrap();
    assert_eq!(
        builder.check_complete(),
        Err(SealError::Incomplete {
            missing: 1,
            rows: 100,
            first: 70
        })
    );
    builder.put(70, &[5], &[2; 8]).unwrap();
    assert_eq!(
        builder.finish().unwrap_err(),
        SealError::DuplicateKey {
            key: 5,
            first: 5,
            second: 70
        }
    );
    assert_eq!(pool.usage().used_bytes, 0);
    let error = SealedBuilder::new(&pool, &spec(1 << 20, 264, false)).unwrap_err();
    assert!(matches!(error, PoolError::Full { .. }), "{error}");
    assert!(SealedBuilder::new(&pool, &spec(u64::MAX, 264, false)).is_err());
    assert_eq!(pool.usage().used_bytes, 0);
}

#[test]
fn shard_without_rows_is_a_shard() {
    let pool = pool(4 << 20);
    let directory = tempfile::tempdir().unwrap();
    for keyed in [false, true] {
        let shard = sealed(&pool, 0, 16, keyed);
        assert_eq!(
            shard
                .read_batch::<[u64]>(&[], &mut [], &mut [])
                .unwrap()
                .found,
            0
        );
        if keyed {
            assert!(!shard.read_one(0, &mut [0; 16]).unwrap());
        } else {
            assert!(shard.read_one(0, &mut [0; 16]).is_err());
        }
        let path = directory.path().join("empty");
        shard.save(&path).unwrap();
        let again = SealedShard::load(&path, &pool, &load_as()).unwrap();
        assert_eq!((again.rows(), again.digests()), (0, shard.digests()));
        assert_eq!(pool.usage().used_bytes, 0);
    }
}

#[test]
fn dead_shard_answers_gone_while_its_memory_still_stands() {
    let pool = pool(4 << 20);
    let shard = sealed(&pool, 10, 16, false);
    let clone = shard.clone();
    shard.set_state(RegionState::Draining);
    assert!(clone.read_one(1, &mut [0; 16]).unwrap());
    shard.set_state(RegionState::Dead);
    assert!(matches!(
        clone.read_one(1, &mut [0; 16]),
        Err(ReadError::Gone(_))
    ));
    drop(shard);
    assert!(pool.usage().used_bytes > 0);
    drop(clone);
    assert_eq!(pool.usage().used_bytes, 0);
}

/// Equal contents have equal digests, whatever order they were loaded in; a changed bit, another
/// order of slots or another shape has others.
#[test]
fn digests_tell_contents_apart() {
    let pool = pool(16 << 20);
    let build = |order: &[u64], flip: bool| {
        let mut builder = SealedBuilder::new(&pool, &spec(4, 8, true)).unwrap();
        for i in order {
            let mut row = row_of(*i, 8);
            row[0] ^= u8::from(flip && *i == 3);
            builder.put(*i, &[*i], &row).unwrap();
        }
        builder.finish().unwrap().digests().clone()
    };
    let digest = build(&[0, 1, 2, 3], false);
    assert_eq!(build(&[3, 1, 0, 2], false), digest);
    assert_ne!(build(&[0, 1, 2, 3], true).combined, digest.combined);
    assert_ne!(
        sealed(&pool, 0, 8, true).digests(),
        sealed(&pool, 0, 8, false).digests()
    );
}

fn load(path: &Path, pool: &Arc<Pool>) -> Result<SealedShard, SealedFileError> {
    SealedShard::load(path, pool, &load_as())
}

/// B083: a saved shard comes back bit for bit as a new region; a file that is truncated, extended,
/// damaged anywhere, or another shard's is refused by name, and no memory is kept.
#[test]
fn files_come_back_or_are_refused_by_name() {
    let pool = pool(16 << 20);
    let directory = tempfile::tempdir().unwrap();
    for keyed in [false, true] {
        let path = directory.path().join("shard");
        let shard = sealed(&pool, 3000, 100, keyed);
        shard.save(&path).unwrap();
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no partial file"
        );
        let again = load(&path, &pool).unwrap();
        assert_eq!(again.digests(), shard.digests());
        assert_eq!(
            (again.header().generation.0, again.header().region.0),
            (31, 30)
        );
        assert!(again.iter().eq(shard.iter()));
        drop(again);
        let mut out = Vec::new();
        shard.write_to(&mut out).unwrap();
        assert_eq!(out, std::fs::read(&path).unwrap());
        drop(shard);

        let broken = directory.path().join("broken");
        let refuse = |bytes: &[u8], part: &str| {
            std::fs::write(&broken, bytes).unwrap();
            let error = load(&broken, &pool).unwrap_err().to_string();
            assert!(
                error.contains("broken") && error.contains(part),
                "{part}: {error}"
            );
            assert_eq!(pool.usage().used_bytes, 0);
        };
        refuse(&out[..out.len() - 1], "chunk 0");
        refuse(&out[..5000], "");
        refuse(&[], "chunk 0");
        refuse(&[&out[..], &[0]].concat(), "chunk 0");
        for at in [
            0, 9, 20, 300, 4095, 4096, 4104, 4108, 4112, 4120, 4128, 4140, 4161, 8192, 9999,
        ] {
            let mut bytes = out.clone();
            bytes[at] ^= 0x40;
            refuse(&bytes, if at >= 8192 { "chunk 0 is damaged" } else { "" });
        }
        let mut newer = out.clone();
        newer[4104] = 2;
        refuse(&newer, "newer version");
        std::fs::remove_file(&broken).unwrap();
        let other = LoadAs {
            cluster: ClusterId(2),
            ..load_as()
        };
        let error = SealedShard::load(&path, &pool, &other).unwrap_err();
        assert!(
            matches!(error, SealedFileError::OtherShard { .. }),
            "{error}"
        );
    }
    let missing = load(&directory.path().join("none"), &pool).unwrap_err();
    assert!(matches!(missing, SealedFileError::Io { .. }), "{missing}");
    let shard = sealed(&pool, 1, 8, false);
    let nowhere = shard
        .save(&directory.path().join("no/such/place"))
        .unwrap_err();
    assert!(nowhere.to_string().contains("no/such/place"), "{nowhere}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever parts a load is cut into, in whatever order and however often they come: what is
    /// sealed is the rows.
    #[test]
    fn any_order_of_parts_seals_the_same(
        rows in 1u64..300, row_bytes in 1u32..40, keyed: bool,
        parts in prop::collection::vec((0u64..300, 1u64..50), 0..20),
    ) {
        let pool = pool(16 << 20);
        let mut builder = SealedBuilder::new(&pool, &spec(rows, row_bytes, keyed)).unwrap();
        let len = row_bytes as usize;
        let mut put = |first: u64, count: u64| {
            let ids: Vec<u64> = (first..first + count).map(key_of).collect();
            let content: Vec<u8> = ids.iter().flat_map(|id| row_of(*id, len)).collect();
            let keys = if keyed { ids } else { Vec::new() };
            builder.put(first, &keys, &content)
        };
        for (first, count) in parts {
            prop_assert_eq!(put(first, count).is_ok(), first + count <= rows);
        }
        for first in (0..rows).rev() {
            put(first, 1).unwrap();
        }
        let shard = builder.finish().unwrap();
        for i in 0..rows {
            let mut out = vec![0; len];
            let key = if keyed { key_of(i) } else { i };
            prop_assert!(shard.read_one(key, &mut out).unwrap());
            prop_assert_eq!(out, row_of(key_of(i), len));
        }
    }
}
