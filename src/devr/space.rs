//! The offsets of one stride: which bytes are free, allocated, or quarantined for good.
//!
//! Every rank of an LSA team holds a copy and applies the same calls in the same order, so the answers are
//! equal everywhere: a [`Space`] is a pure function of its history. First fit at the lowest offset over a sorted
//! map of free ranges that never touch each other. NCCL's allocator counts the gap in front of an aligned
//! offset as part of the allocation and never gets it back; here the gap stays free.
//!
//! A batch tries on a clone and commits by swapping it in.

use std::collections::BTreeMap;

/// Why a call was refused. The space is then as it was before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No allocation has exactly this offset and size.
    #[error("no allocation starts at {offset:#x} and has {size} bytes")]
    NotAllocated {
        /// The offset in bytes that was given.
        offset: u64,
        /// The size in bytes that was given.
        size: u64,
    },
    /// The range passes the end of the space.
    #[error("{offset:#x} + {size} bytes passes the end of a space of {capacity} bytes")]
    OutOfRange {
        /// The offset in bytes that was given.
        offset: u64,
        /// The size in bytes that was given.
        size: u64,
        /// The size in bytes of the space.
        capacity: u64,
    },
}

/// The allocator of offsets in `0..capacity`, all in bytes. See the module's text.
///
/// SP-1: `free_bytes + allocated_bytes + quarantined_bytes == capacity`, and the three never overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    capacity: u64,
    free: Ranges,
    /// Offset to size, as given out. A quarantine does not change it, as `free` comes with the whole range.
    allocated: BTreeMap<u64, u64>,
    quarantined: Ranges,
}

impl Space {
    /// A space of `capacity` bytes, all free.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let mut free = Ranges::default();
        free.insert(0, capacity);
        Self { capacity, free, allocated: BTreeMap::new(), quarantined: Ranges::default() }
    }

    /// Takes `size` bytes at the lowest free offset that is a multiple of `align`, a power of two.
    ///
    /// `None` where no free range has room; see [`Space::largest_free`]. A range of no bytes is not given.
    pub fn alloc(&mut self, size: u64, align: u64) -> Option<u64> {
        debug_assert!(align.is_power_of_two(), "alignments are powers of two, not {align}");
        if size == 0 || !align.is_power_of_two() {
            return None;
        }
        let (start, end) = self.free.iter().find_map(|(start, end)| {
            let start = start.checked_next_multiple_of(align)?;
            let last = start.checked_add(size)?;
            (last <= end).then_some((start, last))
        })?;
        self.free.remove(start, end);
        self.allocated.insert(start, size);
        Some(start)
    }

    /// Gives back what [`Space::alloc`] gave: the same offset and the same size. What was quarantined of it
    /// meanwhile stays out.
    ///
    /// # Errors
    /// [`SpaceError::NotAllocated`] for anything else. That is our own bug, so it panics in debug builds.
    pub fn free(&mut self, offset: u64, size: u64) -> Result<(), SpaceError> {
        let freed = self.take_back(offset, size);
        debug_assert!(freed.is_ok(), "only allocated ranges are freed: {freed:?}");
        freed
    }

    /// Takes a range out for good, whether it is free now, allocated, or both in parts. Doing so twice is
    /// the same as once.
    ///
    /// # Errors
    /// [`SpaceError::OutOfRange`]; the numbers may come from a peer.
    pub fn quarantine(&mut self, offset: u64, size: u64) -> Result<(), SpaceError> {
        let end = offset.checked_add(size).filter(|&end| end <= self.capacity);
        let Some(end) = end else {
            return Err(SpaceError::OutOfRange { offset, size, capacity: self.capacity });
        };
        self.free.remove(offset, end);
        self.quarantined.insert(offset, end);
        Ok(())
    }

    /// The size in bytes of the whole space.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The size in bytes of the largest free range. An aligned allocation of that size may still not fit.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.free.iter().map(|(start, end)| end - start).max().unwrap_or(0)
    }

    /// How many bytes are free.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.free.total
    }

    /// How many bytes are out for good.
    #[must_use]
    pub const fn quarantined_bytes(&self) -> u64 {
        self.quarantined.total
    }

    /// How many bytes are allocated, without those of them that are quarantined.
    #[must_use]
    pub const fn allocated_bytes(&self) -> u64 {
        self.capacity - self.free.total - self.quarantined.total
    }

    /// Feeds the whole state to a hash, in an order and encoding that are equal wherever the state is (P-1).
    pub fn digest(&self, feed: &mut impl FnMut(&[u8])) {
        feed(&self.capacity.to_le_bytes());
        feed_pairs(self.free.iter(), self.free.ends.len(), feed);
        feed_pairs(self.allocated.iter().map(|(&a, &b)| (a, b)), self.allocated.len(), feed);
        feed_pairs(self.quarantined.iter(), self.quarantined.ends.len(), feed);
    }

    fn take_back(&mut self, offset: u64, size: u64) -> Result<(), SpaceError> {
        if self.allocated.get(&offset) != Some(&size) {
            return Err(SpaceError::NotAllocated { offset, size });
        }
        self.allocated.remove(&offset);
        for (start, end) in self.quarantined.gaps(offset, offset + size) {
            self.free.insert(start, end);
        }
        Ok(())
    }
}

fn feed_pairs(pairs: impl Iterator<Item = (u64, u64)>, count: usize, feed: &mut impl FnMut(&[u8])) {
    // The count keeps a pair from counting as one of the next list.
    feed(&(count as u64).to_le_bytes());
    for (a, b) in pairs {
        feed(&a.to_le_bytes());
        feed(&b.to_le_bytes());
    }
}

/// A set of offsets as ranges that neither overlap nor touch: equal sets have equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges {
    /// Start to end (exclusive); never empty ranges.
    ends: BTreeMap<u64, u64>,
    /// The sum of their sizes.
    total: u64,
}

impl Ranges {
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ends.iter().map(|(&start, &end)| (start, end))
    }

    /// Adds `start..end`, merging it with what it overlaps or touches.
    fn insert(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        let (mut low, mut high) = (start, end);
        for (s, e) in self.meeting(start, end) {
            self.ends.remove(&s);
            self.total -= e - s;
            low = low.min(s);
            high = high.max(e);
        }
        self.ends.insert(low, high);
        self.total += high - low;
    }

    /// Takes `start..end` out, whatever of it is in.
    fn remove(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        for (s, e) in self.meeting(start, end) {
            self.ends.remove(&s);
            self.total -= e - s;
            for (left, right) in [(s, e.min(start)), (s.max(end), e)] {
                if left < right {
                    self.ends.insert(left, right);
                    self.total += right - left;
                }
            }
        }
    }

    /// The parts of `start..end` that are not in the set, in order.
    fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for (s, e) in self.meeting(start, end) {
            if at < s {
                gaps.push((at, s));
            }
            at = at.max(e);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// The ranges that overlap or touch `start..end`, in order.
    fn meeting(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        // Ranges do not overlap, so of those that begin before `start` only the last can reach it.
        let before = self.ends.range(..start).next_back().filter(|&(_, &e)| e >= start);
        before.into_iter().chain(self.ends.range(start..=end)).map(|(&s, &e)| (s, e)).collect()
    }
}

#[cfg(test)]
mod tests;
