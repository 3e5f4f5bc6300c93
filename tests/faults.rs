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

use common::*;
use parking_lot::Mutex;
use symwin::driver::host::{HostCounts, HostDriver, HostOptions};
use symwin::driver::{Call, DeviceError, DeviceProblem, Driver};
use symwin::error::{Cause, FailureCause, Fault, Misuse, Phase, Reason};
use symwin::{
    Activity, Buffer, Communicator, DevCommRequirements, Error, Group, Rank, Region, Registration, Window,
    WindowFlags,
};

/// The lowest rank, one that imports nothing where it is not alone in its process, and the last, which imports.
const FAILING: [usize; 3] = [0, 1, 3];

/// One rank's fault, the same error on every rank.
fn only_fault<T: std::fmt::Debug>(outcomes: Vec<Result<T, Error>>) -> Fault {
    let faults: Vec<Fault> = outcomes
        .into_iter()
        .map(|outcome| {
            let rolled_back = rolled_back(outcome);
            let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
            assert_eq!(faults.len(), 1, "{rolled_back}");
            faults[0].clone()
        })
        .collect();
    assert!(faults.iter().all(|fault| *fault == faults[0]), "{faults:#?}");
    faults[0].clone()
}

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
            let reason = Reason::Shift { heads, granularity: 1 << 16 };
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

/// What a representative batch is about: every way in which a window can lie in its rank's memory.
struct Scene {
    /// For each rank its regions, one a window.
    regions: Vec<Vec<Region>>,
    /// The same as what the owner sees.
    slices: Vec<Vec<symwin::BufferSlice>>,
    /// Open all the time, so that some allocations are known to the peers.
    open: Vec<Vec<Window>>,
    flags: WindowFlags,
}

impl Scene {
    /// For a batch on a communicator that has windows already.
    fn later(ranks: &[Communicator]) -> Self {
        let mut slices = Vec::new();
        let mut known = Vec::new();
        for (rank, comm) in ranks.iter().enumerate() {
            let own = |bytes| comm.alloc_own(bytes).unwrap();
            let (a, b, c, d) = (own(8192), own(12288), own(65536), own(65536));
            let segments = comm.alloc_segments(&[4096, 8192]).unwrap();
            let (arena, arena_known) = (comm.alloc(8192).unwrap(), comm.alloc(8192).unwrap());
            let head = [0, 4096, 8192, 0][rank];
            slices.push(vec![
                a.slice(0..8192).unwrap(),
                b.slice(0..8192).unwrap(),
                c.slice(0..8192).unwrap(),
                c.slice(4096..12288).unwrap(),
                segments.slice(0..12288).unwrap(),
                arena.slice(0..8192).unwrap(),
                // Known, but not at these shifts: its handles take the extra round.
                d.slice(head..head + 4096).unwrap(),
            ]);
            known.push([arena_known, d]);
        }
        let regions = slices.iter().map(|s| s.iter().map(Region::from).collect()).collect();
        let open =
            (0..2).map(|i| windows(ranks, &known.iter().map(|k| k[i].clone()).collect::<Vec<_>>())).collect();
        Self { regions, slices, open, flags: WindowFlags::empty() }
    }

    /// For the first batch of a communicator, which makes everything that is made on first use.
    fn first(ranks: &[Communicator]) -> Self {
        let own = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap());
        let slices: Vec<_> = own.map(|buffer| vec![buffer.slice(0..8192).unwrap()]).collect();
        let regions = slices.iter().map(|s| s.iter().map(Region::from).collect()).collect();
        Self { regions, slices, open: Vec::new(), flags: WindowFlags::COLL_SYMMETRIC }
    }

    /// Runs the batch. For each rank its windows, or its error.
    fn run(&self, ranks: &[Communicator]) -> Vec<Result<Vec<Window>, Error>> {
        let group = Group::start();
        let requirements = || DevCommRequirements::new().lsa_barriers(2).buffer(100, 128);
        let pending: Vec<_> = ranks
            .iter()
            .zip(&self.regions)
            .map(|(comm, regions)| {
                let windows = regions.iter().map(|r| group.register(comm, r.clone(), self.flags));
                (windows.collect::<Vec<_>>(), group.create_dev_comm(comm, requirements()))
            })
            .collect();
        drop(group.submit());
        let outcomes = pending.into_iter().map(|(windows, dev_comm)| {
            let windows: Result<Vec<_>, _> = windows.into_iter().map(|window| window.wait()).collect();
            dev_comm.wait().and(windows)
        });
        outcomes.collect()
    }

    /// Runs the batch, which works, checks every pointer of it (P-3), and closes its windows.
    fn works(&self, ranks: &[Communicator]) {
        let windows: Vec<_> = self.run(ranks).into_iter().map(Result::unwrap).collect();
        self.check(&windows);
        drop(windows);
        sync(ranks);
        check_digests(ranks);
    }

    fn check(&self, windows: &[Vec<Window>]) {
        for (from, windows) in windows.iter().enumerate() {
            for (task, window) in windows.iter().enumerate() {
                for (to, slices) in self.slices.iter().enumerate() {
                    let mark = [from as u8 + 1, to as u8 + 101, task as u8 + 201];
                    for at in [0, window.size() - 3] {
                        window.write(Rank::new(to as u32), at, &mark).unwrap();
                        let mut seen = [0; 3];
                        slices[task].read(at, &mut seen).unwrap();
                        assert_eq!(seen, mark, "task {task}, from {from} to {to} at {at}");
                    }
                }
            }
        }
    }
}

/// The calls of each rank while `batch` runs: kind, and which of its kind from now, in order.
fn calls(world: &FaultyWorld, batch: impl FnOnce()) -> Vec<Vec<(Call, u64)>> {
    let mut logs = Vec::new();
    for faulty in &world.faults {
        let log = Arc::new(Mutex::new(Vec::new()));
        let (to, before) = (Arc::clone(&log), faulty.counts());
        faulty.on_call(Box::new(move |call, nth| {
            to.lock().push((call, nth - before.get(&call).copied().unwrap_or(0)));
        }));
        logs.push(log);
    }
    batch();
    world.faults.iter().for_each(|faulty| faulty.on_call(Box::new(|_, _| {})));
    logs.iter().map(|log| log.lock().clone()).collect()
}

/// Those up to the vote of the first batch in them: a rank votes once its stream has passed.
fn before_vote(calls: &[(Call, u64)]) -> &[(Call, u64)] {
    let done = calls.iter().position(|(call, _)| *call == Call::Done).unwrap();
    &calls[..=done]
}

/// Those after it. A rank whose stream fails is not told of its end.
fn after_vote(calls: &[(Call, u64)]) -> &[(Call, u64)] {
    let ends = |kind| calls.iter().position(|(call, _)| *call == kind);
    let end = ends(Call::Done).or_else(|| ends(Call::Record)).unwrap();
    &calls[end + 1..]
}

/// What a call that did not happen leaves behind, which nobody can give back.
fn leak(held: &mut HostCounts, call: Call, phase: Phase) {
    match call {
        Call::Done => held.events += 1,
        Call::Release => {
            held.handles += 1;
            // An import that stays keeps its descriptor; other references are to what is there anyway.
            held.descriptors += usize::from(phase == Phase::Map);
        }
        _ => {}
    }
}

fn injected(fault: &Fault, call: Call) -> bool {
    matches!(&fault.reason, Reason::Device(error)
        if error.call == call && matches!(error.problem, DeviceProblem::Injected { .. }))
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

fn process_of(layout: &[u32], rank: usize) -> usize {
    let mut end = 0;
    layout
        .iter()
        .position(|&ranks| {
            end += ranks as usize;
            rank < end
        })
        .unwrap()
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
                let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
                while hosts.iter().any(|host| host.counts() != HostCounts::default()) {
                    assert!(std::time::Instant::now() < until, "{what}: {:?}", hosts[0].counts());
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

/// A batch is rolled back since a stream failed on one rank; meanwhile each undo call fails in turn.
#[test]
fn p_5_an_undo_call_that_fails_is_reported_beside_the_first_error() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let (ranks, faults) = (&world.ranks, &world.faults);
        let scene = Scene::later(ranks);
        scene.works(ranks);
        let clean = calls(&world, || {
            faults[0].fail(Call::Record, 1);
            only_fault(scene.run(ranks));
        });
        for (undoing, clean) in clean.iter().enumerate() {
            for &(call, nth) in after_vote(clean) {
                let what = format!("{layout:?}: call {nth} of {call} on rank {undoing}");
                let before = ranks[0].status().quarantined_bytes;
                faults[0].fail(Call::Record, 1);
                faults[undoing].fail(call, nth);
                for (rank, outcome) in scene.run(ranks).into_iter().enumerate() {
                    let rolled_back = rolled_back(outcome);
                    let Cause::Refused { faults } = &rolled_back.cause else { panic!("{rolled_back}") };
                    assert!(injected(&faults[0], Call::Record), "{what}: {rolled_back}");
                    let undo: Vec<_> = rolled_back.undo.iter().map(|error| error.call).collect();
                    assert_eq!(undo, if rank == undoing { vec![call] } else { vec![] }, "{what}");
                    if rank == undoing {
                        assert_eq!(
                            ranks[rank].status().undo_failures.last(),
                            rolled_back.undo.last(),
                            "{what}"
                        );
                    }
                }
                faults.iter().for_each(|faulty| faulty.heal());
                sync(ranks);
                check_digests(ranks);
                let after: Vec<_> = ranks.iter().map(|comm| comm.status().quarantined_bytes).collect();
                assert!(after.iter().all(|bytes| *bytes == after[0]), "{what}: {after:?}");
                assert!(call != Call::Unmap || after[0] > before, "{what}: nothing was quarantined");
                // A range that is still mapped somewhere could not be mapped again.
                scene.works(ranks);
            }
        }
        drop(scene);
        finalize(world.ranks);
        let left: Vec<_> = world.hosts.iter().map(|host| host.counts()).map(|c| c.mappings).collect();
        assert!(left.iter().all(|mappings| *mappings == 0), "the range went with all in it: {left:?}");
    }
}

/// The calls of a deregistration, and whether their failure keeps a table slot.
#[test]
fn p_5_a_failing_call_of_a_deregistration_quarantines_the_range_on_every_rank() {
    for layout in LAYOUTS {
        for rank in FAILING {
            for (call, nth) in [(Call::Unmap, 1), (Call::Release, 1), (Call::Copy, 1), (Call::Copy, 2)] {
                let what = format!("{layout:?}: call {nth} of {call} on rank {rank}");
                let world = faulty_world(layout, config());
                let (ranks, faults) = (&world.ranks, &world.faults);
                let buffers: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
                let other: Vec<_> = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap()).collect();
                let open = windows(ranks, &other);
                let closing = windows(ranks, &buffers);
                let bad = closing[0].offset()..closing[0].offset() + 8192;
                for (r, faulty) in faults.iter().enumerate() {
                    // Which rank of a process unmaps is a matter of time.
                    let shares = process_of(layout, r) == process_of(layout, rank);
                    if r == rank || (call == Call::Unmap && shares) {
                        faulty.fail(call, nth);
                    }
                }
                drop(closing);
                sync(ranks);
                faults.iter().for_each(|faulty| faulty.heal());
                sync(ranks);
                check_digests(ranks);
                let failures: Vec<_> = ranks.iter().flat_map(|comm| comm.status().undo_failures).collect();
                assert_eq!(failures.iter().map(|error| error.call).collect::<Vec<_>>(), [call], "{what}");
                assert!(ranks.iter().all(|comm| comm.status().quarantined_bytes == 8192), "{what}");
                assert!(ranks.iter().all(|comm| comm.status().memories == 1), "{what}");
                for _ in 0..3 {
                    let again = windows(ranks, &buffers);
                    let offset = again[0].offset();
                    assert!(
                        offset + 8192 <= bad.start || offset >= bad.end,
                        "{what}: {offset:#x} of {bad:x?}"
                    );
                    check_pointers(ranks, &again, &buffers);
                    check_pointers(ranks, &open, &other);
                }
                drop(open);
                finalize(world.ranks);
            }
        }
    }
}

/// A committed batch that cannot be published fails the communicator, by name, on every rank; closing is clean.
#[test]
fn a_batch_that_cannot_be_published_fails_the_communicator_by_name() {
    for layout in LAYOUTS {
        for rank in FAILING {
            for nth in 1.. {
                let world = faulty_world(layout, config());
                let scene = Scene::later(&world.ranks);
                scene.works(&world.ranks);
                let clean = calls(&world, || scene.works(&world.ranks));
                let first =
                    before_vote(&clean[rank]).iter().filter(|(call, _)| *call == Call::Copy).count() as u64;
                let commits = after_vote(&clean[rank]).iter().take_while(|(call, _)| *call != Call::Record);
                let copies = commits.filter(|(call, _)| *call == Call::Copy).count() as u64;
                if nth > 2 || nth > copies {
                    break;
                }
                world.faults[rank].fail(Call::Copy, first + nth);
                let outcomes = scene.run(&world.ranks);
                let Err(Error::Failed(failure)) = &outcomes[rank] else { panic!("{:?}", outcomes[rank]) };
                let FailureCause::Publish { by, reason: Reason::Device(_) } = &failure.cause else {
                    panic!("{failure}")
                };
                assert_eq!(by.rank.index(), rank);
                let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
                let failed = |comm: &Communicator| matches!(comm.status().activity, Activity::Failed(_));
                while !world.ranks.iter().all(failed) {
                    assert!(std::time::Instant::now() < until);
                    std::thread::yield_now();
                }
                drop((outcomes, scene));
                let FaultyWorld { ranks, hosts, .. } = world;
                finalize(ranks);
                for host in hosts {
                    while host.counts() != HostCounts::default() {
                        assert!(std::time::Instant::now() < until, "{:?}", host.counts());
                        std::thread::yield_now();
                    }
                }
            }
        }
    }
}
