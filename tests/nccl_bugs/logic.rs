//! A. Logic.

use super::*;

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

/// A region in a good buffer, or not quite.
type Bad = fn(&Buffer) -> Region;

#[test]
fn bug_08_one_ranks_failure_is_everyones_error() {
    let bad: [(&str, Bad); 4] = [
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
            rolled_back(result);
        }
        for result in dev.into_iter().map(Pending::wait) {
            rolled_back(result);
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
