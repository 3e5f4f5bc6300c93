//! Device communicators: their plan and bytes, their resource buffers, their barriers, and windows found by kernels.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/worlds.rs"]
mod worlds;

use common::*;
use symwin::device::abi::DevComm248;
use symwin::devr::dev_comm::ll_a2a_slots;
use symwin::error::{Cause, Misuse, Reason};
use symwin::{DevComm, DevCommRequirements, Error, Group, LsaRank, Pending, Window, WindowFlags};
use worlds::*;
use zerocopy::IntoBytes;

fn everything() -> DevCommRequirements {
    let slots = ll_a2a_slots(16, 16).unwrap();
    DevCommRequirements::new()
        .lsa_barriers(3)
        .ll_a2a(2, slots)
        .buffer(1000, 1)
        .buffer(64, 4096)
        .buffer(0, 128)
}

/// What must be equal on all ranks, and lie where the reference's layout puts it.
#[test]
fn the_plan_is_identical_on_all_ranks_and_in_the_references_order() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let dev = dev_comms(&ranks, &everything());
        // 3 barriers of 3 + 4 words: 84 bytes, one unit. 2 blocks of 1 + 2 * 32 lines: 2,080 bytes, 17 units.
        for d in &dev {
            let barrier = d.device().lsa_barrier;
            assert_eq!((barrier.buffer, barrier.n_barriers), (0, 3), "the barriers come first");
            let ll = d.ll_a2a().unwrap();
            assert_eq!((ll.handle.0, ll.slots), (1, 32));
            let offsets: Vec<u64> = (0..3).map(|i| d.buffer(i).unwrap().offset_bytes()).collect();
            assert_eq!(offsets, [128 + 17 * 128, 4096, 4096 + 128]);
            assert_eq!(d.buffer(3), None);
            assert_eq!(d.resource_bytes(), dev[0].resource_bytes());
            assert!(d.resource_bytes().is_multiple_of(ranks[0].granularity()));
            let (a, b) = (&d.device().resource, &dev[0].device().resource);
            assert_eq!((a.mc_offset_4k, a.stride_4g), (b.mc_offset_4k, b.stride_4g));
        }
        drop(dev);
        finalize(ranks);
    }
}

#[test]
fn nothing_at_all_needs_no_buffer_and_still_runs_kernels() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        assert_eq!(ranks[0].status().rounds, 2);
        for (d, comm) in dev.iter().zip(&ranks) {
            assert_eq!((d.resource_bytes(), d.device().resource_window), (0, 0));
            assert_ne!(d.device().window_table, 0);
            assert_eq!(comm.status().memories, 0);
        }
        let out = launch_all(&dev, 2, |k| {
            let none = matches!(k.barrier(0), Err(Error::Misuse(_)))
                && matches!(
                    k.resource::<u8>(0, LsaRank::new(0), 1),
                    Err(Error::Misuse(Misuse::OutOfRange { .. }))
                );
            Ok((k.rank(), k.n_ranks(), k.block(), none))
        });
        let expected: Vec<_> = (0..4).map(|r| vec![(r, 4, 0, true), (r, 4, 1, true)]).collect();
        assert_eq!(out, expected);
        drop(dev);
        finalize(ranks);
    }
}

/// P-6: zero before anyone can find them, whatever lay there before.
#[test]
fn p6_resource_buffers_are_zero_and_peers_write_them() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        for round in 0..3 {
            let dev = dev_comms(&ranks, &everything());
            let (small, large) = (dev[0].buffer(1).unwrap().0, dev[0].buffer(0).unwrap().0);
            let out = launch_all(&dev, 1, move |k| {
                let mut session = k.barrier(2)?;
                let mut dirty = 0;
                for peer in (0..k.lsa_size()).map(LsaRank::new) {
                    let bytes = k.resource::<u8>(large, peer, 1000)?;
                    for at in 0..1000 {
                        dirty += u32::from(bytes.load(at)? != 0);
                    }
                }
                session.sync()?;
                for peer in 0..k.lsa_size() {
                    let me = k.rank();
                    k.resource::<u32>(small, LsaRank::new(peer), 16)?
                        .store(me as usize, me * 16 + peer + 1)?;
                    k.resource::<u8>(large, LsaRank::new(peer), 1000)?.store(999 - me as usize, 0xff)?;
                }
                session.sync()?;
                let mine = k.resource::<u32>(small, k.lsa_rank(), 16)?;
                let beyond = k.resource::<u8>(large, k.lsa_rank(), 1 << 20).is_err();
                let got = (0..4).map(|at| mine.load(at)).collect::<symwin::Result<Vec<_>>>()?;
                Ok((dirty, got, beyond))
            });
            for (me, result) in (0..4u32).zip(out) {
                let expected: Vec<u32> = (0..4).map(|from| from * 16 + me + 1).collect();
                assert_eq!(result[0], (0, expected, true), "{layout:?}, round {round}");
            }
            drop(dev);
        }
        finalize(ranks);
    }
}

#[test]
fn barrier_epochs_persist_from_kernel_to_kernel() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let dev = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(2));
        for kernel in 0..4u32 {
            let out = launch_all(&dev, 2, |k| {
                let mut session = k.barrier(k.block())?;
                let before = session.epoch();
                (0..=k.block()).try_for_each(|_| session.sync())?;
                Ok((before, session.epoch()))
            });
            // Block 0 meets once in a kernel, block 1 twice.
            let expected = vec![(kernel, kernel + 1), (2 * kernel, 2 * kernel + 2)];
            assert!(out.iter().all(|blocks| *blocks == expected), "{layout:?}: {out:?}");
        }
        drop(dev);
        finalize(ranks);
    }
}

/// Several side by side share nothing but the window table.
#[test]
fn device_communicators_side_by_side_do_not_meet() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let group = Group::start();
        let mut pending: Vec<Vec<Pending<DevComm>>> = Vec::new();
        for _ in 0..3 {
            let requirements = DevCommRequirements::new().lsa_barriers(1).buffer(64, 64);
            pending.push(ranks.iter().map(|c| group.create_dev_comm(c, requirements.clone())).collect());
        }
        group.end().unwrap();
        assert_eq!(ranks[0].status().rounds, 2, "P-8");
        let all: Vec<Vec<DevComm>> =
            pending.into_iter().map(|one| one.into_iter().map(|p| p.wait().unwrap()).collect()).collect();
        let buffer = all[0][0].buffer(0).unwrap().0;
        // All at once: three kernels a rank, each on its own barrier and buffer.
        let mut running = Vec::new();
        for (mark, dev) in (1u32..).zip(&all) {
            for d in dev {
                let kernel = move |k: &symwin::device::Kernel<'_>| {
                    let mut session = k.barrier(0)?;
                    for _ in 0..mark {
                        session.sync()?;
                    }
                    let next = LsaRank::new((k.lsa_rank().get() + 1) % k.lsa_size());
                    k.resource::<u32>(buffer, next, 1)?.store(0, mark)?;
                    session.sync()?;
                    Ok((k.resource::<u32>(buffer, k.lsa_rank(), 1)?.load(0)?, session.epoch()))
                };
                running.push((mark, d.launch(1, kernel).unwrap()));
            }
        }
        for (mark, handle) in running {
            assert_eq!(handle.join().unwrap(), [(mark, mark + 1)]);
        }
        // Closing one leaves the others.
        let mut all = all.into_iter();
        drop(all.next());
        for dev in all {
            launch_all(&dev, 1, |k| k.barrier(0)?.sync());
        }
        finalize(ranks);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The bytes of the newest layout, at the offsets of `reference/nccl.md` 3.4.
#[test]
fn the_248_bytes_say_what_kernels_expect_where_they_expect_it() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let dev = dev_comms(&ranks, &everything());
        for (comm, d) in ranks.iter().zip(&dev) {
            let native: DevComm248 = d.device().to_248(23_203);
            let bytes = native.as_bytes();
            assert_eq!(bytes.len(), 248);
            let head: Vec<u32> = (0..8).map(|i| u32_at(bytes, i * 4)).collect();
            let me = comm.rank().get();
            assert_eq!(head, [0xcafe_beef, 23_203, me, 4, 1 << 30, me, 4, 1 << 30]);
            assert_eq!(u64_at(bytes, 32), d.device().window_table);
            assert_eq!(u64_at(bytes, 40), d.device().resource_window);
            let resource = &d.device().resource;
            assert_eq!(u64_at(bytes, 48), resource.lsa_flat_base);
            assert_eq!(u32_at(bytes, 56), u32::try_from(comm.stride() >> 32).unwrap());
            assert_eq!(u32_at(bytes, 60), resource.mc_offset_4k);
            assert_eq!((u64_at(bytes, 72), u32_at(bytes, 80), u32_at(bytes, 84)), (0, 0, 3));
            assert!(bytes[96..136].iter().all(|b| *b == 0), "no network");
            assert!(bytes[176..].iter().all(|b| *b == 0), "no other barriers");
            // What an old kernel computes by the reference's pointer arithmetic is the peer's buffer.
            let peer = u64::from((me + 1) % 4);
            let address = u64_at(bytes, 48) + ((peer * u64::from(u32_at(bytes, 56))) << 32);
            let offset = d.buffer(0).unwrap().offset_bytes();
            let (handle, lsa) = (d.buffer(0).unwrap().0, LsaRank::new(u32::try_from(peer).unwrap()));
            let at = d.run(|k| Ok(k.resource::<u8>(handle, lsa, 1)?.address())).unwrap();
            assert_eq!(at as u64, address + offset);
        }
        drop(dev);
        finalize(ranks);
    }
}

/// A table of several chunks: every window is found by its address and by its handle, absent ones are not.
#[test]
fn kernels_find_each_of_100_windows() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers: Vec<Vec<_>> = (0..100).map(|_| buffers(&ranks, 4096)).collect();
        let group = Group::start();
        let pending: Vec<Vec<_>> = buffers
            .iter()
            .map(|one| {
                ranks.iter().zip(one).map(|(c, b)| group.register(c, b, WindowFlags::empty())).collect()
            })
            .collect();
        let dev: Vec<_> = ranks
            .iter()
            .map(|c| group.create_dev_comm(c, DevCommRequirements::new().lsa_barriers(1)))
            .collect();
        group.end().unwrap();
        assert_eq!(ranks[0].status().rounds, 2, "P-8");
        let dev: Vec<DevComm> = dev.into_iter().map(|d| d.wait().unwrap()).collect();
        let mut windows: Vec<Vec<Window>> = pending
            .into_iter()
            .map(|one: Vec<Pending<Window>>| one.into_iter().map(|p| p.wait().unwrap()).collect())
            .collect();
        assert_eq!(ranks[0].status().table_slots, 100);
        let handles: Vec<Vec<(u64, u64)>> = (0..4)
            .map(|r| windows.iter().map(|w| (w[r].device_address(), w[r].address() as u64)).collect())
            .collect();
        let look = {
            let handles = handles.clone();
            move |k: &symwin::device::Kernel<'_>| {
                let mut found = Vec::new();
                for (handle, address) in &handles[k.rank() as usize] {
                    let by_handle = k.window(*handle).ok();
                    let by_address = k.find_window(address + 4095);
                    let same =
                        |w: &symwin::device::DeviceWindow<'_>| w.base() == *address && w.size() == 4096;
                    assert_eq!(by_handle.is_some(), by_address.is_some());
                    assert!(by_handle.iter().chain(&by_address).all(same));
                    found.push(by_handle.is_some());
                }
                assert!(k.find_window(8).is_none() && k.window(8).is_err(), "an absent one ends the walk");
                k.barrier(0)?.sync()?;
                Ok(found)
            }
        };
        let all = launch_all(&dev, 1, look.clone());
        assert!(all.iter().all(|found| found[0].iter().all(|f| *f)));
        // A kernel started after a close does not find it, whatever its actor has done by then.
        for index in [0, 31, 32, 99] {
            windows[index].iter().for_each(|w| w.close().unwrap());
        }
        windows.clear();
        until("closes to be taken in", || ranks.iter().all(|c| c.status().table_slots == 0));
        let none = launch_all(&dev, 1, look);
        assert!(none.iter().all(|found| found[0].iter().all(|f| !*f)));
        drop(dev);
        finalize(ranks);
    }
}

#[test]
fn impossible_requirements_are_refused_on_all_ranks_by_name() {
    let cases = [
        (DevCommRequirements::new().buffer(64, 48), "alignment of buffer 0"),
        (DevCommRequirements::new().buffer(64, 1 << 40), "alignment of buffer 0"),
        (DevCommRequirements::new().lsa_barriers(1 << 31), "LSA barriers"),
        (DevCommRequirements::new().buffer(u64::MAX, 1), "buffer 0"),
        (DevCommRequirements::new().ll_a2a(u32::MAX, u32::MAX), "LL all-to-all"),
    ];
    for layout in LAYOUTS {
        let ranks = world(layout);
        for (requirements, expected) in &cases {
            let cause = agreed_cause(try_dev_comms(&ranks, requirements));
            assert_eq!(refusers(&cause).len(), 4);
            let Cause::Refused { faults } = cause else { unreachable!() };
            for fault in faults {
                let Reason::Misuse(Misuse::BadSetting { name, .. }) = fault.reason else { panic!("{fault}") };
                assert_eq!(name, *expected);
            }
        }
        let dev = dev_comms(&ranks, &everything());
        launch_all(&dev, 1, |k| k.barrier(0)?.sync());
        drop(dev);
        finalize(ranks);
    }
}

/// The handle is good as long as one of its clones or a kernel is there, and typed errors follow.
#[test]
fn a_closed_device_communicator_is_a_typed_error() {
    let ranks = world(&[2]);
    let dev = dev_comms(&ranks, &everything());
    let kept = dev.clone();
    drop(dev);
    launch_all(&kept, 1, |k| k.barrier(0)?.sync());
    finalize(ranks);
    assert!(matches!(kept[0].launch(1, |_| Ok(())), Err(Error::Misuse(Misuse::Closed { .. }))));
    assert!(matches!(kept[0].run(|_| Ok(())), Err(Error::Misuse(Misuse::Closed { .. }))));
}
