//! The index of windows by address, among 10,000 of them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use criterion::{BatchSize, Criterion, Throughput};

use crate::scenarios::index::{Filled, Window, filled, find, remove, windows};

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index of 10,000");
    for batch in [1, 64, 1024] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(format!("publish {batch}"), |bencher| {
            let setup = || (filled(WINDOWS), windows(WINDOWS, batch));
            let publish = |(filled, fresh): (Filled, Vec<Arc<Window>>)| {
                filled.index.publish(&fresh);
                (filled, fresh)
            };
            bencher.iter_batched(setup, publish, BatchSize::LargeInput);
        });
        group.bench_function(format!("remove {batch}"), |bencher| {
            let setup = || filled(WINDOWS);
            let close = |filled: Filled| {
                remove(&filled.index, &filled.windows[..batch]);
                filled
            };
            bencher.iter_batched(setup, close, BatchSize::LargeInput);
        });
    }
    group.throughput(Throughput::Elements(LOOKUPS as u64));
    let filled = filled(WINDOWS);
    group.bench_function("find", |bencher| {
        bencher.iter(|| find(&filled.index, black_box(WINDOWS), LOOKUPS));
    });
    group.bench_function("find while another thread publishes", |bencher| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let fresh = windows(WINDOWS, 1);
                    filled.index.publish(&fresh);
                    remove(&filled.index, &fresh);
                }
            });
            bencher.iter(|| find(&filled.index, black_box(WINDOWS), LOOKUPS));
            done.store(true, Ordering::Relaxed);
        });
    });
    group.finish();
}

const WINDOWS: usize = 10_000;
const LOOKUPS: usize = 1_000;
