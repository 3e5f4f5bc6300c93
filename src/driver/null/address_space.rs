//! Made-up addresses: which are reserved, and what is mapped at them.
//!
//! The checks are those of the host device's registry, but for copies: here no address is another's, so what is not
//! mapped is not written to.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::vacant::Vacant;
use crate::driver::{AddressRange, DeviceProblem, Handle};

/// The first address of device 0. No process has an object here or above: kernels give user code the addresses below
/// 2^47 (x86-64) or 2^48 (arm64), and higher ones, where there are any, only to who asks for them by address.
pub(super) const FIRST: usize = 1 << 48;
/// Each device has 47 bits of addresses, as many as a process has on most machines.
pub(super) const SPAN: usize = 1 << 47;
/// As many devices have addresses of their own; a later one gets those of an earlier one.
const SPANS: usize = ((1 << 63) - FIRST) / SPAN;

/// The registry. Reservations do not overlap, nor do mappings; each mapping lies in one reservation.
#[derive(Debug)]
pub(super) struct AddressSpace {
    /// Left free after each reservation.
    gap: usize,
    vacant: Vacant,
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
    /// The addresses of the device with this number.
    pub(super) fn new(device: usize, gap: usize) -> Self {
        let start = FIRST + device % SPANS * SPAN;
        let vacant = Vacant::new(start, start + SPAN);
        Self { gap, vacant, reservations: BTreeMap::new(), mappings: BTreeMap::new() }
    }

    /// Reserves `size` bytes at a multiple of `align`, a power of two, if there are as many addresses.
    pub(super) fn reserve(&mut self, size: usize, align: usize) -> Option<usize> {
        let base = self.vacant.take(size.checked_add(self.gap)?, align)?;
        self.reservations.insert(base, size);
        Some(base)
    }

    /// Gives a reservation back with all that is mapped in it; `unmapped` is told the memory of each mapping.
    pub(super) fn free(
        &mut self,
        base: usize,
        size: usize,
        unmapped: impl FnMut(Handle),
    ) -> Result<(), DeviceProblem> {
        if self.reservations.get(&base) != Some(&size) {
            return argument(format!("{base:#x} + {size} bytes is no reservation"));
        }
        self.reservations.remove(&base);
        self.vacant.give(base, size + self.gap);
        self.forget(base, base + size, unmapped);
        Ok(())
    }

    /// Maps memory at a range, if that is vacant and reserved.
    pub(super) fn map(&mut self, address: usize, size: usize, memory: Handle) -> Result<(), DeviceProblem> {
        let end = self.reserved_end(address, size)?;
        if let Some((&base, other)) = self.mappings.range(..end).next_back()
            && base + other.size > address
        {
            return argument(format!("{address:#x} + {size} bytes overlaps the mapping at {base:#x}"));
        }
        self.mappings.insert(address, Mapping { size, memory, accessible: false });
        Ok(())
    }

    /// Gives a run of whole mappings access.
    pub(super) fn set_access(&mut self, address: usize, size: usize) -> Result<(), DeviceProblem> {
        // Mostly it is one: one look instead of five.
        if let Some(mapping) = self.mappings.get_mut(&address)
            && mapping.size == size
        {
            mapping.accessible = true;
            return Ok(());
        }
        let Some(end) = address.checked_add(size) else { return argument(beyond(address, size)) };
        if !self.covers(address, end, |_| true) {
            return argument(format!("{address:#x} + {size} bytes has a hole where nothing is mapped"));
        }
        self.check_whole(address, end)?;
        for (_, mapping) in self.mappings.range_mut(address..end) {
            mapping.accessible = true;
        }
        Ok(())
    }

    /// Unmaps the whole mappings in the range; the addresses stay reserved. `unmapped` is told the memory of each.
    pub(super) fn unmap(
        &mut self,
        address: usize,
        size: usize,
        mut unmapped: impl FnMut(Handle),
    ) -> Result<(), DeviceProblem> {
        // Mostly it is one, which lies in a reservation as all do.
        if let Entry::Occupied(mapping) = self.mappings.entry(address)
            && mapping.get().size == size
        {
            unmapped(mapping.remove().memory);
            return Ok(());
        }
        let end = self.reserved_end(address, size)?;
        self.check_whole(address, end)?;
        if self.mappings.range(address..end).next().is_none() {
            return argument(format!("nothing is mapped in {address:#x} + {size} bytes"));
        }
        self.forget(address, end, unmapped);
        Ok(())
    }

    /// The mapping that holds the address, and its memory.
    pub(super) fn find(&self, address: usize) -> Option<(AddressRange, Handle)> {
        let (&base, mapping) = self.mappings.range(..=address).next_back()?;
        let range = AddressRange { base, size: mapping.size };
        (address - base < mapping.size).then_some((range, mapping.memory))
    }

    /// Refuses a range that is not all mapped with access.
    pub(super) fn check_access(&self, address: usize, size: usize) -> Result<(), DeviceProblem> {
        let Some(end) = address.checked_add(size) else { return argument(beyond(address, size)) };
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

    /// Whether mappings that pass `fits` cover the range without a hole.
    fn covers(&self, address: usize, end: usize, fits: impl Fn(&Mapping) -> bool) -> bool {
        let mut at = address;
        while at < end {
            match self.mappings.range(..=at).next_back() {
                Some((base, mapping)) if at - base < mapping.size && fits(mapping) => {
                    at = base + mapping.size
                }
                _ => return false,
            }
        }
        true
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

    fn forget(&mut self, address: usize, end: usize, mut unmapped: impl FnMut(Handle)) {
        for (_, mapping) in self.mappings.extract_if(address..end, |_, _| true) {
            unmapped(mapping.memory);
        }
    }
}

fn argument<T>(what: String) -> Result<T, DeviceProblem> {
    Err(DeviceProblem::Argument { what })
}

fn beyond(address: usize, size: usize) -> String {
    format!("{address:#x} + {size} bytes is beyond the last address")
}
