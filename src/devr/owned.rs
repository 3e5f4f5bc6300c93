//! Owned pieces of a device: what a batch or a memory holds gives itself back.

use std::sync::Arc;

use super::flat::Kept;
use crate::driver::{DeviceError, Driver, Handle};

/// One reference to physical memory (or a multicast object). Dropping it releases it; [`Held::release`] does so
/// too and says whether that worked.
#[derive(Debug)]
pub(crate) struct Held {
    driver: Arc<dyn Driver>,
    handle: Option<Handle>,
}

impl Held {
    /// Takes over one reference.
    pub(crate) fn new(driver: &Arc<dyn Driver>, handle: Handle) -> Self {
        Self { driver: Arc::clone(driver), handle: Some(handle) }
    }

    /// The handle, valid as long as this lives.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.expect("a reference is there until it is released")
    }

    /// Gives the reference back.
    pub(crate) fn release(mut self) -> Result<(), DeviceError> {
        self.handle.take().map_or(Ok(()), |handle| self.driver.release(handle))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take()
            && let Err(error) = self.driver.release(handle)
        {
            tracing::error!(%error, handle = handle.0, "device.undo_failed");
        }
    }
}

/// This rank's memory bound to a multicast object. It keeps both, since peers may store through the object after
/// this rank has retired the memory. Dropping it unbinds; [`Binding::unbind`] does so too and says what failed.
#[derive(Debug)]
pub(crate) struct Binding {
    driver: Arc<dyn Driver>,
    object: Arc<Held>,
    memory: Arc<Held>,
    at: usize,
    size: usize,
    bound: bool,
}

impl Binding {
    /// Binds `size` bytes of `memory` from its start at `at` in the object, to which all devices were added (P-6).
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        object: &Arc<Held>,
        memory: &Arc<Held>,
        at: usize,
        size: usize,
    ) -> Result<Self, DeviceError> {
        driver.multicast_bind(object.handle(), at, memory.handle(), size)?;
        let (object, memory) = (Arc::clone(object), Arc::clone(memory));
        Ok(Self { driver: Arc::clone(driver), object, memory, at, size, bound: true })
    }

    /// Unbinds, and gives back the memory and the object where this was the last to keep them. Comes back, still bound,
    /// if the device would not: it may be tried again.
    pub(crate) fn unbind(mut self) -> Result<Vec<DeviceError>, (Self, DeviceError)> {
        if let Err(error) = self.end() {
            return Err((self, error));
        }
        let kept = [Arc::clone(&self.memory), Arc::clone(&self.object)];
        drop(self);
        Ok(release_all(kept))
    }

    /// The same for the last time: it is dropped if the device would not, which tries once more.
    pub(crate) fn unbind_or_leave(self) -> Vec<DeviceError> {
        self.unbind().unwrap_or_else(|(_, error)| vec![error])
    }

    fn end(&mut self) -> Result<(), DeviceError> {
        if self.bound {
            self.driver.multicast_unbind(self.object.handle(), self.at, self.size)?;
            self.bound = false;
        }
        Ok(())
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, handle = self.object.handle().0, "device.undo_failed");
        }
    }
}

impl Kept for Vec<Arc<Held>> {
    fn give_back(self: Box<Self>) -> Vec<DeviceError> {
        release_all(*self)
    }
}

/// Gives back references, the shared ones where this was the last; the errors are collected.
pub(crate) fn release_all(held: impl IntoIterator<Item = Arc<Held>>) -> Vec<DeviceError> {
    held.into_iter().filter_map(Arc::into_inner).filter_map(|held| held.release().err()).collect()
}
