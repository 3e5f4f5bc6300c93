//! Worlds of several LSA teams: what stays within a team, what all teams agree on, and who is named.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/worlds.rs"]
mod worlds;

use std::time::Duration;

use common::device::Counts;
use common::*;
use symwin::driver::Call;
use symwin::error::{Cause, FailureCause, Misuse, Reason};
use symwin::{
    Activity, Communicator, DevCommRequirements, Error, Group, Pending, Rank, Registration, Team, Window,
    WindowFlags,
};
use worlds::*;

/// Steps in which the leaders of so many teams merge.
fn steps(teams: u32) -> u64 {
    u64::from(teams.next_power_of_two().trailing_zeros())
}

fn rounds_of_a_batch(lsa_rank: u32, lsa: u32, teams: u32) -> u64 {
    let leads = lsa_rank == 0 && teams > 1;
    2 + if leads { steps(teams) + u64::from(lsa > 1) } else { 0 }
}

/// Pointers, kernels and rounds of a world in teams.
fn check_world(layout: &[u32], lsa: u32) {
    let ranks = team_world(layout, lsa);
    let world = u32::try_from(ranks.len()).unwrap();
    let teams = world / lsa;
    let buffers = buffers(&ranks, 1 << 14);
    let group = Group::start();
    let windows: Vec<_> =
        ranks.iter().zip(&buffers).map(|(c, b)| group.register(c, b, WindowFlags::COLL_SYMMETRIC)).collect();
    let requirements = DevCommRequirements::new().lsa_barriers(1).buffer(256, 128);
    let dev: Vec<_> = ranks.iter().map(|c| group.create_dev_comm(c, requirements.clone())).collect();
    group.end().unwrap();
    let windows: Vec<_> = windows.into_iter().map(|w| w.wait().unwrap()).collect();
    let dev: Vec<_> = dev.into_iter().map(|d| d.wait().unwrap()).collect();

    for (comm, window) in ranks.iter().zip(&windows) {
        let me = comm.rank().get();
        let expected = rounds_of_a_batch(me % lsa, lsa, teams);
        assert_eq!(comm.status().rounds, expected, "{layout:?} in teams of {lsa}, rank {me}: P-8");
        assert_eq!((comm.lsa_size(), comm.lsa_rank().get()), (lsa, me % lsa));
        for to in 0..world {
            let peer = Rank::new(to);
            if to / lsa == me / lsa {
                let mark = [u8::try_from(me + 1).unwrap()];
                window.write(peer, me as usize, &mark).unwrap();
                let mut seen = [0];
                buffers[to as usize].read(me as usize, &mut seen).unwrap();
                assert_eq!(seen, mark, "P-3");
            } else {
                let not = |result: symwin::Result<()>| match result {
                    Err(Error::Misuse(Misuse::NotInTeam { rank, .. })) => assert_eq!(rank, peer),
                    other => panic!("{me} reached {to}: {other:?}"),
                };
                not(window.peer_ptr(peer, 0).map(drop));
                not(window.size_of(peer).map(drop));
                not(window.read(peer, 0, &mut [0]));
                not(window.write(peer, 0, &[0]));
            }
        }
        assert!(window.lsa_ptr(symwin::LsaRank::new(lsa), 0).is_err());
        assert!(window.lsa_ptr(symwin::LsaRank::new(u32::MAX), 0).is_err());
        let leader = &ranks[(me / lsa * lsa) as usize];
        assert_eq!(comm.status().digest, leader.status().digest, "P-1 within a team");
    }
    check_kernels(&dev, &windows, lsa);
    drop((windows, dev));
    finalize(ranks);
}

/// Every rank leaves its number in its next neighbour's buffers, within its team.
fn check_kernels(dev: &[symwin::DevComm], windows: &[Window], lsa: u32) {
    let addresses: Vec<u64> = windows.iter().map(Window::device_address).collect();
    let results = launch_all(dev, 1, move |k| {
        let (me, first) = (k.rank(), k.rank() - k.lsa_rank().get());
        let next = first + (k.lsa_rank().get() + 1) % k.lsa_size();
        let window = k.window(addresses[me as usize])?;
        let beyond = window.world_ptr(Rank::new((first + k.lsa_size()) % k.n_ranks().max(2)), 0).is_err();
        let mut session = k.barrier(0)?;
        session.sync()?;
        k.slice::<u32>(&window, symwin::LsaRank::new(next - first), 64, 1)?.store(0, me + 1)?;
        session.sync()?;
        Ok((window.local_slice::<u32>(64, 1)?.load(0)?, beyond))
    });
    let world = u32::try_from(dev.len()).unwrap();
    for (me, result) in (0..world).zip(results) {
        let first = me / lsa * lsa;
        let before = first + (me - first + lsa - 1) % lsa;
        assert_eq!(result[0].0, before + 1);
        assert!(lsa == world || result[0].1, "the next team's ranks are beyond reach");
    }
}

#[test]
fn teams_of_1_2_and_4_in_a_world_of_4() {
    for layout in layouts(4) {
        [1, 2, 4].into_iter().for_each(|lsa| check_world(&layout, lsa));
    }
}

#[test]
fn teams_of_1_2_3_and_6_in_a_world_of_6() {
    for layout in layouts(6) {
        [1, 2, 3, 6].into_iter().for_each(|lsa| check_world(&layout, lsa));
    }
}

#[test]
fn teams_of_1_2_and_4_in_a_world_of_8() {
    for layout in layouts(8) {
        [1, 2, 4].into_iter().for_each(|lsa| check_world(&layout, lsa));
    }
}

#[test]
fn a_team_across_processes_and_two_teams_in_one_process() {
    for layout in [&[3, 3][..], &[1, 4, 1], &[2, 3, 1]] {
        [2, 3].into_iter().for_each(|lsa| check_world(layout, lsa));
    }
}

#[test]
fn a_team_size_that_does_not_divide_the_world_is_refused_by_name() {
    for lsa in [0, 3, 5] {
        let error = Communicator::in_processes_with(&[4], &config().lsa_team_size(lsa)).unwrap_err();
        let Error::Misuse(Misuse::BadSetting { name, value, .. }) = error else { panic!("{error}") };
        assert!(name.contains("SYMWIN_LSA_TEAM_SIZE") && value == lsa.to_string());
    }
}

/// one rank's failure rolls back in every team, by name, and the world goes on.
#[test]
fn a_failure_in_one_team_rolls_back_all_teams_and_is_named() {
    for layout in layouts(6) {
        for (lsa, bad) in [(2, 3), (2, 0), (3, 5), (1, 4)] {
            for call in [Call::AddressRange, Call::Map, Call::SetAccess, Call::Copy] {
                let world = faulty_world(&layout, config().lsa_team_size(lsa));
                let own: Vec<_> = world.ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect();
                drop(windows(&world.ranks, &own));
                until("closes to be taken in", || world.ranks.iter().all(|comm| comm.status().memories == 0));
                world.faults[bad].fail(call, 1);
                let cause = agreed_cause(register_all(&world.ranks, &own));
                assert_eq!(
                    refusers(&cause),
                    [Rank::new(u32::try_from(bad).unwrap())],
                    "{layout:?} {lsa} {call}"
                );
                let Cause::Refused { faults } = &cause else { unreachable!() };
                assert!(matches!(&faults[0].reason, Reason::Device(error) if error.call == call));
                let again = windows(&world.ranks, &own);
                for (comm, window) in world.ranks.iter().zip(&again) {
                    window.write(comm.rank(), 0, &[7]).unwrap();
                    assert_eq!(comm.status().memories, 1);
                }
                drop((again, own));
                finalize(world.ranks);
                world.hosts.iter().for_each(|host| assert_eq!(host.counts(), Counts::default(), "P-5"));
            }
        }
    }
}

/// What each of two kinds of rank asks for.
type Ask = fn(&Group, &Communicator, bool) -> Pending<Window>;

/// A-6 across teams: both requests reach every rank.
#[test]
fn teams_that_differ_hear_both_requests_on_every_rank() {
    let cases: [(&str, Ask); 4] = [
        ("the size of task 0", |g, c, odd| {
            g.register(c, c.alloc(if odd { 8192 } else { 4096 }).unwrap(), WindowFlags::empty())
        }),
        ("the label of task 0", |g, c, odd| {
            let label = if odd { "keys" } else { "values" };
            g.register_with(c, Registration::new(c.alloc(4096).unwrap()).label(label))
        }),
        ("the flags of task 0", |g, c, odd| {
            let flags = if odd { WindowFlags::STRICT_ORDERING } else { WindowFlags::empty() };
            g.register(c, c.alloc(4096).unwrap(), flags)
        }),
        ("the requirements of task 1", |g, c, odd| {
            let window = g.register(c, c.alloc(4096).unwrap(), WindowFlags::empty());
            drop(g.create_dev_comm(c, DevCommRequirements::new().lsa_barriers(if odd { 2 } else { 3 })));
            window
        }),
    ];
    for layout in layouts(6) {
        let ranks = team_world(&layout, 2);
        for odd_team in 0..3 {
            for (what, request) in cases {
                let is_odd = |rank: Rank| rank.get() / 2 == odd_team;
                let results = ask(&ranks, |group, comm| request(group, comm, is_odd(comm.rank())));
                let Cause::Mismatch { what: said, requests } = agreed_cause(results) else {
                    panic!("{what}: a mismatch was expected");
                };
                assert_eq!(said, what);
                let named: Vec<u32> = requests.iter().map(|(peer, _)| peer.rank.get()).collect();
                let plain = if odd_team == 0 { 2 } else { 0 };
                let mut expected = [plain, odd_team * 2];
                expected.sort_unstable();
                assert_eq!(named, expected, "the lowest leaders that asked for each");
                assert_ne!(requests[0].1, requests[1].1);
            }
        }
        let buffers = buffers(&ranks, 4096);
        drop(windows(&ranks, &buffers));
        finalize(ranks);
    }
}

#[test]
fn teams_whose_groups_have_other_names_are_told_so() {
    for layout in layouts(4) {
        let ranks = team_world(&layout, 2);
        let buffers = buffers(&ranks, 4096);
        let groups = [Group::named("layer 1"), Group::named("layer 2")];
        let pending: Vec<_> = ranks
            .iter()
            .zip(&buffers)
            .map(|(c, b)| groups[c.rank().index() / 2].register(c, b, WindowFlags::empty()))
            .collect();
        groups.into_iter().for_each(|group| drop(group.submit()));
        let results = pending.into_iter().map(Pending::wait).collect();
        let Cause::Mismatch { what, requests } = agreed_cause(results) else { panic!("a mismatch") };
        assert_eq!(what, "the group's name");
        let words: Vec<&str> = requests.iter().map(|(_, words)| words.as_str()).collect();
        assert_eq!(words, ["group `layer 1`", "group `layer 2`"]);
        finalize(ranks);
    }
}

#[test]
fn an_abandoned_group_is_named_in_every_team() {
    for layout in layouts(6) {
        let ranks = team_world(&layout, 2);
        let buffers = buffers(&ranks, 4096);
        let group = Group::start();
        let pending: Vec<_> = ranks[..5]
            .iter()
            .zip(&buffers)
            .map(|(c, b)| group.register(c, b, WindowFlags::empty()))
            .collect();
        let dropped = Group::start();
        let last = dropped.register(&ranks[5], &buffers[5], WindowFlags::empty());
        drop(dropped);
        drop(group.submit());
        let results = pending.into_iter().chain([last]).map(Pending::wait).collect();
        let Cause::Abandoned { by } = agreed_cause(results) else { panic!("abandoned") };
        assert_eq!(by.iter().map(|peer| peer.rank.get()).collect::<Vec<_>>(), [5]);
        drop(windows(&ranks, &buffers));
        finalize(ranks);
    }
}

/// A-7 across teams: whoever waits, directly or for another team's verdict, names the rank that did not come.
#[test]
fn a_missing_rank_of_another_team_is_named_by_all() {
    // They wait rather than work, so all at once.
    std::thread::scope(|scope| {
        for layout in layouts(6) {
            for (lsa, missing) in [(2, 5), (2, 2), (1, 3), (3, 1)] {
                let layout = layout.clone();
                scope.spawn(move || check_missing(&layout, lsa, missing));
            }
        }
    });
}

fn check_missing(layout: &[u32], lsa: u32, missing: u32) {
    let config = config().lsa_team_size(lsa).deadline(Duration::from_secs(2));
    let ranks = Communicator::in_processes_with(layout, &config).unwrap();
    let buffers = buffers(&ranks, 4096);
    let group = Group::start();
    let others = || ranks.iter().zip(&buffers).filter(|(c, _)| c.rank().get() != missing);
    let pending: Vec<_> = others().map(|(c, b)| group.register(c, b, WindowFlags::empty())).collect();
    drop(group.submit());
    for (result, (comm, _)) in pending.into_iter().map(Pending::wait).zip(others()) {
        let Err(Error::Failed(failure)) = result else { panic!("{result:?}") };
        let name = format!("rank {missing} (host");
        let named = match &failure.cause {
            FailureCause::Deadline { missing: ranks, .. } => {
                ranks.iter().map(|m| m.peer.rank.get()).collect::<Vec<_>>() == [missing]
            }
            FailureCause::Aborted { reason, .. } => reason.contains(&name),
            _ => false,
        };
        assert!(named, "{layout:?}, teams of {lsa}, {}: {failure}", comm.rank());
    }
    drop(buffers);
    finalize(ranks);
}

#[test]
fn a_communicator_dropped_in_one_team_fails_all_teams_by_name() {
    for layout in layouts(6) {
        let mut ranks = team_world(&layout, 2);
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let last = ranks.pop().unwrap();
        let group = Group::start();
        let pending: Vec<_> =
            ranks.iter().zip(&buffers).map(|(c, b)| group.register(c, b, WindowFlags::empty())).collect();
        drop(group.submit());
        drop(last);
        for result in pending.into_iter().map(Pending::wait) {
            let Err(Error::Failed(failure)) = result else { panic!("{result:?}") };
            let FailureCause::Dropped { by } = &failure.cause else { panic!("{failure}") };
            assert_eq!(by.rank.get(), 5);
        }
        // A failed communicator unmaps nothing before its close.
        windows[0].write(ranks[1].rank(), 0, &[3]).unwrap();
        drop(windows);
        finalize(ranks);
    }
}

/// The leader's verdict reaches its members though it says goodbye right behind it, and what comes after fails at
/// once, in every team.
#[test]
fn a_leader_that_finalizes_right_after_its_batch_owes_its_members_nothing() {
    for layout in layouts(6) {
        for round in 0..4 {
            let leader = [0, 2, 4, 0][round];
            let mut ranks = team_world(&layout, 2);
            let buffers = buffers(&ranks, 4096);
            let group = Group::start();
            let pending: Vec<_> =
                ranks.iter().zip(&buffers).map(|(c, b)| group.register(c, b, WindowFlags::empty())).collect();
            drop(group.submit());
            let gone = ranks.remove(leader);
            let (rank, done) = (gone.rank(), std::thread::spawn(move || gone.finalize()));
            for (index, result) in pending.into_iter().map(Pending::wait).enumerate() {
                assert!(result.is_ok(), "{layout:?}: {leader} left, {index}: {result:?}");
            }
            done.join().unwrap().unwrap();
            let rest: Vec<_> = buffers.iter().enumerate().filter(|(i, _)| *i != leader).collect();
            let later = ask(&ranks, |group, comm| {
                let (_, buffer) = rest.iter().find(|(i, _)| *i == comm.rank().index()).unwrap();
                group.register(comm, *buffer, WindowFlags::empty())
            });
            for result in later {
                let Err(Error::Finalized { peer, .. }) = result else { panic!("{result:?}") };
                assert_eq!(peer.rank, rank);
            }
            finalize(ranks);
        }
    }
}

/// A goodbye ends batches at once also in teams whose own ranks are all there or all idle, and those that offered
/// in vain do not flood those that did not ask.
#[test]
fn a_goodbye_in_another_team_ends_batches_at_once_and_floods_nobody() {
    for layout in layouts(6) {
        let mut ranks = team_world(&layout, 2);
        let buffers = buffers(&ranks, 4096);
        drop(windows(&ranks, &buffers));
        ranks.pop().unwrap().finalize().unwrap();
        for _ in 0..5 {
            let result = ranks[0].register(&buffers[0], WindowFlags::empty());
            let Err(Error::Finalized { peer, .. }) = result else { panic!("{layout:?}: {result:?}") };
            assert_eq!(peer.rank.get(), 5);
        }
        for comm in &ranks {
            let result = comm.register(&buffers[comm.rank().index()], WindowFlags::empty());
            assert!(matches!(result, Err(Error::Finalized { .. })), "{layout:?}: {result:?}");
            assert_eq!(comm.status().activity, Activity::Idle);
        }
        finalize(ranks);
    }
}

#[test]
fn team_arithmetic_of_a_communicator() {
    let ranks = team_world(&[8], 4);
    let me = &ranks[5];
    let (world, lsa) = (me.world_team().unwrap(), me.lsa_team().unwrap());
    let of = |team: Team| team.members(me.rank()).map(Rank::get).collect::<Vec<_>>();
    assert_eq!(of(world), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(of(lsa), [4, 5, 6, 7]);
    assert_eq!(of(world.inner_factor(2).unwrap()), [4, 5]);
    assert_eq!(of(world.outer_factor(2).unwrap()), [1, 3, 5, 7]);
    assert_eq!(of(lsa.outer_factor(2).unwrap()), [5, 7]);
    assert_eq!(of(Team::rail(me.rank(), 8, 4).unwrap()), [1, 5]);
    assert_eq!(of(Team::strided(2, 1, 3).unwrap()), [2, 5]);
    assert_eq!(world.rank_in_difference(lsa, 2), Some(2));
    assert_eq!(
        (lsa.rank_to_team(me.rank(), Rank::new(7)), lsa.contains(me.rank(), Rank::new(3))),
        (Some(3), false)
    );
    assert!(world.inner_factor(3).is_err() && Team::strided(2, 2, 1).is_err());
    finalize(ranks);
}

/// Team requirements without multicast need nothing, are checked, and must be the same on all members.
#[test]
fn teams_as_requirements_are_within_the_lsa_team_and_agreed() {
    for layout in layouts(4) {
        let ranks = team_world(&layout, 2);
        let pairs = ask(&ranks, |group, comm| {
            let team = comm.lsa_team().unwrap();
            group.create_dev_comm(comm, DevCommRequirements::new().team(team, false))
        });
        for pair in pairs {
            assert_eq!(pair.unwrap().multicast_base(0), None);
        }
        let rails = ask(&ranks, |group, comm| {
            let team = Team::rail(comm.rank(), 4, 2).unwrap();
            group.create_dev_comm(comm, DevCommRequirements::new().team(team, false))
        });
        let cause = agreed_cause(rails);
        assert_eq!(refusers(&cause).len(), 4, "every rank's rail leaves its LSA team");
        let Cause::Refused { faults } = cause else { unreachable!() };
        assert!(faults.iter().all(|f| matches!(f.reason, Reason::Misuse(Misuse::NotInTeam { .. }))));
        finalize(ranks);

        let ranks = world(&layout);
        let differ = ask(&ranks, |group, comm| {
            // Ranks 0, 1 and 3 say pairs of neighbours; rank 2 says it is second to rank 1.
            let member = if comm.rank().get() == 2 { 1 } else { comm.rank().get() % 2 };
            group.create_dev_comm(
                comm,
                DevCommRequirements::new().team(Team::strided(2, member, 1).unwrap(), false),
            )
        });
        let Cause::Mismatch { what, requests } = agreed_cause(differ) else { panic!("a mismatch") };
        assert_eq!((what.as_str(), requests.len()), ("the teams of task 0", 4));
        assert!(requests[2].1.contains("[1, 2]") && requests[1].1.contains("[0, 1]"), "{requests:?}");
        finalize(ranks);
    }
}
