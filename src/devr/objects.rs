//! The device objects of one rank: window structs, the window table, and the stream that writes them.

use std::sync::Arc;

use super::shadow::{ShadowPool, Slot};
use super::table::{TableEntry, TableSlot, WindowTable};
use crate::device::abi;
use crate::driver::{DeviceError, Driver, Event, Stream};

/// The device objects of one rank.
#[derive(Debug)]
pub(crate) struct Objects {
    driver: Arc<dyn Driver>,
    /// Window structs with their host shadows.
    pub(crate) windows: ShadowPool<abi::Window>,
    /// What kernels look windows up in.
    pub(crate) table: WindowTable,
    /// Everything is written on this stream, which lives as long as the communicator. It goes last.
    stream: OwnStream,
}

/// A stream that destroys itself.
#[derive(Debug)]
struct OwnStream {
    driver: Arc<dyn Driver>,
    stream: Option<Stream>,
}

impl OwnStream {
    fn destroy(&mut self) -> Result<(), DeviceError> {
        self.stream.take().map_or(Ok(()), |stream| self.driver.stream_destroy(stream))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::error!(%error, "device.undo_failed");
        }
    }
}

impl Objects {
    /// Makes the stream and the table's first chunk. If that fails nothing of it remains.
    ///
    /// # Errors
    /// The first call that failed, and the calls that failed while the rest was undone.
    pub(crate) fn new(driver: &Arc<dyn Driver>) -> Result<Self, (DeviceError, Vec<DeviceError>)> {
        let stream = driver.stream_create().map_err(|error| (error, Vec::new()))?;
        let mut objects = Self {
            driver: Arc::clone(driver),
            windows: ShadowPool::new(Arc::clone(driver)),
            table: WindowTable::new(Arc::clone(driver)),
            stream: OwnStream { driver: Arc::clone(driver), stream: Some(stream) },
        };
        match objects.table.reserve(0) {
            Ok(_) => Ok(objects),
            Err(error) => Err((error, objects.close())),
        }
    }

    /// The stream.
    pub(crate) fn stream(&self) -> Stream {
        self.stream.stream.expect("it is destroyed with this value")
    }

    /// Writes every struct that is new or changed, and marks the stream behind it.
    pub(crate) fn upload(&mut self) -> Result<Event, DeviceError> {
        let stream = self.stream();
        self.windows.upload(stream)?;
        self.table.upload(stream)?;
        self.driver.record(stream)
    }

    /// Marks the stream's present end.
    pub(crate) fn fence(&self) -> Result<Event, DeviceError> {
        self.driver.record(self.stream())
    }

    /// Makes entries visible to kernels, all of them written before the first one's window.
    pub(crate) fn publish(&mut self, entries: &[(TableSlot, TableEntry)]) -> Result<(), DeviceError> {
        let stream = self.stream();
        self.table.publish_all(stream, entries)
    }

    /// Hides a closed window from lookups of kernels that begin from here on.
    pub(crate) fn withdraw(&mut self, entry: TableSlot) -> Result<(), DeviceError> {
        let stream = self.stream();
        self.table.withdraw(stream, entry).map(drop)
    }

    /// Takes a closed window away for good, once no kernel can have seen it: its struct, then both slots. May be
    /// tried again after an error.
    pub(crate) fn retire(&mut self, window: Slot, entry: Option<TableSlot>) -> Result<(), DeviceError> {
        if let Some(entry) = entry {
            // Done before, unless that failed.
            self.withdraw(entry)?;
            self.table.free(entry);
        }
        self.windows.set(window, abi::Window::poisoned());
        let stream = self.stream();
        self.windows.upload(stream)?;
        self.windows.free(window);
        Ok(())
    }

    /// Gives back slots that were never published.
    pub(crate) fn forget(&mut self, windows: &[Slot], entries: &[TableSlot]) {
        for &slot in windows {
            self.windows.forget_dirty(slot);
            self.windows.free(slot);
        }
        for &slot in entries {
            self.table.free(slot);
        }
    }

    /// Undo calls that failed since the last time this was asked: of pages that could not be made.
    pub(crate) fn take_undo_errors(&mut self) -> Vec<DeviceError> {
        let mut errors = self.windows.take_undo_errors();
        errors.extend(self.table.take_undo_errors());
        errors
    }

    /// Gives everything back.
    pub(crate) fn close(self) -> Vec<DeviceError> {
        let Self { windows, table, mut stream, .. } = self;
        let mut errors = windows.close();
        errors.extend(table.close());
        errors.extend(stream.destroy().err());
        errors
    }
}
