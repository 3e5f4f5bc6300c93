//! The device objects of one rank: window structs, the window table, and the stream that writes them.

use std::sync::Arc;

use super::lookup::Lookup;
use super::shadow::{ShadowPool, Slot};
use super::table::{TableEntry, TableSlot, WindowTable};
use crate::device::abi;
use crate::driver::passing::Passing;
use crate::driver::{DeviceError, Driver, Stream};

/// The device objects of one rank.
#[derive(Debug)]
pub(crate) struct Objects {
    driver: Arc<dyn Driver>,
    /// Window structs with their host shadows.
    pub(crate) windows: ShadowPool<abi::Window>,
    /// What kernels look windows up in.
    pub(crate) table: WindowTable,
    /// The same windows as a tree, where the device's kernels search one.
    lookup: Option<Lookup>,
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
    /// Makes the stream, the table's first chunk, and the lookup tree's head where there is to be one. If that fails
    /// nothing of it remains.
    ///
    /// # Errors
    /// The first call that failed, and the calls that failed while the rest was undone.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        has_lookup: bool,
    ) -> Result<Self, (DeviceError, Vec<DeviceError>)> {
        let stream = driver.stream_create().map_err(|error| (error, Vec::new()))?;
        let mut objects = Self {
            driver: Arc::clone(driver),
            windows: ShadowPool::new(Arc::clone(driver)),
            table: WindowTable::new(Arc::clone(driver)),
            lookup: has_lookup.then(|| Lookup::new(Arc::clone(driver))),
            stream: OwnStream { driver: Arc::clone(driver), stream: Some(stream) },
        };
        match objects.reserve(0) {
            Ok(_) => Ok(objects),
            Err(error) => Err((error, objects.close())),
        }
    }

    /// The stream.
    pub(crate) fn stream(&self) -> Stream {
        self.stream.stream.expect("it is destroyed with this value")
    }

    /// Takes `n` entries of the table, and makes room for them in the lookup tree: before the vote, as it may fail. If
    /// it does, none is taken.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<Vec<TableSlot>, DeviceError> {
        let entries = self.table.reserve(n)?;
        if let Some(Err(error)) = self.lookup.as_mut().map(|lookup| lookup.reserve(n)) {
            self.forget(&[], &entries);
            return Err(error);
        }
        Ok(entries)
    }

    /// Where kernels begin to search the lookup tree, 0 where there is none.
    pub(crate) fn lookup(&self) -> u64 {
        self.lookup.as_ref().map_or(0, |lookup| lookup.head() as u64)
    }

    /// Writes every struct that is new or changed, and marks the stream behind it.
    pub(crate) fn upload(&mut self) -> Result<Passing, DeviceError> {
        let stream = self.stream();
        self.windows.upload(stream)?;
        self.table.upload(stream)?;
        Passing::of(&self.driver, stream)
    }

    /// Marks the stream's present end.
    pub(crate) fn fence(&self) -> Result<Passing, DeviceError> {
        Passing::of(&self.driver, self.stream())
    }

    /// Makes entries visible to kernels, all of them written before the first one's window.
    pub(crate) fn publish(&mut self, entries: &[(TableSlot, TableEntry)]) -> Result<(), DeviceError> {
        let stream = self.stream();
        self.table.publish_all(stream, entries)?;
        self.lookup.as_mut().map_or(Ok(()), |lookup| lookup.publish(stream, entries))
    }

    /// Hides a closed window from lookups of kernels that begin from here on.
    pub(crate) fn withdraw(&mut self, entry: TableSlot) -> Result<(), DeviceError> {
        let stream = self.stream();
        // Whichever was done before an error is not done again.
        self.table.withdraw(stream, entry)?;
        self.lookup.as_mut().map_or(Ok(()), |lookup| lookup.withdraw(stream, entry).map(drop))
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
        errors.extend(self.lookup.iter_mut().flat_map(Lookup::take_undo_errors));
        errors
    }

    /// Gives everything back.
    pub(crate) fn close(self) -> Vec<DeviceError> {
        let Self { windows, table, lookup, mut stream, .. } = self;
        let mut errors = windows.close();
        errors.extend(table.close());
        errors.extend(lookup.into_iter().flat_map(Lookup::close));
        errors.extend(stream.destroy().err());
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devr::testing::{Held, TestDriver};

    fn objects(has_lookup: bool) -> (Arc<TestDriver>, Objects) {
        let driver = TestDriver::new();
        let objects = Objects::new(&(Arc::clone(&driver) as Arc<dyn Driver>), has_lookup).unwrap();
        (driver, objects)
    }

    #[test]
    fn windows_are_in_the_tree_as_in_the_table_where_there_is_one() {
        for has_lookup in [false, true] {
            let (driver, mut objects) = objects(has_lookup);
            assert_eq!(objects.lookup() != 0, has_lookup);
            let slots = objects.reserve(2).unwrap();
            let entry = |i: u64| TableEntry { base: 0x1000 * (i + 1), size: 0x1000, window: 0xd000 + i };
            let batch: Vec<_> = slots.iter().copied().zip((0..2).map(entry)).collect();
            objects.publish(&batch).unwrap();
            objects.withdraw(slots[0]).unwrap();
            objects.withdraw(slots[0]).unwrap();
            assert_eq!(objects.table.counts().live, 1);
            assert_eq!(objects.lookup.as_ref().map(Lookup::len), has_lookup.then_some(1));
            assert_eq!(objects.close(), []);
            assert_eq!(driver.held(), Held::default());
        }
    }

    #[test]
    fn entries_are_not_taken_when_the_tree_has_no_room_for_them() {
        let (driver, mut objects) = objects(true);
        // The table's chunks still fit its page; the tree needs another.
        driver.fail(crate::driver::Call::Create, 1);
        assert!(objects.reserve(120).is_err());
        assert_eq!((objects.table.counts().reserved, objects.take_undo_errors()), (0, vec![]));
        assert_eq!(objects.reserve(120).map(|slots| slots.len()), Ok(120));
        assert_eq!(objects.close(), []);
    }
}
