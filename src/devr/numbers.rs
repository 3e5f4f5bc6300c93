//! A hash for maps whose keys are numbers that symwin itself gives out: tokens, handles, memories.
//!
//! A batch looks up several for each window, and the standard hash takes longer than all else of such a look-up. That
//! one withstands keys which somebody chose so that they collide; a peer that would do so with its tokens makes this
//! batch slow, which it can do more simply by being slow.

use std::hash::{BuildHasherDefault, Hasher};

/// A map by such numbers.
pub(crate) type NumberMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplies and adds, in the manner of rustc's own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(size_of::<u64>()) {
            let mut word = [0; size_of::<u64>()];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.wrapping_add(number).wrapping_mul(MULTIPLIER);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    /// Multiplying moves everything upwards; tables look at both ends.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

/// Odd, and its bits look like chance.
const MULTIPLIER: u64 = 0xf135_7aea_2e62_a9c5;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::NumberHasher;

    #[test]
    fn neighbours_and_strides_spread() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        for stride in [1, 2, 4096, 1 << 20, 1 << 32] {
            let hashes = (0..1024u64).map(|i| build.hash_one(i * stride));
            let (low, high): (BTreeSet<u64>, BTreeSet<u64>) =
                hashes.map(|hash| (hash & 1023, hash >> 57)).unzip();
            // By chance it would be 647.
            assert!(low.len() > 400, "{stride}: {} places of 1,024", low.len());
            assert!(high.len() > 32, "{stride}: {} tags of 128", high.len());
        }
    }
}
