//! Device memory: handles, address ranges, mappings and access.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};

use crate::abi::{
    self, AccessDesc, AllocationProp, HANDLE_DESCRIPTOR, HANDLE_FABRIC, In, LOCATION_DEVICE, Location, Out,
};
use crate::code::{Code, Done};
use crate::config::{CONFIG, Fabric};
use crate::file::{self, FABRIC_BYTES, Kind};
use crate::multicast::Object;
use crate::state::State;
use crate::{device, range, stream};

/// What is behind a handle.
#[derive(Debug)]
pub(crate) struct Allocation {
    file: OwnedFd,
    pub(crate) kind: Kind,
    /// References by handle; mappings and bindings hold others.
    references: usize,
    pub(crate) held: usize,
    /// Made here: it counts against the device's memory.
    is_own: bool,
    /// Of a multicast object.
    pub(crate) multicast: Option<Object>,
}

/// A mapped range.
#[derive(Debug)]
struct Mapping {
    size: usize,
    handle: u64,
    /// By device: bit 1 is reading, bit 2 is writing.
    access: BTreeMap<i32, u32>,
}

/// Handles, ranges and mappings of this process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    reservations: BTreeMap<usize, usize>,
    mappings: BTreeMap<usize, Mapping>,
    /// `cuMemAlloc`: size and device by address.
    plain: BTreeMap<usize, (usize, i32)>,
    used: BTreeMap<i32, usize>,
}

impl Memory {
    /// The allocation of a handle that somebody still holds.
    pub(crate) fn get(&mut self, handle: u64) -> Done<&mut Allocation> {
        self.allocations.get_mut(&handle).filter(|found| found.references > 0).ok_or(Code::INVALID_VALUE)
    }

    /// Takes bytes of a device.
    fn charge(&mut self, device: i32, size: usize) -> Done {
        let used = self.used.entry(device).or_default();
        let total = used.checked_add(size).filter(|total| *total <= CONFIG.memory);
        *used = total.ok_or(Code::OUT_OF_MEMORY)?;
        Ok(())
    }

    fn free_bytes(&self, device: i32) -> usize {
        CONFIG.memory - self.used.get(&device).copied().unwrap_or(0)
    }

    /// Frees what nobody holds any more.
    pub(crate) fn settle(&mut self, handle: u64) {
        let is_gone = self.allocations.get(&handle).is_some_and(|found| found.references + found.held == 0);
        let gone = if is_gone { self.allocations.remove(&handle) } else { None };
        if let Some(found) = gone.filter(|found| found.is_own && !found.kind.multicast) {
            *self.used.entry(found.kind.devices).or_default() -= found.kind.size;
        }
    }

    fn insert(&mut self, handle: u64, kind: Kind, file: OwnedFd, is_own: bool) -> Done {
        let multicast = if kind.multicast { Some(Object::new(kind, file.as_fd())?) } else { None };
        self.allocations.insert(handle, Allocation { file, kind, references: 1, held: 0, is_own, multicast });
        Ok(())
    }

    /// The mapping that an address lies in.
    fn mapping(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (&at, mapping) = self.mappings.range(..=address).next_back()?;
        (address < at + mapping.size).then_some((at, mapping))
    }

    /// The mappings that make a range up: whole ones, side by side.
    fn whole(&self, range: Range<usize>) -> Done<Vec<usize>> {
        let mut at = range.start;
        let mut found = Vec::new();
        while at < range.end {
            let mapping = self.mappings.get(&at).ok_or(Code::INVALID_VALUE)?;
            found.push(at);
            at += mapping.size;
        }
        if at == range.end && !found.is_empty() { Ok(found) } else { Err(Code::INVALID_VALUE) }
    }

    /// Whether a device may read (bit 1) or write (bit 2) a range.
    pub(crate) fn is_accessible(&self, device: i32, mut range: Range<usize>, access: u32) -> bool {
        while !range.is_empty() {
            let end = match self.mapping(range.start) {
                Some((at, mapping))
                    if mapping.access.get(&device).is_some_and(|has| has & access == access) =>
                {
                    at + mapping.size
                }
                Some(_) => return false,
                None => match self.plain.range(..=range.start).next_back() {
                    Some((&at, &(size, owner))) if owner == device && range.start < at + size => at + size,
                    _ => return false,
                },
            };
            range.start = end.min(range.end);
        }
        true
    }
}

fn check_property(property: &AllocationProp) -> Done {
    let kinds = HANDLE_DESCRIPTOR | HANDLE_FABRIC;
    let location = property.location;
    if property.kind != abi::TYPE_PINNED
        || location.kind != LOCATION_DEVICE
        || property.handle_types & !kinds != 0
    {
        return Err(Code::INVALID_VALUE);
    }
    device::check(location.id)
}

fn check_fabric(handle_types: u32) -> Done {
    match CONFIG.fabric {
        _ if handle_types & HANDLE_FABRIC == 0 => Ok(()),
        Fabric::None => Err(Code::NOT_SUPPORTED),
        Fabric::Refused => Err(Code::NOT_PERMITTED),
        Fabric::Works | Fabric::Only => Ok(()),
    }
}

fn is_multiple(value: usize, of: usize) -> bool {
    value > 0 && value.is_multiple_of(of)
}

entry! {
    [CONTEXT] fn cuMemGetAllocationGranularity(bytes: Out<usize>, property: In<AllocationProp>, option: u32) |_state| {
        check_property(&property.get()?)?;
        match option {
            0 => bytes.put(CONFIG.granularity),
            1 => bytes.put(CONFIG.granularity_recommended),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    [CONTEXT] fn cuMemCreate(handle: Out<u64>, size: usize, property: In<AllocationProp>, flags: u64) |state| {
        handle.check()?;
        let property = property.get()?;
        check_property(&property)?;
        check_fabric(property.handle_types)?;
        if flags != 0 || !is_multiple(size, CONFIG.granularity) {
            return Err(Code::INVALID_VALUE);
        }
        let (devices, handle_types) = (property.location.id, property.handle_types);
        let kind = Kind { devices, size, handle_types, multicast: false };
        state.memory.charge(devices, size)?;
        let number = state.fresh();
        let made = file::create(kind, size).and_then(|file| state.memory.insert(number, kind, file, true));
        made.inspect_err(|_| *state.memory.used.entry(devices).or_default() -= size)?;
        handle.put(number)
    }

    [CONTEXT] fn cuMemRelease(handle: u64) |state| {
        state.memory.get(handle)?.references -= 1;
        state.memory.settle(handle);
        Ok(())
    }

    [CONTEXT] fn cuMemRetainAllocationHandle(handle: Out<u64>, pointer: usize) |state| {
        handle.check()?;
        let (_, mapping) = state.memory.mapping(pointer).ok_or(Code::INVALID_VALUE)?;
        let number = mapping.handle;
        state.memory.allocations.get_mut(&number).ok_or(Code::INVALID_VALUE)?.references += 1;
        handle.put(number)
    }

    [CONTEXT] fn cuMemGetAllocationPropertiesFromHandle(property: Out<AllocationProp>, handle: u64) |state| {
        let kind = state.memory.get(handle)?.kind;
        property.put(AllocationProp {
            kind: abi::TYPE_PINNED,
            handle_types: kind.handle_types,
            location: Location::device(kind.devices),
            win32: 0,
            compression: 0,
            gpu_direct_rdma: 0,
            usage: 0,
            reserved: [0; 4],
        })
    }

    [CONTEXT] fn cuMemExportToShareableHandle(to: Out<i32>, handle: u64, kind: u32, flags: u64) |state| {
        to.check()?;
        let allocation = state.memory.get(handle)?;
        if flags != 0 || allocation.kind.handle_types & kind == 0 {
            return Err(Code::INVALID_VALUE);
        }
        match kind {
            HANDLE_DESCRIPTOR if CONFIG.fabric == Fabric::Only => Err(Code::NOT_PERMITTED),
            HANDLE_DESCRIPTOR => to.put(file::duplicate(&allocation.file)?.into_raw_fd()),
            // 64 bytes, in place of an int.
            HANDLE_FABRIC => to.cast::<[u8; FABRIC_BYTES]>().put(file::to_fabric(&allocation.file)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    [CONTEXT] fn cuMemImportFromShareableHandle(handle: Out<u64>, from: usize, kind: u32) |state| {
        handle.check()?;
        let (kind, file) = match kind {
            HANDLE_DESCRIPTOR => file::import(i32::try_from(from).map_err(|_| Code::INVALID_VALUE)?)?,
            HANDLE_FABRIC => {
                check_fabric(HANDLE_FABRIC)?;
                file::from_fabric(&abi::at::<[u8; FABRIC_BYTES]>(from).get()?)?
            }
            _ => return Err(Code::INVALID_VALUE),
        };
        let number = state.fresh();
        state.memory.insert(number, kind, file, false)?;
        handle.put(number)
    }

    [CONTEXT] fn cuMemAddressReserve(pointer: Out<u64>, size: usize, align: usize, hint: u64, flags: u64) |state| {
        pointer.check()?;
        let _ = hint;
        if flags != 0 || !is_multiple(size, CONFIG.granularity) || !(align == 0 || align.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        let base = range::reserve(size, align.max(CONFIG.granularity))?;
        state.memory.reservations.insert(base, size);
        pointer.put(base as u64)
    }

    [CONTEXT] fn cuMemAddressFree(pointer: usize, size: usize) |state| {
        let memory = &mut state.memory;
        let is_whole = memory.reservations.get(&pointer) == Some(&size);
        if !is_whole || memory.mappings.range(pointer..pointer + size).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        memory.reservations.remove(&pointer);
        range::give_back(pointer..pointer + size)
    }

    [CONTEXT] fn cuMemMap(pointer: usize, size: usize, offset: usize, handle: u64, flags: u64) |state| {
        let memory = &mut state.memory;
        // A real driver maps an allocation only as a whole.
        if flags != 0 || offset != 0 || memory.get(handle)?.kind.size != size {
            return Err(Code::INVALID_VALUE);
        }
        let around = memory.reservations.range(..=pointer).next_back();
        let is_inside = around.is_some_and(|(&base, &whole)| pointer + size <= base + whole);
        let is_taken = memory.mapping(pointer).is_some() || memory.mappings.range(pointer..pointer + size).next().is_some();
        if !is_inside || is_taken || !pointer.is_multiple_of(CONFIG.granularity) {
            return Err(Code::INVALID_VALUE);
        }
        let allocation = memory.get(handle)?;
        range::map(pointer, size, allocation.file.as_fd())?;
        allocation.held += 1;
        memory.mappings.insert(pointer, Mapping { size, handle, access: BTreeMap::new() });
        Ok(())
    }

    [CONTEXT] fn cuMemUnmap(pointer: usize, size: usize) |state| {
        let memory = &mut state.memory;
        let whole = memory.whole(pointer..pointer.checked_add(size).ok_or(Code::INVALID_VALUE)?)?;
        range::unmap(pointer, size)?;
        for at in whole {
            let Some(mapping) = memory.mappings.remove(&at) else { continue };
            if let Some(allocation) = memory.allocations.get_mut(&mapping.handle) {
                allocation.held -= 1;
            }
            memory.settle(mapping.handle);
        }
        Ok(())
    }

    [CONTEXT] fn cuMemSetAccess(pointer: usize, size: usize, access: In<AccessDesc>, count: usize) |state| {
        let wanted = access.get_all(count)?;
        let memory = &mut state.memory;
        let whole = memory.whole(pointer..pointer.checked_add(size).ok_or(Code::INVALID_VALUE)?)?;
        let homes: Vec<Kind> = whole
            .iter()
            .filter_map(|at| Some(memory.allocations.get(&memory.mappings.get(at)?.handle)?.kind))
            .collect();
        for one in &wanted {
            device::check(one.location.id)?;
            let reaches = |home: &Kind| home.multicast || home.devices == one.location.id || CONFIG.peer_access;
            if one.location.kind != LOCATION_DEVICE || !matches!(one.flags, 0 | 1 | 3) || !homes.iter().all(reaches) {
                return Err(Code::INVALID_VALUE);
            }
        }
        for at in whole {
            let Some(mapping) = memory.mappings.get_mut(&at) else { continue };
            mapping.access.extend(wanted.iter().map(|one| (one.location.id, one.flags)));
            let any = mapping.access.values().fold(0, |all, one| all | one);
            range::protect(at, mapping.size, any)?;
        }
        Ok(())
    }

    [CONTEXT] fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: usize) |state| {
        let memory = &state.memory;
        let mapped = memory.mapping(address).map(|(at, mapping)| (at, mapping.size));
        let plain = || memory.plain.range(..=address).next_back().map(|(&at, &(size, _))| (at, size));
        let pinned = || state.host.pinned.range(..=address).next_back().map(|(&at, &size)| (at, size));
        let around = |(at, size): &(usize, usize)| address < at + size;
        let found = mapped.or_else(|| plain().filter(around)).or_else(|| pinned().filter(around));
        let (at, bytes) = found.ok_or(Code::NOT_FOUND)?;
        base.put_if_wanted(at as u64);
        size.put_if_wanted(bytes);
        Ok(())
    }

    [CONTEXT] fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |state| {
        let device = state.contexts.current()?;
        free.put(state.memory.free_bytes(device))?;
        total.put(CONFIG.memory)
    }

    [CONTEXT_NO_CAPTURE] fn cuMemAlloc_v2(pointer: Out<u64>, size: usize) |state| {
        pointer.check()?;
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let device = state.contexts.current()?;
        state.memory.charge(device, size)?;
        let start = range::allocate(size)?;
        state.memory.plain.insert(start, (size, device));
        pointer.put(start as u64)
    }

    // As a real one: waits for what the device does.
    [CONTEXT_NO_CAPTURE] fn cuMemFree_v2(pointer: usize) |state| {
        let (size, device) = *state.memory.plain.get(&pointer).ok_or(Code::INVALID_VALUE)?;
        stream::await_device(state, device)?;
        state.memory.plain.remove(&pointer);
        *state.memory.used.entry(device).or_default() -= size;
        range::give_back(pointer..pointer + size)
    }
}

impl State {
    /// A new multicast object's handle.
    pub(crate) fn insert_multicast(&mut self, kind: Kind, file: OwnedFd) -> Done<u64> {
        let number = self.fresh();
        self.memory.insert(number, kind, file, true)?;
        Ok(number)
    }
}
