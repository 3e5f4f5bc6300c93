//! Programs on symwin under the deterministic runtime: explored, checked, replayed.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod attacks;
mod failures;
mod net;
mod search;
mod shapes;

use std::sync::Arc;

use symwin::error::Error;
use symwin::sim::{Device, Faults, Policy, Shape, Sim, World};
use symwin::{Communicator, Group, Result, WindowFlags};

/// One rank's program: a window in each of a few groups, written to the next rank and read back.
pub(crate) fn program(comm: Communicator, groups: u64) -> Result<()> {
    let next = (comm.rank().get() + 1) % comm.world_size();
    for round in 0..groups {
        let buffer = comm.alloc(4096)?;
        let group = Group::named(format!("round {round}"));
        let window = group.register(&comm, &buffer, WindowFlags::empty());
        group.end().map_err(Error::from)?;
        let window = window.wait()?;
        window.write(symwin::Rank::new(next), 0, &round.to_le_bytes())?;
    }
    comm.finalize()
}

pub(crate) fn threads(world: &Arc<World>) -> Result<()> {
    for comm in world.communicator("world", 3)? {
        let name = format!("rank {}", comm.rank());
        world.host(&name, move || program(comm, 2))?;
    }
    Ok(())
}

#[test]
fn host_threads_run_to_their_end_under_every_policy() {
    for policy in [Policy::random(1).runs(50), Policy::pct(1, 3).runs(50), Policy::round_robin()] {
        let report = Sim::new().verify_every(1).explore(&policy, threads).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.runs, policy_runs(&policy));
        assert_eq!(report.verified, report.runs);
    }
}

fn policy_runs(policy: &Policy) -> u64 {
    if policy.name() == "rr" { 1 } else { 50 }
}

pub(crate) async fn script(comm: Communicator, groups: u64) -> Result<()> {
    for round in 0..groups {
        let buffer = comm.alloc(4096)?;
        let group = Group::named(format!("round {round}"));
        let window = group.register(&comm, &buffer, WindowFlags::empty());
        group.submit().await.map_err(Error::from)?;
        drop(window.await?);
    }
    World::finalize(comm).await
}

pub(crate) fn scripts(world: &Arc<World>) -> Result<()> {
    for comm in world.communicator_of("world", Shape { hosts: 2, processes: 2, ranks: 1 })? {
        world.script(&format!("rank {}", comm.rank()), script(comm, 3));
    }
    Ok(())
}

#[test]
fn scripts_run_on_the_null_device() {
    let sim = Sim::new().device(Device::Null).verify_every(1);
    let report = sim.explore(&Policy::random(7).runs(200), scripts).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.digests > 100, "{report:?}");
}

#[test]
fn mixed_faults_break_nothing() {
    let sim = Sim::new().device(Device::Null).verify_every(10).faults(Faults::all(), 4, 4);
    let tolerant = |world: &Arc<World>| {
        for comm in world.communicator_of("world", Shape { hosts: 2, processes: 2, ranks: 1 })? {
            let faulty = world.has_faults();
            world.script(&format!("rank {}", comm.rank()), async move {
                match script(comm, 3).await {
                    Err(_) if faulty => Ok(()),
                    other => other,
                }
            });
        }
        Ok(())
    };
    let report = sim.explore(&Policy::random(7).runs(2_000), tolerant).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.faulty > 1_000, "{report:?}");
}

#[test]
fn faults_of_processes_that_are_not_there_do_nothing() {
    let sim = Sim::new().device(Device::Null);
    let build = |world: &Arc<World>| {
        scripts(world)?;
        // Its processes are 4 and 5, with connections of their own.
        for comm in world.communicator_of("small", Shape::processes(2))? {
            world.script(&format!("rank {} of two", comm.rank()), script(comm, 1));
        }
        for (a, b) in [(0, 4), (5, 3), (0, 9), (9, 0), (2, 2)] {
            world.cut(a, b);
        }
        world.kill(9);
        Ok(())
    };
    let report = sim.explore(&Policy::random(7).runs(20), build).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.runs, 20);
}
