//! The lookup tree: how a kernel of a GPU finds the window of an address with few loads that wait for each other.
//!
//! The [window table](super::table) is NCCL's, and is searched entry by entry. Beside it the host can keep a tree for
//! kernels of symwin's own header: windows become pieces of addresses that do not overlap, each with the window that the
//! host's [index](super::index) would find there (the one with the greatest base, of those the smallest, of those the
//! one published last). So one search among pieces in order is the whole answer: nothing is tried twice.
//!
//! A tree is bytes (`layout`): a header, levels of nodes of 16 keys, each node a cache line, and leaves `{end,
//! window}`. `n` leaves have `ceil(n / 16)` nodes above them, these have a 16th as many, and so on to one root, so where
//! everything is follows from `n`.
//!
//! Kernels search while the host writes, so order and places are part of the format. All writes go to one stream.
//! - LT-1 There are two places for a tree, and a publication writes the one that `head.tree` does not lead to: first it
//!   counts up `head.sequence`, then writes the whole tree, then `head.tree`. A search reads the sequence, then
//!   `head.tree`, and after the search the sequence again. If it is the same, the place that was searched was not
//!   written meanwhile: that happens in the next publication but one at the earliest, which counts up first. If it is
//!   not, the kernel searches again. No kernel ever waits for the host.
//! - LT-2 What a search reads of a place that is being written can be any mixture, but it never leads out of the place:
//!   a tree's number of leaves is one word with its levels, and children are bounded by it.
//! - LT-3 To withdraw a window, each of its pieces gets the window around it, or no end and no window, in place. Ends
//!   and windows are words of their own: a kernel reads a leaf as it was, as it will be, or one that matches nothing.
//! - LT-4 A place that was outgrown stays mapped until the owner closes. The head never moves.

mod layout;
mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use zerocopy::IntoBytes;

use self::layout::Shape;
use self::pieces::{Order, Piece};
use crate::device::abi::{LookupHead, LookupLeaf};
use crate::devr::table::{TableEntry, TableSlot};
use crate::driver::page::Page;
use crate::driver::{Call, DeviceError, DeviceProblem, Driver, Stream};

pub use self::layout::{build, search};

/// The tree of one rank on its device. See the module's text.
pub struct Lookup {
    driver: Arc<dyn Driver>,
    granularity: usize,
    /// The head lies at the start of the first one; the two places lie in the last one.
    pages: Vec<Page>,
    /// How many publications began.
    sequence: u64,
    /// Where the tree that kernels search is.
    tree: Option<Tree>,
    /// The windows that kernels can find, outer ones before inner ones, and each one's struct.
    live: BTreeMap<Order, u64>,
    by_slot: BTreeMap<TableSlot, Order>,
    /// How many windows were published.
    numbers: u64,
    /// The size of the largest window since the last time that there was none.
    largest: u64,
    /// The pieces of the tree, as its leaves are on the device.
    pieces: Vec<Piece>,
    undo_errors: Vec<DeviceError>,
}

/// A tree on the device.
#[derive(Clone, Copy)]
struct Tree {
    page: usize,
    place: usize,
    /// Where its leaves begin in the page.
    leaves: usize,
}

impl Lookup {
    /// No tree. Makes no device call.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let granularity = driver.info().granularity;
        Self {
            driver,
            granularity: usize::try_from(granularity).expect("a granularity fits the address space"),
            pages: Vec::new(),
            sequence: 0,
            tree: None,
            live: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            numbers: 0,
            largest: 0,
            pieces: Vec::new(),
            undo_errors: Vec::new(),
        }
    }

    /// Makes room for `n` windows more: before the vote, as it may fail. Makes the head even for none.
    ///
    /// # Errors
    /// Of the device; what there was is as before. `Argument` for more windows than a tree can hold.
    pub fn reserve(&mut self, n: usize) -> Result<(), DeviceError> {
        // Each window brings two ends at most, and there is less than a piece for each.
        let leaves = self.live.len().checked_add(n).and_then(|windows| windows.checked_mul(2));
        let needed = leaves.and_then(Shape::new).map(Shape::bytes);
        let needed = needed.ok_or_else(|| argument(format!("{n} windows more than {}", self.live.len())))?;
        if self.pages.last().is_some_and(|page| place_bytes(page) >= needed) {
            return Ok(());
        }
        let twice = self.pages.last().map_or(0, |page| 2 * page.size());
        let size = twice.max(HEAD_BYTES + 2 * needed).next_multiple_of(self.granularity);
        self.pages.push(Page::new(&self.driver, size, self.granularity, &mut self.undo_errors)?);
        Ok(())
    }

    /// Makes windows findable, all of them at once, by the slots that they have in the window table. Of windows with
    /// equal bounds the last one counts as the innermost, in the order given here and from call to call.
    ///
    /// # Errors
    /// Of the device; then none is findable, and calling it again makes up for it. `Argument`, before anything is
    /// written, if a slot is known or given twice, or an entry has no bytes, wraps, or has no window: our own bug.
    pub fn publish(
        &mut self,
        stream: Stream,
        entries: &[(TableSlot, TableEntry)],
    ) -> Result<(), DeviceError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut slots = BTreeSet::new();
        for &(slot, entry) in entries {
            let wraps = entry.base.checked_add(entry.size).is_none();
            if entry.window == 0 || entry.size == 0 || wraps {
                return Err(argument(format!("{entry:?} is no window")));
            }
            if self.by_slot.contains_key(&slot) || !slots.insert(slot) {
                return Err(argument(format!("{slot:?} is taken, or given twice")));
            }
        }
        for &(slot, entry) in entries {
            self.numbers += 1;
            let order = Order::new(entry.base, entry.size, self.numbers);
            self.live.insert(order, entry.window);
            self.by_slot.insert(slot, order);
        }
        if let Err(error) = self.reserve(0).and_then(|()| self.write_tree(stream)) {
            for (slot, _) in entries {
                let order = self.by_slot.remove(slot).expect("put there above");
                self.live.remove(&order);
            }
            return Err(error);
        }
        self.largest = entries.iter().map(|(_, entry)| entry.size).fold(self.largest, u64::max);
        Ok(())
    }

    /// Makes a window unfindable; what lies around it is found in its place. One copy at most. `false`, and nothing
    /// done, if the slot is not known.
    ///
    /// # Errors
    /// Of the device; the window may still be found, and it can be tried again.
    pub fn withdraw(&mut self, stream: Stream, slot: TableSlot) -> Result<bool, DeviceError> {
        let (Some(&order), Some(tree)) = (self.by_slot.get(&slot), self.tree) else {
            return Ok(false);
        };
        let first = self.pieces.partition_point(|piece| piece.base < order.base());
        let behind = self.pieces.partition_point(|piece| piece.base < order.end());
        // Windows that reach into it begin at most the largest one's size before it.
        let reach = Order::first_at(order.base().saturating_sub(self.largest));
        let around = self.live.range(reach..Order::first_at(order.end()));
        let around = around.filter(|(other, _)| **other != order && other.end() > order.base());
        let around: Vec<(Order, u64)> = around.map(|(other, window)| (*other, *window)).collect();
        let mut pieces = self.pieces[first..behind].to_vec();
        pieces::replace(&mut pieces, order, &around);
        let changed = |(new, old): &(&Piece, &Piece)| new.winner != old.winner;
        let pairs = || pieces.iter().zip(&self.pieces[first..behind]);
        if let (Some(from), Some(to)) =
            (pairs().position(|p| changed(&p)), pairs().rposition(|p| changed(&p)))
        {
            let leaves: Vec<LookupLeaf> = pieces[from..=to].iter().map(Piece::leaf).collect();
            let at = tree.leaves + (first + from) * size_of::<LookupLeaf>();
            self.pages[tree.page].copy(stream, at, leaves.as_bytes())?;
        }
        self.pieces[first..behind].copy_from_slice(&pieces);
        self.live.remove(&order);
        self.by_slot.remove(&slot);
        if self.live.is_empty() {
            self.largest = 0;
        }
        Ok(true)
    }

    /// The device address of the head, where kernels begin. Zero before the first [`Lookup::reserve`].
    #[must_use]
    pub fn head(&self) -> usize {
        self.pages.first().map_or(0, Page::base)
    }

    /// How many windows kernels can find.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether kernels can find none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The errors of undo calls since the last time this was asked: of pages that could not be made and then not be
    /// undone either.
    pub fn take_undo_errors(&mut self) -> Vec<DeviceError> {
        std::mem::take(&mut self.undo_errors)
    }

    /// Gives all memory back, once all kernels and the stream have ended. What could not be is in the list, and given
    /// up.
    #[must_use]
    pub fn close(mut self) -> Vec<DeviceError> {
        let mut errors = self.take_undo_errors();
        for mut page in self.pages.drain(..) {
            errors.extend(page.give_back());
        }
        errors
    }

    /// LT-1.
    fn write_tree(&mut self, stream: Stream) -> Result<(), DeviceError> {
        let pieces = pieces::of(&self.live);
        let shape = Shape::new(pieces.len()).ok_or_else(|| argument(format!("{} pieces", pieces.len())))?;
        let page = self.pages.len() - 1;
        let place = self.tree.map_or(0, |tree| if tree.page == page { 1 - tree.place } else { 0 });
        let at = HEAD_BYTES + place * place_bytes(&self.pages[page]);
        let bytes = build(&pieces.iter().map(|piece| (piece.base, piece.leaf())).collect::<Vec<_>>());
        let sequence = self.sequence + 1;
        let address = (self.pages[page].base() + at) as u64;
        self.pages[0].copy(stream, offset_of_sequence(), &sequence.to_le_bytes())?;
        self.sequence = sequence;
        self.pages[page].copy(stream, at, &bytes)?;
        self.pages[0].copy(stream, offset_of_tree(), &address.to_le_bytes())?;
        self.tree = Some(Tree { page, place, leaves: at + shape.leaves() });
        self.pieces = pieces;
        Ok(())
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup")
            .field("windows", &self.live.len())
            .field("pieces", &self.pieces.len())
            .field("sequence", &self.sequence)
            .field("pages", &self.pages.len())
            .finish_non_exhaustive()
    }
}

/// A cache line for the head, so that trees behind it begin at one.
const HEAD_BYTES: usize = 128;

const _: () = assert!(size_of::<LookupHead>() <= HEAD_BYTES);

const fn offset_of_sequence() -> usize {
    std::mem::offset_of!(LookupHead, sequence)
}

const fn offset_of_tree() -> usize {
    std::mem::offset_of!(LookupHead, tree)
}

/// How large a tree each of a page's two places takes.
const fn place_bytes(page: &Page) -> usize {
    (page.size() - HEAD_BYTES) / 2 / layout::LINE * layout::LINE
}

fn argument(what: String) -> DeviceError {
    DeviceError::new(Call::Copy, DeviceProblem::Argument { what })
}

#[cfg(test)]
mod tests;
