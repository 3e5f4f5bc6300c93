//! What a search sees: depth-first, replays, double runs, digests.

use std::cell::Cell;
use std::sync::Arc;

use symwin::error::Error;
use symwin::sim::{Device, Faults, Policy, Scenario, Shape, Sim, World};
use symwin::{Group, Result, WindowFlags};

use crate::threads;

const SMALL: Scenario = Scenario {
    shape: Shape::processes(2),
    comms: 2,
    windows: 1,
    groups: 1,
    threads: false,
    device: Device::Null,
    finalize: true,
};

fn null() -> Sim {
    Sim::new().device(Device::Null)
}

#[test]
fn heavy_depth_first_exhausts_two_ranks_that_drive_two_communicators_in_opposite_orders() {
    let report = null().explore(&Policy::depth_first(), |world| SMALL.build(world));
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.exhausted && report.states > 1_000 && report.pruned > 0, "{report:?}");
    assert_eq!(report.digests, report.runs, "every run is another one");
}

#[test]
fn depth_first_says_that_it_has_not_seen_everything() {
    let report = null().explore(&Policy::depth_first().runs(50), |world| SMALL.build(world)).unwrap();
    assert_eq!((report.exhausted, report.runs), (false, 50), "{report:?}");
}

/// Host threads that are let go where a run is cut short have not failed.
#[test]
fn depth_first_exhausts_host_threads() {
    let scenario = Scenario { comms: 1, threads: true, ..SMALL };
    let report = null().explore(&Policy::depth_first(), |world| scenario.build(world));
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.exhausted && report.pruned > 0, "{report:?}");
}

/// Two runs in the same state are not the same while a fault is still to come in one of them.
#[test]
fn depth_first_tells_runs_apart_by_the_faults_that_are_to_come() {
    let scenario = Scenario { comms: 1, ..SMALL };
    let sim = null().faults(Faults::KILL, 2, 2);
    let report = sim.explore(&Policy::depth_first().runs(5_000), |world| scenario.build(world));
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    // A world of one communicator has 366 states, and any of its first 400 steps may have the kill.
    assert!(report.states > 1_000 && !report.exhausted, "{report:?}");
}

/// What a program drew is a part of its state.
#[test]
fn depth_first_sees_what_a_program_does_with_each_number_that_it_drew() {
    let build = |world: &Arc<World>| {
        world.script("other", async {
            World::give_way().await;
            Ok::<(), Error>(())
        });
        let there = Arc::clone(world);
        world.script("gambler", async move {
            let drawn = there.draw(4);
            World::give_way().await;
            if drawn == 3 { Err("drew a three") } else { Ok(()) }
        });
        Ok(())
    };
    let failure = null().explore(&Policy::depth_first().runs(1_000), build).unwrap_err();
    assert_eq!(failure.broken, ["gambler failed: drew a three"], "{failure}");
}

/// Two threads of a rank share a communicator, and nothing orders them.
fn unordered(world: &Arc<World>) -> Result<()> {
    for comm in world.communicator("shared", 2)? {
        let comm = Arc::new(comm);
        for (bytes, group) in [(4096, "small"), (8192, "large")] {
            let comm = Arc::clone(&comm);
            world.script(&format!("{}, {group}", comm.rank()), async move {
                let buffer = comm.alloc(bytes)?;
                let group = Group::named(group);
                let window = group.register(&comm, &buffer, WindowFlags::empty());
                drop(group.submit());
                drop(window.await?);
                match Arc::into_inner(comm) {
                    Some(comm) => World::finalize(comm).await,
                    None => Ok::<(), Error>(()),
                }
            });
        }
    }
    Ok(())
}

#[test]
fn a_replay_fails_in_the_same_way_whatever_found_it() {
    for policy in [
        Policy::random(u64::MAX).runs(1_000),
        Policy::pct(3, 4).runs(1_000),
        Policy::depth_first().runs(50_000),
    ] {
        let name = policy.name();
        let found = null().explore(&policy, unordered).expect_err(name);
        for _ in 0..2 {
            let replay = Policy::replay(&found.schedule.to_string()).unwrap();
            let again = null().explore(&replay, unordered).expect_err(name);
            assert_eq!(again.broken, found.broken, "{name}");
            assert_eq!(again.story, found.story, "{name}");
            assert_eq!(again.schedule, found.schedule, "{name}");
        }
        assert!(!found.story.is_empty(), "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_digests_everywhere() {
    let scenario = Scenario { shape: Shape { hosts: 2, processes: 2, ranks: 1 }, groups: 4, ..SMALL };
    let digest = |policy: &Policy, faults| {
        let sim = null().faults(faults, 4, 4);
        sim.explore(policy, |world| scenario.build(world)).unwrap().digest_of_digests
    };
    // Checked in: debug and release builds and every machine give these. They change when what ranks say to each other
    // does, or what counts as a step.
    let found = [
        digest(&Policy::random(1).runs(20), Faults::empty()),
        digest(&Policy::random(1).runs(20), Faults::all()),
        digest(&Policy::pct(1, 3).runs(20), Faults::empty()),
        digest(&Policy::round_robin(), Faults::empty()),
    ];
    assert_eq!(found.map(|digest| format!("{digest:016x}")), GOLDEN);
}

const GOLDEN: [&str; 4] = ["2b1d400192d46e19", "79516771b6414957", "db3d48a265406f5c", "1f23d1b16745969a"];

#[test]
fn programs_that_depend_on_something_else_are_caught() {
    // A counter that outlives runs stands for an address, a clock, a hash map's order.
    let outside = Cell::new(0_u64);
    let other_order = |world: &Arc<World>| {
        outside.set(outside.get() + 1);
        for comm in world.communicator("world", 2)? {
            let steps = outside.get() % 2;
            world.script(&comm.rank().to_string(), async move {
                for _ in 0..steps {
                    World::give_way().await;
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    let failure = Sim::new().verify_every(1).explore(&Policy::random(1).runs(4), other_order).unwrap_err();
    assert!(failure.broken[0].contains("the same schedule gave two runs"), "{failure}");
}

/// The same steps in the same order, and yet something else is agreed on.
#[test]
fn programs_whose_sizes_depend_on_something_else_are_caught() {
    let outside = Cell::new(0_usize);
    let other_sizes = |world: &Arc<World>| {
        outside.set(outside.get() + 1);
        for comm in world.communicator("world", 2)? {
            let pages = 1 + outside.get() % 2;
            world.script(&comm.rank().to_string(), async move {
                let buffer = comm.alloc_own((2 << 20) * pages)?;
                let group = Group::start();
                let window = group.register(&comm, &buffer, WindowFlags::empty());
                drop(group.submit());
                drop(window.await?);
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    let failure = Sim::new().verify_every(1).explore(&Policy::random(1).runs(4), other_sizes).unwrap_err();
    assert!(failure.broken[0].contains("the same schedule gave two runs"), "{failure}");
}

#[test]
fn a_failure_that_does_not_come_again_says_so() {
    let outside = Cell::new(0_u64);
    let once = |world: &Arc<World>| {
        outside.set(outside.get() + 1);
        if outside.get() == 1 {
            world.fail("only the first time");
        }
        threads(world)
    };
    let failure = Sim::new().explore(&Policy::random(1).runs(4), once).unwrap_err();
    assert_eq!(failure.broken[0], "only the first time");
    assert!(failure.broken[1].contains("depends on something else"), "{failure}");
}
