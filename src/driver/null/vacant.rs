//! Addresses that nobody has reserved.

use std::collections::BTreeMap;

/// Free ranges, in order and apart: two that touch are one.
///
/// The search starts where the last range was taken and comes back to freed addresses when it has gone once around:
/// an address that is used after its end then mostly means nothing yet, and the first look mostly finds room.
#[derive(Debug)]
pub(super) struct Vacant {
    /// First address to end.
    ranges: BTreeMap<usize, usize>,
    cursor: usize,
}

impl Vacant {
    /// All of `start..end` is free.
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { ranges: BTreeMap::from([(start, end)]), cursor: start }
    }

    /// Takes `size` addresses from a multiple of `align` on.
    pub(super) fn take(&mut self, size: usize, align: usize) -> Option<usize> {
        let (start, at) = self.find(self.cursor, size, align).or_else(|| self.find(0, size, align))?;
        let end = self.ranges.remove(&start)?;
        if start < at {
            self.ranges.insert(start, at);
        }
        self.cursor = at + size;
        if self.cursor < end {
            self.ranges.insert(self.cursor, end);
        }
        Some(at)
    }

    /// Gives back what was taken.
    pub(super) fn give(&mut self, at: usize, size: usize) {
        let end = self.ranges.remove(&(at + size)).unwrap_or(at + size);
        match self.ranges.range_mut(..at).next_back() {
            Some((_, before)) if *before == at => *before = end,
            _ => drop(self.ranges.insert(at, end)),
        }
    }

    /// The first free range with room at or after `from`, by its start, and where the room is.
    fn find(&self, from: usize, size: usize, align: usize) -> Option<(usize, usize)> {
        // One that starts before may reach beyond.
        let around = self.ranges.range(..from).next_back();
        around.into_iter().chain(self.ranges.range(from..)).find_map(|(&start, &end)| {
            let at = start.max(from).checked_next_multiple_of(align)?;
            at.checked_add(size).is_some_and(|last| last <= end).then_some((start, at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_addresses_come_last() {
        let mut vacant = Vacant::new(100, 200);
        assert_eq!(vacant.take(10, 1), Some(100));
        assert_eq!(vacant.take(10, 1), Some(110));
        vacant.give(100, 10);
        assert_eq!(vacant.take(10, 50), Some(150), "the alignment's gap stays free");
        assert_eq!(vacant.take(40, 1), Some(160));
        assert_eq!(vacant.take(30, 1), Some(120));
        assert_eq!(vacant.take(11, 1), None);
        assert_eq!(vacant.take(10, 1), Some(100));
        assert_eq!(vacant.take(1, 1), None);
        for (at, size) in [(110, 10), (160, 40), (150, 10), (100, 10), (120, 30)] {
            vacant.give(at, size);
        }
        assert_eq!(vacant.ranges, BTreeMap::from([(100, 200)]), "neighbours are one range again");
        assert_eq!(vacant.take(usize::MAX, 1), None);
        assert_eq!(vacant.take(1, 1 << 63), None);
        assert_eq!(vacant.take(100, 1), Some(100));
    }
}
