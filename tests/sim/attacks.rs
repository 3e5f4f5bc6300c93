//! Odd programs: what must not hang, leak, or go unnoticed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symwin::error::Error;
use symwin::sim::{Device, Faults, Policy, Sim, World};
use symwin::{Communicator, Group, Result, WindowFlags};

use crate::{program, script, threads};

fn null() -> Sim {
    Sim::new().device(Device::Null).verify_every(5)
}

fn holds(sim: &Sim, build: impl Fn(&Arc<World>) -> Result<()>) {
    sim.explore(&Policy::random(3).runs(20), build).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn two_communicators_of_one_name_are_refused() {
    holds(&null(), |world| {
        for comm in world.communicator("twice", 2)? {
            world.script(&format!("first {}", comm.rank()), script(comm, 1));
        }
        for again in [world.communicator("twice", 2), world.communicator("twice", 3)] {
            match again {
                Err(Error::Misuse(why)) if why.to_string().contains("twice") => {}
                other => world.fail(format!("a name was used twice: {other:?}")),
            }
        }
        Ok(())
    });
}

#[test]
fn a_communicator_may_be_dropped_anywhere() {
    holds(&null().faults(Faults::all(), 2, 2), |world| {
        for (number, comm) in world.communicator("dropped", 2)?.into_iter().enumerate() {
            let there = Arc::clone(world);
            world.script(&number.to_string(), async move {
                let Ok(buffer) = comm.alloc(4096) else { return Ok(()) };
                let group = Group::start();
                let window = group.register(&comm, &buffer, WindowFlags::empty());
                let submitted = group.submit();
                match there.draw(4) {
                    0 => drop(comm),
                    1 => drop((submitted, comm)),
                    2 => drop((window, comm)),
                    _ => drop(window.await),
                }
                Ok::<(), Error>(())
            });
        }
        // One that nobody ever drives.
        drop(world.communicator("idle", 3)?);
        Ok(())
    });
}

/// A thread started by a thread that goes before it.
#[test]
fn threads_of_threads_are_part_of_the_schedule() {
    fn nested(comm: Communicator, depth: u32) -> Result<()> {
        if depth == 0 {
            return program(comm, 1);
        }
        let runtime = comm.runtime().clone();
        // Nobody waits for it.
        drop(runtime.host(&format!("depth {depth}"), move || nested(comm, depth - 1).unwrap())?);
        Ok(())
    }
    let before = count("task");
    holds(&Sim::new(), |world| {
        for comm in world.communicator("world", 3)? {
            world.host(&comm.rank().to_string(), move || nested(comm, 3))?;
        }
        Ok(())
    });
    settles("task", before + 4);
}

#[test]
fn a_world_is_changed_from_within_steps() {
    holds(&null(), |world| {
        let there = Arc::clone(world);
        world.script("maker", async move {
            for comm in there.communicator("made", 2)? {
                let (within, name) = (Arc::clone(&there), comm.rank().to_string());
                if there.draw(2) == 0 {
                    there.script(&name, script(comm, 2));
                } else {
                    there.host(&name, move || {
                        within.partition(&[0]);
                        within.heal(&[0]);
                        within.heal(&[7, 1]);
                        within.note("made");
                        within.position(1);
                        program_of_one(&comm)?;
                        comm.finalize()
                    })?;
                }
            }
            Ok::<(), Error>(())
        });
        Ok(())
    });
}

fn program_of_one(comm: &Communicator) -> Result<()> {
    for round in 0..2 {
        let buffer = comm.alloc(4096)?;
        let group = Group::named(format!("round {round}"));
        let window = group.register(comm, &buffer, WindowFlags::empty());
        group.end().map_err(Error::from)?;
        drop(window.wait()?);
    }
    Ok(())
}

/// The world's own closure may block too: its peers are threads that it started before.
#[test]
fn the_builder_may_block() {
    holds(&Sim::new(), |world| {
        let mut comms = world.communicator("world", 2)?;
        let mine = comms.pop().unwrap();
        for comm in comms {
            world.host("other", move || program(comm, 2))?;
        }
        program(mine, 2)
    });
    // Where nobody answers, it is not for ever.
    let failure = null().explore(&Policy::random(1).runs(1), |world| {
        let comms = world.communicator("world", 2)?;
        program_of_one(&comms[0])
    });
    assert!(failure.unwrap_err().broken[0].contains("no answer within"), "the deadline ends it");
}

#[test]
fn deadlines_may_be_nothing_or_for_ever() {
    holds(&Sim::new().deadline(Duration::MAX), threads);
    let none = Sim::new().deadline(Duration::ZERO).explore(&Policy::random(1).runs(5), threads);
    if let Err(failure) = none {
        assert!(failure.broken.iter().all(|what| what.contains("failed")), "{failure}");
    }
}

/// Entries of this process under `/proc/self`.
fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

/// Threads end a little after their program has.
fn settles(what: &str, most: usize) {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if count(what) <= most {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{} of {what} are left, and there were at most {most}", count(what));
}

#[test]
fn nothing_of_the_process_is_left_after_runs() {
    let runs = |seed| {
        let sim = Sim::new().verify_every(0);
        sim.explore(&Policy::random(seed).runs(100), threads).unwrap_or_else(|failure| panic!("{failure}"));
    };
    runs(1);
    let (fds, tasks) = (count("fd"), count("task"));
    runs(2);
    // Other tests of this binary may run beside this one.
    settles("fd", fds + 8);
    settles("task", tasks + 8);
}
