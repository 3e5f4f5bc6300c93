//! Many cycles, many windows, many at a time: what is held stays flat, and rounds do not depend on the number of
//! tasks (P-5, P-8, A-4).
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/resources.rs"]
mod resources;

use std::time::Duration;

use common::*;
use resources::*;
use symwin::{Communicator, Config, Group, Pending, Rank, Region, Window, WindowFlags};

const PAGE: usize = 4096;

fn registered(ranks: &[Communicator], regions: impl Fn(usize) -> Vec<Region>) -> Vec<Vec<Window>> {
    let group = Group::start();
    let pending: Vec<Vec<Pending<Window>>> = ranks
        .iter()
        .enumerate()
        .map(|(i, comm)| {
            regions(i).into_iter().map(|r| group.register(comm, r, WindowFlags::empty())).collect()
        })
        .collect();
    group.end().unwrap();
    pending.into_iter().map(|of_rank| of_rank.into_iter().map(|p| p.wait().unwrap()).collect()).collect()
}

/// One cycle: a buffer and a window on every rank, closed again. Own allocations and pieces of an arena take turns.
fn cycle(ranks: &[Communicator], number: usize) {
    let own = number.is_multiple_of(2);
    let alloc = |comm: &Communicator| if own { comm.alloc_own(2 * PAGE) } else { comm.alloc(2 * PAGE) };
    let buffers: Vec<_> = ranks.iter().map(|comm| alloc(comm).unwrap()).collect();
    let windows = windows(ranks, &buffers);
    if number.is_multiple_of(97) {
        check_pointers(ranks, &windows, &buffers);
    }
}

/// P-5: ten thousand cycles cost what a hundred do.
fn cycles_are_flat(layout: &[u32]) {
    const CYCLES: usize = 10_000;
    let _alone = alone();
    let world = faulty_world(layout, config());
    let mut before = None;
    for number in 0..CYCLES {
        cycle(&world.ranks, number);
        // Both at the same point: an arena's window was the last.
        if number == 199 || number == CYCLES - 1 {
            settle(&world.ranks, 0);
            let now = (Holdings::now(&world.ranks, &world.hosts), Process::now());
            if let Some((holdings, process)) = before.replace(now.clone()) {
                assert_eq!(now.0, holdings, "{layout:?}");
                now.1.assert_flat_since(&process, &format!("{layout:?}"));
            }
        }
    }
    finalize(world.ranks);
    drop(world.faults);
    for host in world.hosts {
        assert_eq!(host.counts(), Default::default(), "P-5: nothing after the close");
    }
}

#[test]
fn heavy_p5_ten_thousand_cycles_are_flat_among_threads() {
    cycles_are_flat(&[4]);
}

#[test]
fn heavy_p5_ten_thousand_cycles_are_flat_across_sockets() {
    cycles_are_flat(&[1, 1]);
}

#[test]
fn heavy_p5_ten_thousand_cycles_are_flat_mixed() {
    cycles_are_flat(&[2, 1]);
}

/// A million windows on one allocation of each rank, ten thousand at a time, beside one that stays open.
fn a_million_sub_windows(layout: &[u32]) {
    const AT_A_TIME: usize = 10_000;
    const BATCHES: usize = 100;
    let _alone = alone();
    let world = faulty_world(layout, config().deadline(Duration::from_secs(60)));
    let ranks = &world.ranks;
    let buffers: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(AT_A_TIME * PAGE).unwrap()).collect();
    let open = windows(ranks, &buffers);
    let mapped: Vec<usize> = world.hosts.iter().map(|host| host.counts().mappings).collect();
    let mut before = None;
    for batch in 0..BATCHES {
        // Windows of other sizes at other places in every batch; all of them within the one that is open.
        let pieces = |i: usize| -> Vec<Region> {
            let piece = |n: usize| {
                let size = PAGE * (1 + (n + batch) % 3).min(AT_A_TIME - n);
                buffers[i].slice(n * PAGE..n * PAGE + size).unwrap().into()
            };
            (0..AT_A_TIME).map(piece).collect()
        };
        let windows = registered(ranks, pieces);
        for (of_rank, comm) in windows.iter().zip(ranks) {
            let n = (batch * 7919) % AT_A_TIME;
            let last = Rank::new(comm.world_size() - 1 - comm.rank().get());
            let at = n * PAGE;
            let open_ptr = open[comm.rank().index()].peer_ptr(last, at).unwrap();
            assert_eq!(of_rank[n].peer_ptr(last, 0).unwrap(), open_ptr, "one memory under all of them");
            let found = comm.find_window(of_rank[n].address() as *const u8, 1).unwrap();
            assert_eq!(found.device_address(), of_rank[n].device_address(), "the innermost is found");
            assert_eq!(comm.status().table_slots, AT_A_TIME + 1);
        }
        assert_few_more(&mapped, &world);
        drop(windows);
        settle(ranks, 1);
        check_pointers(ranks, &open, &buffers);
        if batch == 1 || batch == BATCHES - 1 {
            let now = (Holdings::now(ranks, &world.hosts), Process::now());
            if let Some((holdings, process)) = before.replace(now.clone()) {
                assert_eq!(now.0, holdings, "{layout:?}");
                now.1.assert_flat_since(&process, &format!("{layout:?}"));
            }
        }
    }
    drop(open);
    finalize(world.ranks);
}

/// Windows make no mapping; ten thousand structs and table entries need pages of their own, of which each rank's pools
/// make a handful, as they double: whatever the number of batches.
fn assert_few_more(before: &[usize], world: &FaultyWorld) {
    for (host, before) in world.hosts.iter().zip(before) {
        let now = host.counts().mappings;
        let most = before + 24 * world.ranks.len();
        assert!((*before..=most).contains(&now), "{now} mappings, {before} before ten thousand windows");
    }
}

#[test]
fn heavy_a_million_sub_windows_among_threads() {
    a_million_sub_windows(&[2]);
}

#[test]
fn heavy_a_million_sub_windows_across_sockets() {
    a_million_sub_windows(&[1, 1]);
}

/// A-4, P-8: one offer and one vote, whatever the number of windows, counted by the bootstrap.
#[test]
fn p8_groups_of_1_64_and_1024_windows_take_two_rounds() {
    // What it holds would count with the tests of flatness.
    let _alone = alone();
    let teams = config().lsa_team_size(2);
    let worlds: [(&[u32], Config, u64); 5] = [
        (&[4], config(), 2),
        (&[1, 1, 1, 1], config(), 2),
        (&[3, 1], config(), 2),
        // Two LSA teams: one step of merging between their leaders, and their verdict.
        (&[4], teams.clone(), 4),
        (&[2, 1, 1], teams, 4),
    ];
    for (layout, config, rounds) in worlds {
        let ranks = Communicator::in_processes_with(layout, &config).unwrap();
        for count in [1, 64, 1024] {
            let before: Vec<u64> = ranks.iter().map(|comm| comm.status().rounds).collect();
            let buffers: Vec<Vec<_>> =
                ranks.iter().map(|comm| (0..count).map(|_| comm.alloc(PAGE).unwrap()).collect()).collect();
            let windows = registered(&ranks, |i| buffers[i].iter().map(Region::from).collect());
            for (comm, before) in ranks.iter().zip(before) {
                let taken = comm.status().rounds - before;
                let leads = comm.lsa_rank().get() == 0;
                let expected = if rounds == 4 && !leads { 2 } else { rounds };
                assert_eq!(taken, expected, "{layout:?}, {} windows, {}", count, comm.rank());
            }
            if comm_is_one_team(&ranks) {
                for n in [0, count / 2, count - 1] {
                    let of_rank = |i: usize| (windows[i][n].clone(), buffers[i][n].clone());
                    let (windows, buffers): (Vec<_>, Vec<_>) = (0..ranks.len()).map(of_rank).unzip();
                    check_pointers(&ranks, &windows, &buffers);
                }
            }
        }
        finalize(ranks);
    }
}

fn comm_is_one_team(ranks: &[Communicator]) -> bool {
    ranks[0].lsa_size() == ranks[0].world_size()
}

/// A batch of thousands of tasks that all are refused on all ranks ends as fast as one that is not.
#[test]
fn thousands_of_refusals_are_heard_by_all() {
    let _alone = alone();
    const TASKS: usize = 5_000;
    for (lsa, layout) in [(4, &[4][..]), (1, &[2, 2]), (2, &[1, 1, 1, 1])] {
        let ranks = Communicator::in_processes_with(layout, &config().lsa_team_size(lsa)).unwrap();
        let buffers = buffers(&ranks, 2 * PAGE);
        let group = Group::start();
        let mut pending = Vec::new();
        for (comm, buffer) in ranks.iter().zip(&buffers) {
            for _ in 0..TASKS {
                let slice = buffer.slice(8..PAGE).unwrap();
                pending.push(group.register(comm, slice, WindowFlags::empty()));
            }
        }
        drop(group.submit());
        for window in pending {
            let Err(symwin::Error::RolledBack(error)) = window.wait() else {
                panic!("a roll-back was expected")
            };
            let symwin::error::Cause::Refused { faults } = &error.cause else { panic!("{error}") };
            assert_eq!(faults.len(), TASKS * ranks.len());
        }
        check_pointers_of_one_team(&ranks, &buffers);
        finalize(ranks);
    }
}

/// The communicator is usable.
fn check_pointers_of_one_team(ranks: &[Communicator], buffers: &[symwin::Buffer]) {
    let windows = windows(ranks, buffers);
    if comm_is_one_team(ranks) {
        check_pointers(ranks, &windows, buffers);
    }
}
