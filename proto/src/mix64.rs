//! `mix64`: the one hash that places keys. MurmurHash3's 64-bit finaliser (Appleby, public
//! domain); a bijection on u64, so no two keys collide and no key is reserved.

/// Mixes a key. Every client and node uses this function and no other.
#[inline(always)]
#[must_use]
pub const fn mix64(key: u64) -> u64 {
    let mut k = key;
    k ^= k >> 33;
    k = k.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    k ^= k >> 33;
    k = k.wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    k ^ (k >> 33)
}

/// The shard of a hashed table that holds `key`: the top `log2(shards)` bits of [`mix64`].
/// `shards` is a power of two; with one shard the answer is 0.
#[inline(always)]
#[must_use]
pub const fn shard_of_key(key: u64, shards: u32) -> u32 {
    debug_assert!(shards.is_power_of_two());
    // Two shifts, since a shift by 64 (one shard) is not defined.
    ((mix64(key) >> 1) >> (63 - shards.trailing_zeros())) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Vector {
        key: String,
        mix64: String,
        shard_of_16: u32,
    }

    #[test]
    fn golden_vectors() {
        let vectors: Vec<Vector> =
            serde_json::from_str(include_str!("../golden/mix64.json")).expect("golden file");
        assert_eq!(vectors.len(), 10);
        for v in vectors {
            let key: u64 = v.key.parse().expect("u64");
            assert_eq!(mix64(key).to_string(), v.mix64, "key {key}");
            assert_eq!(shard_of_key(key, 16), v.shard_of_16, "key {key}");
            assert_eq!(shard_of_key(key, 1), 0);
            assert_eq!(u64::from(shard_of_key(key, 4096)), mix64(key) >> 52);
        }
    }

    /// B033: sequential, strided and shifted keys load shards evenly.
    #[test]
    fn structured_keys_spread_evenly() {
        for keys in [|i: u64| i, |i: u64| 64 * i, |i: u64| i << 40] {
            let mut load = [0u32; 8];
            for i in 0..1_000_000 {
                load[shard_of_key(keys(i), 8) as usize] += 1;
            }
            let max = f64::from(*load.iter().max().expect("eight"));
            assert!(max / 125_000.0 <= 1.1, "{load:?}");
        }
    }
}
