use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::dup;

use crate::device::testing::{AGES, Spec, World};
use crate::device::{Kernel, launch, run_here};
use crate::error::{Error, Failure, FailureCause, Misuse, Phase, Result};
use crate::ids::LsaRank;

/// Rounds of one kernel: every rank writes the round, syncs, and checks that all peers have written it.
/// A rank is at most one round ahead, so two slots in turn never mix.
fn rounds(kernel: &Kernel<'_>, window: u64, barrier: u32, count: u64) -> Result<u32> {
    let window = kernel.window(window)?;
    let mut session = kernel.barrier(barrier)?;
    for round in 0..count {
        let slot = usize::try_from(round % 2).unwrap();
        window.local_slice::<u64>(0, 2)?.store(slot, round)?;
        session.sync()?;
        for peer in (0..kernel.lsa_size()).map(LsaRank::new) {
            assert_eq!(window.slice::<u64>(peer, 0, 2)?.load(slot)?, round, "of {peer}");
        }
    }
    // Nobody still reads what the next kernel overwrites.
    session.sync()?;
    Ok(session.epoch())
}

fn two_kernels(spec: Spec, start: u32, count: u64) {
    let world = World::new(spec);
    for rank in 0..world.spec.ranks {
        world.set_epochs(rank, start);
    }
    let each = u32::try_from(count).unwrap() + 1;
    for kernel_number in 1..=2 {
        let inside = Arc::clone(&world);
        let results = world.run(move |kernel| {
            let window = inside.window(kernel.lsa_rank().get(), 0);
            rounds(kernel, window, 2, count)
        });
        let expected = start.wrapping_add(kernel_number * each);
        assert_eq!(results, vec![Ok(expected); world.spec.ranks as usize]);
    }
    for rank in 0..world.spec.ranks {
        // The epoch word of barrier 2 of 4, its neighbours, and the flags, which a plain sync leaves alone.
        let epoch = start.wrapping_add(2 * each);
        assert_eq!([5, 6, 7].map(|word| world.resource_word(rank, word)), [start, epoch, start]);
        assert_eq!(world.resource_word(rank, 2), start);
    }
}

#[test]
fn epochs_persist_with_4_ranks() {
    two_kernels(Spec::new(4, 4_096), 0, 1_000);
}

#[test]
fn epochs_wrap_with_8_ranks() {
    two_kernels(Spec::new(8, 4_096), u32::MAX - 3, 1_000);
}

#[test]
fn epochs_wrap_with_16_ranks() {
    two_kernels(Spec::new(16, 4_096), u32::MAX - 3, 1_000);
}

#[test]
fn epochs_wrap_where_waits_are_sliced() {
    two_kernels(Spec { sliced: true, ..Spec::new(4, 4_096) }, u32::MAX - 3, 200);
}

#[test]
fn one_rank_meets_itself() {
    two_kernels(Spec::new(1, 4_096), 7, 10);
}

#[test]
fn blocks_meet_in_barriers_of_their_own() {
    let world = World::new(Spec::new(2, 4_096));
    let handles: Vec<_> = (0..2)
        .map(|rank| {
            launch(world.env(rank), 4, |kernel| {
                let mut session = kernel.barrier(kernel.block())?;
                (0..200).try_for_each(|_| session.sync())?;
                Ok(session.epoch())
            })
        })
        .collect();
    for handle in handles {
        assert_eq!(handle.join(), Ok(vec![200; 4]));
    }
}

fn some_failure(world: &World) -> Error {
    let cause = FailureCause::Aborted { by: world.peer(1), reason: "a test".to_owned() };
    Error::Failed(Arc::new(Failure {
        comm: "test".to_owned(),
        me: world.peer(0),
        operation: "no operation".to_owned(),
        phase: Phase::Idle,
        cause,
    }))
}

/// Rank 1 never comes. The deadline is so far away that only the failure can end rank 0's wait.
fn failure_wakes(sliced: bool) {
    let world = World::new(Spec { sliced, ..Spec::new(2, 4_096) });
    let waiting = launch(world.env(0), 1, |kernel| {
        let mut session = kernel.barrier(0)?;
        let outcome = session.sync();
        Ok((outcome, session.epoch()))
    });
    let inbox_of_rank_1 = 3 * 4;
    let limit = Instant::now() + AGES / 10;
    while world.resource_word(1, inbox_of_rank_1) == 0 {
        assert!(Instant::now() < limit, "rank 0 has not arrived");
        std::thread::yield_now();
    }
    let failure = some_failure(&world);
    let failed_at = Instant::now();
    world.watch(0).fail(failure.clone());
    let mut second = failure.clone();
    if let Error::Failed(failure) = &mut second {
        Arc::make_mut(failure).operation = "a later one".to_owned();
    }
    world.watch(0).fail(second);
    assert_eq!(waiting.join(), Ok(vec![(Err(failure.clone()), 0)]));
    // Without a wake the wait would see the failure at its deadline only.
    assert!(failed_at.elapsed() < AGES / 2);
    assert_eq!(world.watch(0).error(), Some(failure.clone()));
    let later = run_here(world.env(0), |kernel| kernel.barrier(1)?.sync());
    assert_eq!(later, Err(failure));
}

#[test]
fn a_failure_wakes_a_barrier_at_once() {
    failure_wakes(false);
}

#[test]
fn a_failure_wakes_a_barrier_where_waits_are_sliced() {
    failure_wakes(true);
}

#[test]
fn a_deadline_names_the_ranks_that_are_missing() {
    let after = Duration::from_millis(30);
    let world = World::new(Spec { first: 8, deadline: after, ..Spec::new(4, 4_096) });
    run_here(world.env(2), |kernel| kernel.barrier(3)?.arrive()).unwrap();
    let (error, epoch) = run_here(world.env(0), |kernel| {
        let mut session = kernel.barrier(3)?;
        Ok((session.sync().unwrap_err(), session.epoch()))
    })
    .unwrap();
    let Error::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!((failure.operation.as_str(), failure.phase), ("LSA barrier 3", Phase::Barrier));
    assert_eq!((failure.comm.as_str(), &failure.me), ("test", &world.peer(0)));
    let FailureCause::Deadline { after: told, missing, .. } = &failure.cause else { panic!("{error:?}") };
    assert_eq!(*told, after);
    let missing: Vec<_> = missing.iter().map(|missing| missing.peer.clone()).collect();
    assert_eq!(missing, vec![world.peer(1), world.peer(3)]);
    assert_eq!(epoch, 0);
    assert_eq!(world.resource_word(0, 4 + 3), 0, "the epoch moved");
    assert_eq!(world.watch(0).error(), Some(error));
}

#[test]
fn a_second_session_on_a_barrier_is_refused_until_the_first_ends() {
    let world = World::new(Spec::new(1, 4_096));
    run_here(world.env(0), |kernel| {
        let first = kernel.barrier(1)?;
        let second = kernel.barrier(1).map(|_| ());
        assert!(matches!(second, Err(Error::Misuse(Misuse::Other { .. }))), "{second:?}");
        let other = kernel.barrier(0)?;
        drop((first, other));
        kernel.barrier(1).map(|_| ())
    })
    .unwrap();
}

#[test]
fn a_barrier_that_is_not_there_and_a_wait_without_arrival_are_misuse() {
    let world = World::new(Spec::new(2, 4_096));
    run_here(world.env(0), |kernel| {
        let absent = kernel.barrier(4).map(|_| ());
        assert!(matches!(absent, Err(Error::Misuse(Misuse::Other { .. }))), "{absent:?}");
        let early = kernel.barrier(0)?.wait();
        assert!(matches!(early, Err(Error::Misuse(Misuse::Other { .. }))), "{early:?}");
        Ok(())
    })
    .unwrap();
}

fn process_spec() -> Spec {
    Spec::new(2, 4_096)
}

const PROCESS_ROUNDS: u64 = 1_000;

/// Rank 1 of `ranks_of_two_processes_meet`, run by it in a process of its own with the memory as its input.
#[test]
#[ignore = "half of another test"]
fn other_process() {
    let world = World::over(process_spec(), dup(std::io::stdin()).unwrap());
    run_here(world.env(1), |kernel| rounds(kernel, world.window(1, 0), 0, PROCESS_ROUNDS)).unwrap();
}

#[test]
fn ranks_of_two_processes_meet() {
    let world = World::new(process_spec());
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["device::tests::barrier::other_process", "--exact", "--ignored"])
        .stdin(Stdio::from(world.memfd()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let outcome = run_here(world.env(0), |kernel| rounds(kernel, world.window(0, 0), 0, PROCESS_ROUNDS));
    if outcome.is_err() {
        // It would wait for this rank until its own deadline.
        other.kill().unwrap();
    }
    assert_eq!(outcome, Ok(u32::try_from(PROCESS_ROUNDS).unwrap() + 1));
    assert!(other.wait().unwrap().success());
    assert_eq!(world.resource_word(1, 4), u32::try_from(PROCESS_ROUNDS).unwrap() + 1);
}
