//! requests that differ, groups that are dropped, rounds that are counted, space that runs out.
//! Each is an error on every rank, without a deadline, and the communicator goes on.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::time::Duration;

use common::*;
use symwin::error::{Cause, Peer};
use symwin::{
    Buffer, Communicator, Config, DevComm, DevCommRequirements, Error, Group, Pending, Rank, Registration,
    Window, WindowFlags,
};

/// A wait that ended by a deadline would show as another kind of error.
fn slow() -> Config {
    config().deadline(Duration::from_secs(20))
}

/// What one rank queues.
enum Asked {
    Window(Pending<Window>),
    DevComm(Pending<DevComm>),
}

impl Asked {
    fn error(self) -> Error {
        match self {
            Self::Window(pending) => pending.wait().unwrap_err(),
            Self::DevComm(pending) => pending.wait().unwrap_err(),
        }
    }
}

/// Each rank has a group of its own, named so, and queues what `ask` says for it.
fn each_asks(
    ranks: &[Communicator],
    buffers: &[Buffer],
    ask: impl Fn(usize, &Group, &Communicator, &Buffer) -> Vec<Asked>,
    name: impl Fn(usize) -> Option<&'static str>,
) -> Vec<Vec<Asked>> {
    let mut asked = Vec::new();
    for (rank, (comm, buffer)) in ranks.iter().zip(buffers).enumerate() {
        let group = name(rank).map_or_else(Group::start, Group::named);
        asked.push(ask(rank, &group, comm, buffer));
        drop(group.submit());
    }
    asked
}

/// The communicator is usable: all ranks register, and the pointers are right (P-3).
fn usable(ranks: &[Communicator]) {
    let buffers = buffers(ranks, 8192);
    let windows = windows(ranks, &buffers);
    check_pointers(ranks, &windows, &buffers);
    check_digests(ranks);
    drop(windows);
    sync(ranks);
}

const ODD: usize = 2;

fn window(group: &Group, comm: &Communicator, registration: Registration) -> Asked {
    Asked::Window(group.register_with(comm, registration))
}

fn part(buffer: &Buffer, bytes: usize) -> Registration {
    Registration::new(buffer.slice(0..bytes).unwrap())
}

/// In what ranks differ: the error's words, the odd rank's request, the others', and how they ask.
type Difference =
    (&'static str, &'static str, &'static str, fn(bool, &Group, &Communicator, &Buffer) -> Vec<Asked>);

const DIFFERENCES: [Difference; 11] = [
    ("the label of task 0", "labelled `b`", "labelled `a`", |odd, g, c, b| {
        // The same windows in another order.
        let labels = if odd { ["b", "a"] } else { ["a", "b"] };
        labels.map(|label| window(g, c, part(b, 4096).label(label))).into()
    }),
    (
        "the kind of task 0",
        "a device communicator with 1 LSA barriers",
        "a window of 4096 bytes",
        |odd, g, c, b| {
            if odd {
                vec![Asked::DevComm(g.create_dev_comm(c, DevCommRequirements::new().lsa_barriers(1)))]
            } else {
                vec![window(g, c, part(b, 4096))]
            }
        },
    ),
    ("the label of task 0", "a window of 4096 bytes", "labelled `x`", |odd, g, c, b| {
        let registration = part(b, 4096);
        vec![window(g, c, if odd { registration } else { registration.label("x") })]
    }),
    ("the size of task 1", "a window of 8192 bytes", "a window of 4096 bytes", |odd, g, c, b| {
        vec![window(g, c, part(b, 100)), window(g, c, part(b, if odd { 8192 } else { 4096 }))]
    }),
    ("the size of task 0", "a window of any size", "a window of 4096 bytes", |odd, g, c, b| {
        let registration = part(b, 4096);
        vec![window(g, c, if odd { registration.asymmetric() } else { registration })]
    }),
    ("the flags of task 0", "with flags 0x2", "a window of 4096 bytes", |odd, g, c, b| {
        let flags = if odd { WindowFlags::STRICT_ORDERING } else { WindowFlags::empty() };
        vec![window(g, c, part(b, 4096).flags(flags))]
    }),
    ("the flags of task 0", "with flags 0x1", "a window of 4096 bytes", |odd, g, c, b| {
        // One rank brings the collectives' own device communicator along, the others do not.
        let flags = if odd { WindowFlags::COLL_SYMMETRIC } else { WindowFlags::empty() };
        vec![window(g, c, part(b, 4096).flags(flags))]
    }),
    ("the requirements of task 1", "9 LSA barriers", "8 LSA barriers", |odd, g, c, b| {
        let requirements = DevCommRequirements::new().lsa_barriers(if odd { 9 } else { 8 });
        vec![window(g, c, part(b, 4096)), Asked::DevComm(g.create_dev_comm(c, requirements))]
    }),
    ("the number of tasks", "nothing", "a window of 4096 bytes", |odd, g, c, b| {
        let count = if odd { 1 } else { 2 };
        (0..count).map(|_| window(g, c, part(b, 4096))).collect()
    }),
    ("the number of tasks", "a window of 4096 bytes", "nothing", |odd, g, c, b| {
        let count = if odd { 3 } else { 2 };
        (0..count).map(|_| window(g, c, part(b, 4096))).collect()
    }),
    // What differs comes before what one rank cannot do.
    ("the size of task 0", "a window of 0 bytes", "a window of 4096 bytes", |odd, g, c, b| {
        vec![window(g, c, part(b, if odd { 0 } else { 4096 }))]
    }),
];

#[test]
fn a_6_ranks_that_differ_are_told_so_with_each_ranks_request() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let buffers = buffers(&ranks, 8192);
        for (what, odd, others, ask) in DIFFERENCES {
            let asked = each_asks(&ranks, &buffers, |rank, g, c, b| ask(rank == ODD, g, c, b), |_| None);
            check_mismatch(&ranks, asked, what, odd, others);
            usable(&ranks);
        }
        finalize(ranks);
    }
}

#[test]
fn a_6_groups_of_other_names_are_told_so() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let buffers = buffers(&ranks, 4096);
        let ask = |_: usize, g: &Group, c: &Communicator, b: &Buffer| vec![window(g, c, part(b, 4096))];
        let names: [(Option<&str>, Option<&str>, &str, &str); 3] = [
            (Some("layer 4"), Some("layer 3"), "group `layer 4`", "group `layer 3`"),
            (None, Some("layer 3"), "no group name", "group `layer 3`"),
            (Some("layer 3"), None, "group `layer 3`", "no group name"),
        ];
        for (odd, others, odd_says, others_say) in names {
            let asked = each_asks(&ranks, &buffers, ask, |rank| if rank == ODD { odd } else { others });
            check_mismatch(&ranks, asked, "the group's name", odd_says, others_say);
            usable(&ranks);
        }
        finalize(ranks);
    }
}

fn check_mismatch(ranks: &[Communicator], asked: Vec<Vec<Asked>>, what: &str, odd: &str, others: &str) {
    let peers = ranks[0].peers();
    for error in asked.into_iter().flatten().map(Asked::error) {
        let Cause::Mismatch { what: differs, requests } = &rolled_back::<()>(Err(error)).cause.clone() else {
            panic!("{what}: a mismatch was expected");
        };
        assert_eq!(differs, what);
        assert_eq!(
            requests.iter().map(|(peer, _)| peer).collect::<Vec<_>>(),
            peers.iter().collect::<Vec<_>>()
        );
        for (rank, (_, request)) in requests.iter().enumerate() {
            let expected = if rank == ODD { odd } else { others };
            assert!(request.contains(expected), "{what}, rank {rank}: `{request}`, not `{expected}`");
        }
    }
}

/// Two LSA teams: the leaders of both are named, on every rank of both.
#[test]
fn a_6_teams_that_differ_name_a_rank_of_each() {
    for layout in [&[4][..], &[2, 2], &[1, 1, 1, 1], &[3, 1]] {
        let ranks = Communicator::in_processes_with(layout, &slow().lsa_team_size(2)).unwrap();
        let buffers = buffers(&ranks, 8192);
        let ask = |rank: usize, g: &Group, c: &Communicator, b: &Buffer| {
            vec![window(g, c, part(b, if rank < 2 { 4096 } else { 8192 }))]
        };
        let asked = each_asks(&ranks, &buffers, ask, |_| None);
        for error in asked.into_iter().flatten().map(Asked::error) {
            let Cause::Mismatch { what, requests } = &rolled_back::<()>(Err(error)).cause.clone() else {
                panic!("a mismatch was expected");
            };
            assert_eq!(what, "the size of task 0");
            let peers = ranks[0].peers();
            let expected = [
                (peers[0].clone(), "a window of 4096 bytes".to_owned()),
                (peers[2].clone(), "a window of 8192 bytes".to_owned()),
            ];
            assert_eq!(requests[..], expected);
        }
        // A refusal in one team is everyone's.
        let ask = |rank: usize, g: &Group, c: &Communicator, b: &Buffer| {
            let start = if rank == 3 { 64 } else { 0 };
            vec![window(g, c, Registration::new(b.slice(start..start + 4096).unwrap()))]
        };
        let asked = each_asks(&ranks, &buffers, ask, |_| None);
        for error in asked.into_iter().flatten().map(Asked::error) {
            let rolled_back = rolled_back::<()>(Err(error));
            let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
            assert_eq!(faults.iter().map(|f| f.peer.rank.get()).collect::<Vec<_>>(), [3]);
        }
        let windows = windows(&ranks, &buffers);
        for team in [0, 2] {
            let range = team..team + 2;
            check_pointers(&ranks[range.clone()], &windows[range], &buffers);
        }
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn a_group_dropped_before_its_end_is_told_to_every_rank() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let buffers = buffers(&ranks, 4096);
        for droppers in [&[0][..], &[3], &[1, 2], &[0, 1, 2, 3]] {
            // The droppers go first and last in turn: neither blocks, nor do the others before them.
            for droppers_first in [true, false] {
                let mut pending = Vec::new();
                let order = |first: bool| (0..4).filter(move |r| droppers.contains(r) == first);
                for rank in order(droppers_first).chain(order(!droppers_first)) {
                    let group = Group::named("layer 3");
                    pending.push(group.register(&ranks[rank], &buffers[rank], WindowFlags::empty()));
                    if droppers.contains(&rank) { drop(group) } else { drop(group.submit()) }
                }
                let expected: Vec<Peer> =
                    droppers.iter().map(|&r: &usize| ranks[0].peers()[r].clone()).collect();
                for pending in pending {
                    let rolled_back = rolled_back(pending.wait());
                    assert_eq!(rolled_back.cause, Cause::Abandoned { by: expected.clone() });
                    assert_eq!(rolled_back.group.as_deref(), Some("layer 3"));
                }
                usable(&ranks);
            }
        }
        finalize(ranks);
    }
}

/// Abandoned, then mismatch, then refused, whatever else is wrong.
#[test]
fn an_abandoned_group_is_reported_before_a_mismatch() {
    for layout in LAYOUTS {
        let ranks = Communicator::in_processes_with(layout, &slow()).unwrap();
        let buffers = buffers(&ranks, 8192);
        let mut pending = Vec::new();
        for (rank, (comm, buffer)) in ranks.iter().zip(&buffers).enumerate() {
            let group = Group::start();
            pending.push(group.register_with(comm, part(buffer, 4096 * (1 + rank % 2))));
            if rank == 1 { drop(group) } else { drop(group.submit()) }
        }
        let by = vec![ranks[0].peers()[1].clone()];
        for pending in pending {
            assert_eq!(rolled_back(pending.wait()).cause, Cause::Abandoned { by: by.clone() });
        }
        usable(&ranks);
        finalize(ranks);
    }
}

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
        let ask = |rank: usize, g: &Group, c: &Communicator, b: &Buffer| {
            let second = if rank == ODD { part(b, 4096).label("odd") } else { part(b, 4096) };
            vec![window(g, c, part(b, 8192)), window(g, c, second)]
        };
        for asked in each_asks(&ranks, &own, ask, |_| None).into_iter().flatten() {
            rolled_back::<()>(Err(asked.error()));
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
