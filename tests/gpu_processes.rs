//! The runtime on a real GPU, from processes that take turns on it. Run as `tests/gpu.rs` is.
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

#[path = "common/gpus.rs"]
mod gpus;
#[path = "common/processes.rs"]
mod processes;

use std::fs;
use std::time::Duration;

use gpus::{MIB, World};
use processes::{Job, play};
use serde_json::{Value, json};
use symwin::coll::{DType, ReduceOp};
use symwin::driver::Driver;
use symwin::{Communicator, Config, WindowFlags};

/// `processes` of `ranks` ranks each.
fn works(processes: u32, ranks: u32) {
    let outcomes =
        Job::new("work").env("CUDA_DEVICE_MAX_CONNECTIONS", 32).of(processes, ranks).start().outcomes();
    assert_eq!(outcomes.len(), processes as usize);
    for outcome in &outcomes {
        assert_eq!(outcome["digest"], outcomes[0]["digest"], "P-1");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn two_processes_reach_each_other_reduce_and_leave_nothing() {
    works(2, 1);
    works(2, 2);
}

#[test]
#[ignore = "needs a GPU"]
fn four_processes_reach_each_other_reduce_and_leave_nothing() {
    works(4, 1);
}

#[test]
#[ignore = "started by the other tests of this file"]
fn child() {
    // Runs of everything that is ignored come here too.
    if std::env::var_os("SYMWIN_TEST_ROLE").is_some() {
        play(|_| work());
    }
}

fn work() -> Value {
    let config = Config::from_env().unwrap().deadline(Duration::from_secs(50));
    let world = World::new(config, Communicator::ranks_from_env_with);
    world.check_peers(&world.alloc(4 * MIB));
    world.check_peers(&world.carve(MIB));
    for floats in [1024, 300_001] {
        reduce(&world, floats);
    }
    stays_flat(&world);
    let digest = world.ranks[0].status().digest;
    world.finalize();
    json!({ "digest": digest.to_string() })
}

/// The sum of what every rank has, by one shot or by two.
fn reduce(world: &World, floats: usize) {
    let value = |i: usize| f32::from(u8::try_from(i % 7).unwrap());
    let encode = |times: u32| -> Vec<u8> {
        (0..floats).flat_map(|i| (value(i) * f32::from(u8::try_from(times).unwrap())).to_le_bytes()).collect()
    };
    let (inputs, outputs) = (world.alloc(4 * floats), world.alloc(4 * floats));
    for (comm, input) in world.ranks.iter().zip(&inputs) {
        input.write(0, &encode(comm.rank().get() + 1)).unwrap();
    }
    let sends = world.register(&inputs, WindowFlags::COLL_SYMMETRIC);
    let recvs = world.register(&outputs, WindowFlags::COLL_SYMMETRIC);
    let streams = world.streams();
    for (((comm, send), recv), &stream) in world.ranks.iter().zip(&sends).zip(&recvs).zip(&streams) {
        let (send, recv) = (send.slice(0..4 * floats).unwrap(), recv.slice(0..4 * floats).unwrap());
        comm.all_reduce_on(stream, &send, &recv, DType::F32, ReduceOp::Sum).unwrap();
    }
    world.join(&streams);
    let ranks = world.ranks[0].world_size();
    let expected = encode(ranks * (ranks + 1) / 2);
    for (comm, output) in world.ranks.iter().zip(&outputs) {
        let mut seen = vec![0; expected.len()];
        output.read(0, &mut seen).unwrap();
        assert!(seen == expected, "{floats} elements on {}", comm.rank());
    }
    for stream in streams {
        world.gpu.stream_destroy(stream).unwrap();
    }
}

/// Windows that come and go leave no handle, mapping or descriptor.
fn stays_flat(world: &World) {
    let buffers = world.alloc(4 * MIB);
    let cycle = || {
        let windows = world.register(&buffers, WindowFlags::empty());
        windows.iter().for_each(|window| window.close().unwrap());
    };
    let held = || {
        let counts = world.gpu.counts();
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
        [counts.handles, counts.mappings, counts.reservations, descriptors]
    };
    (0..10).for_each(|_| cycle());
    let before = held();
    (0..200).for_each(|_| cycle());
    // The last closes may be under way, and those of the peers: few, where a leak would leave 200.
    for ((before, after), what) in
        before.into_iter().zip(held()).zip(["handles", "mappings", "reservations", "descriptors"])
    {
        assert!(after < before + 20, "{what}: {before} -> {after}");
    }
}
