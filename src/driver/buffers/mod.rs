//! Buffers carved from few large allocations, so that thousands of them cost a handful of descriptors.
//!
//! ```
//! use symwin::driver::buffers::BufferAllocator;
//! use symwin::driver::host::{HostDriver, HostOptions};
//!
//! let allocator = BufferAllocator::new(HostDriver::new(HostOptions::new())?, 1 << 20);
//! let buffer = allocator.alloc(1000)?;
//! buffer.write(10, &[1, 2, 3])?;
//! let mut bytes = [0; 4];
//! buffer.read(9, &mut bytes)?;
//! assert_eq!(bytes, [0, 1, 2, 3]);
//! # Ok::<(), symwin::Error>(())
//! ```

use std::sync::Arc;

use self::block::{Block, Source, out_of_memory};
pub use self::buffer::{Buffer, BufferSlice};
use self::slabs::Slabs;
use super::{Call, DeviceError, DeviceProblem, Driver};

mod block;
mod buffer;
mod free_list;
mod slabs;
#[cfg(test)]
mod tests;

/// Hands out [`Buffer`]s of one driver. Clones hand out from the same memory.
///
/// - A buffer is taken at the lowest offset that fits, over the slabs in order: equal histories of requests
///   give equal offsets in the allocations, on every rank.
/// - Buffers start at multiples of the granularity (at least 4,096 bytes) and take whole multiples of it, so
///   that windows over buffers of *un*equal histories can be mapped at the same offset of every rank.
/// - Requests above half a slab get an allocation of their own.
/// - Fresh buffers read as zero; space that was used before is zeroed again when it is handed out.
/// - An empty slab is kept for the next request, a second one is given back. Everything goes when the allocator
///   and its buffers are gone.
#[derive(Clone, Debug)]
pub struct BufferAllocator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: Arc<Source>,
    slabs: Slabs,
}

impl BufferAllocator {
    /// Bytes of a slab where there is no reason for others: 64 MiB.
    pub const SLAB_BYTES: usize = 64 << 20;

    /// An allocator that has nothing yet. `slab_bytes` is rounded up to the granularity.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, slab_bytes: usize) -> Self {
        let source = Arc::new(Source::new(driver));
        let granularity = source.granularity;
        let slab_bytes = slab_bytes.max(1).checked_next_multiple_of(granularity).unwrap_or(granularity);
        let slabs = Slabs::new(Arc::clone(&source), slab_bytes);
        Self { shared: Arc::new(Shared { source, slabs }) }
    }

    /// A buffer of `size` bytes, zeroed.
    ///
    /// # Errors
    /// `Argument` if `size` is 0; what the driver says where a new allocation is needed; `Os` (timed out) where
    /// a device does not come to zero used space within ten seconds.
    pub fn alloc(&self, size: usize) -> Result<Buffer, DeviceError> {
        let rounded = self.round_up(size)?;
        if rounded > self.shared.slabs.slab_bytes() / 2 {
            return self.alloc_own(size);
        }
        let place = self.shared.slabs.take(rounded)?;
        Ok(Buffer::in_slab(Arc::clone(&self.shared), place, size))
    }

    /// A buffer of `size` bytes, zeroed, in an allocation of its own.
    ///
    /// # Errors
    /// `Argument` if `size` is 0, or what the driver says.
    pub fn alloc_own(&self, size: usize) -> Result<Buffer, DeviceError> {
        let block = Block::new(&self.shared.source, &[self.round_up(size)?])?;
        Ok(Buffer::own(Arc::clone(&self.shared), block, size))
    }

    /// One buffer over several adjacent allocations of these sizes, each a multiple of the granularity.
    ///
    /// # Errors
    /// `Argument` if there is no size, or one is 0 or no multiple; or what the driver says.
    pub fn alloc_segments(&self, sizes: &[usize]) -> Result<Buffer, DeviceError> {
        let granularity = self.shared.source.granularity;
        if sizes.is_empty() || sizes.iter().any(|&size| size == 0 || !size.is_multiple_of(granularity)) {
            return Err(argument(format!("{sizes:?}: segments need multiples of {granularity} bytes")));
        }
        let block = Block::new(&self.shared.source, sizes)?;
        Ok(Buffer::own(Arc::clone(&self.shared), block, sizes.iter().sum()))
    }

    /// The driver whose memory this is.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.shared.source.driver
    }

    /// Starts and sizes of buffers are multiples of this many bytes.
    #[must_use]
    pub fn granularity(&self) -> usize {
        self.shared.source.granularity
    }

    /// Calls that failed while memory was given back. What they should have given back stays as it is.
    #[must_use]
    pub fn undo_failures(&self) -> Vec<DeviceError> {
        self.shared.source.undo_failures()
    }

    fn round_up(&self, size: usize) -> Result<usize, DeviceError> {
        if size == 0 {
            return Err(argument("a buffer of 0 bytes".to_owned()));
        }
        let source = &self.shared.source;
        let rounded = size.checked_next_multiple_of(source.granularity);
        // Half the address space is more than any device has, and keeps sums from overflowing.
        let rounded = rounded.filter(|&rounded| rounded <= usize::MAX / 2);
        rounded.ok_or_else(|| out_of_memory(&*source.driver, size))
    }
}

fn argument(what: String) -> DeviceError {
    DeviceError::new(Call::Create, DeviceProblem::Argument { what })
}
