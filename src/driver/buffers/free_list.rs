//! Which ranges of a slab are free.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free ranges by their start: none is empty, none touches another.
#[derive(Debug)]
pub(super) struct FreeList {
    size: usize,
    free: BTreeMap<usize, usize>,
    /// Bytes from here on were never handed out.
    fresh: usize,
}

impl FreeList {
    /// A range of `size` bytes, all of it free and fresh.
    pub(super) fn new(size: usize) -> Self {
        Self { size, free: BTreeMap::from([(0, size)]), fresh: 0 }
    }

    /// Takes the lowest range that fits. Returns where it starts, and how many of its first bytes were handed
    /// out before.
    pub(super) fn take(&mut self, size: usize) -> Option<(usize, usize)> {
        let (&start, &len) = self.free.iter().find(|&(_, &len)| len >= size)?;
        self.free.remove(&start);
        if len > size {
            self.free.insert(start + size, len - size);
        }
        let used = self.fresh.clamp(start, start + size) - start;
        self.fresh = self.fresh.max(start + size);
        Some((start, used))
    }

    /// Gives a taken range back.
    pub(super) fn give(&mut self, taken: Range<usize>) {
        let Range { mut start, mut end } = taken;
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            start = before;
        }
        self.free.insert(start, end - start);
    }

    /// Whether nothing is taken.
    pub(super) fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_range_that_fits_is_taken_and_neighbours_merge() {
        let mut list = FreeList::new(10);
        assert_eq!(list.take(3), Some((0, 0)));
        assert_eq!(list.take(3), Some((3, 0)));
        assert_eq!(list.take(3), Some((6, 0)));
        list.give(0..3);
        list.give(6..9);
        assert_eq!(list.take(4), Some((6, 3)), "three bytes of the four were used before");
        assert_eq!(list.take(4), None);
        list.give(6..10);
        list.give(3..6);
        assert!(list.is_empty());
        assert_eq!(list.take(10), Some((0, 10)));
        assert!(!list.is_empty());
    }
}
