//! Everything that a batch has made and not committed, owned by value.
//!
//! Three ways out: [`Made::undo`] (the batch ended by verdict), [`Made::take`] (a commit takes everything), and drop (the job was dropped at an await point, or the communicator failed): then a peer may have
//! committed what this rank could not, so nothing is undone and everything goes to the flat range's attic until
//! the last rank of the process has closed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::devr::core::{Core, State};
use crate::devr::flat::Kept;
use crate::devr::owned::{Held, release_all};
use crate::devr::shadow::Slot;
use crate::devr::table::TableSlot;
use crate::driver::range::{Mapped, Reservation, unmap_all};
use crate::driver::{DeviceError, Driver, Handle};

use super::message::{MemoryId, Token};

/// What a batch has made so far.
#[derive(Debug)]
pub(crate) struct Made {
    core: Arc<Core>,
    parts: Option<Parts>,
}

/// The things themselves. Ordered, so that they are undone in the same order each time.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// One reference to each allocation under the batch's tasks, each with one reference to its token.
    pub(crate) held: BTreeMap<Handle, Arc<Held>>,
    /// What this rank mapped for each new memory.
    pub(crate) mapped: Vec<MappedMemory>,
    /// Allocations of other processes, each imported once, until all are mapped. By LSA rank and token.
    pub(crate) imported: BTreeMap<(u32, Token), Held>,
    /// Window structs.
    pub(crate) windows: Vec<Slot>,
    /// Table entries.
    pub(crate) entries: Vec<TableSlot>,
    /// Multicast objects made or imported, by their team.
    pub(crate) objects: BTreeMap<Vec<u32>, Arc<Held>>,
    /// Where new multicast objects are mapped.
    pub(crate) multicast_ranges: BTreeMap<Vec<u32>, MulticastRange>,
    /// Undo calls that have failed on the way, to be reported with those of the end.
    pub(crate) undo: Vec<DeviceError>,
    /// What was bound in this batch.
    pub(crate) bound: Vec<Bound>,
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

/// Where a multicast object is mapped on this rank: one stride.
#[derive(Debug)]
pub(crate) struct MulticastRange {
    pub(crate) range: Reservation,
    pub(crate) mapped: Option<Mapped>,
}

impl MulticastRange {
    /// Gives it back.
    pub(crate) fn close(self, driver: &dyn Driver) -> Vec<DeviceError> {
        let mut errors = unmap_all(driver, self.mapped.into_iter().collect());
        errors.extend(self.range.free(driver).err());
        errors
    }
}

/// One binding of this rank's memory to a multicast object.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) team: Vec<u32>,
    pub(crate) memory: MemoryId,
    pub(crate) object: Arc<Held>,
    pub(crate) at: usize,
    pub(crate) size: usize,
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
        errors.extend(undo_multicast(&*core.driver, &mut parts));
        let imported = std::mem::take(&mut parts.imported).into_values();
        errors.extend(imported.filter_map(|held| held.release().err()));
        let mut state = core.state();
        if let Some(objects) = state.objects.as_mut() {
            objects.forget(&parts.windows, &parts.entries);
            errors.extend(objects.take_undo_errors());
        }
        core.board.undo_failures(&errors);
        let mut stuck: BTreeMap<Handle, DeviceError> = BTreeMap::new();
        for (handle, held) in std::mem::take(&mut parts.held) {
            state.tokens.unuse(handle);
            if let Some(error) = release_all([held]).pop() {
                stuck.insert(handle, error);
            }
        }
        // Each release that failed is reported once, with the first range that it keeps from coming back.
        for memory in std::mem::take(&mut parts.mapped) {
            let mut failed = unmap_all(&*core.driver, memory.mapped);
            failed.extend(memory.own.iter().filter_map(|handle| stuck.remove(handle)));
            if !failed.is_empty() {
                state.quarantine(memory.offset, memory.span, &failed, &core);
                errors.extend(failed);
            }
        }
        let loose: Vec<DeviceError> = stuck.into_values().collect();
        core.board.undo_failures(&loose);
        errors.extend(loose);
        core.board.committed(&state);
        errors
    }
}

/// A dropped job's things, with the device of their rank.
#[derive(Debug)]
struct Left(Arc<dyn Driver>, Parts);

impl Kept for Left {
    /// Window structs and table entries went with their pools, this rank's tokens with its state.
    fn give_back(self: Box<Self>) -> Vec<DeviceError> {
        let Self(driver, mut parts) = *self;
        let mut errors = std::mem::take(&mut parts.undo);
        errors.extend(undo_multicast(&*driver, &mut parts));
        errors.extend(parts.imported.into_values().filter_map(|held| held.release().err()));
        errors.extend(release_all(parts.held.into_values()));
        errors
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.core.flat.keep(Box::new(Left(Arc::clone(&self.core.driver), parts)));
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

/// Unbinds, unmaps and frees the multicast objects of the batch.
fn undo_multicast(driver: &dyn Driver, parts: &mut Parts) -> Vec<DeviceError> {
    let mut errors = Vec::new();
    for bound in parts.bound.drain(..).rev() {
        errors.extend(driver.multicast_unbind(bound.object.handle(), bound.at, bound.size).err());
    }
    for range in std::mem::take(&mut parts.multicast_ranges).into_values() {
        errors.extend(range.close(driver));
    }
    // Ranks of one process share the reference: the last one gives it back.
    errors.extend(release_all(std::mem::take(&mut parts.objects).into_values()));
    errors
}
