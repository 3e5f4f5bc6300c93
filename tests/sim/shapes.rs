//! Ranks, processes and hosts.

use std::sync::Arc;

use symwin::error::{Error, Misuse};
use symwin::sim::{Device, Policy, Scenario, Shape, Sim, World};

use crate::{script, scripts, threads};

fn null() -> Sim {
    Sim::new().device(Device::Null)
}

fn scenario(shape: Shape) -> Scenario {
    Scenario { shape, comms: 2, windows: 2, groups: 5, threads: false, device: Device::Null, finalize: true }
}

#[test]
fn ranks_in_processes_on_hosts_by_scripts_and_threads_under_every_policy() {
    for shape in [
        Shape { hosts: 1, processes: 1, ranks: 1 },
        Shape { hosts: 1, processes: 1, ranks: 3 },
        Shape { hosts: 1, processes: 2, ranks: 2 },
        Shape { hosts: 2, processes: 2, ranks: 2 },
        Shape { hosts: 3, processes: 1, ranks: 2 },
    ] {
        for threads in [false, true] {
            for policy in [
                Policy::random(1).runs(3),
                Policy::pct(1, 3).runs(3),
                Policy::pct(1, 0).runs(2),
                Policy::round_robin(),
                Policy::depth_first().runs(4),
                Policy::replay("s1.r.ffffffffffffffff").unwrap(),
                Policy::replay("s1.p.1.4294967295.18446744073709551615").unwrap(),
                Policy::replay("s1.d.(4294967295)z(70)(7)").unwrap(),
                Policy::replay("s1.b.0").unwrap(),
            ] {
                // Memory is mapped for the smallest only: that is what takes long.
                let device = if shape.world_size() < 4 { Device::Host } else { Device::Null };
                let scenario = Scenario { threads, device, ..scenario(shape) };
                let found =
                    Sim::new().device(device).verify_every(4).explore(&policy, |world| scenario.build(world));
                found.unwrap_or_else(|failure| panic!("{shape:?}, {policy:?}, {threads}: {failure}"));
            }
        }
    }
}

#[test]
fn rounds_between_hosts_grow_with_the_logarithm() {
    let rounds = |hosts| {
        let shape = Shape { hosts, processes: 1, ranks: 8 };
        let scenario = Scenario { comms: 1, groups: 2, windows: 4, finalize: false, ..scenario(shape) };
        let report =
            null().verify_every(0).explore(&Policy::random(1).runs(1), |world| scenario.build(world));
        report.unwrap_or_else(|failure| panic!("{failure}")).traffic.world_rounds()
    };
    let found = [4_u32, 8, 16, 64].map(|hosts| rounds(hosts) - u64::from(hosts.ilog2()));
    assert!(found.iter().all(|more| *more == found[0]), "log2 and {found:?}");
}

#[test]
fn shapes_without_ranks_or_with_too_many_are_refused() {
    for (hosts, processes, ranks) in [
        (0, 2, 2),
        (2, 0, 2),
        (2, 2, 0),
        (0, 0, 0),
        (u32::MAX, u32::MAX, u32::MAX),
        (1 << 16, 1 << 16, 1),
        (1, 1, u32::MAX),
        (1, 4097, 1),
    ] {
        let shape = Shape { hosts, processes, ranks };
        let refused = |world: &Arc<World>| {
            for error in [world.communicator_of("none", shape).map(drop), scenario(shape).build(world)] {
                match error {
                    Err(Error::Misuse(misuse)) if matches!(misuse, Misuse::BadSetting { .. }) => {
                        assert!(misuse.to_string().len() < 300, "{misuse}");
                    }
                    other => world.fail(format!("{shape:?}: {other:?}")),
                }
            }
            Ok(())
        };
        null().explore(&Policy::random(1).runs(1), refused).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn no_runs_and_no_programs_are_fine() {
    let report = null().explore(&Policy::random(1).runs(0), threads).unwrap();
    assert_eq!((report.runs, report.exhausted), (0, false));
    let report = null().explore(&Policy::depth_first(), |_| Ok(())).unwrap();
    assert_eq!((report.runs, report.exhausted), (1, true));
}

/// Duplicates take frames that come before this rank has made its own.
#[test]
fn duplicates_take_what_came_early() {
    let build = |world: &Arc<World>| {
        scripts(world)?;
        for comm in world.communicator("parent", 3)? {
            let there = Arc::clone(world);
            world.script(&format!("duplicates on {}", comm.rank()), async move {
                let steps = there.draw(40);
                for _ in 0..steps {
                    World::give_way().await;
                }
                let one = comm.duplicate("one")?;
                let same = comm.duplicate("one")?;
                there.watch(&one);
                there.watch(&same);
                script(same, 2).await?;
                script(comm, 1).await?;
                script(one, 2).await
            });
        }
        Ok(())
    };
    let report = null().verify_every(8).explore(&Policy::random(1).runs(100), build);
    report.unwrap_or_else(|failure| panic!("{failure}"));
}
