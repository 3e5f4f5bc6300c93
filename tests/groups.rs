//! Groups and pendings: what goes together, what waits for what, and what is dropped on the way.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::*;
use symwin::error::{Cause, Misuse};
use symwin::{Communicator, DevCommRequirements, Error, Group, Pending, Registration, Window, WindowFlags};

const NONE: WindowFlags = WindowFlags::empty();

fn cause(error: &Error) -> &Cause {
    let Error::RolledBack(rolled_back) = error else { panic!("no roll-back: {error:?}") };
    &rolled_back.cause
}

#[test]
fn an_empty_group_ends_at_once() {
    assert_eq!(Group::start().end(), Ok(Vec::new()));
    assert!(Group::named("nothing").submit().poll());
}

#[test]
fn a_group_gives_one_result_for_each_communicator() {
    for layout in LAYOUTS {
        let a = world(layout);
        let b: Vec<_> = a.iter().map(|comm| comm.duplicate("b").unwrap()).collect();
        let buffers = buffers(&a, 1 << 16);
        let group = Group::named("layer 3");
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for ((a, b), buffer) in a.iter().zip(&b).zip(&buffers) {
            good.push(group.register(a, buffer, NONE));
            // On `b`, rank 0 asks for something else.
            let len = if b.rank().get() == 0 { 4096 } else { 8192 };
            bad.push(group.register(b, buffer.slice(0..len).unwrap(), NONE));
        }
        let error = group.end().unwrap_err();
        assert_eq!(error.results.len(), 8);
        for (i, result) in error.results.iter().enumerate() {
            let rank = i / 2;
            assert_eq!((result.comm.as_str(), result.rank.index()), (["world", "b"][i % 2], rank));
            assert_eq!(result.result.is_ok(), i % 2 == 0, "{result:?}");
        }
        let first = error.first().unwrap();
        assert!(matches!(cause(first), Cause::Mismatch { requests, .. } if requests.len() == 4), "{first}");
        assert!(first.to_string().contains("layer 3"), "{first}");
        for pending in bad {
            assert_eq!(pending.wait().unwrap_err(), *first);
        }
        let windows: Vec<Window> = good.into_iter().map(|p| p.wait().unwrap()).collect();
        check_pointers(&a, &windows, &buffers);
        // Both are usable.
        check_pointers(&b, &common::windows(&b, &buffers), &buffers);
        drop(windows);
        finalize(a);
        finalize(b);
    }
}

#[test]
fn registrations_come_before_device_communicators_whatever_the_order_of_calls() {
    let ranks = world(&[1, 1]);
    let buffers = buffers(&ranks, 4096);
    let group = Group::start();
    let requirements = || DevCommRequirements::new().lsa_barriers(1);
    let dev_0 = group.create_dev_comm(&ranks[0], requirements());
    let window_0 = group.register(&ranks[0], &buffers[0], NONE);
    let window_1 = group.register(&ranks[1], &buffers[1], NONE);
    let dev_1 = group.create_dev_comm(&ranks[1], requirements());
    group.end().unwrap();
    let windows = [window_0.wait().unwrap(), window_1.wait().unwrap()];
    check_pointers(&ranks, &windows, &buffers);
    assert_eq!(dev_0.wait().unwrap().resource_bytes(), dev_1.wait().unwrap().resource_bytes());
    assert_eq!(ranks[0].status().batches, 1);
    drop(windows);
    finalize(ranks);
}

#[test]
fn a_joined_group_goes_with_the_other_one_behind_what_that_has() {
    let ranks = world(&[1, 1]);
    let buffers = buffers(&ranks, 1 << 16);
    let mut pendings = Vec::new();
    let group = Group::named("outer");
    let part = |comm: &Communicator, label: &str| {
        let at = if label == "first" { 0 } else { 8192 };
        let slice = buffers[comm.rank().index()].slice(at..at + 4096).unwrap();
        Registration::new(slice).label(label)
    };
    // Rank 0 queues both itself; rank 1's second one comes from groups that join.
    pendings.push(group.register_with(&ranks[0], part(&ranks[0], "first")));
    pendings.push(group.register_with(&ranks[0], part(&ranks[0], "second")));
    pendings.push(group.register_with(&ranks[1], part(&ranks[1], "first")));
    let (inner, innermost) = (Group::named("inner"), Group::start());
    pendings.push(innermost.register_with(&ranks[1], part(&ranks[1], "second")));
    inner.join(innermost);
    group.join(inner);
    assert!(pendings.iter_mut().all(|pending| pending.poll().is_none()));
    group.end().unwrap();
    let windows: Vec<_> = pendings.into_iter().map(|pending| pending.wait().unwrap()).collect();
    assert_eq!(windows[3].label(), Some("second"));
    assert_eq!(ranks[0].status().batches, 1);
    drop(windows);
    finalize(ranks);
}

#[test]
fn waiting_before_the_groups_end_is_an_error_also_in_a_group_that_has_joined_another() {
    let config = config().deadline(Duration::from_millis(200));
    let ranks = Communicator::in_process_with(1, &config).unwrap();
    let buffer = ranks[0].alloc(4096).unwrap();
    let group = Group::start();
    let queued = group.register(&ranks[0], &buffer, NONE);
    let other = Group::start();
    let joined = other.create_dev_comm(&ranks[0], DevCommRequirements::new());
    group.join(other);
    assert_eq!(queued.wait().unwrap_err(), Misuse::GroupOpen { what: "window".to_owned() }.into());
    assert_eq!(
        joined.wait().unwrap_err(),
        Misuse::GroupOpen { what: "device communicator".to_owned() }.into()
    );
    // What the lost pendings would have become is closed at commit.
    group.end().unwrap();
    until("the window to be closed", || ranks[0].status().windows == 0 && ranks[0].status().memories == 0);
    finalize(ranks);
}

#[test]
fn a_pending_may_be_awaited_while_another_thread_ends_the_group() {
    let ranks = world(&[2]);
    let buffers = buffers(&ranks, 4096);
    let group = Group::start();
    let pendings: Vec<_> =
        ranks.iter().zip(&buffers).map(|(comm, buffer)| group.register(comm, buffer, NONE)).collect();
    thread::scope(|scope| {
        let waiting: Vec<_> = pendings.into_iter().map(|p| scope.spawn(|| p.wait().unwrap())).collect();
        group.end().unwrap();
        let windows: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        check_pointers(&ranks, &windows, &buffers);
    });
    finalize(ranks);
}

#[test]
fn giving_up_waiting_gives_up_nothing_else_and_the_outcome_comes_once() {
    let ranks = world(&[1, 1]);
    let buffers = buffers(&ranks, 4096);
    let group = Group::start();
    let mut first = group.register(&ranks[0], &buffers[0], NONE);
    let submitted = group.submit();
    let limit = Duration::from_millis(1);
    let gave_up = first.wait_limit(limit).unwrap_err();
    assert_eq!(gave_up, Error::Limit { what: "a window".to_owned(), waited: limit });
    assert!(first.poll().is_none());
    let mut submitted = submitted.wait_limit(limit).unwrap_err();
    assert!(!submitted.poll());

    let second = ranks[1].register(&buffers[1], NONE).unwrap();
    let window = first.wait_limit(Duration::from_secs(30)).unwrap();
    check_pointers(&ranks, &[window, second], &buffers);
    assert!(first.poll().is_none(), "it came before");
    assert!(matches!(first.wait_limit(limit), Err(Error::Misuse(Misuse::Other { .. }))));
    assert!(matches!(first.wait(), Err(Error::Misuse(Misuse::Other { .. }))));
    assert_eq!(submitted.wait_limit(Duration::from_secs(30)).unwrap().unwrap().len(), 1);
    finalize(ranks);
}

/// Unparks the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor: one future, this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(Instant::now() < deadline, "never woken");
        thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

#[test]
fn pendings_and_submitted_groups_are_futures_of_any_executor() {
    let ranks = world(&[1, 1]);
    let buffers = buffers(&ranks, 4096);
    let group = Group::start();
    let mut pending: Pending<Window> = group.register(&ranks[0], &buffers[0], NONE);
    let mut submitted = group.submit();
    // Not ready yet, and woken later, by a worker.
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(&mut pending).poll(&mut cx).is_pending());
    assert!(pin!(&mut submitted).poll(&mut cx).is_pending());
    thread::scope(|scope| {
        let other = scope.spawn(|| ranks[1].register(&buffers[1], NONE).unwrap());
        let results = block_on(async {
            let window = (&mut pending).await.unwrap();
            ((&mut submitted).await.unwrap(), window)
        });
        assert_eq!(results.0.len(), 1);
        check_pointers(&ranks, &[results.1, other.join().unwrap()], &buffers);
    });
    assert!(matches!(block_on(pending), Err(Error::Misuse(Misuse::Other { .. }))), "once");
    finalize(ranks);
}

#[test]
fn several_batches_of_one_communicator_are_in_flight_and_may_be_awaited_in_any_order() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 1 << 16);
        let mut submitted = Vec::new();
        let mut pendings = Vec::new();
        for batch in 0..8 {
            // Ranks come in another order in each.
            let group = Group::named(format!("batch {batch}"));
            let mut row = Vec::new();
            for i in 0..ranks.len() {
                let at = (i + batch) % ranks.len();
                row.push((at, group.register(&ranks[at], &buffers[at], NONE)));
            }
            row.sort_by_key(|(at, _)| *at);
            pendings.push(row);
            submitted.push(group.submit());
        }
        for (row, submitted) in pendings.into_iter().zip(submitted).rev() {
            let windows: Vec<_> = row.into_iter().map(|(_, p)| p.wait().unwrap()).collect();
            check_pointers(&ranks, &windows, &buffers);
            assert_eq!(submitted.wait().unwrap().len(), ranks.len());
        }
        finalize(ranks);
    }
}

#[test]
fn one_group_may_be_filled_from_several_threads() {
    let ranks = world(&[3, 1]);
    let buffers = buffers(&ranks, 4096);
    let group = Group::start();
    let pendings: Vec<_> = thread::scope(|scope| {
        let group = &group;
        let threads: Vec<_> = ranks
            .iter()
            .zip(&buffers)
            .map(|(comm, buffer)| scope.spawn(move || group.register(comm, buffer, NONE)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    group.end().unwrap();
    let windows: Vec<_> = pendings.into_iter().map(|p| p.wait().unwrap()).collect();
    check_pointers(&ranks, &windows, &buffers);
    drop(windows);
    finalize(ranks);
}

#[test]
fn requests_of_swapped_order_are_told_apart_by_their_labels() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 8192);
        let pendings: Vec<Vec<_>> = ranks
            .iter()
            .zip(&buffers)
            .map(|(comm, buffer)| {
                // The last rank's threads came in another order.
                let swapped = comm.rank().get() == comm.world_size() - 1;
                let labels = if swapped { ["v", "k"] } else { ["k", "v"] };
                let submit = |label: &str| {
                    let group = Group::start();
                    let part = Registration::new(buffer.slice(0..4096).unwrap()).label(label);
                    let pending = group.register_with(comm, part);
                    drop(group.submit());
                    pending
                };
                labels.map(submit).into_iter().collect()
            })
            .collect();
        for pending in pendings.into_iter().flatten() {
            let error = pending.wait().unwrap_err();
            let Cause::Mismatch { what, requests } = cause(&error) else { panic!("{error}") };
            assert!(what.contains("label"), "{what}");
            assert_eq!(requests.len(), ranks.len());
        }
        check_pointers(&ranks, &windows(&ranks, &buffers), &buffers);
        finalize(ranks);
    }
}

#[test]
fn a_group_dropped_before_its_end_is_heard_of_on_all_ranks_and_nothing_breaks() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 8192);
        let group = Group::start();
        let dropped = group.register(&ranks[1], &buffers[1], NONE);
        let others = Group::start();
        let pendings: Vec<_> = [0, 2, 3].map(|i: usize| others.register(&ranks[i], &buffers[i], NONE)).into();
        let submitted = others.submit();
        drop(group);
        let error = submitted.wait().unwrap_err();
        for result in &error.results {
            let Cause::Abandoned { by } = cause(result.result.as_ref().unwrap_err()) else {
                panic!("{error}")
            };
            assert_eq!(by, &[ranks[1].peers()[1].clone()]);
        }
        assert!(matches!(cause(&dropped.wait().unwrap_err()), Cause::Abandoned { .. }));
        pendings.into_iter().for_each(|p| assert!(p.wait().is_err()));
        check_pointers(&ranks, &windows(&ranks, &buffers), &buffers);
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn what_a_dropped_pending_would_have_become_is_closed_at_commit() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 8192);
        let keep = windows(&ranks, &buffers);
        let before: Vec<_> = ranks.iter().map(Communicator::status).collect();
        let group = Group::start();
        for (comm, buffer) in ranks.iter().zip(&buffers) {
            drop(group.register(comm, buffer, NONE));
            drop(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(4)));
        }
        drop(group.submit());
        for (comm, before) in ranks.iter().zip(&before) {
            until("the batch to be over and closed", || {
                let now = comm.status();
                now.batches == 2
                    && (now.windows, now.memories, now.allocations, now.table_slots, now.shadow_slots)
                        == (1, before.memories, before.allocations, before.table_slots, before.shadow_slots)
            });
        }
        check_pointers(&ranks, &keep, &buffers);
        drop(keep);
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}
