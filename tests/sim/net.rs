//! Partitions, cuts, deaths, damage and delays.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symwin::error::{Error, FailureCause};
use symwin::sim::{Device, Faults, Policy, Scenario, Shape, Sim, World};
use symwin::{Communicator, Group, Result, Window, WindowFlags};

use crate::scripts;

fn null() -> Sim {
    Sim::new().device(Device::Null).verify_every(5)
}

const RUNS: Policy = Policy::random(11).runs(30);

async fn register(comm: &Communicator, name: &str) -> Result<Window> {
    let buffer = comm.alloc(4096)?;
    let group = Group::named(name);
    let window = group.register(comm, &buffer, WindowFlags::empty());
    drop(group.submit());
    window.await
}

/// A host thread that does something at a time.
fn at(world: &Arc<World>, comm: &Communicator, after: Duration, then: impl FnOnce(&World) + Send + 'static) {
    let (runtime, there) = (comm.runtime().clone(), Arc::clone(world));
    let program = move || {
        let (reply, mut ticket) = runtime.reply::<()>();
        assert!(matches!(ticket.wait_until(runtime.now() + after), Ok(None)));
        drop(reply);
        then(&there);
        Ok::<(), Error>(())
    };
    world.host("timer", program).unwrap();
}

/// Process 2 of 3 is parted from the others, from before the first frame on, until `heal`.
fn parted(world: &Arc<World>, heal: Duration, ended: fn(&World, u32, Result<Window>)) -> Result<()> {
    let comms = world.communicator("world", 3)?;
    world.partition(&[2]);
    at(world, &comms[0], heal, |world| world.heal(&[2]));
    for comm in comms {
        let there = Arc::clone(world);
        world.script(&comm.rank().to_string(), async move {
            let window = register(&comm, "first").await;
            ended(&there, comm.rank().get(), window);
            World::finalize(comm).await
        });
    }
    Ok(())
}

#[test]
fn a_partition_that_heals_in_time_delays_only() {
    let build = |world: &Arc<World>| {
        parted(world, Duration::from_secs(50), |world, rank, window| {
            if let Err(error) = window {
                world.fail(format!("rank {rank}: {error}"));
            }
            if world.now() < Duration::from_secs(50) {
                world.fail("it committed while process 2 was parted from the others");
            }
        })
    };
    null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
}

/// The end of one partition is not the end of another one that parts the same processes.
#[test]
fn partitions_that_overlap_end_one_by_one() {
    let build = |world: &Arc<World>| {
        let comms = world.communicator("world", 3)?;
        world.partition(&[2]);
        world.partition(&[1, 2]);
        at(world, &comms[0], Duration::from_secs(10), |world| world.heal(&[1, 2]));
        at(world, &comms[0], Duration::from_secs(20), |world| world.heal(&[2]));
        for comm in comms {
            let there = Arc::clone(world);
            world.script(&comm.rank().to_string(), async move {
                drop(register(&comm, "first").await?);
                if there.now() < Duration::from_secs(20) {
                    there.fail("it committed while process 2 was parted from the others");
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_partition_beyond_the_deadline_is_told_by_the_ranks_that_are_missing() {
    let build = |world: &Arc<World>| {
        parted(world, Duration::from_secs(70), |world, rank, window| {
            let missing = match window {
                Err(Error::Failed(why)) => match &why.cause {
                    FailureCause::Deadline { missing, after, .. } if *after == Duration::from_secs(60) => {
                        missing.iter().map(|missing| missing.peer.rank.get()).collect()
                    }
                    // Within the same part, the one that gave up first says so.
                    FailureCause::Aborted { by, .. } if by.rank.get() < 2 && rank < 2 => vec![2],
                    other => return world.fail(format!("rank {rank}: {other}")),
                },
                other => return world.fail(format!("rank {rank}: {other:?}")),
            };
            let right = if rank == 2 { missing.iter().all(|&r| r < 2) } else { missing.contains(&2) };
            if !right || missing.is_empty() {
                world.fail(format!("rank {rank} misses {missing:?}"));
            }
        })
    };
    null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn what_a_dead_process_sends_is_refused() {
    let build = |world: &Arc<World>| {
        for comm in world.communicator("world", 3)? {
            let there = Arc::clone(world);
            world.script(&comm.rank().to_string(), async move {
                if comm.rank().get() == 2 {
                    drop(register(&comm, "first").await);
                    there.kill(2);
                    // Its name is used again: by a communicator that is new, over the old connections.
                    let again = comm.duplicate("again");
                    if let Ok(again) = again {
                        drop(register(&again, "second").await);
                    }
                    return Ok(());
                }
                drop(register(&comm, "first").await);
                match register(&comm, "second").await {
                    Err(Error::Failed(why)) if matches!(why.cause, FailureCause::PeerLost { .. }) => {
                        if !why.to_string().contains("killed") {
                            there.fail(format!("it does not say how: {why}"));
                        }
                    }
                    other => there.fail(format!("without rank 2: {other:?}")),
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    let report = null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.net.sent > 0, "{report:?}");
}

#[test]
fn restart_refused() {
    let build = |world: &Arc<World>| {
        let shape = Shape { hosts: 1, processes: 2, ranks: 1 };
        drop(world.communicator_of("before", shape)?);
        world.kill(1);
        // Process 1 seems to come back, with a communicator of its own.
        for comm in world.communicator_of("after", shape)? {
            let there = Arc::clone(world);
            world.script(&comm.rank().to_string(), async move {
                if register(&comm, "first").await.is_ok() {
                    there.fail("a window with a process that is dead");
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    let report = null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.net.refused > 0, "{report:?}");
}

#[test]
fn a_cut_names_the_lost_peer_at_once() {
    let build = |world: &Arc<World>| {
        for comm in world.communicator("world", 2)? {
            let there = Arc::clone(world);
            world.script(&comm.rank().to_string(), async move {
                drop(register(&comm, "first").await);
                there.cut(0, 1);
                match register(&comm, "second").await {
                    Err(Error::Failed(why)) if matches!(why.cause, FailureCause::PeerLost { .. }) => {}
                    other => there.fail(format!("over a cut: {other:?}")),
                }
                if there.now() > Duration::ZERO {
                    there.fail("it took a while");
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn damaged_frames_are_never_taken_for_others() {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&errors);
    let build = move |world: &Arc<World>| {
        for comm in world.communicator("world", 3)? {
            let (there, heard) = (Arc::clone(world), Arc::clone(&heard));
            world.script(&comm.rank().to_string(), async move {
                for round in 0..4_u64 {
                    let buffer = comm.alloc(4096)?;
                    World::stamp(&comm, &buffer.slice(0..4096)?, round)?;
                    let group = Group::named(format!("round {round}"));
                    let window = group.register(&comm, &buffer, WindowFlags::empty());
                    drop(group.submit());
                    match window.await {
                        Ok(window) => there.check_stamps(&comm, &window, round)?,
                        Err(error) if there.has_faults() => {
                            heard.lock().unwrap().push(error.to_string());
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    let sim = Sim::new().faults(Faults::CORRUPT, 3, 3);
    let report = sim.explore(&Policy::random(5).runs(200), build).unwrap_or_else(|f| panic!("{f}"));
    assert!(report.net.damaged > 10, "{report:?}");
    let errors = errors.lock().unwrap();
    assert!(!errors.is_empty());
    for error in errors.iter() {
        assert!(error.contains("rank ") && !error.contains("no answer within"), "{error}");
    }
}

#[test]
fn a_late_rank_is_waited_for_until_the_deadline() {
    for (after, in_time) in [(59, true), (61, false)] {
        let build = move |world: &Arc<World>| {
            for comm in world.communicator("world", 2)? {
                let there = Arc::clone(world);
                world.host(&comm.rank().to_string(), move || {
                    if comm.rank().get() == 1 {
                        let runtime = comm.runtime().clone();
                        let (_reply, mut ticket) = runtime.reply::<()>();
                        let until = runtime.now() + Duration::from_secs(after);
                        assert!(matches!(ticket.wait_until(until), Ok(None)));
                    }
                    let buffer = comm.alloc(4096)?;
                    let ended = comm.register(&buffer, WindowFlags::empty());
                    match ended {
                        Ok(_) if in_time => {}
                        Err(error) if !in_time && comm.rank().get() == 0 => {
                            let Error::Failed(why) = &error else { return Err(error) };
                            let FailureCause::Deadline { missing, .. } = &why.cause else {
                                return Err(error);
                            };
                            if missing.len() != 1 || missing[0].peer.rank.get() != 1 {
                                there.fail(format!("it misses {missing:?}"));
                            }
                            if there.now() != Duration::from_secs(60) {
                                there.fail(format!("the deadline came at {:?}", there.now()));
                            }
                        }
                        Err(_) if !in_time => {}
                        other => there.fail(format!("{after} s late: {other:?}")),
                    }
                    comm.finalize()
                })?;
            }
            Ok(())
        };
        null().explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The fault begins any program late, scripts and host threads alike.
#[test]
fn late_begins_scripts_and_host_threads_late() {
    for threads in [false, true] {
        let scenario = Scenario {
            shape: Shape::processes(4),
            comms: 1,
            windows: 1,
            groups: 1,
            threads,
            device: Device::Null,
            finalize: true,
        };
        let sim = null().faults(Faults::LATE, 4, 4);
        let late = AtomicU64::new(0);
        let build = |world: &Arc<World>| {
            late.fetch_add(u64::from(world.has_faults()), Ordering::Relaxed);
            scenario.build(world)
        };
        sim.explore(&RUNS, build).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(late.into_inner() > 3);
    }
    // A program of one's own: it begins when the clock has moved.
    let sim = null().verify_every(0).faults(Faults::LATE, 4, 4);
    let build = |world: &Arc<World>| {
        scripts_that_wait(world)?;
        Ok(())
    };
    let failure = sim.explore(&Policy::random(1).runs(200), build).expect_err("some rank is late");
    assert!(failure.broken.iter().any(|what| what.contains("began at")), "{failure}");
}

fn scripts_that_wait(world: &Arc<World>) -> Result<()> {
    for number in 0..4 {
        let there = Arc::clone(world);
        let program = async move {
            if there.now() > Duration::ZERO { Err(format!("began at {:?}", there.now())) } else { Ok(()) }
        };
        world.script(&number.to_string(), program);
    }
    Ok(())
}

#[test]
fn delays_change_nothing_but_the_order() {
    let sim = null().faults(Faults::DELAY | Faults::SLOW, 4, 4);
    let report = sim.explore(&RUNS, scripts).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.net.delayed > 0, "{report:?}");
}
