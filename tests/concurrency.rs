//! Many communicators, many threads: everything completes, and lookups never see a half state.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use symwin::error::Misuse;
use symwin::{
    Communicator, DevCommRequirements, Error, Group, LsaRank, Pending, Rank, Registration, Window,
    WindowFlags,
};

const NONE: WindowFlags = WindowFlags::empty();

/// A small generator (xorshift), so that a seed is all there is to a run.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Each rank in a thread of its own.
fn each<T: Send>(ranks: &[Communicator], act: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|comm| scope.spawn(|| act(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a1_64_communicators_of_4_ranks_complete_on_one_worker_in_any_order() {
    for layout in [&[4][..], &[2, 2]] {
        let (world, hosts) = watched_world(layout, config().workers(1));
        let buffers = buffers(&world, 4096);
        let comms: Vec<Vec<Communicator>> = world
            .iter()
            .map(|comm| (0..64).map(|i| comm.duplicate(&format!("c{i}")).unwrap()).collect())
            .collect();
        let windows = each(&world, |comm| {
            let rank = comm.rank().index();
            let mut order: Vec<usize> = (0..64).collect();
            Random::new(rank as u64 + 1).shuffle(&mut order);
            let register = |group: &Group, i: usize| {
                let registration = Registration::new(&buffers[rank]).label(format!("window of c{i}"));
                (i, group.register_with(&comms[rank][i], registration))
            };
            // The first half in one group, each of the others submitted by itself.
            let mut pending = Vec::new();
            let group = Group::start();
            pending.extend(order.iter().filter(|&&i| i < 32).map(|&i| register(&group, i)));
            let first = group.submit();
            for &i in order.iter().filter(|&&i| i >= 32) {
                let group = Group::start();
                pending.push(register(&group, i));
                drop(group.submit());
            }
            assert_eq!(first.wait().unwrap().len(), 32);
            let mut windows: Vec<_> = pending.into_iter().map(|(i, p)| (i, p.wait().unwrap())).collect();
            windows.sort_by_key(|(i, _)| *i);
            windows.into_iter().map(|(_, window)| window).collect::<Vec<Window>>()
        });
        for i in (0..64).step_by(9) {
            let of_one: Vec<_> = windows.iter().map(|of_rank| of_rank[i].clone()).collect();
            check_pointers(&world, &of_one, &buffers);
        }
        drop(windows);
        for of_rank in comms {
            finalize(of_rank);
        }
        finalize(world);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn one_communicator_serves_several_threads_that_agree_on_an_order() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        // Per rank, four threads take turns to submit and then wait side by side.
        let windows = each(&ranks, |comm| {
            let turn = AtomicU64::new(0);
            thread::scope(|scope| {
                let turn = &turn;
                let buffer = &buffers[comm.rank().index()];
                let threads: Vec<_> = (0..4)
                    .map(|me| {
                        scope.spawn(move || {
                            let mut windows = Vec::new();
                            for round in 0..8 {
                                until("its turn", || turn.load(Ordering::Acquire) == round * 4 + me);
                                let group = Group::start();
                                let label = format!("{round}.{me}");
                                let pending =
                                    group.register_with(comm, Registration::new(buffer).label(label));
                                drop(group.submit());
                                turn.fetch_add(1, Ordering::Release);
                                windows.push(pending.wait().unwrap());
                            }
                            windows
                        })
                    })
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<Window>>()
            })
        });
        for i in 0..32 {
            let of_one: Vec<_> = windows.iter().map(|of_rank| of_rank[i].clone()).collect();
            assert!(of_one.iter().all(|window| window.label() == of_one[0].label()));
            check_pointers(&ranks, &of_one, &buffers);
        }
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn lookups_beside_registrations_and_closes_see_the_innermost_open_window_and_never_none() {
    let ranks = Communicator::in_process_with(1, &config()).unwrap();
    let comm = &ranks[0];
    let buffer = comm.alloc(1 << 16).unwrap();
    let outer = comm.register(&buffer, NONE).unwrap();
    let at = |offset: usize| std::ptr::without_provenance::<u8>(buffer.address() + offset);
    let stop = AtomicBool::new(false);
    // By reader: lookups that found an inner window, and the outermost one.
    let found: [[AtomicU64; 2]; 2] = Default::default();
    let ready = Barrier::new(4);
    thread::scope(|scope| {
        for (reader, [inner, outermost]) in found.iter().enumerate() {
            let (stop, ready, outer) = (&stop, &ready, &outer);
            scope.spawn(move || {
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    // In the part where windows come and go.
                    let found =
                        comm.find_window(at(12_288 + reader), 16).expect("the outer one is open throughout");
                    match found.size() {
                        8192 | 4096 => inner.fetch_add(1, Ordering::Relaxed),
                        size => {
                            assert_eq!(size, outer.size());
                            outermost.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                    // Across the end of every inner one.
                    let whole = comm.find_window(at(16_383), 2).expect("the outer one is open throughout");
                    assert_eq!(whole.size(), outer.size(), "the whole range counts");
                    // Before every inner one.
                    assert_eq!(comm.find_window(at(0), 1).unwrap().size(), outer.size());
                }
            });
        }
        // Waits until every reader has found one of a kind that it had not found before: however few cores there
        // are, no reader misses all windows of that kind.
        let all_find = |what: &str, kind: usize| {
            let before = found.each_ref().map(|of_reader| of_reader[kind].load(Ordering::Relaxed));
            until(&format!("every reader to find the {what}"), || {
                (0..2).all(|reader| found[reader][kind].load(Ordering::Relaxed) > before[reader])
            });
        };
        // Handles that are dropped here, or by a lookup that found them last.
        let writer = {
            let (ready, buffer) = (&ready, &buffer);
            scope.spawn(move || {
                ready.wait();
                for i in 0..400 {
                    let range = if i % 2 == 0 { 8192..16_384 } else { 12_288..16_384 };
                    let window = comm.register(buffer.slice(range).unwrap(), NONE).unwrap();
                    if i % 100 == 0 {
                        all_find("inner window", 0);
                    }
                    if i % 3 == 0 {
                        window.close().unwrap();
                        // A reader may hold the window before this one open still.
                        let found =
                            comm.find_window(at(12_300), 1).expect("the outer one is open throughout");
                        assert_ne!(found.device_address(), window.device_address(), "closed is gone");
                    }
                    if i % 100 == 0 {
                        drop(window);
                        all_find("outermost window", 1);
                    }
                }
            })
        };
        ready.wait();
        // The writer is the only one that ends by itself; the readers must not outlive it, whatever it met.
        let wrote = writer.join();
        stop.store(true, Ordering::Relaxed);
        wrote.unwrap();
    });
    until("all inner windows to be gone", || comm.status().windows == 1);
    drop(outer);
    finalize(ranks);
}

#[test]
fn kernels_find_windows_beside_registrations_and_closes_of_others() {
    for layout in [&[2][..], &[1, 1]] {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 1 << 16);
        let keep = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new());
        buffers[1].write(8192, &[5]).unwrap();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let base = buffers[0].address() as u64;
        let kernels: Vec<_> = (0..2)
            .map(|_| {
                let stop = std::sync::Arc::clone(&stop);
                devs[0].launch(1, move |kernel| {
                    let mut found = 0u64;
                    loop {
                        let window =
                            kernel.find_window(base + 8192).expect("the outer one is open throughout");
                        let inside = base + 8192 - window.base();
                        assert!(inside < window.size());
                        // Mapped, whichever it was, closed meanwhile or not.
                        assert_eq!(window.slice::<u8>(LsaRank::new(1), inside, 1)?.load(0)?, 5);
                        found += 1;
                        // Asked last: on a busy machine the kernel may begin after the last close.
                        if stop.load(Ordering::Relaxed) {
                            return Ok(found);
                        }
                    }
                })
            })
            .map(Result::unwrap)
            .collect();
        for i in 0..100 {
            let group = Group::start();
            let pending: Vec<_> = ranks
                .iter()
                .zip(&buffers)
                .map(|(c, b)| group.register(c, b.slice(4096..12_288 + 4096 * (i % 3)).unwrap(), NONE))
                .collect();
            group.end().unwrap();
            let windows: Vec<Window> = pending.into_iter().map(|p| p.wait().unwrap()).collect();
            if i % 2 == 0 {
                windows[1].close().unwrap();
            }
            // A short kernel begins beside the closes.
            drop(windows);
            devs[0]
                .run(|kernel| {
                    let window = kernel.find_window(base + 8192).expect("the outer one");
                    window.local_slice::<u8>(base + 8192 - window.base(), 1)?.load(0)
                })
                .unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for kernel in kernels {
            kernel.join().unwrap();
        }
        until("what was closed beside kernels to be given back", || ranks[0].status().table_slots == 1);
        drop((keep, devs));
        finalize(ranks);
        drop(buffers);
        assert_empty(&hosts);
    }
}

#[test]
fn a8_copies_and_kernels_beside_closes_and_finalize_are_typed_errors_at_worst() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 1 << 16);
        let windows = windows(&ranks, &buffers);
        let devs = dev_comms(&ranks, &DevCommRequirements::new());
        let ready = Barrier::new(ranks.len() * 2 + 1);
        thread::scope(|scope| {
            for (window, dev) in windows.iter().zip(&devs) {
                let ready = &ready;
                let closed = |error: &Error| matches!(error, Error::Misuse(Misuse::Closed { .. }));
                scope.spawn(move || {
                    ready.wait();
                    let mut bytes = vec![0; 1 << 14];
                    let error = loop {
                        let outcome = window
                            .read(Rank::new(3), 0, &mut bytes)
                            .and_then(|()| window.write(Rank::new(0), 1 << 14, &bytes));
                        if let Err(error) = outcome {
                            break error;
                        }
                    };
                    assert!(closed(&error), "{error}");
                });
                let address = window.device_address();
                scope.spawn(move || {
                    ready.wait();
                    let error = loop {
                        let outcome = dev.run(|kernel| {
                            let Ok(window) = kernel.window(address) else { return Ok(0) };
                            window.slice::<u64>(LsaRank::new(3), 0, 2048)?.load(2047)
                        });
                        if let Err(error) = outcome {
                            break error;
                        }
                    };
                    assert!(closed(&error), "{error}");
                });
            }
            ready.wait();
            windows[1].close().unwrap();
            for comm in ranks {
                comm.finalize().unwrap();
            }
        });
        drop((windows, devs, buffers));
        assert_empty(&hosts);
    }
}

/// What a rank of the stress does next. All ranks draw the same one, unless a rank goes its own way.
fn step(
    random: &mut Random,
    group: &Group,
    comm: &Communicator,
    buffer: &symwin::Buffer,
) -> Vec<Pending<Window>> {
    let mut pendings = Vec::new();
    for _ in 0..=random.below(3) {
        let pages = 1 + random.below(4) as usize;
        pendings.push(group.register(comm, buffer.slice(0..pages * 4096).unwrap(), NONE));
    }
    if random.below(3) == 0 {
        drop(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1)));
    }
    pendings
}

/// One rank's part in the stress; gives the number of pendings and of their outcomes.
fn stress_rank(seed: u64, comm: Communicator, buffer: symwin::Buffer) -> (usize, usize) {
    let mut shared = Random::new(seed);
    let mut own = Random::new(seed * 31 + u64::from(comm.rank().get()) + 1);
    let (mut asked, mut answered) = (0, 0);
    let mut waiting: Vec<Pending<Window>> = Vec::new();
    let mut open: Vec<Window> = Vec::new();
    for _ in 0..12 {
        let group = Group::start();
        let mut pendings = step(&mut shared, &group, &comm, &buffer);
        match own.below(40) {
            0 => comm.abort("the stress says so"),
            1 => drop(group.register(&comm, buffer.slice(0..4096).unwrap(), NONE)),
            2 => drop(pendings.pop()),
            3 => open.clear(),
            _ => {}
        }
        asked += pendings.len();
        waiting.extend(pendings);
        match own.below(24) {
            0 => drop(group),
            1 => drop(group.end()),
            _ => drop(group.submit()),
        }
        while waiting.len() > own.below(12) as usize {
            let at = own.below(waiting.len() as u64) as usize;
            let mut pending = waiting.swap_remove(at);
            let outcome = pending.wait_limit(Duration::from_secs(60));
            assert!(!matches!(outcome, Err(Error::Limit { .. })), "P-4: seed {seed}");
            answered += 1;
            assert!(pending.poll().is_none(), "P-4: once");
            open.extend(outcome.ok());
        }
        if own.below(60) == 0 {
            break;
        }
    }
    match own.below(3) {
        0 => drop(comm),
        _ => comm.finalize().unwrap(),
    }
    for mut pending in waiting {
        let outcome = pending.wait_limit(Duration::from_secs(60));
        assert!(!matches!(outcome, Err(Error::Limit { .. })), "P-4: seed {seed}");
        answered += 1;
    }
    drop(open);
    (asked, answered)
}

#[test]
fn p4_every_pending_completes_once_and_nothing_leaks_whatever_ranks_do() {
    for seed in 1..=24 {
        let layout: &[u32] = [&[4][..], &[1, 1, 1, 1], &[3, 1], &[2, 2]][seed as usize % 4];
        let team = if seed % 3 == 0 { 2 } else { 4 };
        let config = config().deadline(Duration::from_millis(400)).lsa_team_size(team);
        let (ranks, hosts) = watched_world(layout, config);
        let buffers = buffers(&ranks, 1 << 16);
        let counts: Vec<(usize, usize)> = thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .zip(buffers)
                .map(|(comm, buffer)| scope.spawn(move || stress_rank(seed, comm, buffer)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(counts.iter().all(|(asked, answered)| asked == answered), "seed {seed}: {counts:?}");
        assert_empty(&hosts);
    }
}
