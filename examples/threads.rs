//! Ranks as threads, each of which drives several communicators at a time.
//!
//! ```console
//! cargo run --example threads
//! ```
//!
//! Every rank makes two duplicates of its communicator and gives each to a thread of its own. The threads register,
//! reduce and close at their own pace: what happens on one communicator never waits for the other. Groups have names,
//! so that ranks that mix up their requests are told so instead of getting each other's memory.
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use std::thread;

use symwin::coll::{DType, ReduceOp};
use symwin::{Communicator, Group, Result, WindowFlags};

fn main() -> Result<()> {
    let ranks = Communicator::in_process(RANKS)?;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a rank checks its result"))
    })?;
    println!("{RANKS} ranks, {LAYERS} layers on each of 2 communicators: every sum is right");
    Ok(())
}

/// What each rank does.
fn rank(world: Communicator) -> Result<()> {
    // No message is sent for these: every rank makes them with the same names.
    let weights = world.duplicate("weights")?;
    let activations = world.duplicate("activations")?;

    // One group may hold requests for several communicators: each gets its batch, and both are in flight together.
    let group = Group::named("warm-up");
    let (one, other) = (weights.alloc(4096)?, activations.alloc(4096)?);
    let one = group.register(&weights, &one, WindowFlags::empty());
    let other = group.register(&activations, &other, WindowFlags::empty());
    group.end()?;
    assert!(one.wait()?.is_open() && other.wait()?.is_open());

    thread::scope(|scope| {
        let other = scope.spawn(|| layers(&activations, 1000.0));
        layers(&weights, 1.0)?;
        other.join().expect("a thread checks its result")
    })?;
    [weights, activations, world].into_iter().try_for_each(Communicator::finalize)
}

/// One window a layer, reduced over all ranks and closed.
fn layers(comm: &Communicator, unit: f32) -> Result<()> {
    for layer in 0..LAYERS {
        let buffer = comm.alloc(4 * ELEMENTS)?;
        let mine = unit * (comm.rank().get() + layer) as f32;
        buffer.write(0, &mine.to_ne_bytes().repeat(ELEMENTS))?;

        let group = Group::named(format!("{} of layer {layer}", comm.name()));
        let window = group.register(comm, &buffer, WindowFlags::COLL_SYMMETRIC);
        group.end()?;
        let all = window.wait()?.whole();
        comm.all_reduce(&all, &all, DType::F32, ReduceOp::Sum)?;

        let expected: f32 = (0..RANKS).map(|rank| unit * (rank + layer) as f32).sum();
        let mut bytes = vec![0; 4 * ELEMENTS];
        buffer.read(0, &mut bytes)?;
        assert_eq!(bytes, expected.to_ne_bytes().repeat(ELEMENTS), "{} of layer {layer}", comm.name());
    }
    Ok(())
}

const RANKS: u32 = 3;
const LAYERS: u32 = 8;
const ELEMENTS: usize = 1000;
