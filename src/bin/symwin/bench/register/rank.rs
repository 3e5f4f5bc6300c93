//! What one rank does in `symwin bench register`.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, bail};
use symwin::driver::{Exported, HandleKind};
use symwin::{Buffer, BufferSlice, Communicator, DevCommRequirements, Group, Window, WindowFlags};

use super::super::lineup::LineUp;
use super::super::mesh::Mesh;
use super::super::meter::{Meter, RankSamples};
use super::super::raw::Range;
use super::super::steps::Recording;
use super::super::syscalls::{self, Mark};
use super::protocol::{self, Exchange, Shape};
use super::{Plan, Variant};
use crate::progress::Progress;

/// What the ranks of one process have together.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Where the bare calls map.
    range: OnceLock<Range>,
}

pub(crate) fn run(
    comm: Communicator,
    plan: &Plan,
    shared: &Shared,
    progress: &dyn Progress,
) -> anyhow::Result<RankSamples> {
    let rank = comm.rank().get();
    let lineup = LineUp::new(&comm)?;
    let mut meter = Meter::new(&comm, &lineup, progress);
    let bench = Bench::new(&comm, plan, shared, &lineup)?;
    let mut told = RankSamples { rank, ..RankSamples::default() };
    for round in 0..WARM + plan.samples {
        let turn = plan.variants.iter().cycle().skip(round as usize % plan.variants.len());
        for variant in turn.take(plan.variants.len()) {
            let name = (round >= WARM).then(|| variant.name());
            let rounds = bench.sample(*variant, &mut meter, name)?;
            told.rounds.extend(rounds.filter(|_| round >= WARM));
        }
    }
    told.steps = steps(&bench, plan, rank, &mut meter)?;
    told.series = meter.end();
    drop(bench);
    lineup.end()?;
    comm.finalize()?;
    Ok(told)
}

/// Groups whose steps are recorded. Recording takes time, so they are not among the samples.
fn steps(
    bench: &Bench<'_>,
    plan: &Plan,
    rank: u32,
    meter: &mut Meter<'_>,
) -> anyhow::Result<Vec<Vec<(String, u64)>>> {
    let Some(recording) = Recording::start().filter(|_| plan.steps > 0) else { return Ok(Vec::new()) };
    let mut steps = Vec::new();
    // The first one finds that recording itself is new.
    for round in 0..=plan.steps {
        bench.sample(Variant::Symwin, meter, Some(STEPS))?;
        let sample = meter.last(STEPS).context("a sample was taken")?;
        let of_sample = recording.steps(rank, sample.begin, sample.end);
        if round > 0 {
            steps.push(of_sample);
        }
    }
    Ok(steps)
}

struct Bench<'a> {
    comm: &'a Communicator,
    lineup: &'a LineUp,
    marks: bool,
    shape: Shape,
    slices: Vec<BufferSlice>,
    /// The descriptors of the slices' allocations.
    own: Vec<Arc<OwnedFd>>,
    mesh: Mesh,
    /// Where the ranks of this process map together.
    together: &'a Range,
    exchange_together: Exchange,
    /// Where this rank maps alone.
    alone: Range,
    exchange_alone: Exchange,
}

impl<'a> Bench<'a> {
    fn new(
        comm: &'a Communicator,
        plan: &Plan,
        shared: &'a Shared,
        lineup: &'a LineUp,
    ) -> anyhow::Result<Self> {
        let (rank, ranks) = (comm.rank().get(), comm.world_size());
        let page = usize::try_from(comm.granularity())?.max(4096);
        let bytes = usize::try_from(plan.bytes)?;
        let shape =
            Shape { windows: plan.windows as usize, bytes: bytes.next_multiple_of(page), arena: plan.arena };
        let (buffers, slices) = allocate(comm, &shape, bytes)?;
        let own = buffers.iter().map(descriptor).collect::<anyhow::Result<_>>()?;
        let size = shape.stride() * ranks as usize;
        if shared.range.get().is_none() {
            // Where two ranks come at once, the second one's range goes again.
            let _ = shared.range.set(Range::reserve(size)?);
        }
        let together = shared.range.get().context("a range was set")?;
        let processes: Vec<u32> = comm.peers().iter().map(|peer| peer.process.get()).collect();
        Ok(Self {
            comm,
            lineup,
            marks: plan.marks,
            shape,
            slices,
            own,
            mesh: Mesh::connect(&plan.mesh, rank, ranks, lineup)?,
            together,
            exchange_together: Exchange::new(&processes, rank as usize),
            alone: Range::reserve(size)?,
            exchange_alone: Exchange::new(&(0..ranks).collect::<Vec<_>>(), rank as usize),
        })
    }

    /// One sample of one variant. Returns the rounds of symwin's group.
    fn sample(
        &self,
        variant: Variant,
        meter: &mut Meter<'_>,
        name: Option<&str>,
    ) -> anyhow::Result<Option<u64>> {
        let Self { mesh, alone, own, shape, .. } = self;
        let protocol = |dedup| Ok(protocol::per_window(mesh, alone, own, shape, dedup)?);
        match variant {
            Variant::Symwin => {
                let before = self.comm.status().rounds;
                let windows = meter.sample(name, || self.register())?;
                let rounds = self.comm.status().rounds - before;
                self.close(&windows)?;
                return Ok(Some(rounds));
            }
            Variant::Bare => {
                meter.sample(name, || {
                    Ok(protocol::bare(mesh, self.together, own, shape, &self.exchange_together)?)
                })?;
                self.lineup.wait()?;
                self.together.clear()?;
            }
            Variant::BareEach => {
                meter.sample(name, || Ok(protocol::bare(mesh, alone, own, shape, &self.exchange_alone)?))?;
            }
            Variant::Protocol => meter.sample(name, || protocol(false))?,
            Variant::Dedup => meter.sample(name, || protocol(true))?,
            Variant::Nothing => meter.sample(name, || Ok(()))?,
        }
        self.alone.clear()?;
        Ok(None)
    }

    /// One group with all windows.
    fn register(&self) -> anyhow::Result<Vec<Window>> {
        if self.marks {
            syscalls::mark(Mark::Begin);
        }
        let group = Group::named("symwin bench");
        let register = |slice| group.register(self.comm, slice, WindowFlags::COLL_SYMMETRIC);
        let pending: Vec<_> = self.slices.iter().map(register).collect();
        group.end().map_err(symwin::Error::from)?;
        let windows = pending.into_iter().map(|window| window.wait()).collect::<symwin::Result<_>>()?;
        if self.marks {
            syscalls::mark(Mark::End);
        }
        Ok(windows)
    }

    /// Closes all windows. That they are closed rides on the next batch, so there is one that does nothing else.
    fn close(&self, windows: &[Window]) -> anyhow::Result<()> {
        for window in windows {
            window.close()?;
        }
        drop(self.comm.create_dev_comm(DevCommRequirements::new())?);
        Ok(())
    }
}

/// The allocations, and a slice for each window.
fn allocate(
    comm: &Communicator,
    shape: &Shape,
    bytes: usize,
) -> anyhow::Result<(Vec<Buffer>, Vec<BufferSlice>)> {
    if shape.arena {
        let arena = comm.alloc_own(shape.stride())?;
        let slice = |index: usize| arena.slice(index * shape.bytes..index * shape.bytes + bytes);
        let slices = (0..shape.windows).map(slice).collect::<Result<_, _>>();
        return Ok((vec![arena], slices.map_err(symwin::Error::from)?));
    }
    let buffers = (0..shape.windows).map(|_| comm.alloc_own(bytes)).collect::<symwin::Result<Vec<_>>>()?;
    let slices = buffers.iter().map(BufferSlice::from).collect();
    Ok((buffers, slices))
}

/// The descriptor of a buffer's allocation.
fn descriptor(buffer: &Buffer) -> anyhow::Result<Arc<OwnedFd>> {
    let driver = buffer.driver();
    let handle = driver.retain(buffer.address())?;
    let exported = driver.export(handle, HandleKind::Descriptor);
    driver.release(handle)?;
    match exported? {
        Exported::Descriptor(descriptor) => Ok(descriptor),
        _ => bail!("memory of this device has no descriptors to compare with"),
    }
}

/// Samples that nobody counts, of each variant.
pub(crate) const WARM: u32 = 2;
const STEPS: &str = "steps";
