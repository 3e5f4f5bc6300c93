//! The largest message of the flush.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use symwin::bench_internals::Offer;

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("offer");
    for windows in [64, 1024] {
        for (of, offer) in [
            ("one allocation", Offer::of_one_allocation(windows)),
            ("own allocations", Offer::of_own_allocations(windows)),
        ] {
            let bytes = offer.encode();
            group.throughput(Throughput::Bytes(bytes.len() as u64));
            group.bench_function(format!("encode {windows} windows of {of}"), |bencher| {
                bencher.iter(|| black_box(&offer).encode());
            });
            group.bench_function(format!("decode {windows} windows of {of}"), |bencher| {
                bencher.iter(|| Offer::decode(black_box(&bytes)).expect("it was encoded here"));
            });
        }
    }
    group.finish();
}
