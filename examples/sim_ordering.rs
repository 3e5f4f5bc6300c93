//! A program with an ordering bug, found by the deterministic runtime, replayed, mended, and shown to hold.
//!
//! Each rank has two threads: a loader, which registers the weights, and a trainer, which registers the activations.
//! Both use one communicator. Nothing orders them, so on some rank the trainer's group may come first while the other
//! rank's loader was faster: then symwin refuses both groups, naming who asked for what. On a real machine that shows
//! once in many runs. Here the schedule is chosen: it is found in a few runs, and comes again whenever it is asked for.
//!
//! ```console
//! cargo run --release --example sim_ordering
//! ```
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use std::sync::Arc;

use symwin::sim::{Policy, Sim, World};
use symwin::{Communicator, Result, WindowFlags};

const WEIGHTS: usize = 64 << 10;
const ACTIVATIONS: usize = 16 << 10;

/// What one thread of a rank does: an ordinary program with blocking calls.
fn register(comm: &Communicator, bytes: usize) -> Result<()> {
    let buffer = comm.alloc(bytes)?;
    let window = comm.register(&buffer, WindowFlags::empty())?;
    assert_eq!(window.size(), bytes);
    Ok(())
}

/// The bug: loader and trainer share a communicator, and nothing says who goes first.
fn shared(comm: Communicator) -> Result<()> {
    let comm = Arc::new(comm);
    let for_loading = Arc::clone(&comm);
    // Threads that a program starts through the runtime are part of the schedule; on real threads this is a thread.
    let loader = comm.runtime().host("loader", move || register(&for_loading, WEIGHTS))?;
    let trained = register(&comm, ACTIVATIONS);
    let loaded = loader.wait().expect("the loader does not panic");
    Arc::into_inner(comm).expect("the loader has ended").finalize()?;
    loaded.and(trained)
}

/// Mended: each has a communicator of its own over the same connections.
fn apart(comm: Communicator) -> Result<()> {
    let for_loading = comm.duplicate("loading")?;
    let runtime = comm.runtime().clone();
    let loader = runtime.host("loader", move || {
        register(&for_loading, WEIGHTS)?;
        for_loading.finalize()
    })?;
    register(&comm, ACTIVATIONS)?;
    comm.finalize()?;
    loader.wait().expect("the loader does not panic")
}

/// A world of two ranks that each run this program.
fn world(program: fn(Communicator) -> Result<()>) -> impl Fn(&Arc<World>) -> Result<()> {
    move |world| {
        for comm in world.communicator("model", 2)? {
            let name = comm.rank().to_string();
            world.host(&name, move || program(comm))?;
        }
        Ok(())
    }
}

fn main() {
    let sim = Sim::new();
    let failure =
        sim.explore(&Policy::random(1).runs(1_000), world(shared)).expect_err("a schedule mixes them up");
    println!("{failure}\n");
    assert!(
        failure.broken.iter().any(|what| what.contains("mismatch") || what.contains("differ")),
        "{failure}"
    );

    let replay = Policy::replay(&failure.schedule.to_string()).expect("a failure names its schedule");
    let again = sim.explore(&replay, world(shared)).expect_err("the same schedule fails in the same way");
    assert_eq!(again.broken, failure.broken);
    println!("found in run {}, and again from `{}`", failure.run, failure.schedule);

    let report =
        sim.explore(&Policy::random(1).runs(200), world(apart)).unwrap_or_else(|failure| panic!("{failure}"));
    println!("mended: {} runs held, {} of them different", report.runs, report.digests);
}
