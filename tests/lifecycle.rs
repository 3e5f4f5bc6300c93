//! What is dropped, closed, finalized or broken: what peers hear, what stays mapped, what is given back.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::*;
use symwin::error::{Failure, FailureCause, Misuse};
use symwin::{
    Activity, Communicator, DevComm, DevCommRequirements, Error, Group, LsaRank, Rank, Window, WindowFlags,
};

const NONE: WindowFlags = WindowFlags::empty();

fn failure(error: &Error) -> &Arc<Failure> {
    let Error::Failed(failure) = error else { panic!("no failure: {error:?}") };
    failure
}

fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Misuse(Misuse::Closed { .. }))
}

#[test]
fn finalize_runs_what_is_queued_first() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let mut pendings = Vec::new();
        for _ in 0..3 {
            let group = Group::start();
            pendings.extend(ranks.iter().zip(&buffers).map(|(comm, b)| group.register(comm, b, NONE)));
            drop(group.submit());
        }
        finalize(ranks);
        for pending in pendings {
            let window = pending.wait().unwrap();
            assert!(!window.is_open(), "its communicator is closed");
            assert!(is_closed(&window.local_ptr(0).unwrap_err()));
        }
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn after_a_goodbye_batches_fail_at_once_on_every_rank_and_name_who_finalized() {
    let layouts: [&[u32]; 4] = [&[4], &[1, 1, 1, 1], &[3, 1], &[2, 2]];
    // Teams of two need the others' leaders too.
    for (layout, team) in layouts.iter().flat_map(|layout| [(layout, 4), (layout, 2)]) {
        for who in [0, 1, 3] {
            let (mut ranks, hosts) = watched_world(layout, config().lsa_team_size(team));
            let buffers = buffers(&ranks, 4096);
            drop(windows(&ranks, &buffers));
            let gone = ranks.remove(who);
            let peer = gone.peers()[who].clone();
            // One batch has begun, another comes after, ranks come one after another, several times each.
            let early = &ranks[0];
            let group = Group::start();
            let begun = group.register(early, &buffers[early.rank().index()], NONE);
            let submitted = group.submit();
            until("the batch to begin", || matches!(early.status().activity, Activity::Running { .. }));
            gone.finalize().unwrap();
            assert!(matches!(begun.wait(), Err(Error::Finalized { peer: p, .. }) if p == peer));
            assert!(submitted.wait().is_err());
            for comm in ranks.iter().chain(&ranks).chain(ranks.iter().rev()) {
                let error = comm.register(&buffers[comm.rank().index()], NONE).unwrap_err();
                assert!(
                    matches!(&error, Error::Finalized { comm, peer: p } if comm == "world" && *p == peer),
                    "{layout:?}, {who} finalized, on {}: {error}",
                    comm.rank()
                );
                let error = comm.create_dev_comm(DevCommRequirements::new()).unwrap_err();
                assert!(matches!(error, Error::Finalized { .. }), "{error}");
                assert!(matches!(comm.status().activity, Activity::Idle));
            }
            finalize(ranks);
            drop(buffers);
            assert_empty(&hosts);
        }
    }
}

#[test]
fn what_is_open_stays_usable_after_a_peer_has_finalized() {
    for layout in LAYOUTS {
        let mut ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        ranks.remove(3).finalize().unwrap();
        buffers[3].write(0, b"gone").unwrap();
        for (comm, (window, dev)) in ranks.iter().zip(windows.iter().zip(&devs)) {
            let mut seen = [0; 4];
            window.read(Rank::new(3), 0, &mut seen).unwrap();
            assert_eq!(&seen, b"gone", "{layout:?}, {}", comm.rank());
            let address = window.device_address();
            let byte = dev.run(|kernel| {
                let slice = kernel.window(address)?.slice::<u8>(LsaRank::new(3), 0, 4)?;
                slice.load(0)
            });
            assert_eq!(byte.unwrap(), b'g');
        }
        drop((windows, devs));
        finalize(ranks);
    }
}

#[test]
fn a_dropped_communicator_is_a_lost_rank_by_name_and_nothing_is_unmapped_before_close() {
    for layout in LAYOUTS {
        let (mut ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let group = Group::start();
        let pending: Vec<_> =
            ranks[..3].iter().zip(&buffers).map(|(c, b)| group.register(c, b, NONE)).collect();
        drop(group.submit());
        buffers[3].write(0, b"lost").unwrap();
        let by = ranks[0].peers()[3].clone();
        drop(ranks.remove(3));
        for pending in pending {
            assert_eq!(failure(&pending.wait().unwrap_err()).cause, FailureCause::Dropped { by: by.clone() });
        }
        until("the dropped rank's close", || !windows[3].is_open());
        assert!(is_closed(&windows[3].read(Rank::new(0), 0, &mut [0]).unwrap_err()));
        for (comm, window) in ranks.iter().zip(&windows) {
            assert!(matches!(comm.status().activity, Activity::Failed(_)));
            let mut seen = [0; 4];
            window.read(Rank::new(3), 0, &mut seen).unwrap();
            assert_eq!(&seen, b"lost", "{layout:?}, {}", comm.rank());
            assert!(comm.find_window(buffers[comm.rank().index()].as_ptr(), 1).is_some());
        }
        finalize(ranks);
        drop((windows, buffers));
        assert_empty(&hosts);
    }
}

#[test]
fn every_rank_dropped_at_once_gives_everything_back() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        drop(ranks);
        drop((windows, devs, buffers));
        assert_empty(&hosts);
    }
}

#[test]
fn stale_handles_are_typed_errors() {
    let (ranks, hosts) = watched_world(&[2], config());
    let buffers = buffers(&ranks, 4096);
    let windows = windows(&ranks, &buffers);
    let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
    let team = ranks[0].lsa_team().unwrap();
    let copy = windows[0].clone();
    let ptr = buffers[0].as_ptr();
    windows[0].close().unwrap();
    let check = |window: &Window| {
        assert!(!window.is_open());
        assert!(is_closed(&window.peer_ptr(Rank::new(1), 0).unwrap_err()));
        assert!(is_closed(&window.lsa_ptr(LsaRank::new(1), 0).unwrap_err()));
        assert!(is_closed(&window.local_ptr(0).unwrap_err()));
        assert!(is_closed(&window.multicast_ptr(team, 0).unwrap_err()));
        assert!(is_closed(&window.read(Rank::new(1), 0, &mut [0]).unwrap_err()));
        assert!(is_closed(&window.write(Rank::new(1), 0, &[0]).unwrap_err()));
        assert!(is_closed(&window.close().unwrap_err()));
        assert_eq!(window.size(), 4096);
    };
    check(&windows[0]);
    check(&copy);
    assert!(ranks[0].find_window(ptr, 1).is_none());
    let address = copy.device_address();
    until("kernels not to find it", || {
        devs[0].run(|kernel| kernel.window(address).map(drop)).is_err_and(|error| is_closed(&error))
    });
    // The other rank's is its own.
    windows[1].read(Rank::new(0), 0, &mut [0]).unwrap();
    finalize(ranks);
    check(&windows[1]);
    for dev in &devs {
        assert!(is_closed(&dev.run(|_| Ok(())).unwrap_err()));
        assert!(is_closed(&dev.launch(1, |_| Ok(())).unwrap_err()));
    }
    drop((windows, copy, devs, buffers));
    assert_empty(&hosts);
}

#[test]
fn a_group_that_ends_after_the_communicator_has_closed_fails_on_that_rank() {
    let mut ranks = world(&[1, 1]);
    let buffers = buffers(&ranks, 4096);
    let (late, begun) = (Group::start(), Group::start());
    let pending = late.register(&ranks[0], &buffers[0], NONE);
    let begun_pending = begun.register(&ranks[1], &buffers[1], NONE);
    let begun = begun.submit();
    ranks.remove(0).finalize().unwrap();
    let error = late.end().unwrap_err();
    assert!(is_closed(error.first().unwrap()), "{error}");
    assert!(is_closed(&pending.wait().unwrap_err()));
    assert!(matches!(begun.wait().unwrap_err().first(), Some(Error::Finalized { .. })));
    assert!(matches!(begun_pending.wait(), Err(Error::Finalized { .. })));
    finalize(ranks);
}

#[test]
fn finalize_waits_for_kernels_whose_memory_stays_mapped() {
    for layout in LAYOUTS {
        let (mut ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        let address = windows[0].device_address();
        let (started, start) = channel();
        let (go, going) = channel::<()>();
        let going = std::sync::Mutex::new(going);
        let kernel = devs[0]
            .launch(1, move |kernel| {
                let window = kernel.window(address)?;
                started.send(()).unwrap();
                going.lock().unwrap().recv().unwrap();
                // Closed meanwhile, and still there.
                window.slice::<u8>(LsaRank::new(3), 0, 1)?.store(0, 77)?;
                kernel
                    .find_window(window.base())
                    .map_or(Ok(0), |found| found.local_slice::<u8>(0, 1)?.load(0))
            })
            .unwrap();
        start.recv().unwrap();
        let first = ranks.remove(0);
        finalize(ranks);
        thread::scope(|scope| {
            let finalizing = scope.spawn(|| first.finalize().unwrap());
            until("the communicator to be closing", || !windows[0].is_open());
            assert!(is_closed(&devs[0].run(|_| Ok(())).unwrap_err()), "no kernel begins any more");
            assert!(hosts[0].counts().mappings > 0);
            go.send(()).unwrap();
            kernel.join().unwrap();
            finalizing.join().unwrap();
        });
        let mut seen = [0];
        buffers[3].read(0, &mut seen).unwrap();
        assert_eq!(seen, [77]);
        drop((windows, devs, buffers));
        assert_empty(&hosts);
    }
}

#[test]
fn finalize_gives_up_on_a_kernel_that_does_not_end_and_leaves_its_range_mapped() {
    for layout in [&[2][..], &[1, 1]] {
        let (mut ranks, hosts) = watched_world(layout, config().deadline(Duration::from_millis(300)));
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        let address = windows[0].device_address();
        let (go, going) = channel::<()>();
        let going = std::sync::Mutex::new(going);
        let kernel = devs[0]
            .launch(1, move |kernel| {
                let window = kernel.window(address)?;
                going.lock().unwrap().recv().unwrap();
                window.slice::<u8>(LsaRank::new(1), 0, 1)?.load(0)
            })
            .unwrap();
        buffers[1].write(0, &[42]).unwrap();
        let error = ranks.remove(0).finalize().unwrap_err();
        assert!(
            matches!(error, Error::Limit { waited, .. } if waited == Duration::from_millis(300)),
            "{error}"
        );
        finalize(ranks);
        assert!(hosts[0].counts().mappings > 0);
        go.send(()).unwrap();
        assert_eq!(kernel.join().unwrap(), [42]);
    }
}

#[test]
fn a_peers_abort_wakes_the_barrier_of_a_kernel_that_finalize_waits_for() {
    let (mut ranks, hosts) = watched_world(&[1, 1], config());
    let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
    let kernel = devs[0].launch(1, |kernel| kernel.barrier(0)?.sync()).unwrap();
    let first = ranks.remove(0);
    thread::scope(|scope| {
        let finalizing = scope.spawn(|| first.finalize());
        until("the communicator to be closing", || is_closed_dev(&devs[0]));
        ranks[0].abort("not coming");
        let error = kernel.join().unwrap_err();
        assert!(matches!(failure(&error).cause, FailureCause::Aborted { .. }), "{error}");
        finalizing.join().unwrap().unwrap();
    });
    drop(devs);
    finalize(ranks);
    assert_empty(&hosts);
}

fn is_closed_dev(dev: &DevComm) -> bool {
    dev.run(|_| Ok(())).is_err_and(|error| is_closed(&error))
}

#[test]
fn a_window_closed_while_a_kernel_runs_stays_until_it_ends_and_its_slots_are_not_reused() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let (first, second) = (buffers(&ranks, 4096), buffers(&ranks, 1 << 20));
        let windows = windows(&ranks, &first);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        first[3].write(0, &[9]).unwrap();
        let address = windows[0].device_address();
        let (started, start) = channel();
        let (go, going) = channel::<()>();
        let going = std::sync::Mutex::new(going);
        let kernel = devs[0]
            .launch(1, move |kernel| {
                let window = kernel.window(address)?;
                started.send(()).unwrap();
                going.lock().unwrap().recv().unwrap();
                window.slice::<u8>(LsaRank::new(3), 0, 1)?.load(0)
            })
            .unwrap();
        start.recv().unwrap();
        let before = ranks[0].status();
        drop(windows);
        for comm in &ranks {
            until("the windows to be gone", || comm.status().windows == 0);
        }
        let mut next = common::windows(&ranks, &second);
        assert_ne!(next[0].device_address(), address, "its struct's slot is taken");
        let now = ranks[0].status();
        assert_eq!((now.shadow_slots, now.memories), (before.shadow_slots + 1, before.memories + 1));
        go.send(()).unwrap();
        assert_eq!(kernel.join().unwrap(), [9]);
        until("the slots to be given back", || {
            let now = ranks[0].status();
            (now.shadow_slots, now.memories) == (before.shadow_slots, before.memories)
        });
        next.extend(common::windows(&ranks, &second));
        assert_eq!(next[4].device_address(), address, "and free again");
        drop((next, devs));
        finalize(ranks);
        drop((first, second));
        assert_empty(&hosts);
    }
}

#[test]
fn a_panic_in_a_kernel_is_its_callers_error_and_nobody_elses() {
    let (ranks, hosts) = watched_world(&[1, 1], config());
    let buffers = buffers(&ranks, 4096);
    let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
    let error = devs[0]
        .launch(3, |kernel| if kernel.block() == 1 { panic!("an index of {}", 7) } else { Ok(()) })
        .unwrap()
        .join()
        .unwrap_err();
    let panicked = Misuse::KernelPanicked { block: 1, message: "an index of 7".to_owned() };
    assert_eq!(error, panicked.into());
    let error = devs[1].run(|_| -> symwin::Result<()> { panic!("here") }).unwrap_err();
    assert_eq!(error, Misuse::KernelPanicked { block: 0, message: "here".to_owned() }.into());
    check_pointers(&ranks, &windows(&ranks, &buffers), &buffers);
    drop(devs);
    finalize(ranks);
    drop(buffers);
    assert_empty(&hosts);
}

#[test]
fn dropping_the_last_handles_gives_everything_back_but_what_the_communicator_needs() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        let (copies, dev_copies) = (windows.clone(), devs.clone());
        drop((windows, devs));
        assert!(copies.iter().all(Window::is_open), "there are other handles");
        drop((copies, dev_copies));
        for comm in &ranks {
            until("all to be closed", || {
                let now = comm.status();
                (now.windows, now.memories, now.allocations, now.table_slots, now.shadow_slots)
                    == (0, 0, 0, 0, 0)
            });
        }
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn duplicates_are_communicators_of_their_own_and_outlive_their_parent() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 8192);
        // The same name twice: the n-th of one rank meets the n-th of the others. Rank 0 is early in both.
        let first_0 = ranks[0].duplicate("d").unwrap();
        let second_0 = ranks[0].duplicate("d").unwrap();
        let submit = |comm: &Communicator, len: usize| {
            let group = Group::start();
            let region = buffers[comm.rank().index()].slice(0..len).unwrap();
            let pending = group.register(comm, region, NONE);
            drop(group.submit());
            pending
        };
        let (early_1, early_2) = (submit(&first_0, 4096), submit(&second_0, 8192));
        let (mut first, mut second) = (vec![first_0], vec![second_0]);
        for comm in &ranks[1..] {
            first.push(comm.duplicate("d").unwrap());
            second.push(comm.duplicate("d").unwrap());
        }
        assert_eq!(first[2].name(), "d");
        finalize(ranks);
        let mut small = vec![early_1];
        let mut large = vec![early_2];
        for rank in 1..4 {
            large.push(submit(&second[rank], 8192));
            small.push(submit(&first[rank], 4096));
        }
        for (comms, pending, size) in [(&first, small, 4096), (&second, large, 8192)] {
            let windows: Vec<_> = pending.into_iter().map(|p| p.wait().unwrap()).collect();
            assert!(windows.iter().all(|window| window.size() == size));
            check_pointers(comms, &windows, &buffers);
        }
        // A failure is one communicator's.
        first[2].abort("only this one");
        until("the peers to hear", || {
            first.iter().all(|c| matches!(c.status().activity, Activity::Failed(_)))
        });
        check_pointers(&second, &windows(&second, &buffers), &buffers);
        // Duplicates of duplicates.
        let third: Vec<_> = second.iter().map(|comm| comm.duplicate("d").unwrap()).collect();
        finalize(first);
        finalize(second);
        check_pointers(&third, &windows(&third, &buffers), &buffers);
        finalize(third);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn a_duplicate_that_some_rank_never_makes_gives_everything_back() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config().deadline(Duration::from_millis(300)));
        let buffers = buffers(&ranks, 4096);
        let lonely = ranks[0].duplicate("lonely").unwrap();
        let error = lonely.register(&buffers[0], NONE).unwrap_err();
        assert!(matches!(failure(&error).cause, FailureCause::Deadline { .. }));
        lonely.finalize().unwrap();
        check_pointers(&ranks, &windows(&ranks, &buffers), &buffers);
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn finalize_after_a_failure_is_clean() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        let group = Group::start();
        let pending: Vec<_> =
            ranks[..3].iter().zip(&buffers).map(|(c, b)| group.register(c, b, NONE)).collect();
        drop(group.submit());
        ranks[2].abort("over");
        assert!(pending.into_iter().all(|p| p.wait().is_err()));
        drop(devs);
        finalize(ranks);
        drop((windows, buffers));
        assert_empty(&hosts);
    }
}
