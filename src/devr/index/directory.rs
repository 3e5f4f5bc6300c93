//! Where in a sorted list an address would be, without halving the list again and again.

use std::sync::Arc;

/// The addresses from the first to the last of a sorted list, cut into about as many buckets of one size as the list
/// has addresses, and where in the list each bucket begins. What is searched then is one bucket.
///
/// Addresses that are close together in places far from each other crowd a few buckets. Such a bucket has a directory
/// of its own, and so on for a few levels. What is crowded even then is searched by halving, as the list would be.
#[derive(Clone)]
pub(super) struct Directory {
    /// The least address.
    first: usize,
    /// A bucket has two to the power of this many addresses.
    shift: u32,
    /// `starts[b]` is where in the list bucket `b` begins. One more than there are buckets: the last is the end.
    starts: Arc<[u32]>,
    /// The buckets with directories of their own, in order.
    crowded: Arc<[(usize, Self)]>,
}

impl Directory {
    /// Of sorted addresses.
    pub(super) fn new(addresses: &[usize]) -> Self {
        Self::of_part(addresses, 0, LEVELS)
    }

    /// Of addresses with so many before them in the list.
    fn of_part(addresses: &[usize], before: usize, levels: u32) -> Self {
        let first = addresses.first().copied().unwrap_or(0);
        let span = addresses.last().copied().unwrap_or(0) - first;
        // Few are found as fast without buckets, and are written more often.
        let fitting =
            (0..usize::BITS).find(|shift| addresses.len() > CROWD && span >> shift <= addresses.len());
        let shift = fitting.unwrap_or(usize::BITS - 1);
        let bucket = |address: usize| (address - first) >> shift;
        let buckets = bucket(first + span) + 1;
        let mut starts = Vec::with_capacity(buckets + 1);
        for (&address, at) in addresses.iter().zip(place(before)..) {
            let bucket = bucket(address);
            while starts.len() <= bucket {
                starts.push(at);
            }
        }
        starts.resize(buckets + 1, place(before + addresses.len()));
        let mut crowded = Vec::new();
        for (bucket, ends) in starts.windows(2).enumerate().filter(|_| levels > 1) {
            let (from, to) = (ends[0] as usize - before, ends[1] as usize - before);
            // A directory of equal addresses would have one bucket again.
            if to - from > CROWD && addresses[from] != addresses[to - 1] {
                crowded.push((bucket, Self::of_part(&addresses[from..to], before + from, levels - 1)));
            }
        }
        Self { first, shift, starts: starts.into(), crowded: crowded.into() }
    }

    /// A part of the list: all before it is below the address, and all behind it is above.
    pub(super) fn around(&self, address: usize) -> (usize, usize) {
        let Some(above) = address.checked_sub(self.first) else {
            return (self.starts[0] as usize, self.starts[0] as usize);
        };
        let bucket = (above >> self.shift).min(self.starts.len() - 2);
        let (from, to) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        if to - from > CROWD {
            self.around_in_crowd(bucket, address).unwrap_or((from, to))
        } else {
            (from, to)
        }
    }

    #[cold]
    fn around_in_crowd(&self, bucket: usize, address: usize) -> Option<(usize, usize)> {
        let inner = self.crowded.binary_search_by_key(&bucket, |(bucket, _)| *bucket).ok()?;
        Some(self.crowded[inner].1.around(address))
    }
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2^32 - 1 windows")
}

/// A bucket of more addresses than this has a directory of its own.
const CROWD: usize = 16;
/// So deep directories are at most: it bounds their memory by as many numbers an address.
const LEVELS: u32 = 4;

#[cfg(test)]
mod tests;
