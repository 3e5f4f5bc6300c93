//! The allocator of offsets.

use std::hint::black_box;

use criterion::{BatchSize, Criterion};
use symwin::devr::space::Space;

use crate::scenarios::space::{fill_and_drain, past_all_holes, with_holes};

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("space");
    for count in [64, 1024] {
        let holes = with_holes(count);
        group.bench_function(format!("fill and drain {count}"), |bencher| {
            let fresh = || Space::new(1 << 46);
            bencher.iter_batched(
                fresh,
                |space| fill_and_drain(space, black_box(count)),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("fill and drain {count} holes"), |bencher| {
            let copy = || holes.clone();
            bencher.iter_batched(
                copy,
                |space| fill_and_drain(space, black_box(count)),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("past {count} holes"), |bencher| {
            bencher.iter_batched(|| holes.clone(), past_all_holes, BatchSize::SmallInput);
        });
        // What every batch does, as it tries on a copy.
        group.bench_function(format!("clone with {count} holes"), |bencher| bencher.iter(|| holes.clone()));
    }
    group.finish();
}
