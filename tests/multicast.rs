//! Multicast objects, on the test device: when they are made, what is bound to them and when, and what a failure
//! leaves.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/worlds.rs"]
mod worlds;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use common::device::on_gpus;
use common::*;
use symwin::driver::faulty::Faulty;
use symwin::driver::host::{HostDriver, HostOptions};
use symwin::driver::multicast::{MulticastBoard, MulticastDriver};
use symwin::driver::{Call, Driver};
use symwin::error::{Cause, FailureCause, Misuse, Reason};
use symwin::{Activity, Communicator, DevComm, DevCommRequirements, Error, Rank, Team, Window};
use worlds::*;

/// One process, and two.
const MULTICAST_LAYOUTS: [&[u32]; 4] = [&[2], &[4], &[2, 2], &[3, 1]];

fn multimem() -> DevCommRequirements {
    DevCommRequirements::new().lsa_multimem(true)
}

fn rounds(ranks: &[Communicator]) -> Vec<u64> {
    ranks.iter().map(|comm| comm.status().rounds).collect()
}

/// Runs it, and gives the rounds that it took, equal on all ranks.
fn counted<T>(ranks: &[Communicator], operation: impl FnOnce() -> T) -> (T, u64) {
    let before = rounds(ranks);
    let done = operation();
    let took: Vec<u64> = rounds(ranks).iter().zip(before).map(|(now, then)| now - then).collect();
    assert!(took.iter().all(|one| *one == took[0]), "{took:?}");
    (done, took[0])
}

fn check_multicast_pointers(ranks: &[Communicator], windows: &[Window], dev: &[DevComm]) {
    for ((comm, window), dev) in ranks.iter().zip(windows).zip(dev) {
        let base = dev.device().lsa_multimem.base;
        assert_ne!(base, 0);
        assert_eq!(dev.device().to_248(23_102).lsa_multimem.base, base);
        let team = comm.lsa_team().unwrap();
        let pointer = window.multicast_ptr(team, 100).unwrap();
        assert_eq!(pointer.addr() as u64, base + window.offset() + 100, "base + offset");
        assert!(matches!(
            window.multicast_ptr(team, window.size()),
            Err(Error::Misuse(Misuse::OutOfRange { .. }))
        ));
    }
}

/// One extra round exactly when an object is made; old memories are bound to it, new ones to all; the getter talks
/// to nobody.
#[test]
fn p6_p8_objects_are_made_once_and_everything_is_bound() {
    for layout in MULTICAST_LAYOUTS {
        let world = MulticastWorld::new(layout);
        let ranks = &world.ranks;
        let n = ranks.len();
        let old_buffers = buffers(ranks, 4096);
        let (old, took) = counted(ranks, || windows(ranks, &old_buffers));
        assert_eq!((took, world.board.counts().objects), (2, 0));
        assert!(
            matches!(
                old[0].multicast_ptr(ranks[0].lsa_team().unwrap(), 0),
                Err(Error::Misuse(Misuse::Other { .. }))
            ),
            "A-8: a getter makes nothing"
        );

        let (dev, took) = counted(ranks, || dev_comms(ranks, &multimem()));
        assert_eq!(took, 3, "{layout:?}: one more for the new object");
        assert_eq!((world.board.counts().objects, world.board.counts().bindings), (1, n));
        assert_eq!(world.board.counts().mappings, n);
        check_multicast_pointers(ranks, &old, &dev);

        let (again, took) = counted(ranks, || dev_comms(ranks, &multimem()));
        assert_eq!((took, world.board.counts().objects), (2, 1), "the object is there");
        check_multicast_pointers(ranks, &old, &again);

        let new_buffers: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
        let (new, took) = counted(ranks, || windows(ranks, &new_buffers));
        assert_eq!((took, world.board.counts().bindings), (2, 2 * n));
        let (_, took) = counted(ranks, || check_multicast_pointers(ranks, &new, &dev));
        assert_eq!(took, 0, "A-8");
        check_pointers(ranks, &new, &new_buffers);

        // A resource buffer is a memory too.
        let (own, _) = counted(ranks, || dev_comms(ranks, &multimem().lsa_barriers(1)));
        assert_eq!(world.board.counts().bindings, 3 * n);
        drop((old, new, dev, again, own, old_buffers, new_buffers));
        world.close();
    }
}

#[test]
fn strided_teams_have_an_object_each() {
    for layout in [&[4][..], &[2, 2], &[3, 1]] {
        let world = MulticastWorld::new(layout);
        let ranks = &world.ranks;
        let team = |comm: &Communicator| Team::strided(2, comm.rank().get() / 2, 2).unwrap();
        let buffers = buffers(ranks, 4096);
        let windows = windows(ranks, &buffers);
        let make = || ask(ranks, |g, c| g.create_dev_comm(c, DevCommRequirements::new().team(team(c), true)));
        let (dev, took) = counted(ranks, make);
        assert_eq!((took, world.board.counts().objects, world.board.counts().bindings), (3, 2, 4));
        for ((comm, window), dev) in ranks.iter().zip(&windows).zip(dev) {
            let dev = dev.unwrap();
            let base = dev.multicast_base(0).unwrap();
            let pointer = window.multicast_ptr(team(comm), 8).unwrap();
            assert_eq!(pointer.addr() as u64, base as u64 + window.offset() + 8);
            assert_eq!(dev.device().lsa_multimem.base, 0, "the LSA team has none");
            assert!(window.multicast_ptr(comm.lsa_team().unwrap(), 0).is_err());
        }
        // Both together: only what is new costs a round.
        let both = || {
            ask(ranks, |g, c| {
                let requirements = multimem().team(team(c), true).team(c.lsa_team().unwrap(), true);
                g.create_dev_comm(c, requirements)
            })
        };
        let (both, took) = counted(ranks, both);
        assert_eq!((took, world.board.counts().objects), (3, 3));
        for dev in both {
            let dev = dev.unwrap();
            assert_eq!(dev.multicast_base(1).unwrap() as u64, dev.device().lsa_multimem.base);
        }
        drop((windows, buffers));
        world.close();
    }
}

/// Each LSA team has its own object, and the worlds' teams agree all the same.
#[test]
fn every_lsa_team_makes_its_own() {
    for layout in [&[4][..], &[1, 2, 1]] {
        let world = MulticastWorld::with(layout, config().lsa_team_size(2));
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        let dev = dev_comms(&world.ranks, &multimem());
        assert_eq!((world.board.counts().objects, world.board.counts().bindings), (2, 4));
        check_multicast_pointers(&world.ranks, &windows, &dev);
        world.faults[3].fail(Call::MulticastBind, 1);
        let own: Vec<_> = world.ranks.iter().map(|comm| comm.alloc_own(4096).unwrap()).collect();
        let cause = agreed_cause(register_all(&world.ranks, &own));
        assert_eq!(refusers(&cause), [Rank::new(3)]);
        assert_eq!(world.board.counts().bindings, 4, "rolled back in both teams");
        drop((windows, dev, buffers, own));
        world.close();
    }
}

/// What a rank has retired stays bound, and its memory with it, until all have: peers store through the object.
#[test]
fn a_memory_stays_bound_until_all_have_retired_it_and_outlives_its_binding() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let ranks = &world.ranks;
        let dev = dev_comms(ranks, &multimem());
        // GPUs do not tell.
        let bytes = || world.hosts.iter().map(|host| host.counts().bytes).sum::<u64>();
        let own_bytes = if on_gpus() { 0 } else { 2 << 20 };
        let small = buffers(ranks, 4096);
        drop(windows(ranks, &small));
        drop(windows(ranks, &small));
        let before = (bytes(), world.board.counts().bindings);
        let own: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(1 << 20).unwrap()).collect();
        let [first, second] = <[Window; 2]>::try_from(windows(ranks, &own)).unwrap();
        drop(own);
        // The batch before has let go of the small window's memory: what is bound now is this one.
        assert_eq!(world.board.counts().bindings, 2);
        drop(first);
        settled(ranks, 0);
        assert_eq!(world.board.counts().bindings, 2, "one rank has retired it");
        assert_eq!(bytes(), before.0 + own_bytes, "a binding keeps its memory");
        drop(second);
        settled(ranks, 1);
        let last = windows(ranks, &small);
        assert_eq!(world.board.counts().bindings, 2, "unbound by the next batch, which binds its own");
        assert_eq!(bytes(), before.0, "and the memory is gone");
        let steps = world.board.steps();
        let unbound = steps.iter().filter(|step| step.call == Call::MulticastUnbind && !step.refused).count();
        assert!(unbound >= 2);
        drop((last, dev, small));
        world.close();
    }
}

/// Waits until the rank's actor has taken in what was closed: it holds nothing any more.
fn settled(ranks: &[Communicator], rank: usize) {
    until("closes to be taken in", || ranks[rank].status().memories == 0);
}

/// The calls of a batch that makes an object, up to the vote.
const SWEPT: [Call; 9] = [
    Call::Create,
    Call::Export,
    Call::Import,
    Call::Map,
    Call::MulticastAddDevice,
    Call::MulticastBind,
    Call::MulticastCreate,
    Call::Reserve,
    Call::SetAccess,
];

/// A failure at any call, on any rank, rolls back on all, by name, and the next try succeeds.
#[test]
fn a_failure_at_any_multicast_call_rolls_back_everywhere() {
    for layout in [&[3][..], &[2, 1]] {
        let calls = {
            let world = MulticastWorld::new(layout);
            let buffers = buffers(&world.ranks, 4096);
            let windows = windows(&world.ranks, &buffers);
            let before: Vec<_> = world.faults.iter().map(|faulty| faulty.counts()).collect();
            drop(dev_comms(&world.ranks, &multimem().lsa_barriers(1)));
            let after: Vec<_> = world.faults.iter().map(|faulty| faulty.counts()).collect();
            drop((windows, buffers));
            world.close();
            difference(&before, &after)
        };
        let world = MulticastWorld::new(layout);
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        let mut swept = 0;
        for (rank, counts) in calls.iter().enumerate() {
            for call in SWEPT {
                for nth in 1..=counts.get(&call).copied().unwrap_or(0) {
                    let host = world.host_counts();
                    world.faults[rank].fail(call, nth);
                    let results = try_dev_comms(&world.ranks, &multimem().lsa_barriers(1));
                    let undo: Vec<_> = results
                        .iter()
                        .map(|r| rolled_back(r.as_ref().map(drop).map_err(Clone::clone)).undo.clone())
                        .collect();
                    assert!(undo.iter().all(Vec::is_empty), "{undo:?}");
                    let cause = agreed_cause(results);
                    assert_eq!(refusers(&cause), [Rank::new(u32::try_from(rank).unwrap())], "{call} {nth}");
                    assert_eq!(world.board.counts(), Default::default(), "{call} {nth} of rank {rank}: P-5");
                    assert_eq!(world.host_counts(), host, "{call} {nth} of rank {rank}: P-5");
                    swept += 1;
                }
            }
        }
        assert!(swept > 15, "{swept} calls were swept");
        let dev = dev_comms(&world.ranks, &multimem().lsa_barriers(1));
        check_multicast_pointers(&world.ranks, &windows, &dev);
        drop((windows, dev, buffers));
        world.close();
    }
}

fn difference(before: &[BTreeMap<Call, u64>], after: &[BTreeMap<Call, u64>]) -> Vec<BTreeMap<Call, u64>> {
    let one = |(before, after): (&BTreeMap<Call, u64>, &BTreeMap<Call, u64>)| {
        after.iter().map(|(call, n)| (*call, n - before.get(call).copied().unwrap_or(0))).collect()
    };
    before.iter().zip(after).map(one).collect()
}

/// A bind that fails where the object is there already, with more memories behind it.
#[test]
fn a_failing_bind_to_an_existing_object_rolls_back_what_was_bound_before_it() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let dev = dev_comms(&world.ranks, &multimem());
        for nth in 1..=2 {
            world.faults[1].fail(Call::MulticastBind, nth);
            let results = ask(&world.ranks, |group, comm| {
                drop(group.register(comm, comm.alloc_own(4096).unwrap(), symwin::WindowFlags::empty()));
                group.register(comm, comm.alloc_own(8192).unwrap(), symwin::WindowFlags::empty())
            });
            assert_eq!(refusers(&agreed_cause(results)), [Rank::new(1)]);
            assert_eq!(world.board.counts().bindings, 0);
        }
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        check_multicast_pointers(&world.ranks, &windows, &dev);
        drop((dev, windows, buffers));
        world.close();
    }
}

/// P-5: an unbind that fails is reported, its range leaves the space on every rank, and the communicator goes on.
#[test]
fn an_unbind_that_fails_is_reported_and_its_range_never_used_again() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let ranks = &world.ranks;
        let dev = dev_comms(ranks, &multimem());
        // In a roll-back: rank 0 has bound, rank 1 cannot.
        world.faults[1].fail(Call::MulticastBind, 1);
        world.faults[0].fail(Call::MulticastUnbind, 1);
        let small = buffers(ranks, 4096);
        let results = register_all(ranks, &small);
        let undo: Vec<usize> = results.into_iter().map(|result| rolled_back(result).undo.len()).collect();
        assert_eq!(undo, [1, 0], "reported beside the first error, by the rank that it concerns");
        let windows = register_until_ok(ranks, &small);
        assert_eq!(windows[0].offset(), windows[1].offset());
        assert!(ranks[0].status().quarantined_bytes > 0);
        check_multicast_pointers(ranks, &windows, &dev);
        let first = windows[0].offset();
        // At a retirement.
        drop(windows);
        settled(ranks, 0);
        settled(ranks, 1);
        world.faults[1].fail(Call::MulticastUnbind, 1);
        let windows = register_until_ok(ranks, &small);
        assert_ne!(windows[0].offset(), first, "still bound there on rank 1");
        assert!(!ranks[1].status().undo_failures.is_empty());
        check_multicast_pointers(ranks, &windows, &dev);
        drop((windows, dev, small));
        // Once more, at the close, all goes.
        world.close();
    }
}

/// A range that is quarantined after the offer may be refused once: the next offer carries it.
fn register_until_ok(ranks: &[Communicator], buffers: &[symwin::Buffer]) -> Vec<Window> {
    for _ in 0..3 {
        let results = register_all(ranks, buffers);
        if results.iter().all(Result::is_ok) {
            return all_ok(results);
        }
        agreed_cause(results);
    }
    panic!("the communicator is not usable");
}

#[test]
fn teams_that_disagree_between_ranks_are_a_mismatch() {
    for layout in [&[4][..], &[2, 2]] {
        let world = MulticastWorld::new(layout);
        let results = ask(&world.ranks, |group, comm| {
            let member = if comm.rank().get() == 2 { 1 } else { comm.rank().get() % 2 };
            let team = Team::strided(2, member, 1).unwrap();
            group.create_dev_comm(comm, DevCommRequirements::new().team(team, true))
        });
        let Cause::Mismatch { what, requests } = agreed_cause(results) else { panic!("a mismatch") };
        assert_eq!((what.as_str(), requests.len()), ("the teams of task 0", 4));
        assert!(requests[2].1.contains("[1, 2]"), "{requests:?}");
        let results = ask(&world.ranks, |group, comm| {
            group.create_dev_comm(comm, multimem().lsa_multimem(comm.rank().get() != 1))
        });
        let Cause::Mismatch { what, .. } = agreed_cause(results) else { panic!("a mismatch") };
        assert_eq!(what, "the requirements of task 0");
        assert_eq!(world.board.counts(), Default::default(), "the objects that were made are gone");
        drop(dev_comms(&world.ranks, &multimem()));
        world.close();
    }
}

/// what one device cannot do is refused on all ranks, before any of them has made anything.
#[test]
fn without_multicast_on_every_device_it_is_unsupported_on_all_ranks() {
    let check = |ranks: &[Communicator]| {
        for requirements in [multimem(), DevCommRequirements::new().lsa_barriers(1)] {
            let results = ask(ranks, |group, comm| {
                let team = comm.lsa_team().unwrap();
                let wants = requirements.wants_lsa_multimem();
                let one = if wants { requirements.clone() } else { requirements.clone().team(team, true) };
                group.create_dev_comm(comm, one)
            });
            let cause = agreed_cause(results);
            assert_eq!(refusers(&cause).len(), ranks.len(), "every rank knows it by itself");
            let Cause::Refused { faults } = cause else { unreachable!() };
            assert!(faults.iter().all(|fault| matches!(fault.reason, Reason::Unsupported { .. })));
        }
        let buffers = buffers(ranks, 4096);
        let windows = windows(ranks, &buffers);
        let error = windows[0].multicast_ptr(ranks[0].lsa_team().unwrap(), 0).unwrap_err();
        assert!(error.to_string().contains("not every rank's device has multicast"));
    };
    for layout in LAYOUTS {
        let ranks = world(layout);
        check(&ranks);
        finalize(ranks);
        // Only one rank's device has none.
        let board = MulticastBoard::new();
        let config = config().devices(move |rank| {
            let host: Arc<dyn Driver> = HostDriver::new(HostOptions::new())?;
            Ok(if rank.get() == 2 { host } else { MulticastDriver::new(host, Arc::clone(&board)) })
        });
        if layout.len() == 4 {
            let ranks = Communicator::in_processes_with(layout, &config).unwrap();
            check(&ranks);
            finalize(ranks);
        }
    }
}

/// Holds the device's first bind from now: it says when it is there, and goes on when it is told.
fn hold_first_bind(faulty: &Faulty) -> (Receiver<()>, Sender<()>) {
    let (tell, told) = channel();
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let first = faulty.count(Call::MulticastBind) + 1;
    faulty.on_call(Box::new(move |call, nth| {
        if call == Call::MulticastBind && nth == first {
            tell.send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
        }
    }));
    (told, go)
}

/// A communicator that fails between a bind and the vote gives everything back at its close.
#[test]
fn bug_17_a_failure_while_binding_leaks_nothing_after_the_close() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        let gates: Vec<_> = world.faults.iter().map(|faulty| hold_first_bind(faulty)).collect();
        let group = symwin::Group::start();
        let pending: Vec<_> = world.ranks.iter().map(|c| group.create_dev_comm(c, multimem())).collect();
        drop(group.submit());
        gates.iter().for_each(|(told, _)| told.recv().unwrap());
        // Rank 1 binds, votes, and hears of the abort while rank 0 is still in its bind.
        world.ranks[1].abort("a test");
        gates[1].1.send(()).unwrap();
        until("closes to be taken in", || matches!(world.ranks[1].status().activity, Activity::Failed(_)));
        gates[0].1.send(()).unwrap();
        for (rank, result) in pending.into_iter().map(symwin::Pending::wait).enumerate() {
            match result {
                Err(Error::Failed(failure)) => {
                    assert!(matches!(failure.cause, FailureCause::Aborted { .. }), "{failure}");
                }
                // It has rank 1's vote, and the abort may still be on its way through the socket.
                Ok(_) => assert_eq!((rank, layout.len()), (0, 2)),
                Err(error) => panic!("{error}"),
            }
        }
        windows[0].write(world.ranks[1].rank(), 0, &[1]).unwrap();
        drop((windows, buffers));
        world.close();
    }
}
