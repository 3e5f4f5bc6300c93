//! The index of windows by address, among 10,000 of them.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use criterion::{BatchSize, Criterion, Throughput};

use crate::scenarios::index::{Indexed, find, indexed, remove, windows};

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index of 10,000");
    for batch in [1, 64, 1024] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(format!("publish {batch}"), |bencher| {
            let setup = || (indexed(WINDOWS), windows(WINDOWS, batch));
            let publish = |(indexed, fresh): (Indexed, Vec<_>)| {
                indexed.index.publish(fresh);
                indexed
            };
            bencher.iter_batched(setup, publish, BatchSize::LargeInput);
        });
        group.bench_function(format!("remove {batch}"), |bencher| {
            let setup = || indexed(WINDOWS);
            let close = |indexed: Indexed| {
                remove(&indexed.index, &indexed.nodes[..batch]);
                indexed
            };
            bencher.iter_batched(setup, close, BatchSize::LargeInput);
        });
    }
    group.throughput(Throughput::Elements(LOOKUPS as u64));
    let indexed = indexed(WINDOWS);
    group.bench_function("find", |bencher| {
        bencher.iter(|| find(&indexed.index, black_box(WINDOWS), LOOKUPS));
    });
    group.bench_function("find while another thread publishes", |bencher| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let fresh = windows(WINDOWS, 1);
                    indexed.index.publish(fresh.clone());
                    remove(&indexed.index, &fresh);
                }
            });
            bencher.iter(|| find(&indexed.index, black_box(WINDOWS), LOOKUPS));
            done.store(true, Ordering::Relaxed);
        });
    });
    group.finish();
}

const WINDOWS: usize = 10_000;
const LOOKUPS: usize = 1_000;
