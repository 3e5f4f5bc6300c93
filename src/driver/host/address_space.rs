//! Reserved ranges of addresses and what is mapped in them.
//!
//! Every system call here is checked against the registry first, so no call of this device ever touches
//! addresses that it did not reserve.
#![allow(unsafe_code, reason = "mmap and its kin")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::memory::NOT_WRITABLE;
use crate::driver::{AddressRange, DeviceProblem, Handle};

/// The registry. Reservations do not overlap, nor do mappings; each mapping lies in one reservation.
#[derive(Debug, Default)]
pub(super) struct AddressSpace {
    /// Base address to size.
    reservations: BTreeMap<usize, usize>,
    /// By base address.
    mappings: BTreeMap<usize, Mapping>,
}

#[derive(Debug)]
struct Mapping {
    size: usize,
    memory: Handle,
    accessible: bool,
}

impl AddressSpace {
    /// Reserves `size` bytes at a multiple of `align`, a power of two that is no less than a page.
    pub(super) fn reserve(&mut self, size: usize, align: usize) -> Result<usize, DeviceProblem> {
        // Pages are the alignment that the kernel gives anyway.
        let slack = align - rustix::param::page_size();
        let total = size.checked_add(slack).ok_or_else(|| os(Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses addresses that nothing uses.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), total, ProtFlags::empty(), flags) };
        let start = start.map_err(os)?.expose_provenance();
        let base = start.next_multiple_of(align);
        let (head, tail) = (base - start, total - size - (base - start));
        if let Err(errno) = give_back(start, head) {
            let _ = give_back(start, total);
            return Err(os(errno));
        }
        if let Err(errno) = give_back(base + size, tail) {
            // The head is gone and may be another's by now.
            let _ = give_back(base, size + tail);
            return Err(os(errno));
        }
        self.reservations.insert(base, size);
        Ok(base)
    }

    /// Gives a reservation back with all that is mapped in it. Returns the memory of each mapping.
    ///
    /// # Safety
    /// No one uses its addresses any more.
    pub(super) unsafe fn free(&mut self, base: usize, size: usize) -> Result<Vec<Handle>, DeviceProblem> {
        if self.reservations.get(&base) != Some(&size) {
            return argument(format!("{base:#x} + {size} bytes is no reservation"));
        }
        give_back(base, size).map_err(os)?;
        self.reservations.remove(&base);
        Ok(self.forget(base, base + size))
    }

    /// Maps `size` bytes of the descriptor at `address`, if that is vacant and reserved. The processor would let them
    /// be used from now on: what was given no access is refused by this registry, for a change of protection costs as
    /// much as a mapping.
    pub(super) fn map(
        &mut self,
        address: usize,
        size: usize,
        fd: impl AsFd,
        offset: usize,
        memory: Handle,
    ) -> Result<(), DeviceProblem> {
        let end = self.reserved_end(address, size)?;
        if let Some((&base, other)) = self.mappings.range(..end).next_back()
            && base + other.size > address
        {
            return argument(format!("{address:#x} + {size} bytes overlaps the mapping at {base:#x}"));
        }
        let (flags, access) = (MapFlags::SHARED | MapFlags::FIXED, ProtFlags::READ | ProtFlags::WRITE);
        let at = pointer(address);
        // SAFETY: the range lies in a reservation of ours, where nothing is mapped: it replaces only our
        // inaccessible placeholder.
        let mapped = unsafe { rustix::mm::mmap(at, size, access, flags, fd, offset as u64) };
        mapped.map_err(|errno| match errno {
            Errno::ACCESS => DeviceProblem::Argument { what: NOT_WRITABLE.to_owned() },
            errno => os(errno),
        })?;
        self.mappings.insert(address, Mapping { size, memory, accessible: false });
        Ok(())
    }

    /// Gives a run of whole mappings access.
    pub(super) fn set_access(&mut self, address: usize, size: usize) -> Result<(), DeviceProblem> {
        let Some(end) = address.checked_add(size) else { return argument(beyond(address, size)) };
        if !self.covers(address, end, |_| true) {
            return argument(format!("{address:#x} + {size} bytes has a hole where nothing is mapped"));
        }
        self.check_whole(address, end)?;
        for mapping in self.mappings.range_mut(address..end).map(|(_, mapping)| mapping) {
            mapping.accessible = true;
        }
        Ok(())
    }

    /// Unmaps the whole mappings in the range, in one call; the addresses stay reserved. Returns the memory of
    /// each.
    ///
    /// # Safety
    /// No one uses these addresses any more.
    pub(super) unsafe fn unmap(&mut self, address: usize, size: usize) -> Result<Vec<Handle>, DeviceProblem> {
        let end = self.reserved_end(address, size)?;
        self.check_whole(address, end)?;
        if self.mappings.range(address..end).next().is_none() {
            return argument(format!("nothing is mapped in {address:#x} + {size} bytes"));
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let at = pointer(address);
        // SAFETY: the range lies in a reservation of ours, and the caller says that no one uses it.
        let placeholder = unsafe { rustix::mm::mmap_anonymous(at, size, ProtFlags::empty(), flags) };
        placeholder.map_err(os)?;
        Ok(self.forget(address, end))
    }

    /// The mapping that holds the address, and its memory.
    pub(super) fn find(&self, address: usize) -> Option<(AddressRange, Handle)> {
        let (&base, mapping) = self.mappings.range(..=address).next_back()?;
        let range = AddressRange { base, size: mapping.size };
        (address - base < mapping.size).then_some((range, mapping.memory))
    }

    /// Refuses a range that touches a reservation of ours where there is no access; other addresses are the
    /// caller's word.
    pub(super) fn check_access(&self, address: usize, size: usize) -> Result<(), DeviceProblem> {
        let Some(end) = address.checked_add(size) else { return argument(beyond(address, size)) };
        let reservation = self.reservations.range(..end).next_back();
        if size == 0 || reservation.is_none_or(|(base, size)| base + size <= address) {
            return Ok(());
        }
        if self.covers(address, end, |mapping| mapping.accessible) {
            return Ok(());
        }
        argument(format!("{address:#x} + {size} bytes is not all mapped with access"))
    }

    pub(super) fn mapping_count(&self) -> usize {
        self.mappings.len()
    }

    pub(super) fn reservation_count(&self) -> usize {
        self.reservations.len()
    }

    /// The end of the range, if it lies in one reservation.
    fn reserved_end(&self, address: usize, size: usize) -> Result<usize, DeviceProblem> {
        let Some(end) = address.checked_add(size) else { return argument(beyond(address, size)) };
        match self.reservations.range(..=address).next_back() {
            Some((base, size)) if end <= base + size => Ok(end),
            _ => argument(format!("{address:#x} + {size} bytes is in no reservation")),
        }
    }

    /// Whether mappings of this kind cover the range without a hole.
    fn covers(&self, address: usize, end: usize, mut is: impl FnMut(&Mapping) -> bool) -> bool {
        let first = self.mappings.range(..=address).next_back().map_or(address, |(&base, _)| base);
        let mut at = address;
        for (&base, mapping) in self.mappings.range(first..end) {
            if base > at || base + mapping.size <= at || !is(mapping) {
                return false;
            }
            at = base + mapping.size;
        }
        at >= end
    }

    /// Refuses a range that starts or ends within a mapping.
    fn check_whole(&self, address: usize, end: usize) -> Result<(), DeviceProblem> {
        for edge in [address, end] {
            if let Some((range, _)) = self.find(edge)
                && range.base != edge
            {
                return argument(format!("the range splits the mapping at {:#x} at {edge:#x}", range.base));
            }
        }
        Ok(())
    }

    fn forget(&mut self, address: usize, end: usize) -> Vec<Handle> {
        self.mappings.extract_if(address..end, |_, _| true).map(|(_, mapping)| mapping.memory).collect()
    }
}

/// Unmaps addresses that this module has mapped and that no one uses.
fn give_back(address: usize, size: usize) -> Result<(), Errno> {
    if size == 0 {
        return Ok(());
    }
    // SAFETY: private to this file, whose callers give whole pieces of their own reservations: fresh ones that
    // nobody has heard of, or one whose user said that no one uses it.
    unsafe { rustix::mm::munmap(pointer(address), size) }
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn os(errno: Errno) -> DeviceProblem {
    DeviceProblem::Os { errno: errno.raw_os_error() }
}

fn argument<T>(what: String) -> Result<T, DeviceProblem> {
    Err(DeviceProblem::Argument { what })
}

fn beyond(address: usize, size: usize) -> String {
    format!("{address:#x} + {size} bytes is beyond the last address")
}
