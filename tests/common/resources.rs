//! What this process and its devices hold, to see that it stays flat.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

use std::fs;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use symwin::{Communicator, Status};

use crate::common::device::{Counts, Device};

/// What `/proc` says of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub descriptors: usize,
    pub mappings: usize,
    pub address_space_kib: u64,
    pub resident_kib: u64,
}

impl Process {
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").trim().parse().unwrap()
        };
        Self {
            // The one that reads the folder is open meanwhile, each time.
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
            address_space_kib: field("VmSize:"),
            resident_kib: field("VmRSS:"),
        }
    }

    /// Fails if this is more than `before`: descriptors exactly, the rest with room for what the C library's
    /// allocator and thread stacks do meanwhile.
    #[track_caller]
    pub fn assert_flat_since(&self, before: &Self, what: &str) {
        assert!(self.descriptors <= before.descriptors, "{what}: descriptors {before:?} -> {self:?}");
        assert!(self.mappings <= before.mappings + 16, "{what}: mappings {before:?} -> {self:?}");
        let grown = self.address_space_kib.saturating_sub(before.address_space_kib);
        assert!(grown <= 160 << 10, "{what}: address space {before:?} -> {self:?}");
        let grown = self.resident_kib.saturating_sub(before.resident_kib);
        assert!(grown <= 24 << 10, "{what}: memory {before:?} -> {self:?}");
    }
}

/// What the ranks of a world and their devices hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    hosts: Vec<Counts>,
    ranks: Vec<[u64; 8]>,
}

impl Holdings {
    pub fn now(ranks: &[Communicator], hosts: &[Device]) -> Self {
        let count = |status: Status| {
            [
                status.windows as u64,
                status.memories as u64,
                status.agreed_memories as u64,
                status.allocations as u64,
                status.shadow_slots as u64,
                status.table_slots as u64,
                status.space_bytes,
                status.quarantined_bytes,
            ]
        };
        Self {
            hosts: hosts.iter().map(|host| host.counts()).collect(),
            ranks: ranks.iter().map(|comm| count(comm.status())).collect(),
        }
    }
}

/// Waits until every rank has `windows` windows and has taken in every close.
#[track_caller]
pub fn settle(ranks: &[Communicator], windows: usize) {
    for comm in ranks {
        until(&format!("{} to have {windows} windows", comm.rank()), || {
            let status = comm.status();
            status.windows == windows && status.table_slots == windows
        });
    }
}

/// Polls, at most half a minute.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

static ALONE: Mutex<()> = Mutex::new(());

/// Tests that look at the whole process run one at a time, whoever runs them.
pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock()
}
