//! Under a limit of 1,024 descriptors: what fits passes in two rounds, what does not fit fails on all ranks with the
//! limit and the need in its error, and the communicator remains usable. Also without privileges, where the kernel
//! counts descriptors in flight against the same limit.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/resources.rs"]
mod resources;

use std::time::Duration;

use common::*;
use processes::*;
use resources::{Process as Resources, until};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Value, json};
use symwin::driver::DeviceProblem;
use symwin::error::{Cause, Reason};
use symwin::{
    Buffer, Communicator, Config, DevCommRequirements, Error, Group, Pending, Region, Window, WindowFlags,
};

const LIMIT: u64 = 1024;
const PAGE: usize = 4096;
/// "nobody".
const UNPRIVILEGED: u32 = 65534;

/// As this user, and, if that is root, as nobody too.
fn each_user(test: impl Fn(Job) -> Job, check: impl Fn(&[Value])) {
    let users = if rustix::process::getuid().is_root() { vec![None, Some(UNPRIVILEGED)] } else { vec![None] };
    for user in users {
        let job = test(Job::new("limits"));
        let job = user.into_iter().fold(job, Job::uid);
        check(&job.start().outcomes());
    }
}

#[test]
fn a_thousand_windows_of_few_allocations_pass_in_two_rounds() {
    for processes in [2, 4] {
        each_user(
            |job| job.of(processes, 1).env("SYMWIN_TEST_CASE", "few"),
            |outcomes| {
                assert_eq!(outcomes.len(), processes as usize);
                for outcome in outcomes {
                    assert_eq!(outcome["rounds"], 2);
                    assert!(outcome["sent"].as_u64().unwrap() <= 4, "{outcome}");
                }
            },
        );
    }
}

#[test]
fn a_thousand_allocations_of_their_own_fail_where_they_are_made_and_name_the_limit() {
    each_user(
        |job| job.of(2, 1).env("SYMWIN_TEST_CASE", "own"),
        |outcomes| {
            for outcome in outcomes {
                assert_eq!(outcome["limit"], LIMIT);
                let made = outcome["made"].as_u64().unwrap();
                assert!((LIMIT - 64..LIMIT).contains(&made), "{outcome}");
            }
        },
    );
}

/// Each process has room for its own 600, not for those of a peer beside them.
#[test]
fn allocations_that_fit_only_where_they_were_made_fail_on_all_ranks_and_name_limit_and_need() {
    for processes in [2, 4] {
        each_user(
            |job| job.of(processes, 1).env("SYMWIN_TEST_CASE", "import"),
            |outcomes| {
                for outcome in outcomes {
                    let faults = outcome["faults"].as_array().unwrap();
                    assert_eq!(outcome["faults"], outcomes[0]["faults"], "the same on all ranks");
                    assert_eq!(faults.len(), processes as usize, "every rank is named: {outcome}");
                    for fault in faults {
                        assert_eq!(fault["limit"], LIMIT);
                        assert_eq!(fault["need"], 600);
                        assert!(fault["got"].as_u64().unwrap() < 600);
                    }
                }
            },
        );
    }
}

/// Only one rank has too little room: all hear of it.
#[test]
fn one_rank_without_room_for_descriptors_fails_the_batch_on_all() {
    each_user(
        |job| job.of(3, 1).env("SYMWIN_TEST_CASE", "one"),
        |outcomes| {
            for outcome in outcomes {
                let faults = outcome["faults"].as_array().unwrap();
                assert_eq!(faults.len(), 1, "{outcome}");
                assert_eq!(faults[0]["rank"], 1);
            }
        },
    );
}

/// Many more than fit into a message, and into flight, where the limit allows them.
#[test]
fn several_messages_of_descriptors_arrive_where_there_is_room() {
    each_user(
        |job| job.of(2, 1).env("SYMWIN_TEST_CASE", "fit"),
        |outcomes| {
            for outcome in outcomes {
                assert_eq!(outcome["rounds"], 2);
                assert_eq!(outcome["sent"], 450);
            }
        },
    );
}

#[test]
#[ignore = "started by the other tests of this file"]
fn child() {
    play(|_| {
        let limit = Some(LIMIT);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
        let before = Resources::now().descriptors;
        let config = Config::new().stride(4 << 30).deadline(Duration::from_secs(50)).workers(2);
        let comm = Communicator::ranks_from_env_with(&config).unwrap().remove(0);
        let outcome = match order("SYMWIN_TEST_CASE").as_str() {
            "few" => few(&comm),
            "own" => own(&comm),
            "import" => import(&comm, 600),
            "one" => import(&comm, if comm.rank().get() == 1 { 800 } else { 150 }),
            "fit" => fit(&comm),
            other => panic!("no case {other}"),
        };
        usable(&comm);
        finalize(vec![comm]);
        until("descriptors to be closed", || Resources::now().descriptors <= before);
        outcome
    });
}

fn register(comm: &Communicator, buffers: &[Buffer]) -> Vec<Result<Window, Error>> {
    let group = Group::start();
    let queue = |buffer| group.register(comm, Region::from(buffer), WindowFlags::empty());
    let pending: Vec<_> = buffers.iter().map(queue).collect();
    drop(group.submit());
    pending.into_iter().map(Pending::wait).collect()
}

/// What passes must also reach the peers: this rank's mark is in every peer's part of every window.
fn check(comm: &Communicator, windows: &[Window]) {
    for window in windows {
        for peer in comm.peers() {
            let at = 8 * comm.rank().index();
            window.write(peer.rank, at, &[9; 8]).unwrap();
            let mut seen = [0; 8];
            window.read(peer.rank, at, &mut seen).unwrap();
            assert_eq!(seen, [9; 8]);
        }
    }
}

fn usable(comm: &Communicator) {
    // Needs no descriptor, and ends when all ranks have let theirs go: a peer's next offer may come with its own before
    // this rank has begun.
    let nothing = comm.create_dev_comm(DevCommRequirements::new()).unwrap();
    drop(nothing);
    let buffers = [comm.alloc(PAGE).unwrap(), comm.alloc_own(PAGE).unwrap()];
    let windows: Vec<_> = register(comm, &buffers).into_iter().map(Result::unwrap).collect();
    check(comm, &windows);
}

fn few(comm: &Communicator) -> Value {
    let buffers: Vec<_> = (0..1024).map(|_| comm.alloc(PAGE).unwrap()).collect();
    let windows: Vec<_> = register(comm, &buffers).into_iter().map(Result::unwrap).collect();
    let status = comm.status();
    check(comm, &windows);
    json!({ "rounds": status.rounds, "sent": status.descriptors })
}

fn own(comm: &Communicator) -> Value {
    let mut buffers = Vec::new();
    let error = loop {
        match comm.alloc_own(PAGE) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => break error,
        }
    };
    let Error::Device(error) = error else { panic!("a device's error was expected: {error}") };
    let DeviceProblem::TooManyDescriptors { limit, need } = error.problem else { panic!("{error}") };
    assert_eq!(need, 1);
    json!({ "made": buffers.len(), "limit": limit })
}

fn fit(comm: &Communicator) -> Value {
    let buffers: Vec<_> = (0..450).map(|_| comm.alloc_own(PAGE).unwrap()).collect();
    let windows: Vec<_> = register(comm, &buffers).into_iter().map(Result::unwrap).collect();
    let status = comm.status();
    check(comm, &windows);
    json!({ "rounds": status.rounds, "sent": status.descriptors })
}

/// Registers 600 allocations beside so many that only this process has.
fn import(comm: &Communicator, here: usize) -> Value {
    let shared = if here == 600 { 600 } else { 150 };
    let buffers: Vec<_> = (0..here).map(|_| comm.alloc_own(PAGE).unwrap()).collect();
    let before = Resources::now().descriptors;
    // A peer's offer takes room as soon as it comes, and may take all: everyone must have made and counted theirs.
    usable(comm);
    let failed = register(comm, &buffers[..shared]);
    let Err(Error::RolledBack(first)) = &failed[0] else { panic!("{:?}", failed[0]) };
    assert!(failed.iter().all(|result| result.as_ref().err() == failed[0].as_ref().err()));
    let Cause::Refused { faults } = &first.cause else { panic!("{first}") };
    let faults: Vec<Value> = faults
        .iter()
        .map(|fault| {
            let Reason::Descriptors { limit, need, got } = fault.reason else { panic!("{fault}") };
            json!({ "rank": fault.peer.rank.get(), "limit": limit, "need": need, "got": got })
        })
        .collect();
    // What arrived is closed, but peers may have sent what comes next, ten each, and what the first registrations made
    // stays: a slab, and the pages of the pools of device objects.
    let more = 10 * (comm.world_size() as usize - 1) + 16;
    until("what arrived to be closed", || Resources::now().descriptors <= before + more);
    // Fewer of the same fit.
    let windows: Vec<_> = register(comm, &buffers[..10]).into_iter().map(Result::unwrap).collect();
    check(comm, &windows);
    json!({ "faults": faults })
}
