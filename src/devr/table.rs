//! The device window table: what a kernel searches to find the window of an address.
//!
//! NCCL's layout: chunks of 32 entries `{base, size, window}`, chained; a `window` of zero marks an entry as
//! unused and a `next` of zero ends the chain. `size` is a length in bytes (the reference stored the end address).
//!
//! Kernels read the table while the host writes it, so the order of the writes is part of the format. All go to one
//! stream, and every write is of whole aligned words.
//! - WT-1 A chunk is on the device, zeroed, before a `next` leads to it.
//! - WT-2 To publish, base and size are written first, then the window pointer. To withdraw, the pointer and the size
//!   become zero (in whichever order: an entry of no bytes matches no address) and the base stays. So a
//!   kernel that reads the pointer first, then base and size, never sees half an entry; and one that compares
//!   bounds before it looks at the pointer, as NCCL's do, never matches an entry that was withdrawn.
//! - WT-3 A slot is freed only after every kernel that ran at the close has ended. A kernel may hold a pointer that
//!   it read before the withdrawal, and must not find the bounds of another window beside it. Until then the
//!   slot is withdrawn, not free, and is not given out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::offset_of;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::device::abi;
pub use crate::device::abi::{WindowTable as TableChunk, WindowTableEntry as TableEntry};
use crate::devr::shadow::{ShadowPool, Slot};
use crate::driver::{Call, DeviceError, DeviceProblem, Driver, Stream};

/// Entries in a chunk.
const CHUNK_ENTRIES: usize = abi::TABLE_ENTRIES;

/// Names a reserved entry of one table. An old name is known to be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableSlot {
    index: u32,
    generation: u64,
}

/// How much a table holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableCounts {
    /// Chunks, never fewer than before.
    pub chunks: usize,
    /// Entries that kernels can find.
    pub live: usize,
    /// Entries reserved and not yet published.
    pub reserved: usize,
    /// Entries withdrawn and not yet freed.
    pub withdrawn: usize,
    /// Entries that can be reserved without another chunk.
    pub free: usize,
}

/// The table. See the module's text.
#[derive(Debug)]
pub struct WindowTable {
    pool: ShadowPool<TableChunk>,
    /// In order of the chain.
    chunks: Vec<Slot>,
    /// How many of them a kernel can reach: these are on the device and linked.
    linked: usize,
    /// `CHUNK_ENTRIES` for each chunk.
    places: Vec<Place>,
    /// The places that are `Free`, lowest first.
    free: BinaryHeap<Reverse<u32>>,
    /// How many places are in each state: counted as they change, since status is shown at every close.
    in_state: [usize; State::ALL],
}

#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    /// How often it was freed.
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Reserved,
    Live,
    Withdrawn,
}

impl State {
    const ALL: usize = 4;
}

impl WindowTable {
    /// A table without chunks. Makes no device call.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            pool: ShadowPool::new(driver),
            chunks: Vec::new(),
            linked: 0,
            places: Vec::new(),
            free: BinaryHeap::new(),
            in_state: [0; State::ALL],
        }
    }

    /// Takes `n` entries, the lowest free ones, and makes the chunks that they need: before the vote, as it may
    /// fail. Makes the first chunk even for none.
    ///
    /// # Errors
    /// Of the device; then none is taken.
    pub fn reserve(&mut self, n: usize) -> Result<Vec<TableSlot>, DeviceError> {
        while self.chunks.is_empty() || self.free.len() < n {
            self.chunks.push(self.pool.alloc(TableChunk::default())?);
            for _ in 0..CHUNK_ENTRIES {
                self.free.push(Reverse(index_u32(self.places.len())));
                self.places.push(Place { state: State::Free, generation: 0 });
            }
            self.in_state[State::Free as usize] += CHUNK_ENTRIES;
        }
        let mut slots = Vec::with_capacity(n);
        while slots.len() < n
            && let Some(Reverse(index)) = self.free.pop()
        {
            self.turn(index, State::Reserved);
            slots.push(TableSlot { index, generation: self.places[index as usize].generation });
        }
        Ok(slots)
    }

    /// Queues new chunks, then the link to them (WT-1). Gives the number of copies.
    ///
    /// # Errors
    /// Of the device; calling it again makes up for it.
    pub fn upload(&mut self, stream: Stream) -> Result<usize, DeviceError> {
        let fresh = &self.chunks[self.linked..];
        for pair in fresh.windows(2) {
            let mut chunk = self.chunk(pair[0]);
            chunk.next = self.address(pair[1]);
            self.pool.set(pair[0], chunk);
        }
        let mut copies = self.pool.upload(stream)?;
        if let (Some(&first), Some(last)) = (fresh.first(), self.linked.checked_sub(1)) {
            let next = self.address(first).to_le_bytes();
            self.pool.patch(stream, self.chunks[last], offset_of!(TableChunk, next), &next)?;
            copies += 1;
        }
        self.linked = self.chunks.len();
        Ok(copies)
    }

    /// Makes a reserved entry findable (WT-2): two copies.
    ///
    /// # Errors
    /// As [`WindowTable::publish_all`].
    pub fn publish(&mut self, stream: Stream, slot: TableSlot, entry: TableEntry) -> Result<(), DeviceError> {
        self.publish_all(stream, &[(slot, entry)])
    }

    /// Makes reserved entries findable: first all bases and sizes, then all pointers (WT-2), neighbours together.
    /// Uploads chunks that were not.
    ///
    /// # Errors
    /// Of the device: then some may be findable, those are live, and none is so in part. `Argument`, before
    /// anything is written, if a slot is not reserved or given twice, or an entry has no bytes, wraps, or
    /// has no window: our own bug.
    pub fn publish_all(
        &mut self,
        stream: Stream,
        entries: &[(TableSlot, TableEntry)],
    ) -> Result<(), DeviceError> {
        let mut sorted = entries.to_vec();
        sorted.sort_by_key(|(slot, _)| slot.index);
        for (i, &(slot, entry)) in sorted.iter().enumerate() {
            if self.state(slot) != Some(State::Reserved) || (i > 0 && sorted[i - 1].0 == slot) {
                return Err(argument(format!("table slot {} is not reserved, or given twice", slot.index)));
            }
            if entry.window == 0 || entry.size == 0 || entry.base.checked_add(entry.size).is_none() {
                return Err(argument(format!("{entry:?} is no window")));
            }
        }
        if self.linked < self.chunks.len() {
            self.upload(stream)?;
        }
        let adjacent = |a: &(TableSlot, TableEntry), b: &(TableSlot, TableEntry)| {
            a.0.index + 1 == b.0.index && self.chunk_of(a.0) == self.chunk_of(b.0)
        };
        let runs: Vec<&[(TableSlot, TableEntry)]> = sorted.chunk_by(adjacent).collect();
        for run in &runs {
            // Up to the last size. The pointers between are zero, as they are on the device.
            let blind: Vec<TableEntry> =
                run.iter().map(|&(_, entry)| TableEntry { window: 0, ..entry }).collect();
            let bytes = blind.as_bytes();
            self.write(stream, run[0].0, 0, &bytes[..bytes.len() - WORD])?;
        }
        for run in &runs {
            // From the first pointer on. The bases and sizes between are on the device already.
            let whole: Vec<TableEntry> = run.iter().map(|&(_, entry)| entry).collect();
            let from = offset_of!(TableEntry, window);
            self.write(stream, run[0].0, from, &whole.as_bytes()[from..])?;
            for &(slot, _) in *run {
                self.turn(slot.index, State::Live);
            }
        }
        Ok(())
    }

    /// Makes a live entry unfindable (WT-2). The slot stays taken until it is freed (WT-3). `false`, and nothing
    /// done, if the slot is not live.
    ///
    /// # Errors
    /// Of the device; the entry is then still live.
    pub fn withdraw(&mut self, stream: Stream, slot: TableSlot) -> Result<bool, DeviceError> {
        if self.state(slot) != Some(State::Live) {
            return Ok(false);
        }
        self.write(stream, slot, offset_of!(TableEntry, size), &[0; 2 * WORD])?;
        self.turn(slot.index, State::Withdrawn);
        Ok(true)
    }

    /// Gives an entry back that was reserved and not published, or withdrawn (WT-3). `false`, and nothing done, if
    /// the slot is stale or live.
    pub fn free(&mut self, slot: TableSlot) -> bool {
        if !matches!(self.state(slot), Some(State::Reserved | State::Withdrawn)) {
            return false;
        }
        self.turn(slot.index, State::Free);
        self.places[slot.index as usize].generation += 1;
        self.free.push(Reverse(slot.index));
        true
    }

    /// The device address of the first chunk, where kernels begin. Zero before the first [`WindowTable::reserve`].
    #[must_use]
    pub fn head(&self) -> usize {
        self.chunks.first().and_then(|&chunk| self.pool.address(chunk)).unwrap_or(0)
    }

    /// The entries that kernels can find, in order of the chain.
    pub fn live(&self) -> impl Iterator<Item = (TableSlot, TableEntry)> {
        self.places.iter().zip(0..).filter(|(place, _)| place.state == State::Live).map(|(place, index)| {
            let slot = TableSlot { index, generation: place.generation };
            let chunk = self.pool.get(self.chunk_of(slot)).expect("chunks live as long as their table");
            (slot, chunk.entries[within_chunk(slot)])
        })
    }

    /// How much the table holds.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        let count = |state: State| self.in_state[state as usize];
        TableCounts {
            chunks: self.chunks.len(),
            live: count(State::Live),
            reserved: count(State::Reserved),
            withdrawn: count(State::Withdrawn),
            free: self.free.len(),
        }
    }

    /// As [`ShadowPool::take_undo_errors`].
    pub fn take_undo_errors(&mut self) -> Vec<DeviceError> {
        self.pool.take_undo_errors()
    }

    /// As [`ShadowPool::close`].
    #[must_use]
    pub fn close(self) -> Vec<DeviceError> {
        self.pool.close()
    }

    /// `None` if the slot is stale.
    fn state(&self, slot: TableSlot) -> Option<State> {
        let place = self.places.get(slot.index as usize)?;
        (place.generation == slot.generation).then_some(place.state)
    }

    fn turn(&mut self, index: u32, to: State) {
        let state = &mut self.places[index as usize].state;
        self.in_state[*state as usize] -= 1;
        self.in_state[to as usize] += 1;
        *state = to;
    }

    fn chunk_of(&self, slot: TableSlot) -> Slot {
        self.chunks[slot.index as usize / CHUNK_ENTRIES]
    }

    fn chunk(&self, chunk: Slot) -> TableChunk {
        *self.pool.get(chunk).expect("chunks live as long as their table")
    }

    fn address(&self, chunk: Slot) -> u64 {
        self.pool.address(chunk).expect("chunks live as long as their table") as u64
    }

    /// One copy, from `offset` bytes behind the start of `first`'s entry on, within its chunk.
    fn write(
        &mut self,
        stream: Stream,
        first: TableSlot,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let start = within_chunk(first) * size_of::<TableEntry>() + offset;
        let known = self.pool.patch(stream, self.chunk_of(first), start, bytes)?;
        debug_assert!(known, "chunks live as long as their table");
        Ok(())
    }
}

const WORD: usize = size_of::<u64>();

const fn within_chunk(slot: TableSlot) -> usize {
    slot.index as usize % CHUNK_ENTRIES
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 table entries")
}

fn argument(what: String) -> DeviceError {
    DeviceError::new(Call::Copy, DeviceProblem::Argument { what })
}

#[cfg(test)]
mod tests;
