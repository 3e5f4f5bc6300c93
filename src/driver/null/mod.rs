//! The null device: it keeps and checks the books of handles, references, reservations, mappings, access, streams and
//! events, and has **no memory behind them**.
//!
//! It is for simulations at scale: thousands of devices in one process, each call far below a microsecond, and results
//! that are the same on every run and machine. So nothing in it is real or global: no descriptors, no `mmap`, no
//! process ids, no time. What a call depends on are the calls made before it on this device and on its [`NullFabric`].
//!
//! - Every mistake that the [host device](super::host) refuses is refused here with the same kind of error.
//! - [`DeviceInfo::host_access`] is false: there is nothing to load or store. Copies and fills check that their range
//!   is mapped with access, and move nothing; events have passed when they are recorded.
//! - Addresses are made up. Devices of one fabric have disjoint ones, above all that a process can have, so that an
//!   address which strays to another device or is no device's at all is a [`DeviceProblem::ForeignAddress`].
//! - Handles cross processes as [`Exported::Fabric`] bytes, which bring no memory with them, as a descriptor would:
//!   who imports before the exporter let go has the memory, who comes later gets [`DeviceProblem::InvalidHandle`].
//!   That is the order that P-6 asks for. Devices that import from each other share a fabric.
//! - [`MulticastDriver`](super::multicast::MulticastDriver) adds multicast objects.

use std::sync::Arc;

use parking_lot::Mutex;

use self::address_space::AddressSpace;
pub use self::fabric::NullFabric;
use self::memory::Memories;
use crate::driver::host::stream::Streams;
use crate::driver::{
    AddressRange, Call, DeviceError, DeviceInfo, DeviceProblem, Driver, Event, Exported, Handle, HandleKind,
    Stream,
};

mod address_space;
mod fabric;
mod memory;
#[cfg(test)]
mod tests;
mod vacant;

/// The least granularity of any device.
const GRANULARITY_MIN: usize = 4096;

/// How a [`NullDriver`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct NullOptions {
    granularity: usize,
    memory_bytes: u64,
    fabric: Option<Arc<NullFabric>>,
}

impl Default for NullOptions {
    fn default() -> Self {
        Self { granularity: 2 << 20, memory_bytes: 16 << 30, fabric: None }
    }
}

impl NullOptions {
    /// 16 GiB of memory, a granularity of 2 MiB, and no fabric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps at multiples of `bytes` only, a power of two of at least 4,096. The default is 2 MiB, as GPUs have it:
    /// the devices that simulations stand for are GPUs.
    pub fn granularity(mut self, bytes: usize) -> Self {
        self.granularity = bytes;
        self
    }

    /// Pretends to have `bytes` bytes of memory. The default is 16 GiB, so that the strides of thousands of ranks fit
    /// into one flat range.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Lets the device import from the others of the fabric. Without one it exports what nobody can import.
    pub fn fabric(mut self, fabric: Arc<NullFabric>) -> Self {
        self.fabric = Some(fabric);
        self
    }
}

/// What is alive in a [`NullDriver`], for leak tests. All zero when everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NullCounts {
    /// References to memory that were not released.
    pub handles: usize,
    /// Mapped ranges.
    pub mappings: usize,
    /// Reserved ranges.
    pub reservations: usize,
    /// Bytes of memory created here, as long as any device holds them; imported memory does not count.
    pub bytes: u64,
    /// Streams that were not destroyed.
    pub streams: usize,
    /// Recorded events that were never asked for.
    pub events: usize,
}

impl NullCounts {
    /// Whether nothing is alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A null device. Ranks of one process share one, as they share its addresses. See the module.
///
/// - Handles carry a generation: a released one is `InvalidHandle`, never another's memory.
/// - Importing the same memory twice gives two handles.
/// - Addresses that were freed are reserved again as late as possible, and a granule is left free between two
///   reservations, so that what is used after its end or beyond it is seen.
/// - Dropping the driver lets go of all memory, as the end of a process does.
#[derive(Debug)]
pub struct NullDriver {
    info: DeviceInfo,
    granularity: usize,
    fabric: Arc<NullFabric>,
    /// Whether anyone else is on the fabric.
    shares: bool,
    /// Its number on the fabric.
    device: usize,
    /// Locked before the fabric's books where both are.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    memories: Memories,
    space: AddressSpace,
    streams: Streams,
}

impl NullDriver {
    /// A device of these options.
    ///
    /// # Errors
    /// `Argument` if the granularity is no power of two or less than 4,096.
    pub fn new(options: NullOptions) -> Result<Arc<Self>, DeviceError> {
        let NullOptions { granularity, memory_bytes, fabric } = options;
        if !granularity.is_power_of_two() || granularity < GRANULARITY_MIN {
            let what =
                format!("granularity {granularity} is not a power of two of at least {GRANULARITY_MIN}");
            return Err(DeviceError::new(Call::Create, DeviceProblem::Argument { what }));
        }
        let mut info = DeviceInfo::new("null", "null", memory_bytes, granularity as u64);
        info.handle_kind = HandleKind::Fabric;
        let shares = fabric.is_some();
        let fabric = fabric.unwrap_or_default();
        let device = fabric.join();
        let space = AddressSpace::new(device, granularity);
        let state = State { memories: Memories::default(), space, streams: Streams::default() };
        Ok(Arc::new(Self { info, granularity, fabric, shares, device, state: Mutex::new(state) }))
    }

    /// What is alive now.
    #[must_use]
    pub fn counts(&self) -> NullCounts {
        let state = self.state.lock();
        NullCounts {
            handles: state.memories.references(),
            mappings: state.space.mapping_count(),
            reservations: state.space.reservation_count(),
            bytes: self.fabric.bytes(self.device),
            streams: state.streams.stream_count(),
            events: state.streams.event_count(),
        }
    }

    /// Refuses a size of nothing, and what is no multiple of the granularity.
    fn check_size(&self, size: usize) -> Result<(), DeviceProblem> {
        self.check_multiple("size", size)?;
        if size == 0 { Err(DeviceProblem::Argument { what: "size 0".to_owned() }) } else { Ok(()) }
    }

    fn check_range(&self, address: usize, size: usize) -> Result<(), DeviceProblem> {
        self.check_multiple("address", address)?;
        self.check_size(size)
    }

    fn check_multiple(&self, name: &str, value: usize) -> Result<(), DeviceProblem> {
        // The granularity is a power of two.
        if value & (self.granularity - 1) == 0 {
            return Ok(());
        }
        let what = format!("{name} {value:#x} is no multiple of the granularity, {}", self.granularity);
        Err(DeviceProblem::Argument { what })
    }

    /// Whether this could be written, if there were anything to write to.
    fn check_write(&self, stream: Stream, to: usize, size: usize) -> Result<(), DeviceProblem> {
        let state = self.state.lock();
        state.streams.check(stream)?;
        state.space.check_access(to, size)
    }
}

/// Names the call in which a problem came up.
fn of(call: Call) -> impl FnOnce(DeviceProblem) -> DeviceError {
    move |problem| DeviceError::new(call, problem)
}

fn foreign(call: Call, address: usize) -> DeviceError {
    DeviceError::new(call, DeviceProblem::ForeignAddress { address: address as u64 })
}

#[allow(unsafe_code, reason = "the trait's unsafe methods, which touch nothing here")]
// SAFETY: the promises are about loads and stores, and `host_access` is false: host code loads and stores nothing at
// these addresses, and the runtime asks that flag before it would (`Buffer`, `Window::read` and `write`, and
// `DevComm::launch` and `run`, without which there is no host kernel). Its copies and fills go to this device, which
// has nothing to touch. Beyond that, `reserve` gives a device no address twice and none at which a process can have an
// object (see `address_space::FIRST`); an import is of an allocation whose size was checked and never changes.
unsafe impl Driver for NullDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        self.check_size(size).map_err(of(Call::Create))?;
        let mut state = self.state.lock();
        let handle = state.memories.next_handle();
        let made = self.fabric.create(self.device, handle, size, self.info.memory_bytes);
        state.memories.insert(size, made.map_err(of(Call::Create))?);
        Ok(handle)
    }

    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if let Some(hold) = state.memories.release(handle).map_err(of(Call::Release))? {
            self.fabric.let_go(hold);
        }
        Ok(())
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
        if kind != HandleKind::Fabric {
            let what = format!("the null device exports fabric handles, not {kind:?}");
            return Err(DeviceError::new(Call::Export, DeviceProblem::Argument { what }));
        }
        let (hold, size) = self.state.lock().memories.hold(handle).map_err(of(Call::Export))?;
        Ok(Exported::Fabric(fabric::encode(self.device, self.shares, handle, hold, size)))
    }

    fn import(&self, exported: &Exported, size: usize) -> Result<Handle, DeviceError> {
        let Exported::Fabric(bytes) = exported else {
            let what = "the null device imports fabric handles only".to_owned();
            return Err(DeviceError::new(Call::Import, DeviceProblem::Argument { what }));
        };
        let name = fabric::decode(bytes, size).map_err(of(Call::Import))?;
        let mut state = self.state.lock();
        let handle = state.memories.next_handle();
        let (hold, held) = self.fabric.import(&name, self.device, handle).map_err(of(Call::Import))?;
        state.memories.insert(held, hold);
        Ok(handle)
    }

    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        let align = align.max(self.granularity);
        if !align.is_power_of_two() {
            let what = format!("alignment {align} is no power of two");
            return Err(DeviceError::new(Call::Reserve, DeviceProblem::Argument { what }));
        }
        self.check_size(size).map_err(of(Call::Reserve))?;
        // What the system says where addresses lack.
        let lack = || DeviceError::os(Call::Reserve, rustix::io::Errno::NOMEM);
        self.state.lock().space.reserve(size, align).ok_or_else(lack)
    }

    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        let State { memories, space, .. } = &mut *self.state.lock();
        let unmapped = |memory| memories.unmapped(memory, &self.fabric);
        space.free(base, size, unmapped).map_err(of(Call::Free))
    }

    unsafe fn map(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError> {
        let checked = self.check_range(address, size);
        checked.and_then(|()| self.check_multiple("offset", offset)).map_err(of(Call::Map))?;
        let mut state = self.state.lock();
        state.memories.check_piece(handle, offset, size).map_err(of(Call::Map))?;
        state.space.map(address, size, handle).map_err(of(Call::Map))?;
        state.memories.mapped(handle);
        Ok(())
    }

    fn set_access(&self, address: usize, size: usize, _: &[i32]) -> Result<(), DeviceError> {
        let checked = self.check_range(address, size);
        checked.and_then(|()| self.state.lock().space.set_access(address, size)).map_err(of(Call::SetAccess))
    }

    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        self.check_range(address, size).map_err(of(Call::Unmap))?;
        let State { memories, space, .. } = &mut *self.state.lock();
        let unmapped = |memory| memories.unmapped(memory, &self.fabric);
        space.unmap(address, size, unmapped).map_err(of(Call::Unmap))
    }

    fn stream_create(&self) -> Result<Stream, DeviceError> {
        Ok(self.state.lock().streams.create())
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError> {
        self.state.lock().streams.destroy(stream).map_err(of(Call::StreamDestroy))
    }

    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_write(stream, to, bytes.len()).map_err(of(Call::Copy))
    }

    unsafe fn fill(&self, stream: Stream, to: usize, _byte: u8, size: usize) -> Result<(), DeviceError> {
        self.check_write(stream, to, size).map_err(of(Call::Fill))
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        self.state.lock().streams.record(stream).map_err(of(Call::Record))
    }

    fn done(&self, event: Event) -> Result<bool, DeviceError> {
        self.state.lock().streams.done(event).map_err(of(Call::Done))
    }

    fn event_destroy(&self, event: Event) -> Result<(), DeviceError> {
        self.state.lock().streams.done(event).map(drop).map_err(of(Call::EventDestroy))
    }
}

impl Drop for NullDriver {
    fn drop(&mut self) {
        let left = self.counts();
        if left.handles > 0 || left.reservations > 0 {
            tracing::warn!(target: "symwin::driver", ?left, "null device dropped with memory or ranges in place");
        }
        for hold in self.state.get_mut().memories.holds() {
            self.fabric.let_go(hold);
        }
    }
}
