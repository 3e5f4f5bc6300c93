//! A representative batch whose every driver call can be made to fail.

use std::sync::Arc;

use parking_lot::Mutex;
use symwin::driver::{Call, DeviceProblem};
use symwin::error::{Cause, Fault, Reason};
use symwin::{Communicator, DevCommRequirements, Error, Group, Rank, Region, Window, WindowFlags};

use super::{FaultyWorld, check_digests, rolled_back, sync, windows};

/// The lowest rank, one that imports nothing where it is not alone in its process, and the last, which imports.
pub const FAILING: [usize; 3] = [0, 1, 3];

/// One rank's fault, the same error on every rank.
pub fn only_fault<T: std::fmt::Debug>(outcomes: Vec<Result<T, Error>>) -> Fault {
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

/// What a representative batch is about: every way in which a window can lie in its rank's memory.
pub struct Scene {
    /// For each rank its regions, one a window.
    pub regions: Vec<Vec<Region>>,
    /// The same as what the owner sees.
    pub slices: Vec<Vec<symwin::BufferSlice>>,
    /// Open all the time, so that some allocations are known to the peers.
    pub open: Vec<Vec<Window>>,
    pub flags: WindowFlags,
}

impl Scene {
    /// For a batch on a communicator that has windows already.
    pub fn later(ranks: &[Communicator]) -> Self {
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
    pub fn first(ranks: &[Communicator]) -> Self {
        let own = ranks.iter().map(|comm| comm.alloc_own(8192).unwrap());
        let slices: Vec<_> = own.map(|buffer| vec![buffer.slice(0..8192).unwrap()]).collect();
        let regions = slices.iter().map(|s| s.iter().map(Region::from).collect()).collect();
        Self { regions, slices, open: Vec::new(), flags: WindowFlags::COLL_SYMMETRIC }
    }

    /// Runs the batch. For each rank its windows, or its error.
    pub fn run(&self, ranks: &[Communicator]) -> Vec<Result<Vec<Window>, Error>> {
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
    pub fn works(&self, ranks: &[Communicator]) {
        let windows: Vec<_> = self.run(ranks).into_iter().map(Result::unwrap).collect();
        self.check(&windows);
        drop(windows);
        sync(ranks);
        check_digests(ranks);
    }

    pub fn check(&self, windows: &[Vec<Window>]) {
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
pub fn calls(world: &FaultyWorld, batch: impl FnOnce()) -> Vec<Vec<(Call, u64)>> {
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
pub fn before_vote(calls: &[(Call, u64)]) -> &[(Call, u64)] {
    let done = calls.iter().position(|(call, _)| *call == Call::Done).unwrap();
    &calls[..=done]
}

/// Those after it. A rank whose stream fails is not told of its end.
pub fn after_vote(calls: &[(Call, u64)]) -> &[(Call, u64)] {
    let ends = |kind| calls.iter().position(|(call, _)| *call == kind);
    let end = ends(Call::Done).or_else(|| ends(Call::Record)).unwrap();
    &calls[end + 1..]
}

pub fn injected(fault: &Fault, call: Call) -> bool {
    matches!(&fault.reason, Reason::Device(error)
        if error.call == call && matches!(error.problem, DeviceProblem::Injected { .. }))
}

pub fn process_of(layout: &[u32], rank: usize) -> usize {
    let mut end = 0;
    layout
        .iter()
        .position(|&ranks| {
            end += ranks as usize;
            rank < end
        })
        .unwrap()
}
