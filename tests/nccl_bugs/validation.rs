//! C. Validation.

use super::*;

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
