//! P-5, P-6 for multicast teams, on the test device with multicast: whatever call fails, on whichever rank, all roll
//! back and nothing remains; and nothing is bound before every device was added.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::device::Counts;
use common::*;
use parking_lot::Mutex;
use symwin::driver::multicast::{MulticastBoard, MulticastCounts, MulticastDriver};
use symwin::driver::{Call, DeviceProblem};
use symwin::error::{Cause, Phase, Reason};
use symwin::{Buffer, Communicator, DevComm, DevCommRequirements, Error, Group, Window, WindowFlags};

struct World {
    world: FaultyWorld,
    board: Arc<MulticastBoard>,
    /// One window open before.
    old: Vec<Buffer>,
    /// One window of the batch.
    new: Vec<Buffer>,
    open: Vec<Window>,
}

impl World {
    fn new(layout: &[u32]) -> Self {
        let board = MulticastBoard::new();
        let on = Arc::clone(&board);
        let world =
            faulty_world_of(layout, config(), move |host| MulticastDriver::new(host, Arc::clone(&on)));
        let own = || world.ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect::<Vec<_>>();
        let (old, new) = (own(), own());
        let open = windows(&world.ranks, &old);
        // Pages of device structs are kept once they were made.
        drop(windows(&world.ranks, &new));
        sync(&world.ranks);
        Self { board, old, new, open, world }
    }

    fn ranks(&self) -> &[Communicator] {
        &self.world.ranks
    }

    /// A window, and a device communicator with a team of all and one of each pair.
    fn run(&self) -> Vec<Result<(Window, DevComm), Error>> {
        let group = Group::start();
        let pending: Vec<_> = self
            .ranks()
            .iter()
            .zip(&self.new)
            .map(|(comm, buffer)| {
                let pair = comm.world_team().unwrap().inner_factor(2).unwrap();
                let requirements =
                    DevCommRequirements::new().lsa_multimem(true).lsa_barriers(1).team(pair, true);
                let window = group.register(comm, buffer, WindowFlags::empty());
                (window, group.create_dev_comm(comm, requirements))
            })
            .collect();
        drop(group.submit());
        pending.into_iter().map(|(window, dev_comm)| Ok((window.wait()?, dev_comm.wait()?))).collect()
    }

    /// The batch works, and its windows have a multicast address in each team (P-6).
    fn works(&self) {
        let made: Vec<_> = self.run().into_iter().map(Result::unwrap).collect();
        for (comm, (window, dev_comm)) in self.ranks().iter().zip(&made) {
            let team = comm.lsa_team().unwrap();
            let base = window.multicast_ptr(team, 0).unwrap().addr() - window.offset() as usize;
            assert_eq!(dev_comm.device().lsa_multimem.base, base as u64);
            let pair = window.multicast_ptr(team.inner_factor(2).unwrap(), 8191).unwrap();
            assert_eq!(Some(pair.addr() - 8191 - window.offset() as usize), dev_comm.multicast_base(0));
        }
        self.pointers(&made.iter().map(|(window, _)| window.clone()).collect::<Vec<_>>());
        drop(made);
        sync(self.ranks());
        assert_eq!(self.board.check_order(), Ok(()), "P-6");
        check_digests(self.ranks());
    }

    fn pointers(&self, new: &[Window]) {
        check_pointers(self.ranks(), new, &self.new);
        check_pointers(self.ranks(), &self.open, &self.old);
    }

    fn finalize(self) {
        let Self { world, board, old, new, open } = self;
        drop((old, new, open));
        let FaultyWorld { ranks, hosts, .. } = world;
        finalize(ranks);
        let until = Instant::now() + Duration::from_secs(10);
        while board.counts() != MulticastCounts::default()
            || hosts.iter().any(|host| host.counts() != Counts::default())
        {
            assert!(Instant::now() < until, "{:?}, {:?}", board.counts(), hosts[0].counts());
            std::thread::yield_now();
        }
    }
}

/// The calls of each rank while the batch runs, up to its last bind: kind, and which of its kind from now.
fn calls_to_vote(world: &World) -> Vec<Vec<(Call, u64)>> {
    let logs: Vec<_> = world.world.faults.iter().map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    for (faulty, log) in world.world.faults.iter().zip(&logs) {
        let (to, before) = (Arc::clone(log), faulty.counts());
        faulty.on_call(Box::new(move |call, nth| {
            to.lock().push((call, nth - before.get(&call).copied().unwrap_or(0)));
        }));
    }
    world.works();
    world.world.faults.iter().for_each(|faulty| faulty.on_call(Box::new(|_, _| {})));
    let to_bind = |log: &Vec<(Call, u64)>| {
        let last = log.iter().rposition(|(call, _)| *call == Call::MulticastBind).unwrap();
        log[..=last].to_vec()
    };
    logs.iter().map(|log| to_bind(&log.lock())).collect()
}

/// Fails each of these calls in turn, once.
fn sweep(world: &World, calls: &[Vec<(Call, u64)>], ranks: &[usize], new_team: bool) {
    let (before, objects) = (world.world.held(), world.board.counts());
    let mut kinds = std::collections::BTreeSet::new();
    for &rank in ranks {
        for &(call, nth) in &calls[rank] {
            if matches!(call, Call::Done | Call::Release) {
                // What these leave behind is another test's.
                continue;
            }
            let what = format!("call {nth} of {call} on rank {rank}");
            world.world.faults[rank].fail(call, nth);
            for outcome in world.run() {
                let rolled_back = rolled_back(outcome);
                let Cause::Refused { faults } = &rolled_back.cause else { panic!("{what}: {rolled_back}") };
                assert_eq!(faults.len(), 1, "{what}: {rolled_back}");
                assert_eq!(faults[0].peer.rank.index(), rank, "{what}: {rolled_back}");
                let Reason::Device(error) = &faults[0].reason else { panic!("{rolled_back}") };
                assert!(error.call == call && matches!(error.problem, DeviceProblem::Injected { .. }));
                match call {
                    Call::MulticastAddDevice => assert_eq!(faults[0].phase, Phase::Multicast),
                    Call::MulticastBind => assert_eq!(faults[0].phase, Phase::Bind),
                    Call::MulticastCreate => assert_eq!(faults[0].phase, Phase::Prepare),
                    _ => {}
                }
                assert_eq!(rolled_back.undo, [], "{what}");
            }
            world.world.faults[rank].heal();
            world.world.expect_held(&before, &what);
            assert_eq!(world.board.counts(), objects, "{what}");
            let windows = windows(world.ranks(), &world.new);
            world.pointers(&windows);
            drop(windows);
            sync(world.ranks());
            kinds.insert(call);
        }
    }
    assert!(kinds.contains(&Call::MulticastBind));
    assert_eq!(kinds.contains(&Call::MulticastAddDevice), new_team);
    assert_eq!(world.board.check_order(), Ok(()), "P-6");
}

#[test]
fn p_6_any_call_of_a_batch_with_new_multicast_teams_may_fail() {
    for layout in LAYOUTS {
        let clean = World::new(layout);
        let calls = calls_to_vote(&clean);
        clean.finalize();
        let world = World::new(layout);
        sweep(&world, &calls, &[0, 2, 3], true);
        world.works();
        world.finalize();
    }
}

#[test]
fn p_6_any_call_of_a_batch_with_known_multicast_teams_may_fail() {
    for layout in LAYOUTS {
        let world = World::new(layout);
        world.works();
        let calls = calls_to_vote(&world);
        sweep(&world, &calls, &[0, 3], false);
        world.works();
        world.finalize();
    }
}

/// Every undo call of a batch with new multicast teams fails in turn.
#[test]
fn p_5_an_undo_call_of_multicast_that_fails_is_reported() {
    for layout in LAYOUTS {
        for call in [Call::MulticastUnbind, Call::Unmap, Call::Free, Call::Release] {
            for nth in 1..=2 {
                let world = World::new(layout);
                let faults = &world.world.faults;
                // Rank 1's last bind fails, so that rank 3 has to undo all of its own.
                faults[1].fail(Call::MulticastBind, 6);
                faults[3].fail(call, nth);
                let outcomes: Vec<_> = world.run().into_iter().map(rolled_back).collect();
                faults.iter().for_each(|faulty| faulty.heal());
                // Imports are given back before the vote: then this is the batch's failure.
                let Cause::Refused { faults: first } = &outcomes[0].cause else { panic!("{}", outcomes[0]) };
                if first[0].phase == Phase::Map {
                    continue;
                }
                assert_eq!((first[0].peer.rank.get(), first[0].phase), (1, Phase::Bind), "{}", outcomes[0]);
                for (rank, outcome) in outcomes.iter().enumerate() {
                    let calls: Vec<_> = outcome.undo.iter().map(|error| error.call).collect();
                    // A binding that stays keeps its object: the device refuses to release it.
                    let own = calls.iter().filter(|undo| **undo == call).count();
                    assert_eq!(
                        own,
                        usize::from(rank == 3),
                        "{layout:?}, {call} {nth}, rank {rank}: {calls:?}"
                    );
                    let board = world.ranks()[rank].status().undo_failures;
                    assert!(outcome.undo.iter().all(|error| board.contains(error)), "{board:?}");
                }
                sync(world.ranks());
                check_digests(world.ranks());
                world.works();
                let World { world, .. } = world;
                finalize(world.ranks);
            }
        }
    }
}

/// A multicast unbind that fails when a memory goes: its range is used by no one any more, on any rank.
#[test]
fn p_5_a_failing_unbind_quarantines_the_range_on_every_rank() {
    for layout in LAYOUTS {
        let world = World::new(layout);
        world.works();
        let windows = windows(world.ranks(), &world.new);
        let bad = windows[0].offset();
        drop(windows);
        world.world.faults[3].fail(Call::MulticastUnbind, 1);
        sync(world.ranks());
        sync(world.ranks());
        let failures = world.ranks()[3].status().undo_failures;
        assert_eq!(failures.iter().map(|error| error.call).collect::<Vec<_>>(), [Call::MulticastUnbind]);
        assert!(world.ranks().iter().all(|comm| comm.status().quarantined_bytes == 8192));
        let again = common::windows(world.ranks(), &world.new);
        assert_ne!(again[0].offset(), bad);
        world.pointers(&again);
        drop(again);
        world.works();
        let World { world, .. } = world;
        finalize(world.ranks);
    }
}

/// A communicator that is aborted between bind and vote gives everything back at its close.
#[test]
fn a_2_what_a_dropped_job_has_made_of_multicast_goes_at_the_close() {
    for layout in LAYOUTS {
        for call in [Call::MulticastAddDevice, Call::MulticastBind] {
            let world = World::new(layout);
            let ranks = Arc::new(Mutex::new(None::<Communicator>));
            let World { world: FaultyWorld { ranks: mut all, faults, hosts }, board, old, new, open } = world;
            let queued = {
                let group = Group::start();
                let pending: Vec<_> = all
                    .iter()
                    .zip(&new)
                    .map(|(comm, buffer)| {
                        let window = group.register(comm, buffer, WindowFlags::empty());
                        (window, group.create_dev_comm(comm, DevCommRequirements::new().lsa_multimem(true)))
                    })
                    .collect();
                let aborting = Arc::clone(&ranks);
                faults[3].on_call(Box::new(move |made, _| {
                    if made == call
                        && let Some(comm) = &*aborting.lock()
                    {
                        comm.abort("a test");
                    }
                }));
                *ranks.lock() = all.pop();
                drop(group.submit());
                pending
            };
            // Its own job cannot have ended: its vote was not out. Others may have heard of the abort only later.
            for (rank, (window, dev_comm)) in queued.into_iter().enumerate() {
                let outcome = window.wait().map(drop).and(dev_comm.wait().map(drop));
                assert!(matches!(outcome, Err(Error::Failed(_))) || rank < 3, "{outcome:?}");
            }
            faults[3].on_call(Box::new(|_, _| {}));
            all.extend(ranks.lock().take());
            drop((old, new, open));
            finalize(all);
            let until = Instant::now() + Duration::from_secs(10);
            while board.counts() != MulticastCounts::default()
                || hosts.iter().any(|host| host.counts() != Counts::default())
            {
                assert!(
                    Instant::now() < until,
                    "{layout:?}, {call}: {:?}, {:?}",
                    board.counts(),
                    hosts[0].counts()
                );
                std::thread::yield_now();
            }
        }
    }
}
