//! requests that differ and groups that are dropped. Each is an error on every rank, without a deadline,
//! and the communicator goes on.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use common::*;
use symwin::error::{Cause, Peer};
use symwin::{
    Buffer, Communicator, DevComm, DevCommRequirements, Error, Group, Pending, Registration, Window,
    WindowFlags,
};

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
