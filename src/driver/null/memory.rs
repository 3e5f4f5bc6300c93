//! Memory of a null device, by handle: a size, references and mappings.

use slab::Slab;

use super::NullFabric;
use crate::driver::{DeviceProblem, Handle};

/// Generations fit in 31 bits, so that bit 63 of a handle is free for devices that wrap this one.
const GENERATIONS: u32 = 1 << 31;

/// All memories that have references or mappings.
#[derive(Debug, Default)]
pub(super) struct Memories {
    slots: Slab<Memory>,
    /// Of the last memory; each has another one, so that a handle never means a later memory in the same slot.
    generation: u32,
    /// Of all memories.
    references: usize,
}

#[derive(Debug)]
struct Memory {
    size: usize,
    generation: u32,
    /// References by handle. At zero the handle is not valid, but `retain` by address brings it back.
    references: usize,
    /// Mappings that hold it.
    mappings: usize,
    /// This device's hold on the allocation.
    hold: usize,
}

impl Memories {
    /// The handle that the next [`Self::insert`] makes.
    pub(super) fn next_handle(&self) -> Handle {
        Handle((u64::from(self.next_generation()) << 32) | self.slots.vacant_key() as u64)
    }

    /// Takes in a new memory with one reference.
    pub(super) fn insert(&mut self, size: usize, hold: usize) {
        self.generation = self.next_generation();
        let generation = self.generation;
        self.slots.insert(Memory { size, generation, references: 1, mappings: 0, hold });
        self.references += 1;
    }

    /// Drops a reference. Returns the hold to let go of, if that was the last one on the memory.
    pub(super) fn release(&mut self, handle: Handle) -> Result<Option<usize>, DeviceProblem> {
        let (index, memory) = self.find_mut(handle)?;
        memory.references -= 1;
        self.references -= 1;
        Ok(self.collect(index))
    }

    /// One more reference to a memory that a mapping holds.
    pub(super) fn retain(&mut self, handle: Handle) {
        self.references += 1;
        self.mapped_mut(handle).1.references += 1;
    }

    /// The hold on a memory, and its size.
    pub(super) fn hold(&mut self, handle: Handle) -> Result<(usize, usize), DeviceProblem> {
        self.find_mut(handle).map(|(_, memory)| (memory.hold, memory.size))
    }

    /// Refuses what is not all in the memory.
    pub(super) fn check_piece(
        &mut self,
        handle: Handle,
        offset: usize,
        size: usize,
    ) -> Result<(), DeviceProblem> {
        let (_, memory) = self.find_mut(handle)?;
        if offset.checked_add(size).is_some_and(|end| end <= memory.size) {
            return Ok(());
        }
        let what = format!("{offset} + {size} bytes is beyond the memory's {} bytes", memory.size);
        Err(DeviceProblem::Argument { what })
    }

    /// A memory was mapped.
    pub(super) fn mapped(&mut self, handle: Handle) {
        self.mapped_mut(handle).1.mappings += 1;
    }

    /// A mapping is gone.
    pub(super) fn unmapped(&mut self, handle: Handle, fabric: &NullFabric) {
        let (index, memory) = self.mapped_mut(handle);
        memory.mappings -= 1;
        if let Some(hold) = self.collect(index) {
            fabric.let_go(hold);
        }
    }

    /// References that have not been released.
    pub(super) fn references(&self) -> usize {
        self.references
    }

    /// The holds on all memories.
    pub(super) fn holds(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().map(|(_, memory)| memory.hold)
    }

    fn next_generation(&self) -> u32 {
        (self.generation + 1) % GENERATIONS
    }

    fn find_mut(&mut self, handle: Handle) -> Result<(usize, &mut Memory), DeviceProblem> {
        let valid =
            |memory: &&mut Memory| u64::from(memory.generation) == handle.0 >> 32 && memory.references > 0;
        let index = index_of(handle);
        match self.slots.get_mut(index).filter(valid) {
            Some(memory) => Ok((index, memory)),
            None => Err(DeviceProblem::InvalidHandle { handle: handle.0 }),
        }
    }

    /// A memory that is mapped, or is about to be, although its handle may not be valid any more.
    fn mapped_mut(&mut self, handle: Handle) -> (usize, &mut Memory) {
        let index = index_of(handle);
        (index, self.slots.get_mut(index).expect("a mapping holds its memory"))
    }

    fn collect(&mut self, index: usize) -> Option<usize> {
        let memory = self.slots.get(index)?;
        if memory.references > 0 || memory.mappings > 0 {
            return None;
        }
        Some(self.slots.remove(index).hold)
    }
}

/// The slot is the handle's lower half: there is no room for more than 2^32 of them.
fn index_of(handle: Handle) -> usize {
    usize::try_from(handle.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX)
}
