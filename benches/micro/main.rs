//! Times of symwin's parts, each alone: `cargo bench --features bench-internals --bench micro`.

// Criterion's macro makes a function of each group, without documentation.
#![allow(missing_docs, reason = "a bench has no users")]

mod flush;
mod index;
mod offers;
#[path = "../scenarios/mod.rs"]
mod scenarios;
mod space;

criterion::criterion_group!(benches, space::bench, index::bench, offers::bench, flush::bench);
criterion::criterion_main!(benches);
