//! Windows as pieces of addresses that do not overlap, each with the window that is found there. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::device::abi::LookupLeaf;

/// Where a window is, and its number in the order of publication. Of windows that hold an address the greatest is the
/// innermost: the index's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    base: u64,
    end: Reverse<u64>,
    number: u64,
}

impl Order {
    /// Of a window with at least one byte, whose end exists as an address.
    pub(super) fn new(base: u64, size: u64, number: u64) -> Self {
        Self { base, end: Reverse(base.saturating_add(size)), number }
    }

    /// Before every window that begins at `base` or behind it.
    pub(super) fn first_at(base: u64) -> Self {
        Self { base, end: Reverse(u64::MAX), number: 0 }
    }

    pub(super) fn base(self) -> u64 {
        self.base
    }

    pub(super) fn end(self) -> u64 {
        self.end.0
    }
}

/// A run of addresses with one window to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) base: u64,
    pub(super) end: u64,
    /// The window that is found, and its struct; `None` if it was withdrawn and there is no other.
    pub(super) winner: Option<(Order, u64)>,
}

impl Piece {
    pub(super) fn leaf(&self) -> LookupLeaf {
        self.winner.map_or_else(LookupLeaf::default, |(_, window)| LookupLeaf { end: self.end, window })
    }
}

/// The pieces of all windows, in order.
pub(super) fn of(live: &BTreeMap<Order, u64>) -> Vec<Piece> {
    let mut cuts: Vec<u64> = live.keys().flat_map(|order| [order.base, order.end()]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces = Vec::with_capacity(live.len());
    let mut sweep = Sweep::new(live.iter().map(|(order, window)| (*order, *window)));
    for cut in cuts.windows(2) {
        // Neighbours with the same window stay apart: when it goes there may be different ones around them.
        if let Some(winner) = sweep.innermost(cut[0]) {
            pieces.push(Piece { base: cut[0], end: cut[1], winner: Some(winner) });
        }
    }
    pieces
}

/// Gives the pieces of `gone` to who is innermost of the windows in `around`, which are in order and begin and end
/// where pieces do.
pub(super) fn replace(pieces: &mut [Piece], gone: Order, around: &[(Order, u64)]) {
    let mut sweep = Sweep::new(around.iter().copied());
    for piece in pieces.iter_mut().filter(|piece| piece.winner.is_some_and(|(winner, _)| winner == gone)) {
        piece.winner = sweep.innermost(piece.base);
    }
}

/// Goes through windows in order of their bases and knows which are open.
struct Sweep<I: Iterator<Item = (Order, u64)>> {
    coming: std::iter::Peekable<I>,
    /// Those that have begun, the innermost first, and some that have ended.
    begun: BinaryHeap<(Order, u64)>,
}

impl<I: Iterator<Item = (Order, u64)>> Sweep<I> {
    fn new(windows: I) -> Self {
        Self { coming: windows.peekable(), begun: BinaryHeap::new() }
    }

    /// The innermost window that holds `address`, which is never less than the time before.
    fn innermost(&mut self, address: u64) -> Option<(Order, u64)> {
        while let Some(window) = self.coming.next_if(|(order, _)| order.base <= address) {
            self.begun.push(window);
        }
        while self.begun.peek().is_some_and(|(order, _)| order.end() <= address) {
            self.begun.pop();
        }
        self.begun.peek().copied()
    }
}
