//! What of this driver is alive: what the CUDA driver cannot be asked.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::CudaCounts;
use super::stream::OwnStream;

/// The books of one driver.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Base and size of each reservation, and what is mapped in it by address: freeing a reservation must unmap that first.
    reservations: BTreeMap<usize, (usize, BTreeMap<usize, usize>)>,
    /// By the number that they have outside.
    pub(super) streams: HashMap<u64, OwnStream>,
    /// Events that were not yet asked for with success.
    pub(super) events: HashSet<u64>,
    /// References to memory.
    handles: usize,
}

impl Books {
    pub(super) fn counts(&self, pinned_bytes: usize) -> CudaCounts {
        CudaCounts {
            handles: self.handles,
            mappings: self.reservations.values().map(|(_, mappings)| mappings.len()).sum(),
            reservations: self.reservations.len(),
            streams: self.streams.len(),
            events: self.events.len(),
            pinned_bytes,
        }
    }

    pub(super) fn obtained(&mut self) {
        self.handles += 1;
    }

    pub(super) fn released(&mut self) {
        self.handles = self.handles.saturating_sub(1);
    }

    pub(super) fn reserved(&mut self, base: usize, size: usize) {
        self.reservations.insert(base, (size, BTreeMap::new()));
    }

    /// What is mapped in the reservation, in runs without holes. `None` if it is none.
    pub(super) fn runs_of(&self, base: usize, size: usize) -> Option<Vec<(usize, usize)>> {
        let (whole, mappings) = self.reservations.get(&base)?;
        let spans = mappings.iter().map(|(&at, &len)| (at, len)).collect();
        (*whole == size).then(|| crate::driver::range::runs(spans))
    }

    pub(super) fn freed(&mut self, base: usize) {
        self.reservations.remove(&base);
    }

    pub(super) fn mapped(&mut self, address: usize, size: usize) {
        if let Some(mappings) = self.holder(address) {
            mappings.insert(address, size);
        }
    }

    pub(super) fn unmapped(&mut self, address: usize, size: usize) {
        if let Some(mappings) = self.holder(address) {
            let gone: Vec<usize> = mappings.range(address..address + size).map(|(&at, _)| at).collect();
            for at in gone {
                mappings.remove(&at);
            }
        }
    }

    fn holder(&mut self, address: usize) -> Option<&mut BTreeMap<usize, usize>> {
        let (_, (_, mappings)) = self.reservations.range_mut(..=address).next_back()?;
        Some(mappings)
    }
}
