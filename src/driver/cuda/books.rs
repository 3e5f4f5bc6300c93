//! What of this backend is alive: what the CUDA driver cannot be asked.
//!
//! Addresses and handles belong to the process, not to a GPU: ranks of one process on several GPUs map into one range
//! that one of them has reserved, and any of them may give it back. So these are in one ledger of the process, where each
//! entry names the driver that made it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::CudaCounts;
use super::stream::OwnStream;

/// Which driver of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    /// A new driver's.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A reserved range.
#[derive(Debug)]
pub(super) struct Reserved {
    size: usize,
    owner: Owner,
    /// Size and maker of each mapping by address: they must go before the range does.
    mappings: BTreeMap<usize, (usize, Owner)>,
}

/// References to one memory.
#[derive(Debug)]
struct Held {
    owner: Owner,
    references: usize,
}

/// The ledger of the process.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    reservations: BTreeMap<usize, Reserved>,
    handles: HashMap<u64, Held>,
}

static LEDGER: LazyLock<Mutex<Ledger>> = LazyLock::new(Mutex::default);

impl Ledger {
    /// Calls with the process's ledger.
    pub(super) fn with<T>(call: impl FnOnce(&mut Self) -> T) -> T {
        call(&mut LEDGER.lock())
    }

    pub(super) fn obtained(&mut self, handle: u64, owner: Owner) {
        self.handles.entry(handle).or_insert(Held { owner, references: 0 }).references += 1;
    }

    /// Takes a reference out. Gives its owner, if there was one.
    pub(super) fn released(&mut self, handle: u64) -> Option<Owner> {
        let held = self.handles.get_mut(&handle)?;
        let owner = held.owner;
        held.references -= 1;
        if held.references == 0 {
            self.handles.remove(&handle);
        }
        Some(owner)
    }

    pub(super) fn reserved(&mut self, base: usize, size: usize, owner: Owner) {
        self.reservations.insert(base, Reserved { size, owner, mappings: BTreeMap::new() });
    }

    /// What is mapped in the reservation, in runs without holes. `None` if it is none.
    pub(super) fn runs_of(&self, base: usize, size: usize) -> Option<Vec<(usize, usize)>> {
        let found = self.reservations.get(&base).filter(|found| found.size == size)?;
        Some(crate::driver::range::runs(found.mappings.iter().map(|(&at, &(len, _))| (at, len)).collect()))
    }

    /// Takes a range out.
    pub(super) fn freed(&mut self, base: usize) -> Option<Reserved> {
        self.reservations.remove(&base)
    }

    /// Puts it in again.
    pub(super) fn not_freed(&mut self, base: usize, reserved: Reserved) {
        self.reservations.insert(base, reserved);
    }

    pub(super) fn mapped(&mut self, address: usize, size: usize, owner: Owner) {
        if let Some(around) = self.around(address) {
            around.mappings.insert(address, (size, owner));
        }
    }

    pub(super) fn unmapped(&mut self, address: usize, size: usize) {
        if let Some(around) = self.around(address) {
            let gone: Vec<usize> =
                around.mappings.range(address..address + size).map(|(&at, _)| at).collect();
            for at in gone {
                around.mappings.remove(&at);
            }
        }
    }

    fn around(&mut self, address: usize) -> Option<&mut Reserved> {
        let (_, around) = self.reservations.range_mut(..=address).next_back()?;
        Some(around)
    }
}

/// The books of one driver.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// By the number that they have outside.
    pub(super) streams: HashMap<u64, OwnStream>,
    /// Events that were not yet asked for with success.
    pub(super) events: HashSet<u64>,
    /// Events that nobody asks for any more, to be recorded again: making and destroying one for each kernel takes
    /// longer than the kernel's launch.
    pub(super) idle_events: Vec<u64>,
}

impl Books {
    /// Says whether the event was known; it is not any more, and may be recorded again.
    pub(super) fn retire_event(&mut self, event: u64) -> bool {
        let was_known = self.events.remove(&event);
        if was_known {
            self.idle_events.push(event);
        }
        was_known
    }

    pub(super) fn counts(&self, owner: Owner, pinned_bytes: usize) -> CudaCounts {
        Ledger::with(|ledger| {
            let ranges = || ledger.reservations.values();
            let made = ranges().flat_map(|range| range.mappings.values());
            CudaCounts {
                handles: ledger
                    .handles
                    .values()
                    .filter(|held| held.owner == owner)
                    .map(|held| held.references)
                    .sum(),
                mappings: made.filter(|(_, by)| *by == owner).count(),
                reservations: ranges().filter(|range| range.owner == owner).count(),
                streams: self.streams.len(),
                events: self.events.len(),
                pinned_bytes,
            }
        })
    }
}
