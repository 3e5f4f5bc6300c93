//! Physical memory of the host device: sealed memfds, by handle.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use slab::Slab;

use super::limits;
use crate::driver::{DeviceProblem, Handle};

/// Seals of every memory: its size never changes, so a mapping that fitted once always fits.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Generations fit in 31 bits, so that bit 63 of a handle is free for devices that wrap this one.
const GENERATIONS: u32 = 1 << 31;

/// All memories that have references or mappings.
#[derive(Debug, Default)]
pub(super) struct Memories {
    slots: Slab<Memory>,
    /// Of the last memory; each has another one, so that a handle never means a later memory in the same slot.
    generation: u32,
    /// Bytes created here, or about to be.
    bytes: u64,
    /// Descriptors of memories that are gone here while someone still holds what was exported.
    lingering: Vec<Weak<OwnedFd>>,
}

#[derive(Debug)]
struct Memory {
    /// Shared by all that is exported, so exporting costs no descriptor.
    fd: Arc<OwnedFd>,
    size: usize,
    generation: u32,
    /// References by handle. At zero the handle is not valid, but `retain` by address brings it back.
    references: usize,
    /// Mappings that hold it.
    mappings: usize,
    /// Whether its bytes count as created here.
    ours: bool,
}

impl Memories {
    /// Sets `size` bytes aside before they are created.
    pub(super) fn promise(&mut self, size: usize, total: u64, available: u64) -> Result<(), DeviceProblem> {
        let available = available.min(total.saturating_sub(self.bytes));
        let need = size as u64;
        if need > available {
            return Err(DeviceProblem::OutOfMemory { need, available });
        }
        self.bytes += need;
        Ok(())
    }

    /// Gives back what was set aside and could not be created.
    pub(super) fn forgo(&mut self, size: usize) {
        self.bytes -= size as u64;
    }

    /// Takes in a new memory with one reference.
    pub(super) fn insert(&mut self, fd: Arc<OwnedFd>, size: usize, ours: bool) -> Handle {
        self.generation = (self.generation + 1) % GENERATIONS;
        let generation = self.generation;
        let index = self.slots.insert(Memory { fd, size, generation, references: 1, mappings: 0, ours });
        handle_of(index, generation)
    }

    /// Drops a reference. Returns the descriptor if that was the last hold on the memory: closing it can take
    /// long, so the caller does it without the lock.
    pub(super) fn release(&mut self, handle: Handle) -> Result<Option<Arc<OwnedFd>>, DeviceProblem> {
        let (index, memory) = self.find(handle)?;
        memory.references -= 1;
        Ok(self.collect(index))
    }

    /// One more reference to a memory that a mapping holds.
    pub(super) fn retain(&mut self, handle: Handle) {
        self.held(handle).1.references += 1;
    }

    pub(super) fn descriptor(&mut self, handle: Handle) -> Result<Arc<OwnedFd>, DeviceProblem> {
        Ok(Arc::clone(&self.find(handle)?.1.fd))
    }

    /// The descriptor to map, if `offset..offset + size` lies in the memory.
    pub(super) fn piece(
        &mut self,
        handle: Handle,
        offset: usize,
        size: usize,
    ) -> Result<Arc<OwnedFd>, DeviceProblem> {
        let memory = self.find(handle)?.1;
        if offset.checked_add(size).is_none_or(|end| end > memory.size) {
            let what = format!("{offset} + {size} bytes is beyond the memory's {} bytes", memory.size);
            return Err(DeviceProblem::Argument { what });
        }
        Ok(Arc::clone(&memory.fd))
    }

    pub(super) fn mapped(&mut self, handle: Handle) {
        self.held(handle).1.mappings += 1;
    }

    /// A mapping is gone. Returns the descriptor as [`Self::release`] does.
    pub(super) fn unmapped(&mut self, handle: Handle) -> Option<Arc<OwnedFd>> {
        let (index, memory) = self.held(handle);
        memory.mappings -= 1;
        self.collect(index)
    }

    /// References that have not been released.
    pub(super) fn references(&self) -> usize {
        self.slots.iter().map(|(_, memory)| memory.references).sum()
    }

    /// Open descriptors, exported ones that outlive their memory included.
    pub(super) fn descriptors(&self) -> usize {
        let mut distinct: BTreeSet<_> = self.slots.iter().map(|(_, memory)| memory.fd.as_raw_fd()).collect();
        distinct.extend(self.lingering.iter().filter_map(Weak::upgrade).map(|fd| fd.as_raw_fd()));
        distinct.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn find(&mut self, handle: Handle) -> Result<(usize, &mut Memory), DeviceProblem> {
        let unknown = DeviceProblem::InvalidHandle { handle: handle.0 };
        let Some((index, generation)) = parts_of(handle) else { return Err(unknown) };
        match self.slots.get_mut(index) {
            Some(memory) if memory.generation == generation && memory.references > 0 => Ok((index, memory)),
            _ => Err(unknown),
        }
    }

    /// A memory that the address space refers to.
    fn held(&mut self, handle: Handle) -> (usize, &mut Memory) {
        let (index, _) = parts_of(handle).expect("mappings hold handles of ours");
        (index, self.slots.get_mut(index).expect("a mapping holds its memory"))
    }

    fn collect(&mut self, index: usize) -> Option<Arc<OwnedFd>> {
        let memory = self.slots.get(index)?;
        if memory.references > 0 || memory.mappings > 0 {
            return None;
        }
        let memory = self.slots.remove(index);
        if memory.ours {
            self.bytes -= memory.size as u64;
        }
        self.lingering.retain(|fd| fd.strong_count() > 0);
        if Arc::strong_count(&memory.fd) > 1 {
            self.lingering.push(Arc::downgrade(&memory.fd));
        }
        Some(memory.fd)
    }
}

/// A new memfd of `size` zeroed bytes, all of them really there, sealed.
pub(super) fn create(size: usize) -> Result<OwnedFd, Errno> {
    let fd = open()?;
    rustix::fs::ftruncate(&fd, size as u64)?;
    // Without room reserved, the first store where memory lacks would be a SIGBUS.
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, size as u64))?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// The size of a descriptor that a peer exported, if it is what we would have exported, of `size` bytes at least.
pub(super) fn check(fd: impl AsFd, size: usize) -> Result<usize, DeviceProblem> {
    let refuse = |what: String| Err(DeviceProblem::Argument { what });
    let seals = match rustix::fs::fcntl_get_seals(&fd) {
        Ok(seals) => seals,
        Err(Errno::INVAL) => return refuse("the descriptor is no memfd".to_owned()),
        Err(errno) => return Err(problem(errno)),
    };
    if !seals.contains(SEALS) {
        return refuse(format!("the memfd is not sealed: it has {seals:?}, {SEALS:?} are needed"));
    }
    // One that was opened for reading only is refused when it is mapped, by the kernel: no call for that here, since
    // every window costs an import from each peer.
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return refuse(NOT_WRITABLE.to_owned());
    }
    // Half as dear as fstat, which gathers far more. Nobody reads the file by its position.
    let held = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(problem)?;
    let held = usize::try_from(held).unwrap_or(0);
    if held < size {
        return refuse(format!("the memory holds {held} bytes, {size} were announced"));
    }
    Ok(held)
}

/// Why memory that a peer sent is not mapped.
pub(super) const NOT_WRITABLE: &str = "the memfd cannot be written";

/// What an error number means in a call that makes descriptors.
pub(super) fn problem(errno: Errno) -> DeviceProblem {
    match errno {
        Errno::MFILE | Errno::NFILE => {
            DeviceProblem::TooManyDescriptors { limit: limits::descriptors(), need: 1 }
        }
        _ => DeviceProblem::Os { errno: errno.raw_os_error() },
    }
}

fn open() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(c"symwin", flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"symwin", flags),
        made => made,
    }
}

fn handle_of(index: usize, generation: u32) -> Handle {
    Handle((u64::from(generation) << 32) | index as u64)
}

fn parts_of(handle: Handle) -> Option<(usize, u32)> {
    let generation = u32::try_from(handle.0 >> 32).ok()?;
    let index = usize::try_from(handle.0 & u64::from(u32::MAX)).ok()?;
    Some((index, generation))
}
