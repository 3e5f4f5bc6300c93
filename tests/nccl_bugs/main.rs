//! The bugs of NCCL's device runtime, by their numbers in `docs/nccl-bugs.md`, each with the right behaviour. Most are
//! shown in every layout: ranks as threads, as processes, and mixed.
//!
//! Shown elsewhere, where their surroundings are: 11 (`windows.rs`), 17 after a failure (`multicast.rs`), 21
//! (`collectives.rs`), 29's alignments and counts (`dev_comm.rs`), 34 (`windows.rs`, `dev_comm.rs`). Units show more of
//! 2, 3, 4, 34, 36 (`devr/table`), 3, 4, 5 (`devr/index`), 28 (`devr/shadow`), 2, 28, 36 (`device/tests/lookup.rs`),
//! and 29 (`devr/dev_comm.rs`).
//!
//! Not to be shown on the host device: 24 (a current device that is not restored: the host device has no such thread
//! state), the allocation half of 23 (unchecked `malloc`: Rust's allocator aborts, and sizes from peers are bounded
//! before they are allocated), and 33 (a stream that another thread captures: the host device has no capture).
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

#[path = "../common/mod.rs"]
mod common;
mod concurrency;
mod error_paths;
mod logic;
mod validation;
#[path = "../common/worlds.rs"]
mod worlds;

use std::sync::atomic::{AtomicBool, Ordering};

use common::device::{Counts, Device};
use common::*;
use symwin::driver::Call;
use symwin::error::{Cause, Misuse, Reason};
use symwin::{
    Activity, Buffer, Communicator, DevCommRequirements, Error, Group, LsaRank, Pending, Rank, Region,
    Registration, Team, Window, WindowFlags,
};
use worlds::*;

fn multimem() -> DevCommRequirements {
    DevCommRequirements::new().lsa_multimem(true)
}

fn find(comm: &Communicator, buffer: &Buffer, offset: usize, len: usize) -> Option<u64> {
    comm.find_window(buffer.as_ptr().wrapping_add(offset), len).map(|window| window.device_address())
}

/// A slice of every rank's buffer as a window.
fn parts(ranks: &[Communicator], buffers: &[Buffer], range: std::ops::Range<usize>) -> Vec<Window> {
    all_ok(ask(ranks, |group, comm| {
        let slice = buffers[comm.rank().index()].slice(range.clone()).unwrap();
        group.register(comm, slice, WindowFlags::empty())
    }))
}

/// What must come back after a roll-back and after a close (P-5).
fn held(world: &FaultyWorld) -> Vec<(Counts, usize, usize, usize, u64)> {
    let of = |(host, comm): (&Device, &Communicator)| {
        let s = comm.status();
        (host.counts(), s.memories, s.shadow_slots, s.table_slots, s.space_bytes)
    };
    let hosts =
        world.ranks.iter().map(|comm| &world.hosts[comm.peers()[comm.rank().index()].process.index()]);
    hosts.zip(&world.ranks).map(of).collect()
}

fn close_all(world: FaultyWorld) {
    finalize(world.ranks);
    world.hosts.iter().for_each(|host| assert_eq!(host.counts(), Counts::default(), "P-5"));
}

/// A range for which nobody vouches: registering it must fail.
fn raw(address: usize, size: usize) -> Region {
    // SAFETY: no window is ever open on it.
    #[allow(unsafe_code, reason = "bad addresses are what is tested")]
    unsafe {
        Region::raw(std::ptr::with_exposed_provenance_mut(address), size)
    }
}
