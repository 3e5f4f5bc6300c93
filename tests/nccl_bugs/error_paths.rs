//! B. Error paths.

use super::*;

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
        let mut refused = Vec::new();
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
                    refused.push((call, culprit));
                    assert_eq!(held(&world), before, "{layout:?}: {call} {nth} on {expected}: P-5");
                    check_pointers(&world.ranks, &kept, &other);
                }
            }
        }
        for call in calls {
            for culprit in [0, 3] {
                assert!(refused.contains(&(call, culprit)), "{layout:?}: no {call} of rank {culprit} failed");
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
        hosts.iter().for_each(|host| assert_eq!(host.counts(), Counts::default(), "P-5"));
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
