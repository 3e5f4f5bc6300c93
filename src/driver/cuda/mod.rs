//! Real GPUs, by the CUDA driver's virtual memory management; loaded at run time.
//!
//! [`probe`] says whether there is a driver, [`CudaDriver::new`] makes a device of one GPU, [`devices`] those of a
//! [`Config`](crate::Config).
//!
//! - What a program has of [`cudarc`] goes together with it: contexts ([`CudaDriver::with_context`]), streams (wherever
//!   a [`Stream`] is taken), copies and libraries of cudarc's ([`DeviceView`]), and its launches, which take
//!   `&`[`KernelComm`](crate::device::abi::KernelComm), `&`[`Window`](crate::Window) and `&DeviceView` as arguments.
//! - Memory is made by `cuMemCreate`, exportable by descriptors, and by fabric handles where one was exported and
//!   imported when the driver was made; it is mapped as a whole, which is all that the CUDA driver can do.
//! - Every call enters the context and the relaxed mode of stream capture, and leaves both as they were: a capture of the
//!   user's goes on, whichever thread made the call.
//! - No call that workers make waits for a kernel. What does so on real drivers (freeing pinned memory, loading modules,
//!   `cuMemFree`, a fill by memset, which is a kernel) happens when the driver is made, or never: copies and fills
//!   go by the copy engines from pinned memory.
//! - Kernels of several ranks on one GPU that wait for each other must run at the same time. The CUDA driver serves all
//!   streams of a process by eight queues, and a kernel waits for those before it in its queue, whatever their streams.
//!   `CUDA_DEVICE_MAX_CONNECTIONS=32`, set before CUDA starts, gives each of up to 32 streams a queue; the program sets it
//!   for kernels that wait.
//! - The first kernel of a stream waits for kernels of other streams that have more behind them (seen on an H200). If
//!   these wait for a peer whose kernel is the first of its stream, none gets on. So a stream runs a kernel that waits for
//!   nobody before any rank starts one that waits: the benchmarks do so; for users' streams it is the user's part.
//! - Multicast objects are made only where the device and the driver have them and neither `SYMWIN_MULTICAST=0` nor
//!   `NCCL_NVLS_ENABLE=0` is set.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

mod absent;
mod arguments;
mod books;
mod copies;
mod devices;
mod ending;
mod enter;
mod failures;
mod kept;
mod kernels;
mod later;
mod make;
mod pinned;
mod property;
mod stream;
mod turn;
mod view;

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use parking_lot::Mutex;

pub use self::absent::{Absent, probe};
use self::books::{Books, Ledger, Mapping, Owner, Released};
pub use self::devices::devices;
use self::ending::Calling;
use self::enter::Entered;
use self::failures::{check, unknown};
pub(super) use self::kept::KeptStream;
use self::kernels::Kernels;
use self::pinned::{CHUNK_BYTES, Chunk, FlagPage, Pool};
use self::property::{DESCRIPTORS, device_location, fabric_type, property};
use self::stream::OwnStream;
pub use self::view::DeviceView;
use super::{
    AddressRange, Batch, Call, DeviceError, DeviceInfo, DeviceProblem, Driver, Event, Exported, Flag, Handle,
    HandleKind, Launch, Stream,
};
use crate::error::Result;

/// What is alive in a [`CudaDriver`], for leak tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaCounts {
    /// References to memory that were not released.
    pub handles: usize,
    /// Mapped ranges.
    pub mappings: usize,
    /// Reserved ranges.
    pub reservations: usize,
    /// Streams that were not destroyed.
    pub streams: usize,
    /// Recorded events that were neither found passed nor destroyed.
    pub events: usize,
    /// Pinned host memory, which stays.
    pub pinned_bytes: usize,
}

/// One GPU. Ranks of one process on it share one value.
pub struct CudaDriver {
    context: Arc<CudaContext>,
    /// The calls that the context makes when it goes.
    last_calls: Option<Calling>,
    info: DeviceInfo,
    /// By which kinds of handle memory can be exported.
    handle_types: u32,
    /// Whether memory can be made for other devices on the bus.
    gpu_direct: bool,
    pool: Pool,
    /// Zeros that fills copy from.
    zeros: Chunk,
    /// For copies that callers wait for.
    copies: OwnStream,
    flags: Mutex<Vec<Arc<FlagPage>>>,
    kernels: Kernels,
    books: Mutex<Books>,
    owner: Owner,
}

impl CudaDriver {
    /// The context that it works in.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// What is alive now.
    #[must_use]
    pub fn counts(&self) -> CudaCounts {
        self.books.lock().counts(self.owner, self.pool.bytes())
    }

    fn enter(&self, call: Call) -> Result<Entered, DeviceError> {
        Entered::new(self.context.cu_ctx(), call)
    }

    /// For calls about memory and addresses.
    fn enter_in_turn(&self, call: Call) -> Result<(Entered, Batch), DeviceError> {
        let turn = turn::take();
        Ok((self.enter(call)?, turn))
    }

    /// Why a call with memory that others made found nothing to share.
    fn not_shareable(&self, call: Call, address: usize, why: &str) -> DeviceError {
        match self.address_range(address) {
            Ok(AddressRange { base, size }) => {
                let (address, base, size) = (address as u64, base as u64, size as u64);
                DeviceError::new(
                    call,
                    DeviceProblem::NotShareable { address, base, size, why: why.to_owned() },
                )
            }
            Err(error) => DeviceError::new(call, error.problem),
        }
    }
}

// SAFETY: ranges come from cuMemAddressReserve; mappings of cuMemMap stay until they are unmapped; imports are of what
// other processes of this library exported, and a mapping beyond their end is refused by the CUDA driver.
unsafe impl Driver for CudaDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn batch(&self) -> Batch {
        turn::take()
    }

    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        let call = Call::Create;
        let _entered = self.enter_in_turn(call)?;
        let property = property(self.info.ordinal, self.handle_types, self.gpu_direct);
        let mut handle = 0;
        // SAFETY: reads the property and writes the handle, both this function's.
        match unsafe { sys::cuMemCreate(&raw mut handle, size, &raw const property, 0) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: writes two numbers to places of this function's.
                let _ = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
                let problem = DeviceProblem::OutOfMemory { need: size as u64, available: free as u64 };
                return Err(DeviceError::new(call, problem));
            }
            result => check(call, result)?,
        }
        Ledger::with(|ledger| ledger.made(handle, self.owner));
        Ok(Handle(handle))
    }

    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        // Another thread may be given the number as soon as it is free: the entry goes before.
        let whose = Ledger::with(|ledger| ledger.released(handle.0));
        if let Released::Here = whose {
            return Ok(());
        }
        let released = self.enter_in_turn(Call::Release).and_then(|_entered| {
            // SAFETY: the CUDA driver knows its handles and refuses others.
            check(Call::Release, unsafe { sys::cuMemRelease(handle.0) })
        });
        if let (Err(_), Released::OfDriver { owner }) = (&released, whose) {
            Ledger::with(|ledger| ledger.obtained(handle.0, owner));
        }
        released
    }

    /// Memory that cannot be shared is refused here, whether or not this communicator has other processes: a program
    /// works in threads and in processes, or in neither.
    fn retain(&self, address: usize) -> Result<Handle, DeviceError> {
        if let Some(handle) = Ledger::with(|ledger| ledger.retained(address)) {
            return Ok(Handle(handle));
        }
        let call = Call::Retain;
        let _entered = self.enter_in_turn(call)?;
        let mut handle = 0;
        let pointer = std::ptr::without_provenance_mut(address);
        // SAFETY: writes the handle to a place of this function's; the pointer is looked up only.
        match unsafe { sys::cuMemRetainAllocationHandle(&raw mut handle, pointer) } {
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => {
                return Err(self.not_shareable(call, address, "it was not made by cuMemCreate"));
            }
            result => check(call, result)?,
        }
        Ledger::with(|ledger| ledger.obtained(handle, self.owner));
        let mut property = property(0, 0, false);
        // SAFETY: writes the property to a place of this function's; the handle is a live one.
        let asked = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&raw mut property, handle) };
        let refused = match check(call, asked) {
            Ok(()) if property.requestedHandleTypes.0 & DESCRIPTORS != 0 => return Ok(Handle(handle)),
            Ok(()) => self.not_shareable(call, address, "it was made without descriptors as handle type"),
            Err(error) => error,
        };
        self.release(Handle(handle))?;
        Err(refused)
    }

    fn address_range(&self, address: usize) -> Result<AddressRange, DeviceError> {
        if let Some((base, mapping)) = Ledger::with(|ledger| ledger.made_at(address)) {
            return Ok(AddressRange { base, size: mapping.size });
        }
        let call = Call::AddressRange;
        let _entered = self.enter_in_turn(call)?;
        let (mut base, mut size) = (0, 0);
        // SAFETY: writes two numbers to places of this function's; the address is looked up only.
        match unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address as u64) } {
            sys::CUresult::CUDA_ERROR_NOT_FOUND | sys::CUresult::CUDA_ERROR_INVALID_VALUE => {
                let problem = DeviceProblem::ForeignAddress { address: address as u64 };
                return Err(DeviceError::new(call, problem));
            }
            result => check(call, result)?,
        }
        Ok(AddressRange { base: usize::try_from(base).unwrap_or(usize::MAX), size })
    }

    fn export(&self, handle: Handle, kind: HandleKind) -> Result<Exported, DeviceError> {
        let call = Call::Export;
        let _entered = self.enter_in_turn(call)?;
        match kind {
            HandleKind::Descriptor => {
                let mut fd: i32 = -1;
                let to = (&raw mut fd).cast::<c_void>();
                let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                // SAFETY: of this kind of handle the CUDA driver writes an int, which there is place for.
                check(call, unsafe { sys::cuMemExportToShareableHandle(to, handle.0, kind, 0) })?;
                // SAFETY: the descriptor is new, and this process's to close.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                let flags = rustix::io::FdFlags::CLOEXEC;
                rustix::io::fcntl_setfd(&fd, flags).map_err(|errno| DeviceError::os(call, errno))?;
                Ok(Exported::Descriptor(Arc::new(fd)))
            }
            HandleKind::Fabric => {
                let mut bytes = [0; 64];
                let to = bytes.as_mut_ptr().cast::<c_void>();
                let kind = fabric_type();
                // SAFETY: of this kind of handle the CUDA driver writes 64 bytes, which there is place for.
                check(call, unsafe { sys::cuMemExportToShareableHandle(to, handle.0, kind, 0) })?;
                Ok(Exported::Fabric(bytes))
            }
        }
    }

    /// How much memory it is cannot be asked: a mapping of another size is refused later.
    fn import(&self, exported: &Exported, _: usize) -> Result<Handle, DeviceError> {
        let call = Call::Import;
        let _entered = self.enter_in_turn(call)?;
        let mut bytes;
        let (from, kind) = match exported {
            Exported::Descriptor(fd) => {
                let fd = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
                let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                // The descriptor itself goes where a pointer goes, and stays this process's to close.
                (std::ptr::without_provenance_mut::<c_void>(fd), kind)
            }
            Exported::Fabric(handle) => {
                bytes = *handle;
                (bytes.as_mut_ptr().cast(), fabric_type())
            }
        };
        let mut handle = 0;
        // SAFETY: what is imported lives during the call: a descriptor that is borrowed, or 64 bytes.
        check(call, unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, from, kind) })?;
        Ledger::with(|ledger| ledger.obtained(handle, self.owner));
        Ok(Handle(handle))
    }

    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        let call = Call::Reserve;
        let _entered = self.enter_in_turn(call)?;
        let mut base = 0;
        // SAFETY: writes the address to a place of this function's.
        check(call, unsafe { sys::cuMemAddressReserve(&raw mut base, size, align, 0, 0) })?;
        let base = usize::try_from(base).unwrap_or(usize::MAX);
        Ledger::with(|ledger| ledger.reserved(base, size, self.owner));
        Ok(base)
    }

    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        let call = Call::Free;
        let _entered = self.enter_in_turn(call)?;
        let runs = Ledger::with(|ledger| ledger.runs_of(base, size)).ok_or_else(|| {
            let what = format!("{size} bytes at {base:#x} are no reservation");
            DeviceError::new(call, DeviceProblem::Argument { what })
        })?;
        for (address, size) in runs {
            // SAFETY: the caller says that nobody uses these addresses.
            unsafe { self.unmap(address, size) }.map_err(|error| DeviceError::new(call, error.problem))?;
        }
        // Another thread may be given the addresses as soon as they are free: the entry goes before.
        let entry = Ledger::with(|ledger| ledger.freed(base));
        // SAFETY: a whole reservation, as the ledger said, that nobody uses, as the caller says.
        let freed = check(call, unsafe { sys::cuMemAddressFree(base as u64, size) });
        if let (Err(_), Some(entry)) = (&freed, entry) {
            Ledger::with(|ledger| ledger.not_freed(base, entry));
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
        let _entered = self.enter_in_turn(Call::Map)?;
        // SAFETY: the caller says that the range is reserved and free.
        check(Call::Map, unsafe { sys::cuMemMap(address as u64, size, offset, handle.0, 0) })?;
        let mapping = Mapping { size, handle: handle.0, offset, owner: self.owner };
        Ledger::with(|ledger| ledger.mapped(address, mapping));
        Ok(())
    }

    fn set_access(&self, address: usize, size: usize, ordinals: &[i32]) -> Result<(), DeviceError> {
        let _entered = self.enter_in_turn(Call::SetAccess)?;
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = |&ordinal: &i32| sys::CUmemAccessDesc { location: device_location(ordinal), flags };
        let descriptions: Vec<_> = ordinals.iter().map(access).collect();
        let (first, count) = (descriptions.as_ptr(), descriptions.len());
        // SAFETY: reads as many descriptions as there are.
        check(Call::SetAccess, unsafe { sys::cuMemSetAccess(address as u64, size, first, count) })
    }

    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        let _entered = self.enter_in_turn(Call::Unmap)?;
        // SAFETY: the caller says that nobody uses these addresses.
        check(Call::Unmap, unsafe { sys::cuMemUnmap(address as u64, size) })?;
        Ledger::with(|ledger| ledger.unmapped(address, size));
        Ok(())
    }

    fn stream_create(&self) -> Result<Stream, DeviceError> {
        let _entered = self.enter(Call::StreamCreate)?;
        let stream = OwnStream::new()?;
        let number = stream.raw() as u64;
        self.books.lock().streams.insert(number, stream);
        Ok(Stream(number))
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError> {
        let call = Call::StreamDestroy;
        let _entered = self.enter(call)?;
        let own = self.books.lock().streams.remove(&stream.0).ok_or_else(|| unknown(call, stream.0))?;
        // Its events stay: what the stream holds still runs, and somebody may wait for that.
        own.destroy(&self.pool)
    }

    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let call = Call::Copy;
        let _entered = self.enter(call)?;
        let mut books = self.books.lock();
        let own = books.streams.get_mut(&stream.0).ok_or_else(|| unknown(call, stream.0))?;
        // SAFETY: the caller's promise.
        unsafe { own.copy(&self.pool, call, to, bytes) }
    }

    unsafe fn fill(&self, stream: Stream, to: usize, byte: u8, size: usize) -> Result<(), DeviceError> {
        let call = Call::Fill;
        let _entered = self.enter(call)?;
        let mut books = self.books.lock();
        let own = books.streams.get_mut(&stream.0).ok_or_else(|| unknown(call, stream.0))?;
        for offset in (0..size).step_by(CHUNK_BYTES) {
            let (at, len) = (to + offset, CHUNK_BYTES.min(size - offset));
            if byte == 0 {
                let from = self.zeros.as_ptr().cast::<c_void>();
                // SAFETY: the caller says that the place is mapped; the zeros live as long as this driver and are never
                // written.
                check(call, unsafe { sys::cuMemcpyHtoDAsync_v2(at as u64, from, len, own.raw()) })?;
            } else {
                // SAFETY: the caller's promise.
                unsafe { own.copy(&self.pool, call, at, &vec![byte; len]) }?;
            }
        }
        Ok(())
    }

    /// The stream may be one of the program's own.
    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        let call = Call::Record;
        let _entered = self.enter(call)?;
        let raw = stream.0 as sys::CUstream;
        let captured = || DeviceError::new(call, DeviceProblem::Capturing);
        if stream::has_no_end(call, raw)? {
            return Err(captured());
        }
        let idle = self.books.lock().idle_events.pop();
        let event = idle.map_or_else(|| stream::new_event(call), |event| Ok(event as sys::CUevent))?;
        // A capture that has begun meanwhile has taken the event, which then never passes.
        let recorded = stream::record_again(call, event, raw)
            .and_then(|()| if stream::is_capturing(call, raw)? { Err(captured()) } else { Ok(()) });
        let mut books = self.books.lock();
        if recorded.is_ok() {
            books.events.insert(event as u64);
        } else {
            books.idle_events.push(event as u64);
        }
        recorded.map(|()| Event(event as u64))
    }

    fn done(&self, event: Event) -> Result<bool, DeviceError> {
        let call = Call::Done;
        let _entered = self.enter(call)?;
        let mut books = self.books.lock();
        if !books.events.contains(&event.0) {
            return Err(unknown(call, event.0));
        }
        if !stream::has_passed(call, event.0 as sys::CUevent)? {
            return Ok(false);
        }
        books.retire_event(event.0);
        Ok(true)
    }

    fn event_destroy(&self, event: Event) -> Result<(), DeviceError> {
        if self.books.lock().retire_event(event.0) {
            Ok(())
        } else {
            Err(unknown(Call::EventDestroy, event.0))
        }
    }

    unsafe fn load(&self, from: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if self.info.host_access {
            // SAFETY: the caller says that the range is mapped, and host code has access to it.
            unsafe { super::words::load(from, bytes) };
            return Ok(());
        }
        let _entered = self.enter(Call::Load)?;
        // SAFETY: the caller says that the range is mapped.
        unsafe { copies::load(&self.pool, self.copies.raw(), from, bytes) }
    }

    unsafe fn store(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.info.host_access {
            // SAFETY: the caller says that the range is mapped, and host code has access to it.
            unsafe { super::words::store(to, bytes) };
            return Ok(());
        }
        let _entered = self.enter(Call::Store)?;
        // SAFETY: the caller says that the range is mapped.
        unsafe { copies::store(&self.pool, self.copies.raw(), to, bytes) }
    }

    fn flag(&self) -> Result<Option<Arc<dyn Flag>>, DeviceError> {
        let _entered = self.enter(Call::Flag)?;
        let mut pages = self.flags.lock();
        let free = pages.iter().find_map(FlagPage::take);
        let word = match free {
            Some(word) => word,
            None => {
                pages.push(FlagPage::new()?);
                let fresh = pages.last().and_then(FlagPage::take);
                fresh.expect("a new page has words")
            }
        };
        Ok(Some(word))
    }

    fn cuda_context(&self) -> Option<&Arc<CudaContext>> {
        Some(&self.context)
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        let _entered = self.enter(Call::Launch)?;
        stream::is_capturing(Call::Launch, stream.0 as sys::CUstream)
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let call = Call::StreamWait;
        let _entered = self.enter(call)?;
        if !self.books.lock().events.contains(&event.0) {
            return Err(unknown(call, event.0));
        }
        let (stream, event) = (stream.0 as sys::CUstream, event.0 as sys::CUevent);
        // SAFETY: the event is alive, as the books say, and the stream is the caller's.
        check(call, unsafe { sys::cuStreamWaitEvent(stream, event, 0) })
    }

    unsafe fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let _entered = self.enter(Call::Launch)?;
        // SAFETY: the caller's promise.
        unsafe { self.kernels.launch(stream.0 as sys::CUstream, launch) }
    }

    fn multicast_create(&self, size: usize, devices: usize) -> Result<Handle, DeviceError> {
        let call = Call::MulticastCreate;
        self.check_multicast(call)?;
        let _entered = self.enter_in_turn(call)?;
        let property = sys::CUmulticastObjectProp {
            numDevices: u32::try_from(devices).unwrap_or(u32::MAX),
            size,
            handleTypes: self.handle_types.into(),
            flags: 0,
        };
        let mut handle = 0;
        // SAFETY: reads the property and writes the handle, both this function's.
        check(call, unsafe { sys::cuMulticastCreate(&raw mut handle, &raw const property) })?;
        Ledger::with(|ledger| ledger.obtained(handle, self.owner));
        Ok(Handle(handle))
    }

    fn multicast_add_device(&self, multicast: Handle) -> Result<(), DeviceError> {
        let call = Call::MulticastAddDevice;
        self.check_multicast(call)?;
        let _entered = self.enter_in_turn(call)?;
        // SAFETY: the CUDA driver knows its handles and refuses others.
        check(call, unsafe { sys::cuMulticastAddDevice(multicast.0, self.context.cu_device()) })
    }

    fn multicast_bind(
        &self,
        multicast: Handle,
        at: usize,
        memory: Handle,
        size: usize,
    ) -> Result<(), DeviceError> {
        let call = Call::MulticastBind;
        self.check_multicast(call)?;
        let _entered = self.enter_in_turn(call)?;
        // SAFETY: the CUDA driver knows its handles and refuses others.
        check(call, unsafe { sys::cuMulticastBindMem(multicast.0, at, memory.0, 0, size, 0) })
    }

    fn multicast_unbind(&self, multicast: Handle, at: usize, size: usize) -> Result<(), DeviceError> {
        let call = Call::MulticastUnbind;
        self.check_multicast(call)?;
        let _entered = self.enter_in_turn(call)?;
        let device = self.context.cu_device();
        // SAFETY: the CUDA driver knows its handles and refuses others.
        check(call, unsafe { sys::cuMulticastUnbind(multicast.0, device, at, size) })
    }
}

impl CudaDriver {
    /// No entry point of multicast is touched where it may not be.
    fn check_multicast(&self, call: Call) -> Result<(), DeviceError> {
        if self.info.multicast { Ok(()) } else { Err(super::no_multicast(call)) }
    }

    fn destroy_idle_events(&self) -> Result<(), DeviceError> {
        let call = Call::EventDestroy;
        let idle = std::mem::take(&mut self.books.lock().idle_events);
        let _entered = self.enter(call)?;
        idle.into_iter().try_for_each(|event| stream::destroy_event(call, event as sys::CUevent))
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let left = self.counts();
        if left.reservations > 0 {
            // Unmapping needs the promise that no one uses the addresses, which nobody gave.
            tracing::warn!(target: "symwin::driver", ?left, "CUDA device dropped with ranges in place");
        }
        if let Err(error) = self.destroy_idle_events() {
            tracing::error!(target: "symwin::driver", %error, "device.undo_failed");
        }
        self.last_calls = Calling::begin();
        if self.last_calls.is_none() {
            // The context would call the driver.
            let _stays = ManuallyDrop::new(Arc::clone(&self.context));
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("info", &self.info)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
