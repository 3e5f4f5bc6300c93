//! Physical allocations mapped side by side in one reservation: what slabs and large buffers are made of.
#![allow(unsafe_code, reason = "mapping and unmapping of whole blocks")]

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{AddressRange, Call, DeviceError, DeviceProblem, Driver, Handle};

/// A driver, and the calls of it that failed where nobody could be told.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) driver: Arc<dyn Driver>,
    /// Everything is a multiple of this many bytes.
    pub(super) granularity: usize,
    undo: Mutex<Vec<DeviceError>>,
}

/// Mapped memory with access. Dropping it gives everything back; what was made of it so far, if making fails.
#[derive(Debug)]
pub(super) struct Block {
    source: Arc<Source>,
    /// The reservation.
    base: usize,
    size: usize,
    /// What is mapped from `base` on, in order and without a hole. Each holds a reference.
    segments: Vec<(AddressRange, Handle)>,
}

impl Source {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        let granularity = usize::try_from(driver.info().granularity).unwrap_or(usize::MAX).max(4096);
        Self { driver, granularity, undo: Mutex::default() }
    }

    pub(super) fn undo_failures(&self) -> Vec<DeviceError> {
        self.undo.lock().clone()
    }

    /// Whether an undo call worked. If not, it is kept and told of.
    pub(super) fn undone(&self, result: Result<(), DeviceError>) -> bool {
        let Err(error) = result else { return true };
        tracing::error!(target: "symwin::driver", %error, "undo failed; what it was to give back stays");
        self.undo.lock().push(error);
        false
    }
}

impl Block {
    /// Makes one allocation for each of `sizes`, multiples of the granularity, and maps them side by side.
    pub(super) fn new(source: &Arc<Source>, sizes: &[usize]) -> Result<Self, DeviceError> {
        let driver = &*source.driver;
        let size = sizes.iter().try_fold(0, |sum: usize, size| sum.checked_add(*size));
        let size = size.ok_or_else(|| out_of_memory(driver, usize::MAX))?;
        // Memory first: where it lacks, no address was touched.
        let mut handles = Handles { source, made: VecDeque::with_capacity(sizes.len()) };
        let mut block;
        // Ends before what was made goes again: nothing is told of in a batch.
        let _batch = driver.batch();
        for size in sizes {
            handles.made.push_back(driver.create(*size)?);
        }
        let base = driver.reserve(size, source.granularity)?;
        block = Self { source: Arc::clone(source), base, size, segments: Vec::new() };
        let mut at = base;
        for &size in sizes {
            let handle = *handles.made.front().expect("a handle for each size");
            // SAFETY: the range lies in the reservation above, which nobody else knows of, after what was
            // mapped before.
            unsafe { driver.map(at, size, 0, handle) }?;
            handles.made.pop_front();
            block.segments.push((AddressRange { base: at, size }, handle));
            at += size;
        }
        driver.set_access(base, size, &[driver.info().ordinal])?;
        Ok(block)
    }

    pub(super) fn base(&self) -> usize {
        self.base
    }

    /// The allocations that hold any of the range.
    pub(super) fn allocations(&self, address: usize, size: usize) -> Vec<AddressRange> {
        let end = address + size;
        let touches = |range: &AddressRange| range.base < end && address < range.base + range.size;
        self.segments.iter().map(|(range, _)| *range).filter(touches).collect()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let driver = &*self.source.driver;
        let batch = driver.batch();
        let mapped: usize = self.segments.iter().map(|(range, _)| range.size).sum();
        // SAFETY: blocks go when no buffer in them is left, so no safe code uses the addresses; who took a raw
        // pointer promised to keep the buffer.
        let unmapped = if mapped == 0 { Ok(()) } else { unsafe { driver.unmap(self.base, mapped) } };
        // Where unmapping failed the range stays as it is: freeing would unmap it under who knows what.
        let freed = if unmapped.is_ok() {
            // SAFETY: as above, and nothing is mapped there any more.
            unsafe { driver.free(self.base, self.size) }
        } else {
            Ok(())
        };
        let released: Vec<_> = self.segments.drain(..).map(|(_, handle)| driver.release(handle)).collect();
        drop(batch);
        for result in [unmapped, freed].into_iter().chain(released) {
            self.source.undone(result);
        }
    }
}

/// References to memory that is not in a block yet.
struct Handles<'a> {
    source: &'a Source,
    made: VecDeque<Handle>,
}

impl Drop for Handles<'_> {
    fn drop(&mut self) {
        for handle in self.made.drain(..) {
            self.source.undone(self.source.driver.release(handle));
        }
    }
}

/// More than there can be.
pub(super) fn out_of_memory(driver: &dyn Driver, need: usize) -> DeviceError {
    let problem = DeviceProblem::OutOfMemory { need: need as u64, available: driver.info().memory_bytes };
    DeviceError::new(Call::Create, problem)
}
