//! Runs: windows in order, in which a search finds the innermost.

use std::cmp::Reverse;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::directory::Directory;

/// How far inside a window is: of two windows that hold a range, the one of the greater rank is the inner one.
pub(super) type InnerRank = (usize, Reverse<usize>);

/// A window as runs are made of it.
pub(super) struct Entry<T> {
    pub(super) base: usize,
    /// The address of its last byte.
    pub(super) last: usize,
    /// When it was published: orders windows with equal bounds, the last one innermost.
    pub(super) number: u64,
    pub(super) window: Weak<T>,
}

impl<T> Entry<T> {
    pub(super) fn order(&self) -> (InnerRank, u64) {
        ((self.base, Reverse(self.last)), self.number)
    }
}

/// A window in a run. All that a search reads of it is in one cache line.
#[repr(align(32))]
pub(super) struct Cell<T> {
    base: usize,
    last: usize,
    pub(super) window: Weak<T>,
    /// The greatest earlier place whose window ends behind this one, or [`NONE`].
    outer: u32,
    removed: AtomicBool,
}

impl<T> Cell<T> {
    pub(super) fn rank(&self) -> InnerRank {
        (self.base, Reverse(self.last))
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}

/// No window ends behind it.
pub(super) const NONE: u32 = u32::MAX;

/// Windows by rank and number, never changed but for their marks. Clones share them.
pub(super) struct Run<T> {
    /// The first byte of all its windows.
    first: usize,
    /// The last byte of all its windows.
    last: usize,
    directory: Directory,
    cells: Arc<[Cell<T>]>,
    /// `numbers[i]` is the number of the window in `cells[i]`. For writers alone.
    numbers: Arc<[u64]>,
    /// The number of the window that was published first.
    oldest: u64,
}

impl<T> Clone for Run<T> {
    fn clone(&self) -> Self {
        Self {
            directory: self.directory.clone(),
            cells: Arc::clone(&self.cells),
            numbers: Arc::clone(&self.numbers),
            ..*self
        }
    }
}

impl<T> Run<T> {
    /// Of windows in order.
    pub(super) fn new(entries: Vec<Entry<T>>) -> Self {
        let bases: Vec<_> = entries.iter().map(|entry| entry.base).collect();
        let numbers: Arc<[_]> = entries.iter().map(|entry| entry.number).collect();
        let outer = previous_greater(entries.iter().map(|entry| entry.last));
        let cell = |(Entry { base, last, window, .. }, outer)| Cell {
            base,
            last,
            window,
            outer,
            removed: AtomicBool::new(false),
        };
        Self {
            first: bases.first().copied().unwrap_or(usize::MAX),
            last: entries.iter().map(|entry| entry.last).max().unwrap_or(0),
            directory: Directory::new(&bases),
            oldest: numbers.iter().copied().min().unwrap_or(u64::MAX),
            numbers,
            cells: entries.into_iter().zip(outer).map(cell).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether a window might hold a range. Touches none of them.
    pub(super) fn may_hold(&self, address: usize, last: usize) -> bool {
        self.first <= address && last <= self.last
    }

    /// Whether a window of this number, if there is one, is in this run or a later one.
    pub(super) fn begins_before(&self, number: u64) -> bool {
        self.oldest <= number
    }

    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cells, &other.cells)
    }

    /// The innermost window that holds a range, of those that are not removed and that the caller wants. Says of each
    /// that it passes by.
    pub(super) fn innermost(
        &self,
        address: usize,
        last: usize,
        wanted: impl Fn(&Cell<T>) -> bool,
        mut passed: impl FnMut(),
    ) -> Option<&Cell<T>> {
        let (from, to) = self.directory.around(address);
        let mut behind = from + self.cells[from..to].partition_point(|cell| cell.base <= address);
        while let Some(i) = behind.checked_sub(1) {
            let cell = &self.cells[i];
            if cell.last < last {
                // So are all between `outer` and `i`.
                behind = if cell.outer == NONE { 0 } else { cell.outer as usize + 1 };
            } else if !cell.is_removed() && wanted(cell) {
                return Some(cell);
            } else {
                passed();
                behind = i;
            }
        }
        None
    }

    /// Marks a window as removed. Says whether it was there and not marked.
    pub(super) fn remove(&self, base: usize, last: usize, number: u64) -> bool {
        let rank = (base, Reverse(last));
        let (from, to) = self.directory.around(base);
        let start = from + self.cells[from..to].partition_point(|cell| cell.rank() < rank);
        let end = start + self.cells[start..to].partition_point(|cell| cell.rank() == rank);
        let place = self.numbers[start..end].binary_search(&number);
        place.is_ok_and(|i| !self.cells[start + i].removed.swap(true, Ordering::AcqRel))
    }

    /// All windows that are not removed.
    pub(super) fn living(&self) -> impl Iterator<Item = Entry<T>> {
        let all = self.cells.iter().zip(self.numbers.iter());
        all.filter(|(cell, _)| !cell.is_removed()).map(|(cell, &number)| Entry {
            base: cell.base,
            last: cell.last,
            number,
            window: Weak::clone(&cell.window),
        })
    }

    /// The living of this run and what was published after it, in order, in linear time.
    pub(super) fn merge(&self, fresh: Vec<Entry<T>>) -> Vec<Entry<T>> {
        let mut merged = Vec::with_capacity(self.len() + fresh.len());
        let mut left = self.living().peekable();
        let mut right = fresh.into_iter().peekable();
        merged.extend(iter::from_fn(|| {
            let from_left = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) => a.order() <= b.order(),
                (a, _) => a.is_some(),
            };
            if from_left { left.next() } else { right.next() }
        }));
        merged
    }
}

pub(super) fn previous_greater(lasts: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut stack: Vec<(u32, usize)> = Vec::new();
    let outer = lasts.zip(0..).map(|(last, i)| {
        while stack.last().is_some_and(|&(_, other)| other <= last) {
            stack.pop();
        }
        let outer = stack.last().map_or(NONE, |&(j, _)| j);
        stack.push((i, last));
        outer
    });
    outer.collect()
}
