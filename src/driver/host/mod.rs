//! The host device: memory of sealed memfds, mapped by `mmap` into reserved ranges of addresses.
//!
//! It needs nothing but Linux. Handles are exported as descriptors and really cross processes; memory is
//! reserved when it is created, so that a lack of it is an error and never a SIGBUS. Copies and fills of
//! streams run at once in the caller: see [`HostDriver`].

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use self::address_space::AddressSpace;
use self::limits::Limits;
use self::memory::Memories;
use self::stream::Streams;
use crate::driver::{
    AddressRange, Call, DeviceError, DeviceInfo, DeviceProblem, Driver, Event, Exported, Handle, HandleKind,
    Stream,
};

mod address_space;
mod limits;
mod memory;
pub(in crate::driver) mod stream;
#[cfg(test)]
mod tests;

/// How a [`HostDriver`] is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct HostOptions {
    granularity: Option<usize>,
    memory_bytes: Option<u64>,
}

impl HostOptions {
    /// A page as granularity, and all memory that this process may use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps at multiples of `bytes` only, as a GPU does at 2 MiB. A power of two, no less than a page (4,096
    /// bytes on most machines), which is the default.
    pub fn granularity(mut self, bytes: usize) -> Self {
        self.granularity = Some(bytes);
        self
    }

    /// Pretends to be a device of `bytes` bytes. The default is the machine's memory, or the control group's
    /// limit where that is lower.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }
}

/// What is alive in a [`HostDriver`], for leak tests. All zero when everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCounts {
    /// References to memory that were not released.
    pub handles: usize,
    /// Mapped ranges.
    pub mappings: usize,
    /// Reserved ranges.
    pub reservations: usize,
    /// Open descriptors, exported ones that outlive their memory included.
    pub descriptors: usize,
    /// Bytes of memory created here; imported memory does not count.
    pub bytes: u64,
    /// Streams that were not destroyed.
    pub streams: usize,
    /// Recorded events that were never asked for.
    pub events: usize,
}

/// A host device. Ranks of one process that share a range of addresses share one.
///
/// - Handles carry a generation: a released one is `InvalidHandle`, never another's memory.
/// - Importing the same memory twice gives two handles.
/// - Copies and fills run in the caller before the call returns, by words of eight bytes in ascending order
///   with release semantics (single bytes at unaligned ends): a host kernel that loads such a word with Acquire
///   never sees half of it. Every event has therefore passed when it is recorded.
/// - Dropping the driver leaves what is still mapped where it is: someone may be using it.
#[derive(Debug)]
pub struct HostDriver {
    info: DeviceInfo,
    granularity: usize,
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    memories: Memories,
    space: AddressSpace,
    streams: Streams,
}

impl HostDriver {
    /// A device of these options.
    ///
    /// # Errors
    /// `Argument` if the granularity is no power of two or less than a page.
    pub fn new(options: HostOptions) -> Result<Arc<Self>, DeviceError> {
        let page = rustix::param::page_size();
        let granularity = options.granularity.unwrap_or(page);
        if !granularity.is_power_of_two() || granularity < page {
            let what = format!("granularity {granularity} is not a power of two of at least {page}");
            return Err(DeviceError::new(Call::Create, DeviceProblem::Argument { what }));
        }
        let limits = Limits::of_this_process();
        let memory_bytes = options.memory_bytes.unwrap_or_else(|| limits.total());
        let mut info = DeviceInfo::new("host", "host", memory_bytes, granularity as u64);
        info.host_access = true;
        Ok(Arc::new(Self { info, granularity, limits, state: Mutex::default() }))
    }

    /// What is alive now.
    #[must_use]
    pub fn counts(&self) -> HostCounts {
        let state = self.state.lock();
        HostCounts {
            handles: state.memories.references(),
            mappings: state.space.mapping_count(),
            reservations: state.space.reservation_count(),
            descriptors: state.memories.descriptors(),
            bytes: state.memories.bytes(),
            streams: state.streams.stream_count(),
            events: state.streams.event_count(),
        }
    }

    /// Memory that can be had now: by the machine, the control group, and this device's own size.
    fn make(&self, size: usize) -> Result<OwnedFd, DeviceProblem> {
        let available = self.limits.available();
        self.state.lock().memories.promise(size, self.info.memory_bytes, available)?;
        // Reserving room can take long: not under the lock.
        memory::create(size).map_err(|errno| {
            self.state.lock().memories.forgo(size);
            match errno {
                rustix::io::Errno::NOMEM | rustix::io::Errno::NOSPC => DeviceProblem::OutOfMemory {
                    need: size as u64,
                    available: self.limits.available().min(available),
                },
                errno => memory::problem(errno),
            }
        })
    }

    /// Refuses sizes, offsets and addresses that are no multiple of the granularity.
    fn check_multiples(&self, values: &[(&str, usize)]) -> Result<(), DeviceProblem> {
        let granularity = self.granularity;
        match values.iter().find(|(_, value)| !value.is_multiple_of(granularity)) {
            Some((name, value)) => Err(DeviceProblem::Argument {
                what: format!("{name} {value:#x} is no multiple of the granularity, {granularity}"),
            }),
            None => Ok(()),
        }
    }

    fn check_range(&self, address: usize, size: usize) -> Result<(), DeviceProblem> {
        self.check_multiples(&[("address", address), ("size", size)])?;
        check_some(size)
    }

    /// Forgets the mappings of these memories. Returns the descriptors to close once the lock is gone.
    fn unmapped(state: &mut State, memories: Vec<Handle>) -> Vec<Arc<OwnedFd>> {
        memories.into_iter().filter_map(|memory| state.memories.unmapped(memory)).collect()
    }
}

fn check_some(size: usize) -> Result<(), DeviceProblem> {
    if size == 0 { Err(DeviceProblem::Argument { what: "size 0".to_owned() }) } else { Ok(()) }
}

/// Names the call in which a problem came up.
fn of(call: Call) -> impl FnOnce(DeviceProblem) -> DeviceError {
    move |problem| DeviceError::new(call, problem)
}

fn foreign(call: Call, address: usize) -> DeviceError {
    DeviceError::new(call, DeviceProblem::ForeignAddress { address: address as u64 })
}

#[allow(unsafe_code, reason = "the trait's unsafe methods, whose promises are passed on")]
// SAFETY: ranges come from mmap without a fixed address; mappings are made by mmap in ranges that the registry
// knows; imports are sealed against shrinking and measured.
unsafe impl Driver for HostDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        let checked = check_some(size).and_then(|()| self.check_multiples(&[("size", size)]));
        let fd = checked.and_then(|()| self.make(size)).map_err(of(Call::Create))?;
        Ok(self.state.lock().memories.insert(Arc::new(fd), size, true))
    }

    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        // The guard is gone at the end of the statement; the descriptor closes after it.
        let closed = self.state.lock().memories.release(handle);
        closed.map(drop).map_err(of(Call::Release))
    }

    fn retain(&self, address: usize) -> Result<Handle, DeviceError> {
        let mut state = self.state.lock();
        let (_, memory) = state.space.find(address).ok_or_else(|| foreign(Call::Retain, address))?;
        state.memories.retain(memory);
        Ok(memory)
    }

    fn address_range(&self, address: usize) -> Result<AddressRange, DeviceError> {
        let found = self.state.lock().space.find(address);
        found.map(|(range, _)| range).ok_or_else(|| foreign(Call::AddressRange, address))
    }

    fn export(&self, handle: Handle, kind: HandleKind) -> Result<Exported, DeviceError> {
        if kind != HandleKind::Descriptor {
            let what = format!("the host device exports descriptors, not {kind:?}");
            return Err(DeviceError::new(Call::Export, DeviceProblem::Argument { what }));
        }
        let fd = self.state.lock().memories.descriptor(handle);
        fd.map(Exported::Descriptor).map_err(of(Call::Export))
    }

    fn import(&self, exported: &Exported, size: usize) -> Result<Handle, DeviceError> {
        let Exported::Descriptor(fd) = exported else {
            let what = "the host device imports descriptors only".to_owned();
            return Err(DeviceError::new(Call::Import, DeviceProblem::Argument { what }));
        };
        let held = memory::check(fd, size).map_err(of(Call::Import))?;
        Ok(self.state.lock().memories.insert(Arc::clone(fd), held, false))
    }

    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        let align = align.max(self.granularity);
        if !align.is_power_of_two() {
            let what = format!("alignment {align} is no power of two");
            return Err(DeviceError::new(Call::Reserve, DeviceProblem::Argument { what }));
        }
        let checked = check_some(size).and_then(|()| self.check_multiples(&[("size", size)]));
        checked.and_then(|()| self.state.lock().space.reserve(size, align)).map_err(of(Call::Reserve))
    }

    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        // SAFETY: the caller says that no one uses these addresses any more.
        let memories = unsafe { state.space.free(base, size) }.map_err(of(Call::Free))?;
        let closed = Self::unmapped(&mut state, memories);
        drop(state);
        drop(closed);
        Ok(())
    }

    unsafe fn map(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError> {
        let checked = self.check_range(address, size);
        checked.and_then(|()| self.check_multiples(&[("offset", offset)])).map_err(of(Call::Map))?;
        let mut state = self.state.lock();
        let fd = state.memories.piece(handle, offset, size).map_err(of(Call::Map))?;
        state.space.map(address, size, &fd, offset, handle).map_err(of(Call::Map))?;
        state.memories.mapped(handle);
        Ok(())
    }

    fn set_access(&self, address: usize, size: usize, _: &[i32]) -> Result<(), DeviceError> {
        let checked = self.check_range(address, size);
        checked.and_then(|()| self.state.lock().space.set_access(address, size)).map_err(of(Call::SetAccess))
    }

    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        self.check_range(address, size).map_err(of(Call::Unmap))?;
        let mut state = self.state.lock();
        // SAFETY: the caller says that no one uses these addresses any more.
        let memories = unsafe { state.space.unmap(address, size) }.map_err(of(Call::Unmap))?;
        let closed = Self::unmapped(&mut state, memories);
        drop(state);
        drop(closed);
        Ok(())
    }

    fn stream_create(&self) -> Result<Stream, DeviceError> {
        Ok(self.state.lock().streams.create())
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError> {
        self.state.lock().streams.destroy(stream).map_err(of(Call::StreamDestroy))
    }

    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_write(stream, to, bytes.len()).map_err(of(Call::Copy))?;
        // SAFETY: the caller says that the range is mapped with access.
        unsafe { super::words::store(to, bytes) };
        Ok(())
    }

    unsafe fn fill(&self, stream: Stream, to: usize, byte: u8, size: usize) -> Result<(), DeviceError> {
        self.check_write(stream, to, size).map_err(of(Call::Fill))?;
        // SAFETY: the caller says that the range is mapped with access.
        unsafe { super::words::fill(to, byte, size) };
        Ok(())
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        self.state.lock().streams.record(stream).map_err(of(Call::Record))
    }

    fn done(&self, event: Event) -> Result<bool, DeviceError> {
        self.state.lock().streams.done(event).map_err(of(Call::Done))
    }

    fn event_destroy(&self, event: Event) -> Result<(), DeviceError> {
        // Every event has passed when it is recorded.
        self.state.lock().streams.done(event).map(drop).map_err(of(Call::EventDestroy))
    }
}

impl HostDriver {
    /// Finds what can be found of a broken promise before it becomes a segmentation fault.
    fn check_write(&self, stream: Stream, to: usize, size: usize) -> Result<(), DeviceProblem> {
        let state = self.state.lock();
        state.streams.check(stream)?;
        state.space.check_access(to, size)
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        let left = self.counts();
        if left.reservations > 0 {
            // Unmapping needs the promise that no one uses the addresses, which nobody gave.
            tracing::warn!(target: "symwin::driver", ?left, "host device dropped with ranges in place");
        }
    }
}
