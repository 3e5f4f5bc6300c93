//! Random numbers and hashes that are the same on every machine and in every version: SplitMix64 (Steele, Lea and
//! Flood, OOPSLA 2014).

/// The next number of a SplitMix64 sequence.
pub(super) const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    finish(*state)
}

/// A number below `bound`, which is at least 1. The bias is below `bound / 2^64`.
pub(super) fn below(state: &mut u64, bound: u64) -> u64 {
    let wide = u128::from(next(state)) * u128::from(bound);
    // The high half of a product of two 64-bit numbers.
    u64::try_from(wide >> 64).unwrap_or(0)
}

/// One number out of two, in order.
pub(super) const fn mix(a: u64, b: u64) -> u64 {
    finish(a.rotate_left(23).wrapping_add(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// One number out of bytes.
pub(super) fn mix_bytes(a: u64, bytes: &[u8]) -> u64 {
    mix(a, xxhash_rust::xxh3::xxh3_64(bytes))
}

const fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // Reference values of SplitMix64 from seed 1234567.
        let mut state = 1_234_567;
        assert_eq!(next(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(next(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_are_below_their_bound() {
        let mut state = 1;
        let mut seen = [0; 7];
        for _ in 0..7_000 {
            seen[usize::try_from(below(&mut state, 7)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (700..1_300).contains(count)), "{seen:?}");
    }

    #[test]
    fn order_counts_in_a_mix() {
        assert_ne!(mix(1, 2), mix(2, 1));
        assert_ne!(mix(mix(0, 1), 2), mix(mix(0, 2), 1));
    }
}
