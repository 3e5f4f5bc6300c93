//! A panic of an actor: every caller hears of it by name, and closing still works.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::device::{Counts, on_gpus};
use common::*;
use symwin::driver::Call;
use symwin::driver::faulty::Faulty;
use symwin::error::{Failure, FailureCause};
use symwin::{Activity, DevCommRequirements, Error, Group, Rank, WindowFlags};

const NONE: WindowFlags = WindowFlags::empty();

fn failure(error: &Error) -> &Arc<Failure> {
    let Error::Failed(failure) = error else { panic!("no failure: {error:?}") };
    failure
}

/// Panics in the `nth` call of a kind that a worker makes, once armed.
struct Bomb {
    armed: Arc<AtomicBool>,
    fired: Arc<AtomicBool>,
}

impl Bomb {
    fn plant(device: &Faulty, kind: Call, nth: u64) -> Self {
        let (armed, fired) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let bomb = Self { armed: Arc::clone(&armed), fired: Arc::clone(&fired) };
        let seen = AtomicU64::new(0);
        device.on_call(Box::new(move |call, _| {
            let worker = thread::current().name().is_some_and(|name| name.starts_with("symwin-work"));
            if call == kind
                && worker
                && armed.load(Ordering::SeqCst)
                && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth
            {
                fired.store(true, Ordering::SeqCst);
                panic!("boom in {kind}");
            }
        }));
        bomb
    }

    fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

fn is_panic_of(error: &Error, rank: u32, me: u32) -> bool {
    match &failure(error).cause {
        FailureCause::Panicked { by, message } => {
            by.rank == Rank::new(rank) && message.starts_with("boom in ")
        }
        // Peers hear of it.
        FailureCause::Aborted { by, reason } => {
            me != rank && by.rank == Rank::new(rank) && reason.contains("panicked: boom in ")
        }
        _ => false,
    }
}

#[test]
fn a_panic_in_an_actor_answers_every_caller_and_closing_still_works() {
    let kinds = [
        (Call::AddressRange, 1),
        (Call::Retain, 1),
        (Call::Create, 1),
        (Call::Create, 2),
        (Call::Export, 1),
        (Call::Reserve, 1),
        (Call::StreamCreate, 1),
        (Call::Import, 1),
        (Call::Map, 1),
        (Call::Map, 3),
        (Call::SetAccess, 1),
        (Call::Copy, 1),
        (Call::Copy, 3),
        (Call::Fill, 1),
        (Call::Record, 1),
        (Call::Done, 1),
        (Call::Release, 1),
    ];
    for (kind, nth) in kinds {
        let FaultyWorld { ranks, faults, hosts } = faulty_world(&[1, 1], config().workers(1));
        let others: Vec<_> = ranks.iter().map(|comm| comm.duplicate("other").unwrap()).collect();
        let buffers = buffers(&ranks, 4096);
        let bomb = Bomb::plant(&faults[1], kind, nth);
        bomb.arm();
        let group = Group::start();
        let mut pending = Vec::new();
        let mut devs = Vec::new();
        for (comm, buffer) in ranks.iter().zip(&buffers) {
            pending.push(group.register(comm, buffer, NONE));
            devs.push(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1)));
        }
        let submitted = group.submit();
        let queued = Group::start();
        let behind = queued.register(&ranks[1], &buffers[1], NONE);
        drop(queued.submit());
        let errors = submitted.wait().unwrap_err();
        assert!(bomb.fired(), "{kind}");
        // The third copy publishes: there rank 0 may have committed before it hears.
        let panicked = |error: Option<&Error>, me| match error {
            Some(error) => assert!(is_panic_of(error, 1, me), "{kind} {nth}: {error}"),
            None => assert!(me == 0 && (kind, nth) == (Call::Copy, 3), "{kind} {nth}"),
        };
        for (me, result) in (0..).zip(&errors.results) {
            panicked(result.result.as_ref().err(), me);
        }
        for (me, (pending, dev)) in (0..).zip(pending.into_iter().zip(devs)) {
            panicked(pending.wait().as_ref().err(), me);
            panicked(dev.wait().as_ref().err(), me);
        }
        assert!(is_panic_of(&behind.wait().unwrap_err(), 1, 1), "{kind} {nth}");
        // The only worker lives.
        check_pointers(&others, &windows(&others, &buffers), &buffers);
        finalize(ranks);
        finalize(others);
        drop(buffers);
        // A call that panicked was not made: what it would have given back is all that stays.
        let mut left = Counts::default();
        left.handles = usize::from(kind == Call::Release);
        left.descriptors = if on_gpus() { 0 } else { left.handles };
        until(&format!("all but {left:?} to be given back after {kind}"), || {
            hosts[0].counts() == Counts::default() && hosts[1].counts() == left
        });
    }
}

#[test]
fn a_panic_while_a_window_is_retired_fails_the_communicator_and_closing_still_works() {
    for layout in [&[2][..], &[1, 1]] {
        let FaultyWorld { ranks, faults, hosts } = faulty_world(layout, config().workers(1));
        let buffers = buffers(&ranks, 4096);
        // The last rank of its process to retire the memory is the one that unmaps it.
        let bomb = Bomb::plant(&faults[1], Call::Unmap, 1);
        let mut windows = windows(&ranks, &buffers);
        bomb.arm();
        let last = windows.pop().unwrap();
        drop(windows);
        until("rank 0 to have retired", || ranks[0].status().memories == 0);
        drop(last);
        until("the panic", || matches!(ranks[1].status().activity, Activity::Failed(_)));
        assert!(is_panic_of(&ranks[1].register(&buffers[1], NONE).unwrap_err(), 1, 1));
        assert!(is_panic_of(&ranks[0].register(&buffers[0], NONE).unwrap_err(), 1, 0));
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn a_panic_at_the_end_of_a_batch_answers_its_callers_too() {
    let FaultyWorld { ranks, faults, hosts } = faulty_world(&[1, 1], config().workers(1));
    let first = buffers(&ranks, 4096);
    // Allocations of their own, so that this batch does not take the closed window's memory up.
    let second: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(4096).unwrap()).collect();
    let mut windows = windows(&ranks, &first);
    // Closed while the next batch is under way on rank 0, so it retires at that batch's end.
    let group = Group::start();
    let pending_0 = group.register(&ranks[0], &second[0], NONE);
    let submitted = group.submit();
    until(
        "the batch to wait",
        || matches!(&ranks[0].status().activity, Activity::Running { waits_for, .. } if waits_for.len() == 1),
    );
    drop(windows.remove(0));
    // The window is gone from the status at once; its slot goes when the actor has taken the close in.
    until("the actor to have taken the close in", || ranks[0].status().table_slots == 0);
    let bomb = Bomb::plant(&faults[0], Call::Unmap, 1);
    bomb.arm();
    // Rank 1 may have committed before it hears.
    drop(ranks[1].register(&second[1], NONE));
    let error = submitted.wait().unwrap_err();
    assert!(bomb.fired());
    assert!(is_panic_of(error.first().unwrap(), 0, 0), "{error}");
    assert!(is_panic_of(&pending_0.wait().unwrap_err(), 0, 0));
    drop(windows);
    finalize(ranks);
    drop((first, second));
    assert_empty(&hosts);
}

#[test]
fn a_panic_while_closing_is_what_finalize_says() {
    for kind in [Call::Free, Call::StreamDestroy, Call::Release] {
        let FaultyWorld { mut ranks, faults, .. } = faulty_world(&[1, 1], config().workers(1));
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let bomb = Bomb::plant(&faults[0], kind, 1);
        bomb.arm();
        let error = ranks.remove(0).finalize().unwrap_err();
        assert!(bomb.fired(), "{kind}");
        assert!(is_panic_of(&error, 0, 0), "{error}");
        assert!(!windows[0].is_open());
        finalize(ranks);
    }
}
