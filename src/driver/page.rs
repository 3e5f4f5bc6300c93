//! A page: device memory of its own at addresses of its own, for device objects that only this rank's device reads.
#![allow(unsafe_code, reason = "this is where the runtime keeps the driver's address contract (A-13)")]

use std::sync::Arc;

use super::{DeviceError, Driver, Handle, Stream};

/// One allocation, mapped with access at a reservation that nothing else uses.
///
/// PG-1: what is `Some` or true here was made and not given back. A page that `new` returned has all three.
#[derive(Debug)]
pub(crate) struct Page {
    driver: Arc<dyn Driver>,
    /// Its length in bytes, a multiple of the granularity.
    size: usize,
    handle: Option<Handle>,
    base: Option<usize>,
    mapped: bool,
}

impl Page {
    /// Makes a zeroed page of `size` bytes, a multiple of `granularity`. If that fails nothing of it remains; what
    /// could not be undone is added to `undo_errors`.
    ///
    /// # Errors
    /// Of the device: the first call that failed.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        size: usize,
        granularity: usize,
        undo_errors: &mut Vec<DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mut page = Self { driver: Arc::clone(driver), size, handle: None, base: None, mapped: false };
        match page.build(granularity) {
            Ok(()) => Ok(page),
            Err(error) => {
                undo_errors.extend(page.give_back());
                Err(error)
            }
        }
    }

    /// Its first address on the device.
    pub(crate) fn base(&self) -> usize {
        self.base.expect("PG-1")
    }

    /// Its length in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Queues a copy of `bytes` to `offset`. The range must lie in the page, and the page must not be dropped
    /// before the stream has passed.
    pub(crate) fn copy(&self, stream: Stream, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let end = offset.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.size) && self.mapped, "copies stay in their page");
        // SAFETY: the range lies in the page, as was just asserted, and the page is mapped with access (PG-1)
        // until it is given back, which its owner does only when its streams have passed.
        unsafe { self.driver.copy(stream, self.base() + offset, bytes) }
    }

    /// Gives back what is held, the last first, and all that can be although some cannot.
    pub(crate) fn give_back(&mut self) -> Vec<DeviceError> {
        let mut errors = Vec::new();
        if let Some(base) = self.base.take() {
            // Addresses whose mapping would not go are not freed: others must not get them.
            let unmapped = !self.mapped || {
                self.mapped = false;
                // SAFETY: the mapping is this page's alone, and its owner gives it back only when the kernels
                // and streams that knew its addresses have ended.
                let unmapped = unsafe { self.driver.unmap(base, self.size) };
                unmapped.map_err(|error| errors.push(error)).is_ok()
            };
            if unmapped {
                // SAFETY: `base` and `size` are those of one reservation, made by `build` and freed only here,
                // and nothing is mapped in it.
                let freed = unsafe { self.driver.free(base, self.size) };
                errors.extend(freed.err());
            }
        }
        if let Some(handle) = self.handle.take() {
            errors.extend(self.driver.release(handle).err());
        }
        errors
    }

    fn build(&mut self, granularity: usize) -> Result<(), DeviceError> {
        let handle = self.driver.create(self.size)?;
        self.handle = Some(handle);
        let base = self.driver.reserve(self.size, granularity)?;
        self.base = Some(base);
        // SAFETY: the range is the whole of the reservation made above, in which nothing is mapped.
        unsafe { self.driver.map(base, self.size, 0, handle) }?;
        self.mapped = true;
        self.driver.set_access(base, self.size, &[self.driver.info().ordinal])
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        for error in self.give_back() {
            tracing::error!(%error, "a page of device objects could not be given back");
        }
    }
}
