//! Multicast objects: books of who was added and what was bound, shared by all processes that imported the object.
//!
//! The order is the driver's: all devices are added before anything is bound, nothing is bound over another binding
//! of the device, and only what was bound is unbound. No store is multiplied.

use std::os::fd::BorrowedFd;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::abi::{In, MulticastProp, Out};
use crate::code::{Code, Done};
use crate::config::CONFIG;
use crate::file::{self, Kind};
use crate::state::State;
use crate::{device, range};

/// An object, as this process has it.
#[derive(Debug)]
pub(crate) struct Object {
    /// A page that all processes share, behind the object's bytes: a bit for each device that was added.
    page: usize,
    /// What this process has bound.
    bindings: Vec<Binding>,
}

/// Memory of one device that is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    device: i32,
    at: usize,
    size: usize,
    memory: u64,
}

impl Object {
    pub(crate) fn new(kind: Kind, file: BorrowedFd<'_>) -> Done<Self> {
        let page = range::map_anywhere(rustix::param::page_size(), file, kind.size)?;
        Ok(Self { page, bindings: Vec::new() })
    }

    /// The devices that were added, a bit each.
    fn added(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as this value, and all its users use atomics.
        unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(self.page)) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = range::give_back(self.page..self.page + rustix::param::page_size());
    }
}

fn bit(device: i32) -> u64 {
    1_u64.checked_shl(device.unsigned_abs()).unwrap_or(0)
}

fn check_supported() -> Done {
    if device::attribute(device::MULTICAST) == 0 { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

impl State {
    fn object(&mut self, handle: u64) -> Done<(Kind, &mut Object)> {
        let allocation = self.memory.get(handle)?;
        let kind = allocation.kind;
        allocation.multicast.as_mut().map(|object| (kind, object)).ok_or(Code::INVALID_VALUE)
    }
}

entry! {
    [CONTEXT] fn cuMulticastGetGranularity(bytes: Out<usize>, property: In<MulticastProp>, option: u32) |_state| {
        check_supported()?;
        property.get()?;
        match option {
            0 => bytes.put(CONFIG.multicast_granularity),
            1 => bytes.put(CONFIG.multicast_granularity_recommended),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    [CONTEXT] fn cuMulticastCreate(handle: Out<u64>, property: In<MulticastProp>) |state| {
        check_supported()?;
        handle.check()?;
        let property = property.get()?;
        let MulticastProp { devices, size, handle_types, flags } = property;
        let is_aligned = size > 0 && size.is_multiple_of(CONFIG.multicast_granularity);
        if devices == 0 || devices > 64 || !is_aligned || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let devices = i32::try_from(devices).map_err(|_| Code::INVALID_VALUE)?;
        let handle_types = u32::try_from(handle_types).map_err(|_| Code::INVALID_VALUE)?;
        let kind = Kind { devices, size, handle_types, multicast: true };
        let file = file::create(kind, size + rustix::param::page_size())?;
        handle.put(state.insert_multicast(kind, file)?)
    }

    [CONTEXT] fn cuMulticastAddDevice(handle: u64, device: i32) |state| {
        check_supported()?;
        device::check(device)?;
        let (kind, object) = state.object(handle)?;
        let before = object.added().load(Acquire);
        if before & bit(device) != 0 || before.count_ones() >= kind.devices.unsigned_abs() {
            return Err(Code::INVALID_VALUE);
        }
        object.added().fetch_or(bit(device), AcqRel);
        Ok(())
    }

    [CONTEXT] fn cuMulticastBindMem(
        handle: u64,
        at: usize,
        memory: u64,
        offset: usize,
        size: usize,
        flags: u64,
    ) |state| {
        check_supported()?;
        let bound = state.memory.get(memory)?.kind;
        let (kind, object) = state.object(handle)?;
        let added = object.added().load(Acquire);
        if added.count_ones() < kind.devices.unsigned_abs() {
            // Not all devices were added.
            return Err(Code::ILLEGAL_STATE);
        }
        if bound.multicast || added & bit(bound.devices) == 0 {
            return Err(Code::INVALID_DEVICE);
        }
        let is_aligned = [at, offset, size].iter().all(|one| one.is_multiple_of(CONFIG.multicast_granularity));
        let fits = at + size <= kind.size && offset + size <= bound.size;
        let apart = |one: &Binding| one.device != bound.devices || one.at + one.size <= at || at + size <= one.at;
        if flags != 0 || size == 0 || !is_aligned || !fits || !object.bindings.iter().all(apart) {
            return Err(Code::INVALID_VALUE);
        }
        object.bindings.push(Binding { device: bound.devices, at, size, memory });
        state.memory.get(memory)?.held += 1;
        Ok(())
    }

    [CONTEXT] fn cuMulticastUnbind(handle: u64, device: i32, at: usize, size: usize) |state| {
        check_supported()?;
        let (_, object) = state.object(handle)?;
        let is_it = |one: &Binding| (one.device, one.at, one.size) == (device, at, size);
        let index = object.bindings.iter().position(is_it).ok_or(Code::INVALID_VALUE)?;
        let binding = object.bindings.swap_remove(index);
        if let Some(memory) = state.memory.allocations.get_mut(&binding.memory) {
            memory.held -= 1;
        }
        state.memory.settle(binding.memory);
        Ok(())
    }
}
