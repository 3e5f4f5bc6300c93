//! Instruction counts of the parts that run on one thread and always do the same:
//! `cargo bench --features bench-internals --bench instructions`. It needs valgrind and `gungraun-runner`.
//!
//! Each bench names the count that it had when it was last looked at, on x86-64, and fails when it takes more than a
//! fifth more than that. `docs/measurements.md` says how to update them.

// Gungraun's macros make public modules and functions, without documentation.
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "a bench has no users")]
#![allow(clippy::exhaustive_structs, clippy::exhaustive_enums, reason = "a bench has no users")]

#[path = "../scenarios/mod.rs"]
mod scenarios;

use std::hint::black_box;
use std::sync::Arc;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use symwin::bench_internals::Offer;
use symwin::devr::space::Space;

use crate::scenarios::index::{Filled, Window, filled};
use crate::scenarios::space::with_holes;

#[library_benchmark]
#[bench::empty(args = (Space::new(1 << 46), 1024), config = at_most(2_718_042))]
#[bench::holes(args = (with_holes(1024), 1024), config = at_most(3_612_803))]
fn fill_and_drain(space: Space, count: usize) -> Space {
    scenarios::space::fill_and_drain(space, black_box(count))
}

#[library_benchmark]
#[bench::holes(args = (with_holes(1024)), config = at_most(42_904))]
fn past_all_holes(space: Space) -> Space {
    scenarios::space::past_all_holes(space)
}

#[library_benchmark]
#[bench::one_by_one(args = (filled(WINDOWS), batches(64, 1)), config = at_most(351_663))]
#[bench::at_once(args = (filled(WINDOWS), batches(1, 1024)), config = at_most(187_513))]
fn publish(filled: Filled, batches: Vec<Vec<Arc<Window>>>) -> (Filled, Vec<Vec<Arc<Window>>>) {
    for batch in &batches {
        filled.index.publish(batch);
    }
    (filled, batches)
}

#[library_benchmark]
#[bench::among_10_000(args = (filled(WINDOWS)), config = at_most(261_185))]
fn find(filled: Filled) -> (usize, Filled) {
    (scenarios::index::find(&filled.index, black_box(WINDOWS), 1000), filled)
}

#[library_benchmark]
#[bench::among_10_000(args = (filled(WINDOWS)), config = at_most(3_947_832))]
fn remove(filled: Filled) -> Filled {
    scenarios::index::remove(&filled.index, &filled.windows[..4096]);
    filled
}

// The two short ones differ by a tenth between folders of checkout.
#[library_benchmark]
#[bench::one_allocation_64(args = (Offer::of_one_allocation(64)), config = at_most(2_701))]
#[bench::one_allocation_1024(args = (Offer::of_one_allocation(1024)), config = at_most(2_719))]
#[bench::own_allocations_64(args = (Offer::of_own_allocations(64)), config = at_most(20_438))]
#[bench::own_allocations_1024(args = (Offer::of_own_allocations(1024)), config = at_most(320_661))]
fn encode(offer: Offer) -> (Arc<[u8]>, Offer) {
    (offer.encode(), offer)
}

#[library_benchmark]
#[bench::one_allocation_64(args = (Offer::of_one_allocation(64).encode()), config = at_most(2_535))]
#[bench::one_allocation_1024(args = (Offer::of_one_allocation(1024).encode()), config = at_most(2_557))]
#[bench::own_allocations_64(args = (Offer::of_own_allocations(64).encode()), config = at_most(28_275))]
#[bench::own_allocations_1024(args = (Offer::of_own_allocations(1024).encode()), config = at_most(435_360))]
fn decode(bytes: Arc<[u8]>) -> (Result<Offer, String>, Arc<[u8]>) {
    (Offer::decode(&bytes), bytes)
}

library_benchmark_group!(name = space, benchmarks = [fill_and_drain, past_all_holes]);
library_benchmark_group!(name = index, benchmarks = [publish, find, remove]);
library_benchmark_group!(name = offer, benchmarks = [encode, decode]);
main!(
    config = LibraryBenchmarkConfig::default().tool(callgrind()),
    library_benchmark_groups = [space, index, offer]
);

/// So many batches of so many windows, in no index yet.
fn batches(count: usize, windows: usize) -> Vec<Vec<Arc<Window>>> {
    (0..count).map(|i| scenarios::index::windows(WINDOWS + i * windows, windows)).collect()
}

/// Fails beyond a fifth more instructions than were counted.
fn at_most(counted: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    let mut callgrind = callgrind();
    if cfg!(target_arch = "x86_64") {
        callgrind.hard_limits([(EventKind::Ir, counted + counted / 5)]);
    }
    config.tool(callgrind);
    config
}

/// Counts only instructions: the simulated caches would be of a machine that nobody has.
fn callgrind() -> Callgrind {
    Callgrind::with_args(["--cache-sim=no"])
}

const WINDOWS: usize = 10_000;
