//! Everything that a batch has made and not committed, owned by value.
//!
//! Three ways out: [`Made::undo`] (the batch ended by verdict), [`Made::take`] (a commit takes everything), and drop
//! (the job was dropped at an await point, or the communicator failed): then a peer may have committed what this rank
//! could not, so nothing is undone and everything goes to the flat range's attic until the last rank of the process has
//! closed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::devr::core::{Core, State};
use crate::devr::flat::Kept;
use crate::devr::owned::{Binding, Held, release_all};
use crate::devr::shadow::Slot;
use crate::devr::table::TableSlot;
use crate::devr::zoo::Bug;
use crate::driver::range::{Mapped, Reservation, unmap_all};
use crate::driver::{DeviceError, Driver, Handle};

use super::message::MemoryId;

/// What a batch has made so far.
#[derive(Debug)]
pub(crate) struct Made {
    core: Arc<Core>,
    parts: Option<Parts>,
}

/// The things themselves. Ordered, so that they are undone in the same order each time; dropped in the attic they go
/// in this order: unbound, unmapped, released.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// What was bound in this batch.
    pub(crate) bound: Vec<Bound>,
    /// Where new multicast objects are mapped.
    pub(crate) multicast_ranges: BTreeMap<Vec<u32>, MulticastRange>,
    /// One reference to each allocation under the batch's tasks, each with one reference to its token.
    pub(crate) held: BTreeMap<Handle, Arc<Held>>,
    /// What this rank mapped for each new memory.
    pub(crate) mapped: Vec<MappedMemory>,
    /// Allocations of other processes, each imported once, until all are mapped.
    pub(crate) imported: Vec<Held>,
    /// Window structs.
    pub(crate) windows: Vec<Slot>,
    /// Table entries.
    pub(crate) entries: Vec<TableSlot>,
    /// Multicast objects made or imported, by their team.
    pub(crate) objects: BTreeMap<Vec<u32>, Arc<Held>>,
    /// Undo calls that have failed on the way, to be reported with those of the end.
    pub(crate) undo: Vec<DeviceError>,
}

/// A new memory's mappings on this rank.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    pub(crate) id: MemoryId,
    pub(crate) offset: u64,
    pub(crate) span: u64,
    /// This rank's allocations in it.
    pub(crate) own: Vec<Handle>,
    pub(crate) mapped: Vec<Mapped>,
}

/// Where a multicast object is mapped on this rank: one stride. Dropping it gives it back; [`MulticastRange::close`]
/// does so too and says what failed.
#[derive(Debug)]
pub(crate) struct MulticastRange {
    driver: Arc<dyn Driver>,
    range: Option<Reservation>,
    mapped: Option<Mapped>,
}

impl MulticastRange {
    /// Reserves and maps all of the object, `size` bytes at a multiple of `align`.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        object: Handle,
        size: usize,
        align: usize,
    ) -> Result<Self, (DeviceError, Vec<DeviceError>)> {
        let range = Reservation::new(&**driver, size, align).map_err(|error| (error, Vec::new()))?;
        let mut this = Self { driver: Arc::clone(driver), range: Some(range), mapped: None };
        match this.map(object, size) {
            Ok(()) => Ok(this),
            Err(error) => Err((error, this.close())),
        }
    }

    fn map(&mut self, object: Handle, size: usize) -> Result<(), DeviceError> {
        if let Some(range) = &self.range {
            self.mapped = Some(range.map(&*self.driver, range.base(), size, object)?);
        }
        self.driver.set_access(self.base(), size, &[self.driver.info().ordinal])
    }

    /// Its first address.
    pub(crate) fn base(&self) -> usize {
        self.range.as_ref().map_or(0, Reservation::base)
    }

    /// Gives it back.
    pub(crate) fn close(mut self) -> Vec<DeviceError> {
        self.end()
    }

    fn end(&mut self) -> Vec<DeviceError> {
        let mut errors = unmap_all(&*self.driver, self.mapped.take().into_iter().collect());
        errors.extend(self.range.take().and_then(|range| range.free(&*self.driver).err()));
        errors
    }
}

impl Drop for MulticastRange {
    fn drop(&mut self) {
        for error in self.end() {
            tracing::error!(%error, "device.undo_failed");
        }
    }
}

/// One binding that the batch made.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) team: Vec<u32>,
    pub(crate) memory: MemoryId,
    pub(crate) binding: Binding,
}

impl Made {
    /// Nothing yet.
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), parts: Some(Parts::default()) }
    }

    /// What there is.
    pub(crate) fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("a batch is undone or taken once, at its end")
    }

    /// What there is, to look at.
    pub(crate) fn peek(&self) -> &Parts {
        self.parts.as_ref().expect("a batch is undone or taken once, at its end")
    }

    /// A commit takes everything; nothing is left to undo.
    pub(crate) fn take(&mut self) -> Parts {
        self.parts.take().unwrap_or_default()
    }

    /// Undoes everything, whatever fails on the way; the failures come back, and what could not be unmapped is
    /// quarantined.
    pub(crate) fn undo(&mut self) -> Vec<DeviceError> {
        let Some(mut parts) = self.parts.take() else { return Vec::new() };
        let core = Arc::clone(&self.core);
        let mut errors = std::mem::take(&mut parts.undo);
        let (failed, mut bound) = undo_multicast(&mut parts);
        errors.extend(failed);
        let imported = std::mem::take(&mut parts.imported).into_iter();
        errors.extend(imported.filter_map(|held| held.release().err()));
        let mut state = core.state();
        if let Some(objects) = state.objects.as_mut() {
            let windows = if core.has_bug(Bug::SlotLeft) { &[][..] } else { &parts.windows };
            objects.forget(windows, &parts.entries);
            errors.extend(objects.take_undo_errors());
        }
        core.board.undo_failures(&errors);
        let mut stuck: BTreeMap<Handle, DeviceError> = BTreeMap::new();
        for (handle, held) in std::mem::take(&mut parts.held) {
            if !core.has_bug(Bug::TokenLeft) {
                state.tokens.unuse(handle);
            }
            if core.has_bug(Bug::ReferenceLeft) {
                Box::leak(Box::new(held));
                continue;
            }
            let again = core.has_bug(Bug::ReleasesTwice).then(|| Arc::new(Held::new(&core.driver, handle)));
            if let Some(error) = release_all([held].into_iter().chain(again)).pop() {
                stuck.insert(handle, error);
            }
        }
        // Each release that failed is reported once, with the first range that it keeps from coming back.
        for memory in std::mem::take(&mut parts.mapped) {
            let mut failed = bound.remove(&memory.id).unwrap_or_default();
            if !core.has_bug(Bug::MappingsLeft) {
                failed.extend(unmap_all(&*core.driver, memory.mapped));
            }
            failed.extend(memory.own.iter().filter_map(|handle| stuck.remove(handle)));
            if !failed.is_empty() {
                state.quarantine(memory.offset, memory.span, &failed, &core);
                errors.extend(failed);
            }
        }
        // Of what was there before the batch and is out of a new object, only that object suffers, and it is gone.
        let loose: Vec<DeviceError> = stuck.into_values().chain(bound.into_values().flatten()).collect();
        core.board.undo_failures(&loose);
        errors.extend(loose);
        core.board.committed(&state);
        errors
    }
}

/// What a dropped job had made.
#[derive(Debug)]
struct Left(Parts);

impl Kept for Left {
    /// Window structs and table entries went with their pools, this rank's tokens with its state.
    fn give_back(self: Box<Self>) -> Vec<DeviceError> {
        let Self(mut parts) = *self;
        let mut errors = std::mem::take(&mut parts.undo);
        let (failed, stuck) = undo_multicast(&mut parts);
        errors.extend(failed);
        errors.extend(stuck.into_values().flatten());
        errors.extend(parts.imported.into_iter().filter_map(|held| held.release().err()));
        errors.extend(release_all(parts.held.into_values()));
        errors
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.core.has_bug(Bug::DropUndoes) {
            drop(self.undo());
        }
        if let Some(parts) = self.parts.take() {
            if self.core.has_bug(Bug::DropLeaks) {
                Box::leak(Box::new(parts));
                return;
            }
            self.core.flat.keep(Box::new(Left(parts)));
        }
    }
}

/// Gives back a batch's own references to allocations.
pub(crate) fn release_held(state: &mut State, held: BTreeMap<Handle, Arc<Held>>) -> Vec<DeviceError> {
    for &handle in held.keys() {
        state.tokens.unuse(handle);
    }
    release_all(held.into_values())
}

/// Unbinds, unmaps and gives back the multicast objects of the batch. What could not be unbound comes back by memory.
fn undo_multicast(parts: &mut Parts) -> (Vec<DeviceError>, BTreeMap<MemoryId, Vec<DeviceError>>) {
    let mut stuck: BTreeMap<MemoryId, Vec<DeviceError>> = BTreeMap::new();
    for Bound { memory, binding, .. } in parts.bound.drain(..).rev() {
        let failed = binding.unbind_or_leave();
        if !failed.is_empty() {
            stuck.entry(memory).or_default().extend(failed);
        }
    }
    let ranges = std::mem::take(&mut parts.multicast_ranges).into_values();
    let mut errors: Vec<DeviceError> = ranges.flat_map(MulticastRange::close).collect();
    // Ranks of one process share the reference: the last one gives it back.
    errors.extend(release_all(std::mem::take(&mut parts.objects).into_values()));
    (errors, stuck)
}
