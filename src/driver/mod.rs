//! Memory devices: the virtual-memory contract that the runtime stands on, in CUDA's own terms.
//!
//! A [`Driver`] is one rank's view of one device. Ranks of one process may share a driver; then a [`Handle`]
//! of one is a handle of the other. Physical memory is created, exported and imported by handle, and becomes
//! addressable by mapping it into a reserved range. Nothing here knows of ranks or windows.
//!
//! Implementations: [`host`] (sealed memfd and `mmap`), [`null`] (bookkeeping without memory, for simulations of
//! thousands of devices), [`faulty`] (wraps another one and fails the n-th call of a kind), [`multicast`]
//! (bookkeeping of multicast objects, so that their order of steps is tested without hardware). [`buffers`] carves
//! buffers from a few large allocations of any of them.
//!
//! Contract for every implementation:
//! - Calls return; none waits for a peer or for a user's kernel (P-7).
//! - A handle is reference-counted: [`Driver::create`], [`Driver::retain`] and [`Driver::import`] each give one
//!   reference, [`Driver::release`] takes one back. A mapping keeps physical memory alive by itself.
//! - `retain` returns the same handle value that `create` gave, as CUDA does.
//! - Addresses and sizes given to `map`, `unmap` and `set_access` are multiples of the granularity.

mod batch;
mod error;
pub(crate) mod launches;
pub(crate) mod page;
pub(crate) mod passing;
pub(crate) mod range;
mod stream_ref;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::batch::Batch;
pub use self::error::{Call, DeviceError, DeviceProblem};
pub use self::stream_ref::StreamRef;

pub mod buffers;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod faulty;
pub mod host;
pub mod multicast;
pub mod null;
#[cfg(target_arch = "x86_64")]
mod vectors;
pub(crate) mod words;

/// Physical memory, or a multicast object, by number. Valid in the process (and driver) that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a number is all that it is")]
pub struct Handle(pub u64);

/// An ordered queue of small copies and fills on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a number is all that it is")]
pub struct Stream(pub u64);

/// A point in a stream that can be asked whether it has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a number is all that it is")]
pub struct Event(pub u64);

/// What leaves the process so that another one can import the memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Exported {
    /// A descriptor, for another process of the same host.
    Descriptor(Arc<OwnedFd>),
    /// A fabric handle, for another process of the same fabric clique.
    Fabric([u8; 64]),
}

/// How handles cross processes. Agreed when the communicator is made: fabric handles if every rank's device
/// has them and they were seen to cross, else descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HandleKind {
    /// Descriptors over unix sockets.
    Descriptor,
    /// 64-byte fabric handles inside messages.
    Fabric,
}

/// What a device is and can do; it goes to all ranks when the communicator is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// For messages: "host", "NVIDIA H200".
    pub name: String,
    /// The backend's name: "host", "cuda".
    pub backend: String,
    /// All of its memory, in bytes. The default stride comes from the largest of any rank.
    pub memory_bytes: u64,
    /// Mappings start and end at multiples of this many bytes. A power of two, at least 4,096.
    pub granularity: u64,
    /// The best way in which its handles cross processes. One that says `Fabric` exports descriptors too, unless it has
    /// nothing else.
    pub handle_kind: HandleKind,
    /// Its number in its process, for [`Driver::set_access`].
    pub ordinal: i32,
    /// Whether multicast objects can be made.
    pub multicast: bool,
    /// Whether threads of the host load and store its memory at the device's own addresses.
    pub host_access: bool,
    /// How many blocks of a kernel it surely runs at once: its multiprocessors. 0 where kernels are host code.
    pub multiprocessors: u32,
}

impl DeviceInfo {
    /// A description of a device without multicast and host access, with descriptors as handles.
    #[must_use]
    pub fn new(name: &str, backend: &str, memory_bytes: u64, granularity: u64) -> Self {
        Self {
            name: name.to_owned(),
            backend: backend.to_owned(),
            memory_bytes,
            granularity,
            handle_kind: HandleKind::Descriptor,
            ordinal: 0,
            multicast: false,
            host_access: false,
            multiprocessors: 0,
        }
    }

    /// Whether windows go into a [lookup tree](crate::devr::lookup) beside the window table: on GPUs, whose kernels
    /// search one. Host kernels do not, so there it would only cost time.
    #[must_use]
    pub fn has_lookup(&self) -> bool {
        self.backend == "cuda"
    }
}

/// The base and length in bytes of one allocation's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "base and size are all there is to a range")]
pub struct AddressRange {
    /// First address.
    pub base: usize,
    /// Length in bytes.
    pub size: usize,
}

/// One of the library's own kernels and how it is started.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "who starts a kernel says all of it")]
pub struct Launch<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// Its blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// The bytes of its one parameter.
    pub parameter: &'a [u8],
}

/// A 32-bit word that is zero until it is raised. Kernels read it; it can be raised while they fill the device.
pub trait Flag: fmt::Debug + Send + Sync {
    /// Where kernels read it.
    fn address(&self) -> u64;

    /// Makes it 1, unless it is something else than 0 already.
    fn raise(&self);

    /// What it is: 0, 1, or what a kernel has left there.
    fn value(&self) -> u32;
}

/// One rank's view of one device. See the module's contract.
///
/// # Safety
/// The runtime copies to and from addresses on an implementation's word. `reserve` gives ranges of this process that
/// nothing else uses; `map` and `set_access` of memory that succeed have made the range readable and writable, for host
/// code where [`DeviceInfo::host_access`] says so, until it is unmapped or freed; `import` that succeeds gives memory
/// of at least the size asked for, which does not shrink.
#[allow(unsafe_code, reason = "implementations and callers promise what is done with addresses")]
pub unsafe trait Driver: fmt::Debug + Send + Sync {
    /// What the device is and can do. Never changes.
    fn info(&self) -> &DeviceInfo;

    /// Begins calls about memory and addresses that are best made without those of other threads in between. Whoever
    /// holds it takes no lock under which another thread may be calling, and waits for nothing.
    fn batch(&self) -> Batch {
        Batch::default()
    }

    /// Makes physical memory of `size` bytes, a multiple of the granularity, zeroed, exportable.
    ///
    /// # Errors
    /// `OutOfMemory` with figures, `TooManyDescriptors`, or what the system says.
    fn create(&self, size: usize) -> Result<Handle, DeviceError>;

    /// Takes one reference back. The memory goes when references and mappings are gone.
    ///
    /// # Errors
    /// `InvalidHandle`.
    fn release(&self, handle: Handle) -> Result<(), DeviceError>;

    /// One more reference to the allocation mapped at `address`.
    ///
    /// # Errors
    /// `ForeignAddress` where no memory of this device is mapped.
    fn retain(&self, address: usize) -> Result<Handle, DeviceError>;

    /// The mapping that holds `address`.
    ///
    /// # Errors
    /// `ForeignAddress` where no memory of this device is mapped.
    fn address_range(&self, address: usize) -> Result<AddressRange, DeviceError>;

    /// Makes something that another process can import. The handle must live until all have imported (P-6).
    ///
    /// # Errors
    /// `InvalidHandle`, `TooManyDescriptors`, `Argument` if the device has no handles of this kind, or what the system
    /// says.
    fn export(&self, handle: Handle, kind: HandleKind) -> Result<Exported, DeviceError>;

    /// Takes in what another process exported; it must hold at least `size` bytes, which is checked.
    ///
    /// # Errors
    /// `Argument` if it is smaller or of the wrong kind, or what the system says.
    fn import(&self, exported: &Exported, size: usize) -> Result<Handle, DeviceError>;

    /// Reserves `size` bytes of address space at a multiple of `align` bytes.
    ///
    /// # Errors
    /// What the system says.
    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError>;

    /// Gives a reservation back. Whatever is still mapped in it is unmapped.
    ///
    /// # Safety
    /// `base` and `size` are those of one reservation, and no one uses its addresses any more.
    ///
    /// # Errors
    /// `Argument` if it is no reservation, or what the system says.
    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError>;

    /// Maps `size` bytes of `handle` from `offset` on at `address`, without access yet.
    ///
    /// # Safety
    /// The range lies in one reservation of this process and nothing is mapped there.
    ///
    /// # Errors
    /// `InvalidHandle`, `Argument` if the range passes the end of the memory, or what the system says.
    unsafe fn map(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError>;

    /// Gives devices of this process, by their [`DeviceInfo::ordinal`], read and write access to all mappings in the
    /// range, which has no holes and splits no mapping.
    ///
    /// # Errors
    /// `Argument` if something in the range is not mapped or a mapping is split, or what the system says.
    fn set_access(&self, address: usize, size: usize, ordinals: &[i32]) -> Result<(), DeviceError>;

    /// Unmaps all mappings in the range, at least one; it splits none. The addresses stay reserved.
    ///
    /// # Safety
    /// No one uses these addresses any more.
    ///
    /// # Errors
    /// `Argument` if nothing is mapped there or a mapping would be split, or what the system says.
    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError>;

    /// A new stream of its own, ordered with no other.
    ///
    /// # Errors
    /// What the device says.
    fn stream_create(&self) -> Result<Stream, DeviceError>;

    /// Drops a stream; what it holds still runs, and its events stay until they are found passed or destroyed.
    ///
    /// # Errors
    /// `InvalidHandle`.
    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError>;

    /// Queues a copy of `bytes` to `to`. The bytes are taken before the call returns.
    ///
    /// # Safety
    /// `to..to + bytes.len()` is mapped with access until the stream has passed.
    ///
    /// # Errors
    /// What the device says.
    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Queues setting `size` bytes at `to` to `byte`.
    ///
    /// # Safety
    /// `to..to + size` is mapped with access until the stream has passed.
    ///
    /// # Errors
    /// What the device says.
    unsafe fn fill(&self, stream: Stream, to: usize, byte: u8, size: usize) -> Result<(), DeviceError>;

    /// Marks the stream's present end.
    ///
    /// # Errors
    /// What the device says.
    fn record(&self, stream: Stream) -> Result<Event, DeviceError>;

    /// Whether the stream has passed the event; once it said yes, or its stream is destroyed, the event is gone. Never
    /// waits.
    ///
    /// # Errors
    /// What the device says, errors of the stream's earlier work included.
    fn done(&self, event: Event) -> Result<bool, DeviceError>;

    /// Forgets an event that nobody will ask for.
    ///
    /// # Errors
    /// `InvalidHandle`, or what the device says.
    fn event_destroy(&self, event: Event) -> Result<(), DeviceError>;

    /// Copies from the device's memory, for callers' threads: it returns when that is done. It waits for the device's
    /// copies and for no kernel.
    ///
    /// # Safety
    /// `from..from + bytes.len()` is mapped with access until this returns.
    ///
    /// # Errors
    /// `Unsupported` where there is no memory to copy from, or what the device says.
    unsafe fn load(&self, from: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if !self.info().host_access {
            return Err(no_copies(self.info(), Call::Load));
        }
        // SAFETY: the caller says that the range is mapped, and host code has access to it.
        unsafe { words::load(from, bytes) };
        Ok(())
    }

    /// Copies to the device's memory, for callers' threads: as [`Driver::load`].
    ///
    /// # Safety
    /// `to..to + bytes.len()` is mapped with access until this returns.
    ///
    /// # Errors
    /// As [`Driver::load`].
    unsafe fn store(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.info().host_access {
            return Err(no_copies(self.info(), Call::Store));
        }
        // SAFETY: the caller says that the range is mapped, and host code has access to it.
        unsafe { words::store(to, bytes) };
        Ok(())
    }

    /// A word by which waits in kernels learn that their communicator has failed. `None` where kernels are host code,
    /// which learns it otherwise.
    ///
    /// # Errors
    /// What the device says.
    fn flag(&self) -> Result<Option<Arc<dyn Flag>>, DeviceError> {
        Ok(None)
    }

    /// Whether what is queued on the stream goes into a graph and does not run.
    ///
    /// # Errors
    /// What the device says.
    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        let _ = stream;
        Ok(false)
    }

    /// The context that it works in, where it is a GPU: streams of others do not reach its memory.
    #[cfg(feature = "cuda")]
    fn cuda_context(&self) -> Option<&Arc<cudarc::driver::CudaContext>> {
        None
    }

    /// Queues on the stream that it waits for the event, which another stream has recorded.
    ///
    /// # Errors
    /// What the device says.
    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let _ = (stream, event);
        Err(no_kernels(self.info(), Call::StreamWait))
    }

    /// Queues one of the library's own kernels.
    ///
    /// # Safety
    /// The parameter is that of the kernel, and everything that it leads to stays mapped with access until the stream
    /// has passed.
    ///
    /// # Errors
    /// `Unsupported` where kernels are host code, or what the device says.
    unsafe fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let _ = (stream, launch);
        Err(no_kernels(self.info(), Call::Launch))
    }

    /// Makes a multicast object over `devices` devices (one a rank) that spans `size` bytes.
    ///
    /// # Errors
    /// `Unsupported` on a device without multicast.
    fn multicast_create(&self, size: usize, devices: usize) -> Result<Handle, DeviceError> {
        let _ = (size, devices);
        Err(no_multicast(Call::MulticastCreate))
    }

    /// Adds this rank's device to the object.
    ///
    /// # Errors
    /// `Unsupported` on a device without multicast; `Argument` if it was added before.
    fn multicast_add_device(&self, multicast: Handle) -> Result<(), DeviceError> {
        let _ = multicast;
        Err(no_multicast(Call::MulticastAddDevice))
    }

    /// Binds `size` bytes of `memory` from its start at `at` in the object. On real devices it may wait in the
    /// driver until all devices were added: the flush calls it only after a vote said so.
    ///
    /// # Errors
    /// `Unsupported` on a device without multicast; `Argument` if not all devices were added.
    fn multicast_bind(
        &self,
        multicast: Handle,
        at: usize,
        memory: Handle,
        size: usize,
    ) -> Result<(), DeviceError> {
        let _ = (multicast, at, memory, size);
        Err(no_multicast(Call::MulticastBind))
    }

    /// Unbinds this rank's memory of `size` bytes at `at`.
    ///
    /// # Errors
    /// `Unsupported` on a device without multicast; `Argument` if nothing is bound there.
    fn multicast_unbind(&self, multicast: Handle, at: usize, size: usize) -> Result<(), DeviceError> {
        let _ = (multicast, at, size);
        Err(no_multicast(Call::MulticastUnbind))
    }
}

fn no_copies(info: &DeviceInfo, call: Call) -> DeviceError {
    let why = format!("memory of {} is bookkeeping only: nothing can be copied", info.name);
    DeviceError::new(call, DeviceProblem::Unsupported { why })
}

fn no_kernels(info: &DeviceInfo, call: Call) -> DeviceError {
    let why = format!("kernels of {} are host code: see `DevComm::launch`", info.name);
    DeviceError::new(call, DeviceProblem::Unsupported { why })
}

fn no_multicast(call: Call) -> DeviceError {
    DeviceError::new(call, DeviceProblem::Unsupported { why: "this device has no multicast".to_owned() })
}
