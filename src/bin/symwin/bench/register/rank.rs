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
use super::floor::{Desk, Floor};
use super::protocol::{self, Exchange, Shape};
use super::{Plan, Variant};
use crate::progress::Progress;

/// What the ranks of one process have together.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Where the bare calls map.
    range: OnceLock<Range>,
    /// Where ranks lay what the bare driver maps.
    desk: Desk,
}

pub(crate) fn run(
    comm: Communicator,
    plan: &Plan,
    shared: &Shared,
    progress: &dyn Progress,
) -> anyhow::Result<RankSamples> {
    let rank = comm.rank().get();
    let lineup = if plan.fresh { LineUp::by_messages(&comm, &plan.mesh)? } else { LineUp::new(&comm)? };
    let mut meter = Meter::new(&comm, &lineup, progress);
    let bench = Bench::new(&comm, plan, shared, &lineup)?;
    let device = comm.device().name.clone();
    let mut told = RankSamples { rank, device, ..RankSamples::default() };
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
    /// What is registered of each window's memory.
    bytes: usize,
    mesh: Mesh,
    ground: Ground<'a>,
}

/// What the windows are in, and what symwin is compared with there.
enum Ground<'a> {
    /// New allocations for each sample; the bare driver.
    Fresh(Floor<'a>),
    /// The same allocations for all samples; the host's calls.
    Kept(Box<Kept<'a>>),
}

struct Kept<'a> {
    memory: Memory,
    /// The descriptors of its allocations.
    own: Vec<Arc<OwnedFd>>,
    /// Where the ranks of this process map together.
    together: &'a Range,
    exchange_together: Exchange,
    /// Where this rank maps alone.
    alone: Range,
    exchange_alone: Exchange,
}

/// Allocations, and a slice for each window.
struct Memory {
    buffers: Vec<Buffer>,
    slices: Vec<BufferSlice>,
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
        let processes: Vec<u32> = comm.peers().iter().map(|peer| peer.process.get()).collect();
        let ground = if plan.fresh {
            let threads = plan.variants.iter().map(|variant| variant.threads()).max().unwrap_or(1);
            Ground::Fresh(Floor::new(&processes, rank as usize, &shared.desk, threads)?)
        } else {
            Ground::Kept(Box::new(Kept::new(comm, &shape, bytes, &processes, shared)?))
        };
        let mesh = Mesh::connect(&plan.mesh, rank, ranks, || lineup.wait())?;
        Ok(Self { comm, lineup, marks: plan.marks, shape, bytes, mesh, ground })
    }

    /// One sample of one variant. Returns the rounds of symwin's group.
    fn sample(
        &self,
        variant: Variant,
        meter: &mut Meter<'_>,
        name: Option<&str>,
    ) -> anyhow::Result<Option<u64>> {
        match (variant, &self.ground) {
            (Variant::Nothing, _) => meter.sample(name, || Ok(()))?,
            (Variant::Symwin, Ground::Fresh(_)) => {
                return self.symwin(&Memory::new(self.comm, &self.shape, self.bytes)?, meter, name).map(Some);
            }
            (Variant::Symwin, Ground::Kept(kept)) => return self.symwin(&kept.memory, meter, name).map(Some),
            (floor, Ground::Fresh(bare)) => {
                let memory = Memory::new(self.comm, &self.shape, self.bytes)?;
                let own = bare.lay(self.mesh.me(), &memory.buffers)?;
                let range = bare.range(&self.mesh, &own)?;
                drop(meter.sample(name, || bare.run(&self.mesh, &own, range, floor.threads()))?);
            }
            (host, Ground::Kept(kept)) => kept.sample(self, host, meter, name)?,
        }
        Ok(None)
    }

    /// Returns how many rounds the group took.
    fn symwin(&self, memory: &Memory, meter: &mut Meter<'_>, name: Option<&str>) -> anyhow::Result<u64> {
        let before = self.comm.status().rounds;
        let windows = meter.sample(name, || self.register(&memory.slices))?;
        let rounds = self.comm.status().rounds - before;
        self.close(&windows)?;
        Ok(rounds)
    }

    /// One group with all windows.
    fn register(&self, slices: &[BufferSlice]) -> anyhow::Result<Vec<Window>> {
        if self.marks {
            syscalls::mark(Mark::Begin);
        }
        let group = Group::named("symwin bench");
        let register = |slice| group.register(self.comm, slice, WindowFlags::COLL_SYMMETRIC);
        let pending: Vec<_> = slices.iter().map(register).collect();
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

impl<'a> Kept<'a> {
    fn new(
        comm: &Communicator,
        shape: &Shape,
        bytes: usize,
        processes: &[u32],
        shared: &'a Shared,
    ) -> anyhow::Result<Self> {
        let me = comm.rank().get() as usize;
        let memory = Memory::new(comm, shape, bytes)?;
        let own = memory.buffers.iter().map(descriptor).collect::<anyhow::Result<_>>()?;
        let size = shape.stride() * processes.len();
        if shared.range.get().is_none() {
            // Where two ranks come at once, the second one's range goes again.
            let _ = shared.range.set(Range::reserve(size)?);
        }
        let each_its_own: Vec<u32> = (0..comm.world_size()).collect();
        Ok(Self {
            memory,
            own,
            together: shared.range.get().context("a range was set")?,
            exchange_together: Exchange::new(processes, me),
            alone: Range::reserve(size)?,
            exchange_alone: Exchange::new(&each_its_own, me),
        })
    }

    /// One sample of the host's calls.
    fn sample(
        &self,
        bench: &Bench<'_>,
        variant: Variant,
        meter: &mut Meter<'_>,
        name: Option<&str>,
    ) -> anyhow::Result<()> {
        let Self { own, together, exchange_together, alone, exchange_alone, .. } = self;
        let Bench { mesh, shape, lineup, .. } = bench;
        let protocol = |dedup| Ok(protocol::per_window(mesh, alone, own, shape, dedup)?);
        match variant {
            Variant::Bare => {
                meter.sample(name, || Ok(protocol::bare(mesh, together, own, shape, exchange_together)?))?;
                lineup.wait()?;
                together.clear()?;
            }
            Variant::BareEach => {
                meter.sample(name, || Ok(protocol::bare(mesh, alone, own, shape, exchange_alone)?))?;
            }
            Variant::Protocol => meter.sample(name, || protocol(false))?,
            Variant::Dedup => meter.sample(name, || protocol(true))?,
            other => bail!("{} is not measured on the host", other.title()),
        }
        Ok(alone.clear()?)
    }
}

impl Memory {
    fn new(comm: &Communicator, shape: &Shape, bytes: usize) -> anyhow::Result<Self> {
        if shape.arena {
            let arena = comm.alloc_own(shape.stride())?;
            let slice = |index: usize| arena.slice(index * shape.bytes..index * shape.bytes + bytes);
            let slices = (0..shape.windows).map(slice).collect::<Result<_, _>>();
            return Ok(Self { buffers: vec![arena], slices: slices.map_err(symwin::Error::from)? });
        }
        let buffers =
            (0..shape.windows).map(|_| comm.alloc_own(bytes)).collect::<symwin::Result<Vec<_>>>()?;
        let slices = buffers.iter().map(BufferSlice::from).collect();
        Ok(Self { buffers, slices })
    }
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
