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
    /// By address: they must go before the range does.
    mappings: BTreeMap<usize, Mapping>,
}

/// What is mapped at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) size: usize,
    pub(super) handle: u64,
    /// Where in the memory it begins.
    pub(super) offset: usize,
    pub(super) owner: Owner,
}

/// References to one memory. The CUDA driver counts fewer of them where it was not asked: see [`Ledger::retained`].
#[derive(Debug)]
struct Held {
    owner: Owner,
    references: usize,
    /// As the CUDA driver counts them, while there are any at least 1.
    of_driver: usize,
    /// A driver of this library has made it, so that it can be shared.
    is_made: bool,
}

/// Whose reference was taken out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Released {
    /// One that only the ledger counts.
    Here,
    /// One that the CUDA driver counts too.
    OfDriver { owner: Owner },
    /// There is none of this handle.
    Unknown,
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

    /// A reference that the CUDA driver gave.
    pub(super) fn obtained(&mut self, handle: u64, owner: Owner) {
        let new = Held { owner, references: 0, of_driver: 0, is_made: false };
        let held = self.handles.entry(handle).or_insert(new);
        held.references += 1;
        held.of_driver += 1;
    }

    /// The first reference to new memory.
    pub(super) fn made(&mut self, handle: u64, owner: Owner) {
        self.obtained(handle, owner);
        if let Some(held) = self.handles.get_mut(&handle) {
            held.is_made = true;
        }
    }

    /// The mapping at an address, if it is all of a memory that this library has made and holds.
    pub(super) fn made_at(&self, address: usize) -> Option<(usize, Mapping)> {
        let (_, around) = self.reservations.range(..=address).next_back()?;
        let (&at, mapping) = around.mappings.range(..=address).next_back()?;
        let is_made = self.handles.get(&mapping.handle).is_some_and(|held| held.is_made);
        (is_made && mapping.offset == 0 && address - at < mapping.size).then_some((at, *mapping))
    }

    /// One more reference to such memory, of which the CUDA driver need not know: it counts at least one.
    pub(super) fn retained(&mut self, address: usize) -> Option<u64> {
        let (_, Mapping { handle, .. }) = self.made_at(address)?;
        self.handles.get_mut(&handle)?.references += 1;
        Some(handle)
    }

    /// Takes a reference out. Says whether the CUDA driver has counted it.
    pub(super) fn released(&mut self, handle: u64) -> Released {
        let Some(held) = self.handles.get_mut(&handle) else { return Released::Unknown };
        let owner = held.owner;
        held.references -= 1;
        if held.of_driver <= held.references {
            return Released::Here;
        }
        held.of_driver -= 1;
        if held.references == 0 {
            self.handles.remove(&handle);
        }
        Released::OfDriver { owner }
    }

    pub(super) fn reserved(&mut self, base: usize, size: usize, owner: Owner) {
        self.reservations.insert(base, Reserved { size, owner, mappings: BTreeMap::new() });
    }

    /// What is mapped in the reservation, in runs without holes. `None` if it is none.
    pub(super) fn runs_of(&self, base: usize, size: usize) -> Option<Vec<(usize, usize)>> {
        let found = self.reservations.get(&base).filter(|found| found.size == size)?;
        Some(crate::driver::range::runs(
            found.mappings.iter().map(|(&at, mapping)| (at, mapping.size)).collect(),
        ))
    }

    /// Takes a range out.
    pub(super) fn freed(&mut self, base: usize) -> Option<Reserved> {
        self.reservations.remove(&base)
    }

    /// Puts it in again.
    pub(super) fn not_freed(&mut self, base: usize, reserved: Reserved) {
        self.reservations.insert(base, reserved);
    }

    pub(super) fn mapped(&mut self, address: usize, mapping: Mapping) {
        if let Some(around) = self.around(address) {
            around.mappings.insert(address, mapping);
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
                mappings: made.filter(|mapping| mapping.owner == owner).count(),
                reservations: ranges().filter(|range| range.owner == owner).count(),
                streams: self.streams.len(),
                events: self.events.len(),
                pinned_bytes,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 0x10_0000;

    /// A ledger with memory 7 made and mapped, 4 KiB of it.
    fn ledger(owner: Owner) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.made(7, owner);
        ledger.reserved(AT, 0x10_0000, owner);
        ledger.mapped(AT, Mapping { size: 4096, handle: 7, offset: 0, owner });
        ledger
    }

    #[test]
    fn the_last_reference_to_made_memory_is_the_drivers_whatever_the_order() {
        let owner = Owner::new();
        let mut ledger = ledger(owner);
        for address in [AT, AT + 4095] {
            assert_eq!(ledger.retained(address), Some(7), "{address:#x}");
        }
        for _ in 0..2 {
            assert!(matches!(ledger.released(7), Released::Here));
        }
        assert!(matches!(ledger.released(7), Released::OfDriver { owner: made } if made == owner));
        // Its mapping keeps it, and only the driver knows whether it may be shared.
        assert_eq!(ledger.retained(AT), None);
        assert!(matches!(ledger.released(7), Released::Unknown));
    }

    #[test]
    fn every_reference_that_the_driver_has_counted_is_given_back_to_it() {
        let owner = Owner::new();
        let mut ledger = ledger(owner);
        ledger.obtained(7, owner);
        assert_eq!(ledger.retained(AT), Some(7));
        let back: Vec<_> = (0..3).map(|_| ledger.released(7)).collect();
        let of_driver = back.iter().filter(|whose| matches!(whose, Released::OfDriver { .. })).count();
        assert_eq!(of_driver, 2, "{back:?}");
        assert!(matches!(back[2], Released::OfDriver { .. }), "{back:?}");
    }

    #[test]
    fn only_whole_mappings_of_made_memory_are_known() {
        let owner = Owner::new();
        let mut ledger = ledger(owner);
        ledger.mapped(AT + 0x2000, Mapping { size: 4096, handle: 7, offset: 4096, owner });
        ledger.obtained(8, owner);
        ledger.mapped(AT + 0x4000, Mapping { size: 4096, handle: 8, offset: 0, owner });
        for address in [AT - 1, AT + 4096, AT + 0x2000, AT + 0x4000, AT + 0x20_0000] {
            assert_eq!(ledger.retained(address), None, "{address:#x}");
        }
        ledger.unmapped(AT, 4096);
        assert_eq!(ledger.retained(AT), None);
    }
}
