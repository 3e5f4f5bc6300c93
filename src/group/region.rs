//! What is registered.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::devr::flush::message::WindowFlags;
use crate::driver::buffers::{Buffer, BufferSlice};

/// A range of this rank's memory.
#[derive(Clone)]
pub struct Region {
    pub(crate) address: usize,
    pub(crate) size: usize,
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Region {
    /// A range by its address, for memory that other code has allocated on the communicator's device. It may
    /// span several allocations that lie side by side.
    ///
    /// # Safety
    /// The memory stays mapped at this address as long as a window on it is open on this rank, and what is done with
    /// it meanwhile counts with the peers: they may read and write it at any time.
    #[must_use]
    #[allow(unsafe_code, reason = "a bare address is the caller's promise (A-13)")]
    pub unsafe fn raw(pointer: *mut u8, size: usize) -> Self {
        Self { address: pointer.expose_provenance(), size, keep: None }
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

impl From<&Buffer> for Region {
    fn from(buffer: &Buffer) -> Self {
        Self { address: buffer.address(), size: buffer.len(), keep: Some(Arc::new(buffer.clone())) }
    }
}

impl From<Buffer> for Region {
    fn from(buffer: Buffer) -> Self {
        Self::from(&buffer)
    }
}

impl From<BufferSlice> for Region {
    fn from(slice: BufferSlice) -> Self {
        Self { address: slice.address(), size: slice.len(), keep: Some(Arc::new(slice)) }
    }
}

impl From<&BufferSlice> for Region {
    fn from(slice: &BufferSlice) -> Self {
        Self::from(slice.clone())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.size, self.address)
    }
}

/// A registration with everything that can be said of it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Registration {
    pub(crate) region: Region,
    pub(crate) flags: WindowFlags,
    pub(crate) label: Option<String>,
    pub(crate) asymmetric: bool,
}

impl Registration {
    /// Of a region, without flags or label, of the same size on all ranks.
    pub fn new(region: impl Into<Region>) -> Self {
        Self { region: region.into(), flags: WindowFlags::empty(), label: None, asymmetric: false }
    }

    /// Sets the flags.
    pub fn flags(mut self, flags: WindowFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Gives the window a label. Ranks must agree on it, so windows of equal shape in swapped order are noticed.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Allows sizes to differ between ranks.
    pub fn asymmetric(mut self) -> Self {
        self.asymmetric = true;
        self
    }
}
