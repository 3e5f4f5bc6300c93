//! Devices whose work takes its time: a batch waits for its stream without keeping a worker (P-7), and not for ever.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use symwin::driver::{Call, Driver as _};
use symwin::error::{Failure, FailureCause, Misuse, Phase};
use symwin::{Activity, Communicator, Error, Group, Pending, Window, WindowFlags};

const NONE: WindowFlags = WindowFlags::empty();
const POLLS: u64 = 20;

fn failure(error: &Error) -> &Arc<Failure> {
    let Error::Failed(failure) = error else { panic!("no failure: {error:?}") };
    failure
}

/// One window of every rank, asked for and not waited for.
fn ask(ranks: &[Communicator], buffers: &[symwin::Buffer]) -> Vec<Pending<Window>> {
    let group = Group::start();
    let pending =
        ranks.iter().zip(buffers).map(|(comm, buffer)| group.register(comm, buffer, NONE)).collect();
    drop(group.submit());
    pending
}

/// Waits until the stuck ranks wait for their streams in `map`.
fn stuck_in_map(ranks: &[Communicator]) {
    for comm in ranks {
        until(
            "the rank to wait for its stream",
            || matches!(&comm.status().activity, Activity::Running { phase: Phase::Map, waits_for, .. } if waits_for.is_empty()),
        );
    }
}

#[test]
fn a_batch_whose_events_are_late_commits() {
    for layout in LAYOUTS {
        for late in [&[0, 1, 2, 3][..], &[0], &[3]] {
            let world = faulty_world(layout, config().workers(1));
            let (ranks, faults) = (&world.ranks, &world.faults);
            let buffers = buffers(ranks, 8192);
            for _ in 0..2 {
                let before: Vec<u64> = faults.iter().map(|faulty| faulty.count(Call::Done)).collect();
                late.iter().for_each(|&rank: &usize| faults[rank].late(POLLS));
                let windows = windows(ranks, &buffers);
                for (rank, faulty) in faults.iter().enumerate() {
                    let polls = faulty.count(Call::Done) - before[rank];
                    let expected = if late.contains(&rank) { POLLS + 1 } else { 1 };
                    // A message in between is a poll too, one of these.
                    assert_eq!(polls, expected, "{layout:?}, rank {rank}");
                }
                check_pointers(ranks, &windows, &buffers);
                check_digests(ranks);
            }
            drop(buffers);
            finalize(world.ranks);
            assert_empty(&world.hosts);
        }
    }
}

/// A refusal behind a late event is heard by all, as any other.
#[test]
fn a_late_event_that_fails_in_the_end_rolls_the_batch_back() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let buffers = buffers(&world.ranks, 8192);
        world.faults[3].late(POLLS);
        world.faults[3].fail(Call::Done, POLLS / 2);
        for outcome in register_all(&world.ranks, &buffers) {
            let symwin::error::Cause::Refused { faults } = &rolled_back(outcome).cause else {
                panic!("refused")
            };
            assert_eq!((faults.len(), faults[0].peer.rank.index(), faults[0].phase), (1, 3, Phase::Map));
        }
        world.faults[3].heal();
        usable(&world.ranks);
        drop(buffers);
        finalize(world.ranks);
    }
}

/// With every worker that there is (one), the batch of a duplicate waits for its streams on all ranks or on one; its
/// parent goes on meanwhile, and the duplicate's batch commits once its events have passed.
#[test]
fn p_7_other_communicators_go_on_while_an_event_does_not_pass() {
    for layout in LAYOUTS {
        for stuck in [&[0, 1, 2, 3][..], &[2]] {
            let world = faulty_world(layout, config().workers(1));
            let duplicates: Vec<_> =
                world.ranks.iter().map(|comm| comm.duplicate("stuck").unwrap()).collect();
            let buffers = buffers(&world.ranks, 8192);
            stuck.iter().for_each(|&rank: &usize| world.faults[rank].stuck());
            let waiting = ask(&duplicates, &buffers);
            let stuck_ranks = duplicates.iter().filter(|comm| stuck.contains(&comm.rank().index()));
            for comm in stuck_ranks {
                stuck_in_map(std::slice::from_ref(comm));
            }
            for _ in 0..3 {
                usable(&world.ranks);
            }
            for comm in &duplicates {
                assert!(matches!(comm.status().activity, Activity::Running { .. }), "it waits still");
            }
            world.faults.iter().for_each(|faulty| faulty.heal());
            let windows: Vec<_> = waiting.into_iter().map(|window| window.wait().unwrap()).collect();
            check_pointers(&duplicates, &windows, &buffers);
            drop((windows, buffers));
            finalize(duplicates);
            finalize(world.ranks);
            assert_empty(&world.hosts);
        }
    }
}

/// Rank 2's event never passes, or nobody's does.
#[test]
fn a7_an_event_that_never_passes_meets_the_deadline_in_map_and_names_nobody_else() {
    for layout in LAYOUTS {
        for stuck in [&[0, 1, 2, 3][..], &[2]] {
            let world = faulty_world(layout, config().workers(1).deadline(Duration::from_millis(1200)));
            let duplicates: Vec<_> =
                world.ranks.iter().map(|comm| comm.duplicate("stuck").unwrap()).collect();
            let buffers = buffers(&world.ranks, 8192);
            stuck.iter().for_each(|&rank: &usize| world.faults[rank].stuck());
            let errors: Vec<_> =
                ask(&duplicates, &buffers).into_iter().map(|window| window.wait().unwrap_err()).collect();
            let mut deadlines = 0;
            for (rank, error) in errors.iter().enumerate() {
                let failure = failure(error);
                assert_eq!(failure.comm, "stuck");
                let in_map = stuck.contains(&rank);
                assert_eq!(failure.phase, if in_map { Phase::Map } else { Phase::Vote }, "{error}");
                match &failure.cause {
                    FailureCause::Deadline { missing, blocked, .. } => {
                        deadlines += 1;
                        let named: Vec<_> = missing.iter().map(|missing| missing.peer.rank.index()).collect();
                        assert_eq!(named, if in_map { vec![] } else { stuck.to_vec() }, "{error}");
                        assert!(blocked.is_empty(), "{error}");
                        assert!(
                            !in_map || error.to_string().contains("this rank's device is late"),
                            "{error}"
                        );
                    }
                    // Another rank was first to say so: of the stuck one, or of itself.
                    FailureCause::Aborted { reason, .. } => {
                        let others = (0..4).filter(|other| !stuck.contains(other));
                        for other in others {
                            assert!(!reason.contains(&format!("rank {other} ")), "{reason}");
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(deadlines >= 1, "{errors:?}");
            // Who fails stays so, the others do not.
            for comm in &duplicates {
                assert!(matches!(comm.status().activity, Activity::Failed(_)));
            }
            usable(&world.ranks);
            // It never passes, not even now.
            drop(buffers);
            finalize(duplicates);
            finalize(world.ranks);
            assert_empty(&world.hosts);
        }
    }
}

/// What wakes the actor meanwhile does not make it poll ever more often: one timer is pending, not one for each.
#[test]
fn a_stuck_batch_is_polled_as_often_however_many_messages_come() {
    const CLOSED: usize = 200;
    let world = faulty_world(&[1], config().workers(1));
    let comm = &world.ranks[0];
    let buffer = comm.alloc(8192).unwrap();
    let open: Vec<_> = (0..CLOSED).map(|_| comm.register(&buffer, NONE).unwrap()).collect();
    world.faults[0].stuck();
    let waiting = ask(&world.ranks, std::slice::from_ref(&buffer));
    stuck_in_map(&world.ranks);
    drop(open);
    until("the closes to be taken in", || comm.status().table_slots <= 1);
    // Each poll makes one tick: so many polls take so many ticks, one after another.
    let (polled, begun) = (world.faults[0].count(Call::Done), std::time::Instant::now());
    until("more polls", || world.faults[0].count(Call::Done) >= polled + 500);
    assert!(begun.elapsed() >= Duration::from_micros(200) * 100, "{:?}", begun.elapsed());
    world.faults[0].heal();
    waiting.into_iter().for_each(|window| drop(window.wait().unwrap()));
    drop(buffer);
    finalize(world.ranks);
    assert_empty(&world.hosts);
}

/// What a failed map has queued may still write to what the roll-back unmaps.
#[test]
fn p_7_a_map_that_fails_waits_for_its_stream_before_anything_is_unmapped() {
    const LATE: u64 = 3;
    for layout in [&[2][..], &[1, 1]] {
        let world = faulty_world(layout, config().workers(1));
        usable(&world.ranks);
        let buffers: Vec<_> = world.ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
        let log = Arc::new(Mutex::new(Vec::new()));
        let calls = Arc::clone(&log);
        world.faults[1].on_call(Box::new(move |call, _| calls.lock().unwrap().push(call)));
        world.faults[1].late(LATE);
        world.faults[1].fail(Call::Copy, 1);
        for outcome in register_all(&world.ranks, &buffers) {
            rolled_back(outcome);
        }
        let log = log.lock().unwrap().clone();
        let failed = log.iter().position(|call| *call == Call::Copy).expect("the struct is copied");
        let unmapped = log.iter().position(|call| *call == Call::Unmap).expect("the roll-back unmaps");
        let asked = log[failed..unmapped].iter().filter(|call| **call == Call::Done).count() as u64;
        assert_eq!(asked, LATE + 1, "{layout:?}: {log:?}");
        usable(&world.ranks);
        drop(buffers);
        finalize(world.ranks);
        assert_empty(&world.hosts);
    }
}

/// Closed while a kernel runs on a stream: nothing that the kernel may see is used again before the stream has passed.
#[test]
fn a_window_closed_after_a_stream_keeps_its_places_until_the_stream_has_passed() {
    for layout in [&[2][..], &[1, 1]] {
        let world = faulty_world(layout, config());
        let (ranks, faulty) = (&world.ranks, &world.faults[0]);
        let buffers = buffers(ranks, 8192);
        let windows_before = windows(ranks, &buffers);
        let held = world.held();
        let stream = faulty.stream_create().unwrap();
        faulty.stuck();
        windows_before[0].close_after(stream).unwrap();
        assert!(!windows_before[0].is_open());
        assert!(ranks[0].find_window(buffers[0].as_ptr(), 1).is_none(), "lookups forget it at once");
        let again = windows_before[0].close_after(stream).unwrap_err();
        assert!(matches!(again, Error::Misuse(Misuse::Closed { .. })), "{again}");
        // Other batches go on meanwhile, and take other places.
        let polls = faulty.count(Call::Done);
        until("the stream to be asked again", || faulty.count(Call::Done) > polls + 2);
        let status = ranks[0].status();
        assert_eq!((status.windows, status.table_slots, status.shadow_slots), (0, 1, 1), "{layout:?}");
        faulty.heal();
        until("the closed window's places to be free", || ranks[0].status().table_slots == 0);
        let windows_after = windows(ranks, &buffers);
        check_pointers(ranks, &windows_after, &buffers);
        drop((windows_before, windows_after));
        let windows = windows(ranks, &buffers);
        sync(ranks);
        faulty.stream_destroy(stream).unwrap();
        world.expect_held(&held, "after the stream has passed");
        drop((windows, buffers));
        finalize(world.ranks);
        assert_empty(&world.hosts);
    }
}

#[test]
fn a_stream_that_cannot_be_marked_leaves_the_window_open() {
    let world = faulty_world(&[1], config());
    let buffers = buffers(&world.ranks, 8192);
    let windows = windows(&world.ranks, &buffers);
    let stream = world.faults[0].stream_create().unwrap();
    world.faults[0].stream_destroy(stream).unwrap();
    let error = windows[0].close_after(stream).unwrap_err();
    assert!(matches!(error, Error::Device(ref e) if e.call == Call::Record), "{error}");
    assert!(windows[0].is_open());
    check_pointers(&world.ranks, &windows, &buffers);
}

/// The close of the communicator waits for the stream, and says so when its deadline comes first.
#[test]
fn closing_waits_for_streams_until_its_deadline() {
    for is_late in [true, false] {
        let world = faulty_world(&[1], config().deadline(Duration::from_millis(300)));
        let buffers = buffers(&world.ranks, 8192);
        let windows = windows(&world.ranks, &buffers);
        let faulty = &world.faults[0];
        let stream = faulty.stream_create().unwrap();
        if is_late {
            faulty.late(POLLS)
        } else {
            faulty.stuck()
        }
        windows[0].close_after(stream).unwrap();
        let [comm] = world.ranks.try_into().unwrap();
        let finalized: Result<(), Error> = comm.finalize();
        if is_late {
            finalized.unwrap();
            faulty.stream_destroy(stream).unwrap();
            drop((windows, buffers));
            assert_empty(&world.hosts);
        } else {
            let error = finalized.unwrap_err();
            assert!(matches!(error, Error::Limit { .. }), "{error}");
            assert!(error.to_string().contains("1 streams of"), "{error}");
        }
    }
}
