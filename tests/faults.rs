//! A-3, P-5: what one rank cannot do is an error on every rank that names it, nothing of the batch remains, and the
//! communicator goes on. Undo calls that fail are reported beside it, and what they leave is never used again.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::device::{Counts, on_gpus};
use common::scene::*;
use common::*;
use symwin::driver::host::{HostDriver, HostOptions};
use symwin::driver::{Call, DeviceError, DeviceProblem, Driver};
use symwin::error::{Cause, Fault, Misuse, Phase, Reason};
use symwin::{
    Buffer, Communicator, DevCommRequirements, Group, Rank, Region, Registration, Window, WindowFlags,
};

type Bad = (&'static str, fn(&Buffer) -> Region, fn(&Reason) -> bool);

const BAD_REGIONS: [Bad; 4] = [
    (
        "a bad address",
        |_| raw(0x1000, 8192),
        |reason| {
            let foreign = DeviceProblem::ForeignAddress { address: 0x1000 };
            *reason == Reason::Device(DeviceError::new(Call::AddressRange, foreign))
        },
    ),
    (
        "beyond its allocation",
        |buffer| raw(buffer.address(), 1 << 40),
        |reason| matches!(reason, Reason::Misuse(Misuse::OutOfRange { offset: 0, len, .. }) if *len == 1 << 40),
    ),
    (
        "misaligned",
        |buffer| buffer.slice(64..4096).unwrap().into(),
        |reason| matches!(reason, Reason::Misaligned { offset: 64, align: 4096, .. }),
    ),
    (
        "of no bytes",
        |buffer| buffer.slice(4096..4096).unwrap().into(),
        |reason| matches!(reason, Reason::Misuse(Misuse::Other { .. })),
    ),
];

#[allow(unsafe_code, reason = "what is registered is refused")]
fn raw(address: usize, size: usize) -> Region {
    // SAFETY: no window comes to be on it.
    unsafe { Region::raw(std::ptr::without_provenance_mut(address), size) }
}

#[test]
fn a_3_a_bad_region_on_one_rank_is_told_to_all() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let ranks = &world.ranks;
        let good: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
        drop(windows(ranks, &good));
        sync(ranks);
        let before = world.held();
        for rank in FAILING {
            for (what, region, expected) in BAD_REGIONS {
                let group = Group::start();
                let mut pending = Vec::new();
                for (r, (comm, buffer)) in ranks.iter().zip(&good).enumerate() {
                    let bad = if r == rank { region(buffer) } else { Region::from(buffer) };
                    pending.push(group.register(comm, buffer, WindowFlags::empty()));
                    pending.push(group.register_with(comm, Registration::new(bad).asymmetric()));
                    drop(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1)));
                }
                drop(group.submit());
                let fault = only_fault(pending.into_iter().map(|p| p.wait()).collect());
                assert_eq!((&fault.peer, fault.phase), (&ranks[0].peers()[rank], Phase::Prepare), "{what}");
                assert_eq!(fault.task, Some(1), "{what}");
                assert!(expected(&fault.reason), "{what}: {fault}");
                world.expect_held(&before, what);
                let windows = windows(ranks, &good);
                check_pointers(ranks, &windows, &good);
                drop(windows);
                sync(ranks);
                world.expect_held(&before, what);
            }
        }
        drop(good);
        finalize(world.ranks);
    }
}

/// The heads of two ranks differ by a page, on devices that map by 64 KiB.
#[test]
fn a_3_a_shift_that_cannot_be_mapped_names_every_ranks_offset() {
    for layout in LAYOUTS {
        let device = HostDriver::new(HostOptions::new().granularity(1 << 16)).unwrap();
        let config = config().devices(move |_: Rank| Ok(device.clone() as Arc<dyn Driver>));
        let ranks = Communicator::in_processes_with(layout, &config).unwrap();
        let buffers = buffers(&ranks, 1 << 17);
        let group = Group::start();
        let pending: Vec<_> = (0..4)
            .map(|rank| {
                let head = [0, 1 << 16, 4096, 0][rank];
                let region = buffers[rank].slice(head..head + 4096).unwrap();
                group.register(&ranks[rank], region, WindowFlags::empty())
            })
            .collect();
        drop(group.submit());
        for pending in pending {
            let rolled_back = rolled_back(pending.wait());
            let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
            let base = |rank: usize| (buffers[rank].address() - buffers[rank].allocations()[0].base) as u64;
            let heads = vec![base(0), base(1) + (1 << 16), base(2) + 4096, base(3)];
            let bases = buffers.iter().map(|buffer| buffer.allocations()[0].base as u64).collect();
            let reason = Reason::Shift { bases, heads, granularity: 1 << 16 };
            let by: Vec<_> = faults.iter().map(|f| (f.peer.rank.get(), f.phase, f.reason.clone())).collect();
            assert_eq!(by, [(2, Phase::Decide, reason)]);
        }
        let windows = windows(&ranks, &buffers);
        check_pointers(&ranks, &windows, &buffers);
        drop(windows);
        finalize(ranks);
    }
}

/// Every process whose device is too small says so with figures; the others roll back.
#[test]
fn a_3_no_memory_for_a_resource_buffer_is_told_with_figures() {
    for layout in LAYOUTS {
        for small in 0..layout.len() {
            let hosts: Vec<_> = (0..layout.len())
                .map(|process| {
                    let bytes = if process == small { 1 << 20 } else { 1 << 30 };
                    HostDriver::new(HostOptions::new().memory_bytes(bytes)).unwrap()
                })
                .collect();
            let process_of: Vec<usize> =
                layout.iter().enumerate().flat_map(|(p, &n)| (0..n).map(move |_| p)).collect();
            let (devices, of) = (hosts.clone(), process_of.clone());
            let config = config().devices(move |r: Rank| Ok(devices[of[r.index()]].clone() as _));
            let ranks = Communicator::in_processes_with(layout, &config).unwrap();
            sync(&ranks);
            let before: Vec<_> = hosts.iter().map(|host| host.counts()).collect();
            let group = Group::start();
            let requirements = || DevCommRequirements::new().buffer(8 << 20, 128);
            let pending: Vec<_> =
                ranks.iter().map(|comm| group.create_dev_comm(comm, requirements())).collect();
            drop(group.submit());
            for pending in pending {
                let rolled_back = rolled_back(pending.wait());
                let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
                let by: Vec<_> = faults.iter().map(|fault| fault.peer.rank.index()).collect();
                let expected: Vec<_> = (0..4).filter(|&rank| process_of[rank] == small).collect();
                assert_eq!(by, expected);
                for fault in faults {
                    let Reason::Device(error) = &fault.reason else { panic!("{fault}") };
                    let oom = matches!(
                        error.problem,
                        DeviceProblem::OutOfMemory { need: 0x80_0000, available: ..=0x10_0000 }
                    );
                    assert!(oom && error.call == Call::Create && fault.task == Some(0), "{fault}");
                }
            }
            assert_eq!(before, hosts.iter().map(|host| host.counts()).collect::<Vec<_>>());
            let own: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
            let windows = windows(&ranks, &own);
            check_pointers(&ranks, &windows, &own);
            drop(windows);
            finalize(ranks);
        }
    }
}

/// What a call that did not happen leaves behind, which nobody can give back.
fn leak(held: &mut Counts, call: Call, phase: Phase) {
    if call == Call::Release {
        held.handles += 1;
        // An import that stays keeps its descriptor; other references are to what is there anyway.
        held.descriptors += usize::from(phase == Phase::Map && !on_gpus());
    }
}

fn phase_is_right(fault: &Fault, call: Call, first: bool) -> bool {
    match call {
        Call::AddressRange | Call::Retain | Call::StreamCreate => fault.phase == Phase::Prepare,
        Call::Export => matches!(fault.phase, Phase::Prepare | Phase::Handles),
        Call::Create | Call::Reserve => fault.phase == Phase::Prepare || (first && fault.phase == Phase::Map),
        Call::Import | Call::Fill | Call::Copy | Call::Record | Call::Done => fault.phase == Phase::Map,
        _ => matches!(fault.phase, Phase::Prepare | Phase::Map),
    }
}

fn sweep_later_batches(layout: &[u32]) {
    let world = faulty_world(layout, config());
    let scene = Scene::later(&world.ranks);
    scene.works(&world.ranks);
    let mut expected = world.held();
    let clean = calls(&world, || scene.works(&world.ranks));
    world.expect_held(&expected, "a clean batch");
    for rank in FAILING {
        let mut kinds = BTreeMap::<Call, u32>::new();
        for &(call, nth) in before_vote(&clean[rank]) {
            let what = format!("{layout:?}: call {nth} of {call} on rank {rank}");
            world.faults[rank].fail(call, nth);
            let fault = only_fault(scene.run(&world.ranks));
            world.faults[rank].heal();
            assert_eq!(fault.peer, world.ranks[0].peers()[rank], "{what}");
            assert!(injected(&fault, call) && phase_is_right(&fault, call, false), "{what}: {fault}");
            leak(&mut expected.hosts[process_of(layout, rank)], call, fault.phase);
            world.expect_held(&expected, &what);
            scene.works(&world.ranks);
            world.expect_held(&expected, &what);
            *kinds.entry(call).or_default() += 1;
        }
        assert!(kinds.len() >= 9, "{kinds:?}");
    }
    for windows in &scene.open {
        assert!(windows.iter().all(Window::is_open));
    }
    drop(scene);
    finalize(world.ranks);
}

#[test]
fn a_3_p_5_any_call_before_the_vote_may_fail_in_one_process() {
    sweep_later_batches(&[4]);
}

#[test]
fn a_3_p_5_any_call_before_the_vote_may_fail_in_mixed_processes() {
    sweep_later_batches(&[3, 1]);
}

#[test]
fn heavy_a_3_p_5_any_call_before_the_vote_may_fail_in_processes() {
    sweep_later_batches(&[1, 1, 1, 1]);
}

/// Each failure meets a communicator that has made nothing yet.
fn sweep_first_batches(layout: &[u32]) {
    let world = faulty_world(layout, config());
    let scene = Scene::first(&world.ranks);
    let clean = calls(&world, || scene.works(&world.ranks));
    drop(scene);
    finalize(world.ranks);
    for rank in FAILING {
        for &(call, nth) in before_vote(&clean[rank]) {
            let what = format!("{layout:?}: call {nth} of {call} on rank {rank}");
            let world = faulty_world(layout, config());
            let scene = Scene::first(&world.ranks);
            world.faults[rank].fail(call, nth);
            let outcomes = scene.run(&world.ranks);
            world.faults[rank].heal();
            if call == Call::Reserve && layout.len() < 4 && outcomes.iter().all(Result::is_ok) {
                // Another rank of the process was the one to reserve the range that they share.
                continue;
            }
            let fault = only_fault(outcomes);
            assert_eq!(fault.peer, world.ranks[0].peers()[rank], "{what}");
            assert!(injected(&fault, call) && phase_is_right(&fault, call, true), "{what}: {fault}");
            assert!(world.ranks.iter().all(|comm| comm.status().undo_failures.is_empty()), "{what}");
            let held: Vec<_> = world.ranks.iter().map(RankHeld::of).collect();
            assert!(held.iter().all(|h| h.memories + h.allocations + h.shadow_slots + h.table_slots == 0));
            assert!(held.iter().all(|h| h.agreed_memories == 0 && h.space_bytes == 0), "{what}");
            scene.works(&world.ranks);
            drop(scene);
            let FaultyWorld { ranks, hosts, .. } = world;
            finalize(ranks);
            if !matches!(call, Call::Release | Call::Done) {
                let until = Instant::now() + Duration::from_secs(10);
                while hosts.iter().any(|host| host.counts() != Counts::default()) {
                    assert!(Instant::now() < until, "{what}: {:?}", hosts[0].counts());
                    std::thread::yield_now();
                }
            }
        }
    }
}

#[test]
fn heavy_a_3_p_5_any_call_of_a_first_batch_may_fail_in_one_process() {
    sweep_first_batches(&[4]);
}

#[test]
fn heavy_a_3_p_5_any_call_of_a_first_batch_may_fail_in_processes() {
    sweep_first_batches(&[1, 1, 1, 1]);
}

#[test]
fn heavy_a_3_p_5_any_call_of_a_first_batch_may_fail_in_mixed_processes() {
    sweep_first_batches(&[3, 1]);
}
