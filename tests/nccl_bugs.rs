//! The reference's bugs, by their number in section 5 of the project's notes on NCCL's device runtime, each with the
//! right behaviour. Most are shown in every layout: ranks as threads, as processes, and mixed.
//!
//! Shown elsewhere, where their surroundings are: 11 (`windows.rs`), 17 after a failure (`multicast.rs`),
//! 21 (`collectives.rs`), 29's alignments and counts (`dev_comm.rs`), 34 (`windows.rs`, `dev_comm.rs`). Units show more of
//! 2, 3, 4, 34, 36 (`devr/table`), 3, 4, 5 (`devr/index`), 28 (`devr/shadow`), 2, 28, 36 (`device/tests/lookup.rs`),
//! and 29 (`devr/dev_comm.rs`).
//!
//! Not to be shown on the host device: 24 (a current device that is not restored: the host device has no such
//! thread state), the allocation half of 23 (unchecked `malloc`: Rust's allocator aborts, and sizes from peers are bounded before they
//! are allocated), and 33 (a stream that another thread captures: the host device has no capture).
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/worlds.rs"]
mod worlds;

use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use symwin::driver::Call;
use symwin::driver::host::HostCounts;
use symwin::error::{Cause, Misuse, Reason};
use symwin::{
    Activity, Buffer, Communicator, DevCommRequirements, Error, Group, LsaRank, Pending, Rank, Region,
    Registration, Team, Window, WindowFlags,
};
use worlds::*;

fn multimem() -> DevCommRequirements {
    DevCommRequirements::new().lsa_multimem(true)
}

fn find(comm: &Communicator, buffer: &Buffer, offset: usize, len: usize) -> Option<u64> {
    comm.find_window(buffer.as_ptr().wrapping_add(offset), len).map(|window| window.device_address())
}

/// A slice of every rank's buffer as a window.
fn parts(ranks: &[Communicator], buffers: &[Buffer], range: std::ops::Range<usize>) -> Vec<Window> {
    all_ok(ask(ranks, |group, comm| {
        let slice = buffers[comm.rank().index()].slice(range.clone()).unwrap();
        group.register(comm, slice, WindowFlags::empty())
    }))
}

/// What must come back after a roll-back and after a close (P-5).
fn held(world: &FaultyWorld) -> Vec<(HostCounts, usize, usize, usize, u64)> {
    let of = |(host, comm): (&std::sync::Arc<symwin::driver::host::HostDriver>, &Communicator)| {
        let s = comm.status();
        (host.counts(), s.memories, s.shadow_slots, s.table_slots, s.space_bytes)
    };
    let hosts =
        world.ranks.iter().map(|comm| &world.hosts[comm.peers()[comm.rank().index()].process.index()]);
    hosts.zip(&world.ranks).map(of).collect()
}

fn close_all(world: FaultyWorld) {
    finalize(world.ranks);
    world.hosts.iter().for_each(|host| assert_eq!(host.counts(), HostCounts::default(), "P-5"));
}

// A. Logic

#[test]
fn bug_01_a_second_and_a_third_team_are_made_and_found_again() {
    for layout in [&[4][..], &[2, 2]] {
        let world = MulticastWorld::new(layout);
        let make = |ranks: &[Communicator]| {
            ask(ranks, |group, comm| {
                let me = comm.rank().get();
                let pairs = Team::strided(2, me % 2, 1).unwrap();
                let strided = Team::strided(2, me / 2, 2).unwrap();
                group.create_dev_comm(comm, multimem().team(pairs, true).team(strided, true))
            })
        };
        let bases = |results: Vec<symwin::Result<symwin::DevComm>>| -> Vec<_> {
            results
                .into_iter()
                .map(|r| r.map(|d| (d.multicast_base(0), d.multicast_base(1))).unwrap())
                .collect()
        };
        let first = bases(make(&world.ranks));
        assert_eq!(world.board.counts().objects, 5, "one of four ranks, two of neighbours, two strided");
        assert_eq!(bases(make(&world.ranks)), first, "teams are found by what they are");
        assert_eq!(world.board.counts().objects, 5);
        world.close();
    }
}

#[test]
fn bug_02_an_address_behind_a_window_is_not_in_it() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 8192);
        let windows = parts(&ranks, &buffers, 0..4096);
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        for (comm, (d, buffer)) in ranks.iter().zip(dev.iter().zip(&buffers)) {
            let at = buffer.address() as u64;
            let found =
                d.run(|k| Ok([4095, 4096, 1 << 30].map(|o| k.find_window(at + o).is_some()))).unwrap();
            assert_eq!(found, [true, false, false]);
            assert!(find(comm, buffer, 4095, 1).is_some() && find(comm, buffer, 4096, 1).is_none());
        }
        drop((windows, dev));
        finalize(ranks);
    }
}

#[test]
fn bug_03_resource_windows_take_no_other_windows_entry_with_them() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let watcher = dev_comms(&ranks, &DevCommRequirements::new());
        for _ in 0..3 {
            drop(dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(4)));
        }
        until("closes to be taken in", || ranks.iter().all(|comm| comm.status().memories == 1));
        for ((comm, buffer), (window, dev)) in ranks.iter().zip(&buffers).zip(windows.iter().zip(&watcher)) {
            assert_eq!(find(comm, buffer, 0, 4096), Some(window.device_address()));
            let address = buffer.address() as u64;
            assert!(dev.run(|k| Ok(k.find_window(address).is_some())).unwrap());
            assert_eq!((comm.status().windows, comm.status().table_slots), (1, 1));
        }
        drop((windows, watcher));
        finalize(ranks);
    }
}

#[test]
fn bug_04_of_two_windows_at_one_address_each_goes_by_itself() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 8192);
        for first_goes_first in [true, false] {
            let pair = [windows(&ranks, &buffers), windows(&ranks, &buffers)];
            let (gone, left) = if first_goes_first { (&pair[0], &pair[1]) } else { (&pair[1], &pair[0]) };
            gone.iter().for_each(|window| window.close().unwrap());
            for ((comm, buffer), window) in ranks.iter().zip(&buffers).zip(left) {
                assert_eq!(find(comm, buffer, 0, 8192), Some(window.device_address()));
                assert!(comm.find_window(std::ptr::without_provenance(8), 1).is_none(), "below all of them");
            }
            check_pointers(&ranks, left, &buffers);
        }
        finalize(ranks);
    }
}

#[test]
fn bug_05_a_small_window_does_not_hide_the_large_one_around_it() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 32_768);
        let large = windows(&ranks, &buffers);
        let small = parts(&ranks, &buffers, 8192..12_288);
        for ((comm, buffer), (large, small)) in ranks.iter().zip(&buffers).zip(large.iter().zip(&small)) {
            let [large, small] = [large, small].map(|window| Some(window.device_address()));
            assert_eq!(find(comm, buffer, 16_384, 1), large, "behind the small one");
            assert_eq!(find(comm, buffer, 9000, 1), small);
            assert_eq!(find(comm, buffer, 9000, 8192), large, "the small one ends too early");
            assert_eq!(find(comm, buffer, 32_767, 2), None, "the large one too");
        }
        drop((large, small));
        finalize(ranks);
    }
}

#[test]
fn bug_06_offsets_are_agreed_whatever_each_rank_has_closed() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let own = |bytes: usize| ranks.iter().map(|c| c.alloc_own(bytes).unwrap()).collect::<Vec<_>>();
        let mut all: Vec<(Vec<Buffer>, Vec<Option<Window>>)> = Vec::new();
        for bytes in [4096, 65_536, 16_384, 8192, 32_768] {
            let buffers = own(bytes);
            let windows = windows(&ranks, &buffers).into_iter().map(Some).collect();
            all.push((buffers, windows));
        }
        // Each rank closes two others, in an order of its own.
        for rank in 0..4 {
            for step in [rank, rank + 2] {
                all[step % 5].1[rank] = None;
            }
        }
        // Sizes that differ between ranks, and more.
        let sizes = [20_000, 4096, 100_000, 50_000];
        let uneven: Vec<_> = ranks.iter().zip(sizes).map(|(c, size)| c.alloc_own(size).unwrap()).collect();
        let uneven_windows = all_ok(ask(&ranks, |group, comm| {
            group.register_with(comm, Registration::new(&uneven[comm.rank().index()]).asymmetric())
        }));
        let more = own(12_288);
        let more_windows = windows(&ranks, &more);
        check_pointers(&ranks, &uneven_windows, &uneven);
        check_pointers(&ranks, &more_windows, &more);
        for (buffers, windows) in &all {
            for window in windows.iter().flatten() {
                for (to, buffer) in ranks.iter().zip(buffers) {
                    window.write(to.rank(), 1000, &[to.rank().get() as u8 + 9]).unwrap();
                    let mut seen = [0];
                    buffer.read(1000, &mut seen).unwrap();
                    assert_eq!(seen, [to.rank().get() as u8 + 9], "P-3");
                }
            }
        }
        assert!(ranks.iter().all(|comm| comm.status().digest == ranks[0].status().digest), "P-1");
        drop((all, uneven_windows, more_windows));
        finalize(ranks);
    }
}

#[test]
fn bug_07_known_on_some_ranks_and_new_on_others_is_agreed() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let old = buffers(&ranks, 8192);
        let first = windows(&ranks, &old);
        // Ranks 0 and 2 register the same buffer again, the others a new one.
        let mixed: Vec<Buffer> = ranks
            .iter()
            .zip(&old)
            .map(|(c, b)| if c.rank().get() % 2 == 0 { b.clone() } else { c.alloc_own(8192).unwrap() })
            .collect();
        let before = ranks[0].status().rounds;
        let second = windows(&ranks, &mixed);
        let took = ranks[0].status().rounds - before;
        assert_eq!(
            took,
            if layout.len() == 1 { 2 } else { 3 },
            "{layout:?}: some handles came with no offer"
        );
        check_pointers(&ranks, &first, &old);
        check_pointers(&ranks, &second, &mixed);
        let third = windows(&ranks, &mixed);
        assert_eq!(ranks[0].status().rounds - before - took, 2, "that memory is known to all now");
        assert_eq!(third[0].offset(), second[0].offset());
        drop((first, second, third));
        finalize(ranks);
    }
}

#[test]
fn bug_08_one_ranks_failure_is_everyones_error() {
    let bad: [(&str, fn(&Buffer) -> Region); 4] = [
        ("is in no allocation", |_| raw(0x1000, 4096)),
        ("beyond its", |b| raw(b.address(), 1 << 40)),
        ("no multiple of 4096", |b| raw(b.address() + 64, 4096)),
        ("at least 1 byte", |b| raw(b.address(), 0)),
    ];
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        for (text, region) in bad {
            for culprit in [0, 2, 3] {
                let results = ask(&ranks, |group, comm| {
                    let (bad, buffer) = (comm.rank().get() == culprit, &buffers[comm.rank().index()]);
                    let region = if bad { region(buffer) } else { Region::from(buffer) };
                    // Of no agreed size, so that the range is what is wrong and not the size.
                    group.register_with(comm, Registration::new(region).asymmetric())
                });
                let cause = agreed_cause(results);
                assert_eq!(refusers(&cause), [Rank::new(culprit)]);
                assert!(cause.to_string().contains(text), "{cause}");
            }
        }
        let windows = windows(&ranks, &buffers);
        check_pointers(&ranks, &windows, &buffers);
        drop(windows);
        finalize(ranks);
    }
}

/// A range for which nobody vouches: registering it must fail.
fn raw(address: usize, size: usize) -> Region {
    // SAFETY: no window is ever open on it.
    #[allow(unsafe_code, reason = "bad addresses are what is tested")]
    unsafe {
        Region::raw(std::ptr::with_exposed_provenance_mut(address), size)
    }
}

#[test]
fn bug_09_a_failed_group_leaves_nothing_for_the_next() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let good = buffers(&ranks, 4096);
        let group = Group::start();
        let mut pending = Vec::new();
        for (comm, buffer) in ranks.iter().zip(&good) {
            pending.push(group.register(comm, buffer, WindowFlags::empty()));
            pending.push(group.register(comm, raw(0x1000, 4096), WindowFlags::empty()));
            pending.push(group.register(comm, buffer, WindowFlags::empty()));
        }
        let dev: Vec<_> = ranks
            .iter()
            .map(|c| group.create_dev_comm(c, DevCommRequirements::new().lsa_barriers(1)))
            .collect();
        assert!(group.end().is_err());
        for result in pending.into_iter().map(Pending::wait) {
            rollback_of(result);
        }
        for result in dev.into_iter().map(Pending::wait) {
            rollback_of(result);
        }
        let before = ranks[0].status();
        assert_eq!((before.windows, before.memories, before.allocations, before.shadow_slots), (0, 0, 0, 0));
        let windows = windows(&ranks, &good);
        assert_eq!(ranks[0].status().windows, 1, "what failed was not done later");
        check_pointers(&ranks, &windows, &good);
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn bug_10_success_is_never_told_before_there_is_a_window() {
    for layout in LAYOUTS {
        // Nothing was ready before: the first request comes right behind the communicator.
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let group = Group::start();
        let mut pending: Vec<_> =
            ranks.iter().zip(&buffers).map(|(c, b)| group.register(c, b, WindowFlags::empty())).collect();
        assert!(pending.iter_mut().all(|p| p.poll().is_none()), "not before the group's end");
        group.end().unwrap();
        let windows: Vec<_> = pending.iter_mut().map(|p| p.poll().expect("it has ended").unwrap()).collect();
        check_pointers(&ranks, &windows, &buffers);
        // A lone call gives a window too, or an error.
        std::thread::scope(|scope| {
            for (comm, buffer) in ranks.iter().zip(&buffers) {
                scope.spawn(move || assert!(comm.register(buffer, WindowFlags::empty()).unwrap().is_open()));
            }
        });
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn bug_12_lsa_teams_are_the_same_size_on_all_ranks_by_agreement() {
    for layout in layouts(6) {
        let ranks = team_world(&layout, 3);
        for comm in &ranks {
            assert_eq!((comm.lsa_size(), comm.lsa_rank().get()), (3, comm.rank().get() % 3));
            let members: Vec<u32> = comm.lsa_team().unwrap().members(comm.rank()).map(Rank::get).collect();
            let first = comm.rank().get() / 3 * 3;
            assert_eq!(members, [first, first + 1, first + 2]);
        }
        finalize(ranks);
        assert!(Communicator::in_processes_with(&layout, &config().lsa_team_size(4)).is_err());
    }
}

// B. Error paths

/// 13 to 16 and 20: whatever call fails, everything that the batch had made goes, once.
#[test]
fn bug_13_14_15_16_20_a_batch_that_fails_anywhere_gives_back_what_it_made_once() {
    let calls = [
        Call::AddressRange,
        Call::Retain,
        Call::Create,
        Call::Map,
        Call::SetAccess,
        Call::Copy,
        Call::Fill,
        Call::Record,
    ];
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let own: Vec<_> = world.ranks.iter().map(|c| c.alloc_own(8192).unwrap()).collect();
        let other: Vec<_> = world.ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect();
        // Something is there that must stay.
        let kept = windows(&world.ranks, &other);
        let batch = |ranks: &[Communicator]| {
            let group = Group::start();
            let pending: Vec<_> = ranks
                .iter()
                .zip(&own)
                .map(|(c, b)| {
                    drop(group.create_dev_comm(c, DevCommRequirements::new().lsa_barriers(1)));
                    drop(group.register(c, b.slice(4096..8192).unwrap(), WindowFlags::empty()));
                    group.register(c, b, WindowFlags::empty())
                })
                .collect();
            drop(group.submit());
            pending.into_iter().map(Pending::wait).collect::<Vec<_>>()
        };
        // Pages and chunks that are made once are there after this.
        drop(all_ok(batch(&world.ranks)));
        until("closes to be taken in", || world.ranks.iter().all(|comm| comm.status().memories == 1));
        drop(windows(&world.ranks, &other));
        until("closes to be taken in", || world.ranks.iter().all(|comm| comm.status().table_slots == 1));
        let before = held(&world);
        for call in calls {
            // The copies of a commit, behind those of the structs, come after the vote.
            for nth in 1..=if call == Call::Copy { 1 } else { 2 } {
                for culprit in [0, 3] {
                    world.faults[culprit].fail(call, nth);
                    let results = batch(&world.ranks);
                    let expected = Rank::new(u32::try_from(culprit).unwrap());
                    if results.iter().all(Result::is_ok) {
                        // So many calls there were not before the vote, in this batch.
                        world.faults[culprit].heal();
                        drop(results);
                        until("closes to be taken in", || {
                            world.ranks.iter().all(|comm| comm.status().memories == 1)
                        });
                        drop(windows(&world.ranks, &other));
                        until("closes to be taken in", || {
                            world.ranks.iter().all(|comm| comm.status().table_slots == 1)
                        });
                        continue;
                    }
                    assert_eq!(refusers(&agreed_cause(results)), [expected], "{layout:?}: {call} {nth}");
                    assert_eq!(held(&world), before, "{layout:?}: {call} {nth} on {expected}: P-5");
                    check_pointers(&world.ranks, &kept, &other);
                }
            }
        }
        let again = all_ok(batch(&world.ranks));
        check_pointers(&world.ranks, &again, &own);
        drop((kept, again, own, other));
        close_all(world);
    }
}

#[test]
fn bug_16_the_offset_of_a_failed_mapping_can_be_used_again() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let own: Vec<_> =
            world.ranks.iter().map(|c| c.alloc_segments(&[4096, 4096, 4096]).unwrap()).collect();
        let first = windows(&world.ranks, &own);
        let offset = first[0].offset();
        drop(first);
        until("closes to be taken in", || world.ranks.iter().all(|comm| comm.status().memories == 0));
        for nth in 1..=3 {
            world.faults[3].fail(Call::Map, nth);
            agreed_cause(register_all(&world.ranks, &own));
        }
        let windows = windows(&world.ranks, &own);
        assert_eq!(windows[0].offset(), offset);
        check_pointers(&world.ranks, &windows, &own);
        drop((windows, own));
        close_all(world);
    }
}

#[test]
fn bug_17_18_a_bind_that_fails_unbinds_what_was_bound_and_nothing_else() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let old: Vec<_> =
            (0..3).map(|_| world.ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect()).collect();
        let windows: Vec<_> =
            old.iter().map(|buffers: &Vec<Buffer>| windows(&world.ranks, buffers)).collect();
        for nth in 1..=3 {
            world.faults[1].fail(Call::MulticastBind, nth);
            let cause = agreed_cause(try_dev_comms(&world.ranks, &multimem()));
            assert_eq!(refusers(&cause), [Rank::new(1)]);
            assert_eq!(world.board.counts(), Default::default(), "the object is gone, pointers and all");
            assert!(windows[0][0].multicast_ptr(world.ranks[0].lsa_team().unwrap(), 0).is_err());
        }
        let refused = world.board.steps().into_iter().filter(|step| step.refused).count();
        assert_eq!(refused, 0, "nothing was unbound that was not bound");
        let dev = dev_comms(&world.ranks, &multimem());
        assert_eq!(world.board.counts().bindings, 6);
        drop((dev, windows, old));
        world.close();
    }
}

#[test]
fn bug_19_requirements_stay_the_callers_and_are_checked_whole() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let requirements = DevCommRequirements::new().lsa_barriers(2).buffer(100, 64).buffer(4096, 4096);
        let copy = requirements.clone();
        world.faults[2].fail(Call::Create, 1);
        assert_eq!(refusers(&agreed_cause(try_dev_comms(&world.ranks, &requirements))), [Rank::new(2)]);
        assert_eq!(requirements, copy);
        let dev = dev_comms(&world.ranks, &requirements);
        assert!(dev.iter().all(|d| d.buffer(1).is_some() && d.buffer(2).is_none()));
        drop(dev);
        close_all(world);
    }
}

#[test]
fn bug_22_finalize_gives_back_windows_device_communicators_and_ranges_with_holes() {
    for layout in LAYOUTS {
        // Never used at all: there is no range to give back.
        close_all(faulty_world(layout, config()));
        let world = faulty_world(layout, config());
        let own: Vec<Vec<_>> =
            (0..4).map(|_| world.ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect()).collect();
        let mut windows: Vec<_> =
            own.iter().map(|buffers: &Vec<Buffer>| windows(&world.ranks, buffers)).collect();
        drop(windows.remove(1));
        let dev = dev_comms(&world.ranks, &DevCommRequirements::new().lsa_barriers(1));
        drop(own);
        let FaultyWorld { ranks, hosts, faults } = world;
        finalize(ranks);
        // Handles that were left are stale, and hold no device memory but what their own buffers do.
        for window in windows.iter().flatten() {
            assert!(!window.is_open());
            assert!(matches!(window.local_ptr(0), Err(Error::Misuse(Misuse::Closed { .. }))));
        }
        assert!(hosts.iter().all(|host| host.counts().streams == 0 && host.counts().events == 0));
        drop((windows, dev, faults));
        hosts.iter().for_each(|host| assert_eq!(host.counts(), HostCounts::default(), "P-5"));
    }
}

#[test]
fn bug_23_an_unbind_that_fails_skips_none_of_those_behind_it() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let dev = dev_comms(&world.ranks, &multimem());
        let own: Vec<Vec<Buffer>> =
            (0..3).map(|_| world.ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect()).collect();
        let windows: Vec<_> = own.iter().map(|buffers| windows(&world.ranks, buffers)).collect();
        assert_eq!(world.board.counts().bindings, 6);
        drop(windows);
        until("closes to be taken in", || world.ranks.iter().all(|comm| comm.status().memories == 0));
        world.faults[0].fail(Call::MulticastUnbind, 1);
        // The next batch, of nothing that is bound.
        drop(dev_comms(&world.ranks, &DevCommRequirements::new()));
        assert_eq!(world.board.counts().bindings, 1);
        assert_eq!(world.ranks[0].status().undo_failures.len(), 1);
        drop((dev, own));
        world.close();
    }
}

// C. Validation

#[test]
fn bug_25_a_range_beyond_its_allocation_is_refused_and_one_over_several_is_mapped_whole() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let own: Vec<_> = ranks.iter().map(|c| c.alloc_segments(&[4096, 8192]).unwrap()).collect();
        let windows = windows(&ranks, &own);
        for (from, window) in ranks.iter().zip(&windows) {
            for to in ranks.iter().map(Communicator::rank) {
                window.write(to, 4090 + from.rank().index(), b"across").unwrap();
                let mut seen = [0; 6];
                own[to.index()].read(4090 + from.rank().index(), &mut seen).unwrap();
                assert_eq!(&seen, b"across");
            }
        }
        let results = ask(&ranks, |group, comm| {
            group.register(comm, raw(own[comm.rank().index()].address(), 12_289), WindowFlags::empty())
        });
        let cause = agreed_cause(results);
        let Cause::Refused { faults } = cause else { panic!("{cause}") };
        for fault in faults {
            let Reason::Misuse(Misuse::OutOfRange { len, size, .. }) = fault.reason else {
                panic!("{fault}")
            };
            assert_eq!((len, size), (12_289, 12_288));
        }
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn bug_26_memory_that_cannot_be_exported_is_refused_on_all_ranks_at_once() {
    for layout in [&[1, 1, 1, 1][..], &[3, 1]] {
        let world = faulty_world(layout, config());
        for culprit in [0, 3] {
            let own: Vec<_> = world.ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect();
            world.faults[culprit].fail(Call::Export, 1);
            let cause = agreed_cause(register_all(&world.ranks, &own));
            assert_eq!(refusers(&cause), [Rank::new(u32::try_from(culprit).unwrap())]);
            drop(windows(&world.ranks, &own));
        }
        close_all(world);
    }
}

#[test]
fn bug_27_nothing_and_null_are_typed_errors() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let address = ranks[0].alloc(4096).unwrap();
        for (at, len) in
            [(0, 4096), (0, 0), (address.address(), 0), (usize::MAX, 1), (usize::MAX - 100, 4096)]
        {
            let results = ask(&ranks, |group, comm| group.register(comm, raw(at, len), WindowFlags::empty()));
            let cause = agreed_cause(results);
            assert_eq!(refusers(&cause).len(), 4, "{at:#x} + {len}: {cause}");
        }
        finalize(ranks);
    }
}

#[test]
fn bug_28_foreign_and_second_closes_are_typed_errors() {
    for layout in LAYOUTS {
        let (ranks, others) = (world(layout), world(layout));
        let (buffers, foreign) = (buffers(&ranks, 4096), buffers(&others, 4096));
        let windows = windows(&ranks, &buffers);
        let theirs = all_ok(ask(&others, |group, comm| {
            group.register(comm, &foreign[comm.rank().index()], WindowFlags::COLL_SYMMETRIC)
        }));
        let second = windows[0].clone();
        windows[0].close().unwrap();
        assert!(matches!(second.close(), Err(Error::Misuse(Misuse::Closed { .. }))));
        drop(second);
        // A window of another communicator, in a collective and in a kernel.
        let slice = theirs[1].whole();
        let result =
            ranks[1].all_reduce(&slice, &slice, symwin::coll::DType::U8, symwin::coll::ReduceOp::Sum);
        assert!(matches!(result, Err(Error::Misuse(_))));
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        let handle = theirs[1].device_address();
        let strange = dev[1].run(|k| Ok((k.window(handle).is_err(), k.window(12_345).is_err()))).unwrap();
        // Two communicators of one device may use equal numbers for their own windows, but not these.
        assert!(strange.1 && (strange.0 || handle == windows[1].device_address()));
        check_part(&ranks, &windows[1..], &buffers);
        drop((windows, theirs, slice, dev));
        finalize(ranks);
        finalize(others);
    }
}

/// Ranks 1 to 3 still reach everyone.
fn check_part(ranks: &[Communicator], windows: &[Window], buffers: &[Buffer]) {
    for window in windows {
        for to in ranks {
            window.write(to.rank(), 5, &[0x5a]).unwrap();
            let mut seen = [0];
            buffers[to.rank().index()].read(5, &mut seen).unwrap();
            assert_eq!(seen, [0x5a]);
            buffers[to.rank().index()].write(5, &[0]).unwrap();
        }
    }
}

#[test]
fn bug_29_flags_and_requirements_that_differ_between_ranks_are_a_mismatch() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let results = ask(&ranks, |group, comm| {
            let odd = comm.rank().get() == 1;
            let flags = if odd { WindowFlags::empty() } else { WindowFlags::COLL_SYMMETRIC };
            group.register(comm, &buffers[comm.rank().index()], flags)
        });
        let Cause::Mismatch { what, requests } = agreed_cause(results) else { panic!("a mismatch") };
        assert_eq!((what.as_str(), requests.len()), ("the flags of task 0", 4));
        assert!(ranks.iter().all(|comm| comm.collectives().is_none()));
        let results = ask(&ranks, |group, comm| {
            let bytes = 64 * u64::from(comm.rank().get() + 1);
            group.create_dev_comm(comm, DevCommRequirements::new().buffer(bytes, 64))
        });
        let Cause::Mismatch { what, requests } = agreed_cause(results) else { panic!("a mismatch") };
        assert_eq!(what, "the requirements of task 0");
        assert!(requests[3].1.contains("buffer of 256 bytes at 64"), "{requests:?}");
        finalize(ranks);
    }
}

#[test]
fn bug_30_pointer_getters_check_and_never_make_teams() {
    for layout in [&[2][..], &[1, 1]] {
        let world = MulticastWorld::new(layout);
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        let team = world.ranks[0].lsa_team().unwrap();
        let (messages, steps) = (world.ranks[0].status().messages, world.board.steps().len());
        assert!(matches!(windows[0].multicast_ptr(team, 0), Err(Error::Misuse(Misuse::Other { .. }))));
        assert_eq!((world.ranks[0].status().messages, world.board.steps().len()), (messages, steps), "A-8");
        let dev = dev_comms(&world.ranks, &multimem());
        assert!(windows[0].multicast_ptr(team, 4095).is_ok());
        assert!(matches!(
            windows[0].multicast_ptr(team, 4096),
            Err(Error::Misuse(Misuse::OutOfRange { .. }))
        ));
        let strange = Team::strided(2, 1, 1).unwrap();
        assert!(windows[0].multicast_ptr(strange, 0).is_err(), "its first member is before rank 0");
        let beyond = Team::strided(3, 0, 1).unwrap();
        assert!(matches!(windows[0].multicast_ptr(beyond, 0), Err(Error::Misuse(Misuse::NotInTeam { .. }))));
        windows[1].close().unwrap();
        assert!(matches!(windows[1].multicast_ptr(team, 0), Err(Error::Misuse(Misuse::Closed { .. }))));
        drop((windows, dev, buffers));
        world.close();
    }
}

// D. Concurrency

/// Registrations, closes, lookups, copies and status from several threads of every rank at once.
#[test]
fn bug_31_everything_at_once_on_one_communicator() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 1 << 16);
        let stable = windows(&ranks, &buffers);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (comm, buffer) in ranks.iter().zip(&buffers) {
                let (tell, closes) = std::sync::mpsc::channel::<Window>();
                workers.push(scope.spawn(move || {
                    for round in 0..30 {
                        let start = 4096 * (1 + round % 7);
                        let slice = buffer.slice(start..start + 4096).unwrap();
                        tell.send(comm.register(slice, WindowFlags::empty()).unwrap()).unwrap();
                        drop(comm.create_dev_comm(DevCommRequirements::new().lsa_barriers(1)).unwrap());
                    }
                }));
                workers.push(scope.spawn(move || closes.iter().for_each(|window| window.close().unwrap())));
                let (done, stable) = (&done, &stable[comm.rank().index()]);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let outer = find(comm, buffer, 0, 1 << 16).expect("it is open throughout");
                        assert_eq!(outer, stable.device_address());
                        stable.write(Rank::new(3 - comm.rank().get()), 60_000, &[1]).unwrap();
                        let _ = comm.status();
                        std::thread::yield_now();
                    }
                });
            }
            let outcomes: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        assert!(ranks.iter().all(|comm| comm.status().digest == ranks[0].status().digest), "P-1");
        check_pointers(&ranks, &stable, &buffers);
        drop(stable);
        finalize(ranks);
    }
}

#[test]
fn bug_32_nobody_binds_before_all_have_added_their_device() {
    for layout in [&[3][..], &[1, 1, 1]] {
        let world = MulticastWorld::new(layout);
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        for culprit in 0..3u32 {
            world.faults[culprit as usize].fail(Call::MulticastAddDevice, 1);
            let cause = agreed_cause(try_dev_comms(&world.ranks, &multimem()));
            assert_eq!(refusers(&cause), [Rank::new(culprit)]);
        }
        let binds = |steps: Vec<symwin::driver::multicast::MulticastStep>| {
            steps.iter().filter(|step| step.call == Call::MulticastBind).count()
        };
        assert_eq!(binds(world.board.steps()), 0, "a bind would have waited in the driver");
        let dev = dev_comms(&world.ranks, &multimem());
        assert_eq!(binds(world.board.steps()), 3);
        assert!(world.ranks.iter().all(|comm| comm.status().activity == Activity::Idle));
        drop((dev, windows, buffers));
        world.close();
    }
}

/// What a kernel got of a window that is closed under it stays that window until the kernel ends, though others come.
#[test]
fn bug_34_a_running_kernel_never_sees_another_window_in_a_closed_ones_place() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let own: Vec<_> = ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect();
        let mut windows = windows(&ranks, &own);
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        let (handle, address) = (windows[1].device_address(), windows[1].address() as u64);
        let (begun, wait_begun) = std::sync::mpsc::channel();
        let (go, wait_go) = std::sync::mpsc::channel::<()>();
        let wait_go = std::sync::Mutex::new(wait_go);
        let kernel = dev[1].launch(1, move |k| {
            let window = k.window(handle)?;
            let bytes = *window.bytes();
            begun.send(()).unwrap();
            wait_go.lock().unwrap().recv().unwrap();
            (0..4).try_for_each(|peer| window.slice::<u8>(LsaRank::new(peer), 0, 1)?.store(0, 7))?;
            // By now no lookup finds it, and none finds another in its place.
            let gone = k.window(handle).is_err();
            Ok(gone && *window.bytes() == bytes && window.base() == address)
        });
        wait_begun.recv().unwrap();
        windows.clear();
        // Others come, as many as there are slots in a page and more.
        let others: Vec<_> = (0..40).map(|_| parts(&ranks, &own, 0..4096)).collect();
        assert!(others.iter().all(|windows| windows[1].device_address() != handle));
        go.send(()).unwrap();
        assert_eq!(kernel.unwrap().join().unwrap(), [true]);
        for buffer in &own {
            let mut seen = [0];
            buffer.read(0, &mut seen).unwrap();
            assert_eq!(seen, [7]);
        }
        drop((others, dev));
        finalize(ranks);
    }
}
