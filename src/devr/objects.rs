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
    /// Everything is written on this stream, which lives as long as the communicator.
    pub(crate) stream: Stream,
    /// Window structs with their host shadows.
    pub(crate) windows: ShadowPool<abi::Window>,
    /// What kernels look windows up in.
    pub(crate) table: WindowTable,
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
            stream,
            windows: ShadowPool::new(Arc::clone(driver)),
            table: WindowTable::new(Arc::clone(driver)),
        };
        match objects.table.reserve(0) {
            Ok(_) => Ok(objects),
            Err(error) => Err((error, objects.close())),
        }
    }

    /// Writes every struct that is new or changed, and marks the stream behind it.
    pub(crate) fn upload(&mut self) -> Result<Event, DeviceError> {
        self.windows.upload(self.stream)?;
        self.table.upload(self.stream)?;
        self.driver.record(self.stream)
    }

    /// Makes entries visible to kernels, all of them written before the first one's window.
    pub(crate) fn publish(&mut self, entries: &[(TableSlot, TableEntry)]) -> Result<(), DeviceError> {
        self.table.publish_all(self.stream, entries)
    }

    /// Hides a closed window from lookups of kernels that begin from here on.
    pub(crate) fn withdraw(&mut self, entry: TableSlot) -> Result<(), DeviceError> {
        self.table.withdraw(self.stream, entry).map(drop)
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
        self.windows.upload(self.stream)?;
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
        let mut errors = self.windows.close();
        errors.extend(self.table.close());
        errors.extend(self.driver.stream_destroy(self.stream).err());
        errors
    }
}
