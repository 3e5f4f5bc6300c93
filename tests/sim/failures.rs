//! Programs that go wrong: what the report says.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use symwin::error::{Error, FailureCause};
use symwin::sim::{Device, Failure, Policy, Sim, World};
use symwin::{Communicator, Group, Result, WindowFlags};

use crate::threads;

fn null() -> Sim {
    Sim::new().device(Device::Null)
}

fn fails(sim: &Sim, build: impl Fn(&Arc<World>) -> Result<()>) -> Box<Failure> {
    sim.explore(&Policy::random(1).runs(20), build).expect_err("it fails")
}

fn register(comm: &Communicator, name: &str) -> Result<()> {
    let buffer = comm.alloc(4096)?;
    let group = Group::named(name);
    let window = group.register(comm, &buffer, WindowFlags::empty());
    group.end().map_err(Error::from)?;
    drop(window.wait()?);
    Ok(())
}

/// Two blocking `end`s in opposite orders on two communicators.
#[test]
fn a_deadlock_ends_at_the_virtual_deadline_and_at_once() {
    let build = |world: &Arc<World>| {
        let (first, second) = (world.communicator("first", 2)?, world.communicator("second", 2)?);
        for pair in first.into_iter().zip(second) {
            let there = Arc::clone(world);
            let rank = pair.0.rank().get();
            world.host(&rank.to_string(), move || {
                let (one, other) = if rank == 0 { pair } else { (pair.1, pair.0) };
                match register(&one, "one") {
                    Err(Error::Failed(why)) if matches!(why.cause, FailureCause::Deadline { .. }) => {
                        if there.now() != Duration::from_secs(60) {
                            there.fail(format!("it came at {:?}", there.now()));
                        }
                    }
                    // The other rank gave up first, and left.
                    Err(Error::Failed(_)) if there.now() == Duration::from_secs(60) => {}
                    other => there.fail(format!("a deadlock ended with {other:?}")),
                }
                drop((one, other));
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    };
    let start = Instant::now();
    null().explore(&Policy::random(1).runs(20), build).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_ticket_that_nobody_answers_is_stuck() {
    for thread in [true, false] {
        let build = move |world: &Arc<World>| {
            for comm in world.communicator("world", 2)? {
                let there = Arc::clone(world);
                let (reply, ticket) = comm.runtime().reply::<()>();
                let name = format!("waits on {}", comm.rank());
                let keep = Arc::new(Mutex::new(Some(reply)));
                if thread {
                    world.host(&name, move || {
                        let answer = ticket.wait();
                        drop((keep, there));
                        answer.map_err(|lost| lost.to_string())
                    })?;
                } else {
                    world.script(&name, async move {
                        let answer = ticket.await;
                        drop((keep, there));
                        answer.map_err(|lost| lost.to_string())
                    });
                }
            }
            Ok(())
        };
        let failure = fails(&null(), build);
        let stuck = failure.broken.iter().find(|what| what.starts_with("stuck: ")).expect("it says so");
        assert!(stuck.contains("waits on rank 0") && stuck.contains("waits on rank 1"), "{stuck}");
        assert!(stuck.contains("since step"), "{stuck}");
    }
}

#[test]
fn panics_of_host_threads_and_scripts_are_told() {
    let build = |world: &Arc<World>| {
        world.host("thread", || -> Result<()> { panic!("a thread's own {}", 1) })?;
        world.script("script", async { if true { panic!("a script's own") } else { Ok::<(), Error>(()) } });
        threads(world)
    };
    let failure = fails(&null(), build);
    for what in ["thread panicked: a thread's own 1", "script panicked: a script's own"] {
        assert!(failure.broken.iter().any(|broken| broken == what), "{failure}");
    }
    let failure = fails(&null(), |_| panic!("the builder's own"));
    assert_eq!(failure.broken, ["the world's own program panicked: the builder's own"]);
}

/// What a script holds panics as it is dropped.
#[test]
fn a_panic_in_a_drop_is_told() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let build = |world: &Arc<World>| {
        world.script("stuck", async {
            let bomb = Bomb;
            std::future::pending::<()>().await;
            drop(bomb);
            Ok::<(), Error>(())
        });
        Ok(())
    };
    let failure = fails(&null(), build);
    assert!(failure.broken.iter().any(|what| what == "stuck panicked: dropped"), "{failure}");
}

#[test]
fn what_has_no_end_is_ended() {
    let script = |world: &Arc<World>| {
        world.script("restless", async {
            loop {
                World::give_way().await;
            }
            #[allow(unreachable_code, reason = "it names the type")]
            Ok::<(), Error>(())
        });
        Ok(())
    };
    let failure = fails(&null().steps_max(1_000), script);
    assert!(failure.broken.contains(&"it does not end: 1000 steps".to_owned()), "{failure}");
    assert_eq!(failure.report.steps, 1_000);
}

#[test]
fn as_many_steps_as_are_allowed_are_not_too_many() {
    let policy = Policy::round_robin();
    let sim = || null().device(Device::Host);
    let steps = sim().explore(&policy, threads).unwrap().steps;
    sim().steps_max(steps).explore(&policy, threads).unwrap_or_else(|failure| panic!("{failure}"));
    let failure = sim().steps_max(steps - 1).explore(&policy, threads).unwrap_err();
    assert!(failure.broken[0].starts_with("it does not end"), "{failure}");
}

/// Two threads of a program and a lock that one of them holds while it blocks.
#[test]
fn a_lock_held_across_a_call_is_told_by_the_thread_that_waits_for_it() {
    let build = |world: &Arc<World>| {
        let lock = Arc::new(Mutex::new(()));
        let mut comms = world.communicator("world", 2)?;
        let (b, a) = (comms.pop().unwrap(), comms.pop().unwrap());
        let held = Arc::clone(&lock);
        world.host("holder", move || {
            let guard = held.lock().unwrap();
            let ended = register(&a, "first");
            drop(guard);
            ended
        })?;
        world.host("waiter", move || {
            let there = Duration::from_secs(1);
            let (_reply, mut ticket) = b.runtime().reply::<()>();
            // The holder has come to its call.
            assert!(matches!(ticket.wait_until(b.runtime().now() + there), Ok(None)));
            drop(lock.lock());
            register(&b, "first")
        })
    };
    let start = Instant::now();
    let failure = fails(&null().patience(Duration::from_millis(200)), build);
    assert!(
        failure.broken.iter().any(|what| what.starts_with("`waiter` kept the baton for 200ms")),
        "{failure}"
    );
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// A script must not block: it gets an error, and the world goes on.
#[test]
fn a_blocking_call_in_a_script_is_an_error() {
    let build = |world: &Arc<World>| {
        for comm in world.communicator("world", 2)? {
            let there = Arc::clone(world);
            world.script(&comm.rank().to_string(), async move {
                let buffer = comm.alloc(4096)?;
                if let Ok(window) = comm.register(&buffer, WindowFlags::empty()) {
                    there.fail(format!("{window:?}"));
                }
                World::finalize(comm).await
            });
        }
        Ok(())
    };
    let found = null().steps_max(100_000).explore(&Policy::random(1).runs(20), build);
    found.unwrap_or_else(|failure| panic!("{failure}"));
}
