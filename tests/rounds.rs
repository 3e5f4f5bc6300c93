//! P-8: how many rounds a batch takes where handles must be sent again, and a stride that has no room left.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use common::*;
use symwin::error::Cause;
use symwin::{Buffer, Communicator, Group, Pending, Rank, Registration, Window, WindowFlags};

/// Rounds in which a batch of these regions took part, checked to be the same on every rank.
fn rounds(ranks: &[Communicator], batch: impl FnOnce()) -> u64 {
    let before: Vec<u64> = ranks.iter().map(|comm| comm.status().rounds).collect();
    batch();
    let after = ranks.iter().map(|comm| comm.status().rounds);
    let rounds: Vec<u64> = after.zip(before).map(|(after, before)| after - before).collect();
    assert!(rounds.iter().all(|r| *r == rounds[0]), "{rounds:?}");
    rounds[0]
}

/// Registers `bytes` of each rank's buffer from its own head on.
fn at_heads(ranks: &[Communicator], buffers: &[Buffer], heads: [usize; 4], bytes: usize) -> Vec<Window> {
    let group = Group::start();
    let pending: Vec<_> = ranks
        .iter()
        .zip(buffers)
        .zip(heads)
        .map(|((comm, buffer), head)| {
            group.register(comm, buffer.slice(head..head + bytes).unwrap(), WindowFlags::empty())
        })
        .collect();
    group.end().unwrap();
    pending.into_iter().map(|window| window.wait().unwrap()).collect()
}

/// Writes through every window of every rank, and looks at the owner's buffer behind its head (P-3).
fn check_heads(ranks: &[Communicator], windows: &[Window], buffers: &[Buffer], heads: [usize; 4]) {
    for (from, window) in windows.iter().enumerate() {
        for to in 0..ranks.len() {
            let mark = [from as u8 + 1, to as u8 + 51, 77];
            for at in [0, window.size() - 3] {
                window.write(Rank::new(to as u32), at, &mark).unwrap();
                let mut seen = [0; 3];
                buffers[to].read(heads[to] + at, &mut seen).unwrap();
                assert_eq!(seen, mark, "from {from} to {to} at {at}");
            }
        }
    }
}

#[test]
fn p_8_handles_take_a_round_of_their_own_only_where_some_peers_had_them() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let extra = if layout.len() == 1 { 2 } else { 3 };
        let own: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(16 * 4096).unwrap()).collect();
        let other: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(16 * 4096).unwrap()).collect();
        let zero = [0; 4];
        let mut open = Vec::new();
        let mut register = |buffers: &[Buffer], heads: [usize; 4], expected: u64, why: &str| {
            let mut windows = Vec::new();
            let count = rounds(&ranks, || windows = at_heads(&ranks, buffers, heads, 8192));
            assert_eq!(count, expected, "{layout:?}: {why}");
            check_heads(&ranks, &windows, buffers, heads);
            check_digests(&ranks);
            open.push((windows, buffers.to_vec(), heads));
        };
        register(&own, zero, 2, "nothing is known");
        register(&own, zero, 2, "everything is known, and in a memory");
        register(&own, [4096; 4], 2, "another place at the same shift is the same memory");
        let shifted = [0, 4096, 0, 8192];
        register(&own, shifted, extra, "other shifts of known allocations are a new memory");
        register(&own, shifted, 2, "which is known then");
        register(&own, [4096, 8192, 4096, 12288], 2, "at all places of these shifts");
        // Rank 2 brings another allocation: the others' are known, its own is not.
        let mixed = [own[0].clone(), own[1].clone(), other[2].clone(), own[3].clone()];
        register(&mixed, zero, extra, "allocations that some peers had and some not");
        register(&other, zero, extra, "rank 2's is known, those of the others are not");
        register(&other, zero, 2, "everything is known");
        for (windows, buffers, heads) in &open {
            check_heads(&ranks, windows, buffers, *heads);
        }
        drop(open);
        sync(&ranks);
        assert_eq!(ranks[0].status().agreed_memories, 0);
        let windows = at_heads(&ranks, &own, zero, 8192);
        check_heads(&ranks, &windows, &own, zero);
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn p_8_a_memory_that_a_peer_has_retired_meanwhile_takes_a_round_for_handles() {
    for layout in LAYOUTS {
        for retiring in 0..4 {
            let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
            let extra = if layout.len() == 1 { 2 } else { 3 };
            let own: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(4 * 4096).unwrap()).collect();
            let first = at_heads(&ranks, &own, [0; 4], 8192);
            first[retiring].close().unwrap();
            let mut second = Vec::new();
            let count = rounds(&ranks, || second = at_heads(&ranks, &own, [0; 4], 8192));
            assert_eq!(count, extra, "{layout:?}: rank {retiring} has retired the first memory");
            assert_ne!(first[0].offset(), second[0].offset());
            check_heads(&ranks, &second, &own, [0; 4]);
            let still: Vec<_> = (0..4).filter(|&r| r != retiring).collect();
            for &from in &still {
                // The others' windows reach even the rank that has closed its own.
                first[from].write(Rank::new(retiring as u32), 9, &[from as u8 + 200]).unwrap();
                let mut seen = [0];
                own[retiring].read(9, &mut seen).unwrap();
                assert_eq!(seen, [from as u8 + 200]);
            }
            drop(first);
            let count = rounds(&ranks, || drop(at_heads(&ranks, &own, [0; 4], 8192)));
            assert_eq!(count, 2, "the second memory is known");
            check_heads(&ranks, &second, &own, [0; 4]);
            drop(second);
            sync(&ranks);
            assert_eq!(ranks[0].status().space_bytes, 0);
            finalize(ranks);
        }
    }
}

/// The handles of a batch that rolled back do not count as sent.
#[test]
fn p_8_handles_of_a_batch_that_rolled_back_are_sent_again() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let own: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(4 * 4096).unwrap()).collect();
        let group = Group::start();
        let mut pending = Vec::new();
        for (rank, (comm, buffer)) in ranks.iter().zip(&own).enumerate() {
            pending.push(group.register(comm, buffer, WindowFlags::empty()));
            let odd = if rank == 2 { "odd" } else { "even" };
            pending.push(group.register_with(comm, Registration::new(buffer).label(odd)));
        }
        drop(group.submit());
        for pending in pending {
            assert!(matches!(rolled_back(pending.wait()).cause, Cause::Mismatch { .. }));
        }
        let mut windows = Vec::new();
        assert_eq!(rounds(&ranks, || windows = at_heads(&ranks, &own, [0; 4], 8192)), 2);
        check_heads(&ranks, &windows, &own, [0; 4]);
        drop(windows);
        finalize(ranks);
    }
}

const GIB: u64 = 1 << 30;

/// One allocation of 1 GiB is mapped at another shift for each window, so the stride of 4 GiB takes three.
#[test]
fn space_that_runs_out_is_the_same_error_everywhere() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let sizes = [4096, 1 << 30, 4096, 4096];
        let large: Vec<_> =
            ranks.iter().zip(sizes).map(|(comm, bytes)| comm.alloc_own(bytes).unwrap()).collect();
        let small: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(16 * 4096).unwrap()).collect();
        let register = |head: usize| {
            let group = Group::start();
            let pending: Vec<_> = (0..4)
                .map(|rank| {
                    let region = if rank == 0 {
                        small[0].slice(head..head + 4096).unwrap()
                    } else {
                        large[rank].slice(0..large[rank].len()).unwrap()
                    };
                    group.register_with(&ranks[rank], Registration::new(region).asymmetric())
                })
                .collect();
            drop(group.submit());
            pending.into_iter().map(Pending::wait).collect::<Vec<_>>()
        };
        let mut open: Vec<Vec<Window>> = Vec::new();
        for shift in 0..3 {
            open.push(register(shift * 4096).into_iter().map(Result::unwrap).collect());
        }
        for shift in [3, 4] {
            let causes: Vec<_> = register(shift * 4096)
                .into_iter()
                .map(|outcome| rolled_back(outcome).cause.clone())
                .collect();
            let need = GIB + shift as u64 * 4096;
            let free = 4 * GIB - 3 * GIB - 3 * 4096;
            assert!(causes.iter().all(|cause| *cause == Cause::Exhausted { need, free }), "{causes:?}");
            check_digests(&ranks);
        }
        usable(&ranks);
        // What is closed can be had again.
        drop(open.remove(1));
        let again: Vec<Window> = register(4096).into_iter().map(Result::unwrap).collect();
        for (from, window) in again.iter().enumerate() {
            window.write(Rank::new(1), (1 << 30) - 1, &[from as u8 + 9]).unwrap();
            let mut seen = [0];
            large[1].read((1 << 30) - 1, &mut seen).unwrap();
            assert_eq!(seen, [from as u8 + 9]);
        }
        drop((open, again));
        sync(&ranks);
        assert_eq!(ranks[0].status().space_bytes, 0);
        drop(large);
        finalize(ranks);
    }
}

/// Each window has room, but not all of a batch: then none is there.
#[test]
fn space_that_runs_out_within_a_batch_leaves_nothing_of_it() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, slow());
        let ranks = &world.ranks;
        let large: Vec<_> = (0..4)
            .map(|rank| ranks[rank].alloc_own(if rank == 2 { 1 << 30 } else { 16 * 4096 }).unwrap())
            .collect();
        sync(ranks);
        let before = world.held();
        let group = Group::start();
        let pending: Vec<_> = (0..4)
            .flat_map(|shift| {
                let (group, large) = (&group, &large);
                (0..4).map(move |rank| {
                    let from = if rank == 0 { shift * 4096 } else { 0 };
                    let len = if rank == 2 { 1 << 30 } else { 4096 };
                    let region = large[rank].slice(from..from + len).unwrap();
                    group.register_with(&ranks[rank], Registration::new(region).asymmetric())
                })
            })
            .collect();
        drop(group.submit());
        for pending in pending {
            assert!(matches!(rolled_back(pending.wait()).cause, Cause::Exhausted { .. }));
        }
        world.expect_held(&before, "P-5");
        usable(ranks);
        drop(large);
        finalize(world.ranks);
    }
}
