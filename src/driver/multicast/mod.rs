//! A test device with multicast objects: it keeps their books and **moves no data**.
//!
//! [`MulticastDriver`] wraps another driver and passes everything on, but for multicast objects. Each wrapper
//! is one device (one rank); those that share a [`MulticastBoard`] make objects together. Every rule that a
//! GPU's driver has for these objects is checked, and each step is logged with its device:
//!
//! - each device is added once, and no more devices than the object is for;
//! - binding is *refused* until all devices were added (a GPU's driver would wait for them, which must not
//!   happen: P-6, P-7);
//! - unbinding needs the binding that was made, of the same device, place and size;
//! - the last reference is not released while anything is bound;
//! - mapping needs this device to have been added, and a range in a reservation made through a wrapper of the
//!   same board.
//!
//! A mapped object is only accounted for: loads and stores through its addresses fault, and copies and fills to
//! them are refused. An object's handle has its top bit set and is the same number on every device of the
//! board. Exported, it is [`Exported::Fabric`] bytes which name the object to wrappers of the same board, and
//! only there; they hold in one OS process.

use std::sync::Arc;

pub use self::board::{MulticastBoard, MulticastCounts, MulticastStep};
use super::{
    AddressRange, Batch, Call, DeviceError, DeviceInfo, DeviceProblem, Driver, Event, Exported, Flag, Handle,
    HandleKind, Launch, Stream,
};

mod board;
#[cfg(test)]
mod tests;

/// One device of a board. See the module.
#[derive(Debug)]
pub struct MulticastDriver {
    inner: Arc<dyn Driver>,
    board: Arc<MulticastBoard>,
    info: DeviceInfo,
    /// Its number on the board, from 0.
    device: usize,
}

impl MulticastDriver {
    /// The board's next device, with `inner` for everything but multicast objects.
    #[must_use]
    pub fn new(inner: Arc<dyn Driver>, board: Arc<MulticastBoard>) -> Arc<Self> {
        let info = DeviceInfo { multicast: true, ..inner.info().clone() };
        let device = board.join();
        Arc::new(Self { inner, board, info, device })
    }

    /// Its number on the board, from 0 in order of creation: the `device` of [`MulticastStep`].
    #[must_use]
    pub fn device(&self) -> usize {
        self.device
    }

    fn check_multiples(&self, call: Call, values: &[usize]) -> Result<(), DeviceError> {
        let granularity = self.info.granularity;
        match values.iter().find(|&&value| !(value as u64).is_multiple_of(granularity)) {
            Some(value) => {
                let what = format!("{value:#x} is no multiple of the granularity, {granularity}");
                Err(DeviceError::new(call, DeviceProblem::Argument { what }))
            }
            None => Ok(()),
        }
    }

    fn refuse_data(&self, call: Call, to: usize, size: usize) -> Result<(), DeviceError> {
        if !self.board.touches(to, size) {
            return Ok(());
        }
        let why = "the multicast test device moves no data".to_owned();
        Err(DeviceError::new(call, DeviceProblem::Unsupported { why }))
    }
}

#[allow(unsafe_code, reason = "the trait's unsafe methods, whose promises are passed on")]
// SAFETY: memory goes through to the inner device, which promises the same; multicast objects give no access.
unsafe impl Driver for MulticastDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn batch(&self) -> Batch {
        self.inner.batch()
    }

    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        self.inner.create(size)
    }

    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        if board::is_object(handle) {
            return self.board.release(self.device, handle);
        }
        self.inner.release(handle)
    }

    fn retain(&self, address: usize) -> Result<Handle, DeviceError> {
        match self.board.retain(self.device, address) {
            Some(object) => Ok(object),
            None => self.inner.retain(address),
        }
    }

    fn address_range(&self, address: usize) -> Result<AddressRange, DeviceError> {
        match self.board.mapping(address) {
            Some(range) => Ok(range),
            None => self.inner.address_range(address),
        }
    }

    fn export(&self, handle: Handle, kind: HandleKind) -> Result<Exported, DeviceError> {
        if board::is_object(handle) {
            return self.board.export(self.device, handle);
        }
        self.inner.export(handle, kind)
    }

    fn import(&self, exported: &Exported, size: usize) -> Result<Handle, DeviceError> {
        match exported {
            Exported::Fabric(bytes) if board::names_object(bytes) => {
                self.board.import(self.device, bytes, size)
            }
            _ => self.inner.import(exported, size),
        }
    }

    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        let base = self.inner.reserve(size, align)?;
        self.board.reserved(base, size);
        Ok(base)
    }

    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        // The books come first: as soon as the addresses are free, another thread may reserve them.
        let books = self.board.take_reservation(base, size);
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        let freed = unsafe { self.inner.free(base, size) };
        if freed.is_ok() {
            self.board.forget(books);
        } else {
            self.board.put_back(books);
        }
        freed
    }

    unsafe fn map(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError> {
        if board::is_object(handle) {
            self.check_multiples(Call::Map, &[address, size, offset])?;
            return self.board.map(self.device, AddressRange { base: address, size }, offset, handle);
        }
        self.board.check_vacant(address, size)?;
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.map(address, size, offset, handle) }
    }

    fn set_access(&self, address: usize, size: usize, ordinals: &[i32]) -> Result<(), DeviceError> {
        if self.board.touches(address, size) {
            return self.board.set_access(self.device, address, size);
        }
        self.inner.set_access(address, size, ordinals)
    }

    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        if self.board.touches(address, size) {
            return self.board.unmap(self.device, address, size);
        }
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.unmap(address, size) }
    }

    fn stream_create(&self) -> Result<Stream, DeviceError> {
        self.inner.stream_create()
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError> {
        self.inner.stream_destroy(stream)
    }

    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.refuse_data(Call::Copy, to, bytes.len())?;
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.copy(stream, to, bytes) }
    }

    unsafe fn fill(&self, stream: Stream, to: usize, byte: u8, size: usize) -> Result<(), DeviceError> {
        self.refuse_data(Call::Fill, to, size)?;
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.fill(stream, to, byte, size) }
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        self.inner.record(stream)
    }

    fn done(&self, event: Event) -> Result<bool, DeviceError> {
        self.inner.done(event)
    }

    fn event_destroy(&self, event: Event) -> Result<(), DeviceError> {
        self.inner.event_destroy(event)
    }

    unsafe fn load(&self, from: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.load(from, bytes) }
    }

    unsafe fn store(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.store(to, bytes) }
    }

    fn flag(&self) -> Result<Option<Arc<dyn Flag>>, DeviceError> {
        self.inner.flag()
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        self.inner.is_capturing(stream)
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.inner.stream_wait(stream, event)
    }

    unsafe fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.launch(stream, launch) }
    }

    fn multicast_create(&self, size: usize, devices: usize) -> Result<Handle, DeviceError> {
        self.check_multiples(Call::MulticastCreate, &[size])?;
        self.board.create(self.device, size, devices)
    }

    fn multicast_add_device(&self, multicast: Handle) -> Result<(), DeviceError> {
        self.board.add_device(self.device, multicast)
    }

    /// Asks the inner driver to export `memory`, to know that the handle is valid.
    fn multicast_bind(
        &self,
        multicast: Handle,
        at: usize,
        memory: Handle,
        size: usize,
    ) -> Result<(), DeviceError> {
        self.check_multiples(Call::MulticastBind, &[at, size])?;
        let kind = self.inner.info().handle_kind;
        let valid =
            self.inner.export(memory, kind).map_err(|e| DeviceError::new(Call::MulticastBind, e.problem));
        self.board.bind(self.device, multicast, at, valid.map(|_| size))
    }

    fn multicast_unbind(&self, multicast: Handle, at: usize, size: usize) -> Result<(), DeviceError> {
        self.board.unbind(self.device, multicast, at, size)
    }
}
