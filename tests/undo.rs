//! P-5: an undo call that fails is reported beside the first error, what it leaves is never used again on any rank, and
//! the communicator goes on. Publishing that fails is the communicator's end, by name.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::time::{Duration, Instant};

use common::device::Counts;
use common::scene::*;
use common::*;
use symwin::driver::Call;
use symwin::error::{Cause, FailureCause, Reason};
use symwin::{Activity, Communicator, Error};

/// A batch is rolled back since a stream failed on one rank; meanwhile each undo call fails in turn.
#[test]
fn p_5_an_undo_call_that_fails_is_reported_beside_the_first_error() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let (ranks, faults) = (&world.ranks, &world.faults);
        let scene = Scene::later(ranks);
        scene.works(ranks);
        let clean = calls(&world, || {
            faults[0].fail(Call::Record, 1);
            only_fault(scene.run(ranks));
        });
        // Every rank undoes its mappings and references, with at least one call of each of the two kinds on the one
        // that maps for a process.
        let mut kinds = Vec::new();
        for (undoing, clean) in clean.iter().enumerate() {
            for &(call, nth) in after_vote(clean) {
                let what = format!("{layout:?}: call {nth} of {call} on rank {undoing}");
                kinds.push((undoing, call));
                let before = ranks[0].status().quarantined_bytes;
                faults[0].fail(Call::Record, 1);
                faults[undoing].fail(call, nth);
                for (rank, outcome) in scene.run(ranks).into_iter().enumerate() {
                    let rolled_back = rolled_back(outcome);
                    let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
                    assert!(injected(&faults[0], Call::Record), "{what}: {rolled_back}");
                    let undo: Vec<_> = rolled_back.undo.iter().map(|error| error.call).collect();
                    assert_eq!(undo, if rank == undoing { vec![call] } else { vec![] }, "{what}");
                    if rank == undoing {
                        assert_eq!(
                            ranks[rank].status().undo_failures.last(),
                            rolled_back.undo.last(),
                            "{what}"
                        );
                    }
                }
                faults.iter().for_each(|faulty| faulty.heal());
                sync(ranks);
                check_digests(ranks);
                let after: Vec<_> = ranks.iter().map(|comm| comm.status().quarantined_bytes).collect();
                assert!(after.iter().all(|bytes| *bytes == after[0]), "{what}: {after:?}");
                assert!(call != Call::Unmap || after[0] > before, "{what}: nothing was quarantined");
                // A range that is still mapped somewhere could not be mapped again.
                scene.works(ranks);
            }
        }
        assert!(kinds.iter().any(|(_, call)| *call == Call::Unmap), "{layout:?}: {kinds:?}");
        for rank in 0..ranks.len() {
            assert!(kinds.contains(&(rank, Call::Release)), "{layout:?}, rank {rank}: {kinds:?}");
        }
        drop(scene);
        finalize(world.ranks);
        let left: Vec<_> = world.hosts.iter().map(|host| host.counts()).map(|c| c.mappings).collect();
        assert!(left.iter().all(|mappings| *mappings == 0), "the range went with all in it: {left:?}");
    }
}

/// Unmap and release quarantine the range on every rank. Copies, which take the window from kernels, are made again:
/// its memory stays until then.
#[test]
fn p_5_a_failing_call_of_a_deregistration_is_tried_again_or_quarantines_the_range_on_every_rank() {
    for layout in LAYOUTS {
        for rank in FAILING {
            for (call, nth) in [(Call::Unmap, 1), (Call::Release, 1), (Call::Copy, 1), (Call::Copy, 2)] {
                let what = format!("{layout:?}: call {nth} of {call} on rank {rank}");
                let world = faulty_world(layout, config());
                let (ranks, faults) = (&world.ranks, &world.faults);
                let buffers: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
                let other: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
                let open = windows(ranks, &other);
                let closing = windows(ranks, &buffers);
                let bad = closing[0].offset()..closing[0].offset() + 8192;
                for (r, faulty) in faults.iter().enumerate() {
                    // Which rank of a process unmaps is a matter of time.
                    let shares = process_of(layout, r) == process_of(layout, rank);
                    if r == rank || (call == Call::Unmap && shares) {
                        faulty.fail(call, nth);
                    }
                }
                drop(closing);
                sync(ranks);
                faults.iter().for_each(|faulty| faulty.heal());
                sync(ranks);
                check_digests(ranks);
                let failures: Vec<_> = ranks.iter().flat_map(|comm| comm.status().undo_failures).collect();
                assert_eq!(failures.iter().map(|error| error.call).collect::<Vec<_>>(), [call], "{what}");
                // What kernels may still find keeps its range until it can be taken from them.
                let out = if call == Call::Copy { 0 } else { 8192 };
                for held in ranks.iter().map(RankHeld::of) {
                    assert_eq!(
                        (held.quarantined_bytes, held.memories, held.agreed_memories),
                        (out, 1, 1),
                        "{what}"
                    );
                    assert_eq!((held.shadow_slots, held.table_slots), (1, 1), "{what}");
                }
                for _ in 0..3 {
                    let again = windows(ranks, &buffers);
                    let offset = again[0].offset();
                    let apart = offset + 8192 <= bad.start || offset >= bad.end;
                    assert_eq!(apart, out > 0, "{what}: {offset:#x} of {bad:x?}");
                    check_pointers(ranks, &again, &buffers);
                    check_pointers(ranks, &open, &other);
                }
                drop(open);
                finalize(world.ranks);
            }
        }
    }
}

/// A committed batch that cannot be published fails the communicator, by name, on every rank; closing is clean.
#[test]
fn a_batch_that_cannot_be_published_fails_the_communicator_by_name() {
    for layout in LAYOUTS {
        for rank in FAILING {
            let mut failed_copies = 0;
            for nth in 1.. {
                let world = faulty_world(layout, config());
                let scene = Scene::later(&world.ranks);
                scene.works(&world.ranks);
                let clean = calls(&world, || scene.works(&world.ranks));
                let first =
                    before_vote(&clean[rank]).iter().filter(|(call, _)| *call == Call::Copy).count() as u64;
                let commits = after_vote(&clean[rank]).iter().take_while(|(call, _)| *call != Call::Record);
                let copies = commits.filter(|(call, _)| *call == Call::Copy).count() as u64;
                if nth > 2 || nth > copies {
                    break;
                }
                world.faults[rank].fail(Call::Copy, first + nth);
                failed_copies += 1;
                let outcomes = scene.run(&world.ranks);
                let Err(Error::Failed(failure)) = &outcomes[rank] else { panic!("{:?}", outcomes[rank]) };
                let FailureCause::Publish { by, reason: Reason::Device(_) } = &failure.cause else {
                    panic!("{failure}")
                };
                assert_eq!(by.rank.index(), rank);
                let until = Instant::now() + Duration::from_secs(10);
                let failed = |comm: &Communicator| matches!(comm.status().activity, Activity::Failed(_));
                while !world.ranks.iter().all(failed) {
                    assert!(Instant::now() < until);
                    std::thread::yield_now();
                }
                drop((outcomes, scene));
                let FaultyWorld { ranks, hosts, .. } = world;
                finalize(ranks);
                for host in hosts {
                    while host.counts() != Counts::default() {
                        assert!(Instant::now() < until, "{:?}", host.counts());
                        std::thread::yield_now();
                    }
                }
            }
            assert!(failed_copies >= 1, "{layout:?}, rank {rank}: a commit copies");
        }
    }
}
