//! Waits that end: by completion whatever the order, by deadline, by abort.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::*;
use symwin::error::{Cause, Failure, FailureCause, Phase};
use symwin::{
    Activity, Communicator, Config, DevCommRequirements, Error, Group, Pending, Rank, Window, WindowFlags,
};

const NONE: WindowFlags = WindowFlags::empty();

fn failure(error: &Error) -> &Arc<Failure> {
    let Error::Failed(failure) = error else { panic!("no failure: {error:?}") };
    failure
}

/// Each rank in a thread of its own.
fn each<T: Send>(ranks: &[Communicator], act: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|comm| scope.spawn(|| act(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn two_communicators_in_opposite_order_complete_in_one_group() {
    for layout in [&[2][..], &[1, 1]] {
        let a = world(layout);
        let b: Vec<_> = a.iter().map(|comm| comm.duplicate("b").unwrap()).collect();
        let buffers = buffers(&a, 4096);
        let windows = each(&a, |comm| {
            let i = comm.rank().index();
            let order = if i == 0 { [&a[i], &b[i]] } else { [&b[i], &a[i]] };
            let group = Group::start();
            let pending = order.map(|comm| group.register(comm, &buffers[i], NONE));
            group.end().unwrap();
            pending.map(|p| p.wait().unwrap())
        });
        drop(windows);
        finalize(a);
        finalize(b);
    }
}

#[test]
fn two_communicators_in_opposite_order_complete_with_submit_before_wait() {
    for layout in [&[2][..], &[1, 1]] {
        let a = world(layout);
        let b: Vec<_> = a.iter().map(|comm| comm.duplicate("b").unwrap()).collect();
        let buffers = buffers(&a, 4096);
        each(&a, |comm| {
            let i = comm.rank().index();
            let order = if i == 0 { [&a[i], &b[i]] } else { [&b[i], &a[i]] };
            let submitted = order.map(|comm| {
                let group = Group::start();
                let pending = group.register(comm, &buffers[i], NONE);
                (group.submit(), pending)
            });
            for (submitted, pending) in submitted {
                submitted.wait().unwrap();
                drop(pending.wait().unwrap());
            }
        });
        finalize(a);
        finalize(b);
    }
}

/// Starts this binary again as one rank of two, with a deadline of its own.
fn start_rank(test: &str, rank: u32, deadline: &str, rendezvous: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("SYMWIN_TEST_CHILD", "1")
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("SYMWIN_RENDEZVOUS", rendezvous)
        .env("SYMWIN_DEADLINE", deadline)
        .env("SYMWIN_STRIDE", (4u64 << 30).to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn of_two_blocking_ends_in_opposite_order_the_first_at_its_deadline_names_both() {
    let name = "of_two_blocking_ends_in_opposite_order_the_first_at_its_deadline_names_both";
    if std::env::var_os("SYMWIN_TEST_CHILD").is_some() {
        return opposite_order();
    }
    let rendezvous = format!("opposite-{}-{:?}", std::process::id(), std::time::SystemTime::now());
    let rendezvous: String = rendezvous.chars().filter(char::is_ascii_alphanumeric).take(80).collect();
    // Rank 0 is the first at its deadline, and then stops.
    let children = [start_rank(name, 0, "1.5", &rendezvous), start_rank(name, 1, "60", &rendezvous)];
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// The body of both ranks.
fn opposite_order() {
    let world = Communicator::from_env().unwrap();
    let buffer = world.alloc(4096).unwrap();
    let [a, b] = ["a", "b"].map(|name| world.duplicate(name).unwrap());
    if world.rank().get() == 1 {
        let group = Group::start();
        let pending = group.register(&b, &buffer, NONE);
        let submitted = group.submit();
        // Once this has completed, rank 0 has heard of the offer on `b`.
        drop(world.register(&buffer, NONE).unwrap());
        let error = submitted.wait().unwrap_err();
        // Rank 0 has stopped there: it has dropped its communicators, and its process may have ended before it said so.
        let first = b.peers()[0].clone();
        match &failure(error.first().unwrap()).cause {
            FailureCause::Dropped { by } => assert_eq!(*by, first),
            FailureCause::PeerLost { peers, .. } => assert_eq!(*peers, [first]),
            other => panic!("{other:?}"),
        }
        assert_eq!(&pending.wait().unwrap_err(), error.first().unwrap());
        let error = a.register(&buffer, NONE).unwrap_err();
        let FailureCause::Aborted { by, reason } = &failure(&error).cause else { panic!("{error}") };
        assert_eq!(by.rank, Rank::new(0));
        assert!(reason.contains("`b`"), "{reason}");
        for comm in [a, b, world] {
            comm.finalize().unwrap();
        }
        return;
    }
    drop(world.register(&buffer, NONE).unwrap());
    let group = Group::start();
    let _pending = group.register(&a, &buffer, NONE);
    let error = group.end().unwrap_err();
    let failure = failure(error.first().unwrap());
    let FailureCause::Deadline { missing, blocked, .. } = &failure.cause else { panic!("{failure}") };
    assert_eq!((failure.comm.as_str(), failure.phase), ("a", Phase::Offer));
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].peer, a.peers()[1]);
    assert!(missing[0].last_seen.contains("last heard from in communicator `"), "{failure}");
    assert_eq!(blocked.len(), 1, "{blocked:?}");
    assert!(blocked[0].contains("rank 1") && blocked[0].contains("`b`, batch 0"), "{failure}");
}

#[test]
fn a_peer_that_had_its_answer_elsewhere_is_not_said_to_wait_there() {
    let config = config().deadline(Duration::from_millis(700));
    let a = Communicator::in_processes_with(&[1, 1], &config).unwrap();
    let b: Vec<_> = a.iter().map(|comm| comm.duplicate("b").unwrap()).collect();
    let buffers = buffers(&a, 8192);
    // A batch that ends with the offers: the latest message on `b` is one.
    let group = Group::start();
    let pending = [
        group.register(&b[0], buffers[0].slice(0..4096).unwrap(), NONE),
        group.register(&b[1], &buffers[1], NONE),
    ];
    assert!(group.end().is_err());
    for pending in pending {
        let Err(Error::RolledBack(rolled_back)) = pending.wait() else { panic!("a mismatch") };
        assert!(matches!(rolled_back.cause, Cause::Mismatch { .. }));
    }
    let error = a[0].register(&buffers[0], NONE).unwrap_err();
    let FailureCause::Deadline { missing, blocked, .. } = &failure(&error).cause else { panic!("{error}") };
    assert!(missing[0].last_seen.contains("`b`, batch 0"), "{error}");
    assert!(blocked.is_empty(), "{error}");
    finalize(a);
    finalize(b);
}

#[test]
fn a7_a_rank_that_never_comes_is_named_by_everyone_who_waits() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config().deadline(Duration::from_millis(1500)));
        let buffers = buffers(&ranks, 4096);
        // So that it was seen somewhere.
        drop(windows(&ranks, &buffers));
        let absent = ranks[0].peers()[3].clone();
        let group = Group::named("incomplete");
        let pending: Vec<_> = ranks[..3]
            .iter()
            .zip(&buffers)
            .map(|(comm, buffer)| group.register(comm, buffer, NONE))
            .collect();
        let submitted = group.submit();
        for comm in &ranks[..3] {
            until("the status to show who is missing", || match comm.status().activity {
                Activity::Running { operation, phase, waits_for, .. } => {
                    operation == "batch 1 of group `incomplete`"
                        && phase == Phase::Offer
                        && waits_for == [absent.clone()]
                }
                _ => false,
            });
        }
        let error = submitted.wait().unwrap_err();
        let mut deadlines = 0;
        for (result, pending) in error.results.iter().zip(pending) {
            let error = result.result.as_ref().unwrap_err();
            assert_eq!(pending.wait().unwrap_err(), *error);
            assert!(error.to_string().contains(&absent.to_string()), "{error}");
            assert!(error.to_string().contains("batch 1 of group `incomplete`, offer"), "{error}");
            match &failure(error).cause {
                FailureCause::Deadline { missing, after, .. } => {
                    deadlines += 1;
                    assert_eq!((missing.len(), &missing[0].peer), (1, &absent));
                    assert!(missing[0].last_seen.contains("communicator `world`, batch 0, vote"), "{error}");
                    assert_eq!(*after, Duration::from_millis(1500));
                }
                // Another waiting rank was first to say so.
                FailureCause::Aborted { by, .. } => assert_ne!(*by, absent),
                other => panic!("{other:?}"),
            }
        }
        assert!(deadlines >= 1);
        for comm in &ranks {
            until("every rank to have failed", || matches!(comm.status().activity, Activity::Failed(_)));
            let now = comm.register(&buffers[0], NONE).unwrap_err();
            assert!(now.to_string().contains(&absent.to_string()), "{now}");
        }
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn a7_abort_wakes_every_wait_on_every_rank_and_is_idempotent() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(1));
        // Waits of three kinds, which rank 3 lets nobody out of: for batches, in kernels' barriers, for pendings.
        let kernels: Vec<_> =
            devs[..3].iter().map(|dev| dev.launch(1, |kernel| kernel.barrier(0)?.sync()).unwrap()).collect();
        let group = Group::start();
        let pending: Vec<Pending<Window>> = ranks[..3]
            .iter()
            .zip(&buffers)
            .map(|(comm, buffer)| group.register(comm, buffer, NONE))
            .collect();
        let submitted = group.submit();
        thread::scope(|scope| {
            let waiting: Vec<_> =
                pending.into_iter().map(|p| scope.spawn(|| p.wait().unwrap_err())).collect();
            let end = scope.spawn(|| submitted.wait().unwrap_err());
            for comm in &ranks[..3] {
                until(
                    "the batch to wait",
                    || matches!(&comm.status().activity, Activity::Running { waits_for, .. } if waits_for.len() == 1),
                );
            }
            scope.spawn(|| {
                ranks[1].abort("the user pressed Ctrl-C");
                ranks[1].abort("twice");
            });
            let by = ranks[0].peers()[1].clone();
            let cause = FailureCause::Aborted { by, reason: "the user pressed Ctrl-C".to_owned() };
            for thread in waiting {
                assert_eq!(failure(&thread.join().unwrap()).cause, cause);
            }
            for result in end.join().unwrap().results {
                assert_eq!(failure(&result.result.unwrap_err()).cause, cause);
            }
            for kernel in kernels {
                assert_eq!(failure(&kernel.join().unwrap_err()).cause, cause);
            }
            for (comm, dev) in ranks.iter().zip(&devs) {
                until("the rank to hear", || matches!(comm.status().activity, Activity::Failed(_)));
                comm.abort("late");
                assert_eq!(failure(&comm.register(&buffers[0], NONE).unwrap_err()).cause, cause);
                assert_eq!(failure(&comm.duplicate("none").unwrap_err()).cause, cause);
                assert_eq!(failure(&dev.run(|_| Ok(())).unwrap_err()).cause, cause);
            }
        });
        drop(devs);
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn a7_a_barrier_that_a_rank_does_not_come_to_fails_all_and_names_it() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config().deadline(Duration::from_millis(1200)));
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        let kernels: Vec<_> =
            devs[..2].iter().map(|dev| dev.launch(1, |kernel| kernel.barrier(1)?.sync()).unwrap()).collect();
        let absent = [2, 3].map(|rank| ranks[0].peers()[rank].clone());
        for kernel in kernels {
            let error = kernel.join().unwrap_err();
            assert!(absent.iter().all(|peer| error.to_string().contains(&peer.to_string())), "{error}");
            match &failure(&error).cause {
                FailureCause::Deadline { missing, .. } => {
                    assert_eq!(failure(&error).phase, Phase::Barrier);
                    assert_eq!(missing.iter().map(|m| m.peer.clone()).collect::<Vec<_>>(), absent);
                }
                FailureCause::Aborted { by, .. } => assert!(!absent.contains(by)),
                other => panic!("{other:?}"),
            }
        }
        for comm in &ranks {
            until("every rank to have failed", || matches!(comm.status().activity, Activity::Failed(_)));
        }
        drop(devs);
        finalize(ranks);
        assert_empty(&hosts);
    }
}

#[test]
fn batches_behind_one_that_meets_its_deadline_fail_with_it() {
    let config: Config = config().deadline(Duration::from_millis(500));
    let ranks = Communicator::in_processes_with(&[1, 1], &config).unwrap();
    let buffers = buffers(&ranks, 4096);
    let submitted: Vec<_> = (0..3)
        .map(|_| {
            let group = Group::start();
            drop(group.register(&ranks[0], &buffers[0], NONE));
            group.submit()
        })
        .collect();
    let errors: Vec<_> = submitted.into_iter().map(|s| s.wait().unwrap_err()).collect();
    assert!(matches!(failure(errors[0].first().unwrap()).cause, FailureCause::Deadline { .. }));
    assert!(errors.iter().all(|error| error == &errors[0]), "{errors:?}");
    finalize(ranks);
}
