//! `symwin bench allreduce`: the blocking call and a kernel's, beside plain loops and MPI.

use std::io::{self, Write};

use anyhow::{Context, ensure};
use clap::error::ErrorKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use symwin::coll::{self, DType, ReduceOp};
use symwin::{Communicator, DevComm, DevCommRequirements, Group, Window, WindowFlags};

use super::cli::AllreduceArgs;
use super::gpu::{self, Race};
use super::lineup::LineUp;
use super::meter::{self, Meter, RankSamples};
use super::mpi::{MpiFigures, MpiSamples, Mpis};
use super::output::{figures_table, line, mpi_json, ratio};
use super::plain::{Plain, filled, plain};
use super::stats::{Figure, Series, merge};
use super::{Job, World, launches};
use crate::cli::refuse;
use crate::memory;
use crate::progress::{Bar, Progress};
use crate::size::show_bytes;
use crate::table::plural;

/// What every rank does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    bytes: u64,
    dtype: DType,
    samples: u32,
}

impl Plan {
    /// How often a sample repeats it.
    fn repetitions(&self) -> u32 {
        u32::try_from((4 << 20) / self.bytes.max(1)).unwrap_or(u32::MAX).clamp(1, 200)
    }

    /// Whether each rank has memory for a plain loop over all of every rank's input.
    fn whole(&self, ranks: u32) -> bool {
        self.bytes * u64::from(ranks) <= 64 << 20
    }
}

pub(crate) fn run(args: &AllreduceArgs) -> anyhow::Result<()> {
    let world = args.world.world(false)?;
    let element = args.dtype.size_bytes() as u64;
    if let Some(bytes) = args.bytes.iter().find(|bytes| **bytes == 0 || !bytes.is_multiple_of(element)) {
        let what =
            format!("--bytes {bytes} is no positive multiple of {element}, the size of one {}", args.dtype);
        refuse(ErrorKind::ValueValidation, &what);
    }
    if world.device.is_cuda() {
        let race = |bytes: &u64| Race::AllReduce { bytes: *bytes, dtype: args.dtype };
        return gpu::run(&world, &args.bytes.iter().map(race).collect::<Vec<_>>(), &args.output);
    }
    let most = args.bytes.iter().copied().max().unwrap_or(0);
    // Input and output, and as much for the plain loops.
    let need = most.checked_mul(4 * u64::from(world.ranks));
    memory::check(&format!("{} with {}", plural(world.ranks, "rank"), show_bytes(most)), need)?;
    let mpis = args.mpi.find()?;
    let launches = launches(args.output.samples);
    let units: u64 = launches.iter().map(|samples| u64::from(samples + WARM)).sum();
    let bar = Bar::new(units * args.bytes.len() as u64 * Variant::ALL.len() as u64, !args.output.json);
    let mut measured: Vec<(Vec<Series>, MpiSamples)> =
        args.bytes.iter().map(|_| Default::default()).collect();
    for samples in launches {
        for (bytes, (ranks, of_mpi)) in args.bytes.iter().zip(&mut measured) {
            let plan = Plan { bytes: *bytes, dtype: args.dtype, samples };
            let mpi_args = ["allreduce", plan.dtype.name(), &bytes.to_string()].map(str::to_owned);
            let numbers = [plan.repetitions().to_string(), samples.to_string()];
            meter::add(ranks, world.measure(&Job::AllReduce(plan), &bar)?);
            for mpi in mpis.found.iter().filter(|_| element >= 4 || args.dtype == DType::U8) {
                mpi.add(of_mpi, world.ranks, &[mpi_args.as_slice(), &numbers].concat());
            }
        }
    }
    drop(bar);
    let mut text = String::new();
    for (bytes, (ranks, of_mpi)) in args.bytes.iter().zip(&measured) {
        let plan = Plan { bytes: *bytes, dtype: args.dtype, samples: args.output.samples };
        let report = Report::new(&world, &plan, ranks, of_mpi, &mpis);
        text += &if args.output.json { report.to_json() } else { report.to_table() };
    }
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

/// What one rank does.
pub(crate) fn rank(comm: Communicator, plan: &Plan, progress: &dyn Progress) -> anyhow::Result<RankSamples> {
    let lineup = LineUp::new(&comm)?;
    let mut meter = Meter::new(&comm, &lineup, progress);
    let bench = Bench::new(&comm, plan)?;
    let (ranks, bytes) = (comm.world_size(), usize::try_from(plan.bytes)?);
    let mut memory = plain(plan.dtype, bytes, ranks as usize, plan.whole(ranks))
        .context("a type that is not known here")?;
    for round in 0..WARM + plan.samples {
        for variant in Variant::ALL {
            let name = (round >= WARM).then(|| variant.name());
            meter.sample(name, || bench.repeat(variant, memory.as_mut(), plan.whole(ranks)))?;
        }
    }
    bench.check()?;
    let told = RankSamples {
        rank: comm.rank().get(),
        device: comm.device().name.clone(),
        series: meter.end(),
        ..RankSamples::default()
    };
    drop(bench);
    lineup.end()?;
    comm.finalize()?;
    Ok(told)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Call,
    Kernel,
    OneShot,
    TwoShot,
}

impl Variant {
    const ALL: [Self; 4] = [Self::Call, Self::Kernel, Self::OneShot, Self::TwoShot];

    const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Kernel => "kernel",
            Self::OneShot => "plain_one_shot",
            Self::TwoShot => "plain_two_shot",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Call => "Communicator::all_reduce",
            Self::Kernel => "coll::all_reduce in a kernel",
            Self::OneShot => "plain loop, one-shot",
            Self::TwoShot => "plain loop, two-shot",
        }
    }
}

struct Bench<'a> {
    comm: &'a Communicator,
    plan: &'a Plan,
    send: Window,
    recv: Window,
    dev_comm: DevComm,
}

impl<'a> Bench<'a> {
    fn new(comm: &'a Communicator, plan: &'a Plan) -> anyhow::Result<Self> {
        let bytes = usize::try_from(plan.bytes)?;
        let buffers = [comm.alloc_own(bytes)?, comm.alloc_own(bytes)?];
        let ones = filled(plan.dtype, 1, bytes / plan.dtype.size_bytes());
        buffers[0].write(0, &ones.context("a type that is not known here")?)?;
        let group = Group::named("symwin bench");
        let [send, recv] = buffers.each_ref().map(|b| group.register(comm, b, WindowFlags::COLL_SYMMETRIC));
        let dev_comm = group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1));
        group.end().map_err(symwin::Error::from)?;
        Ok(Self { comm, plan, send: send.wait()?, recv: recv.wait()?, dev_comm: dev_comm.wait()? })
    }

    /// A sample's work. The one-shot loop is left out where there is no memory for it.
    fn repeat(&self, variant: Variant, memory: &mut dyn Plain, whole: bool) -> anyhow::Result<()> {
        let (dtype, op) = (self.plan.dtype, ReduceOp::Sum);
        let repetitions = 0..self.plan.repetitions();
        match variant {
            Variant::Call => {
                let (send, recv) = (self.send.whole(), self.recv.whole());
                for _ in repetitions {
                    self.comm.all_reduce(&send, &recv, dtype, op)?;
                }
            }
            Variant::Kernel => {
                let (send, recv) = (self.send.device_address(), self.recv.device_address());
                let count = self.send.size() / dtype.size_bytes();
                self.dev_comm.run(|kernel| {
                    let (send, recv) = (kernel.window(send)?, kernel.window(recv)?);
                    for _ in repetitions {
                        coll::all_reduce(kernel, (&send, 0), (&recv, 0), count, dtype, op, 0)?;
                    }
                    Ok(())
                })?;
            }
            Variant::OneShot if whole => repetitions.for_each(|_| memory.one_shot()),
            Variant::OneShot => {}
            Variant::TwoShot => repetitions.for_each(|_| memory.two_shot()),
        }
        Ok(())
    }

    /// What was measured must be right.
    fn check(&self) -> anyhow::Result<()> {
        let ranks = self.comm.world_size();
        // More ranks than that may be more than a type can count.
        let Ok(sum @ 1..=200) = u8::try_from(ranks) else { return Ok(()) };
        let mut result = vec![0; self.recv.size()];
        self.recv.read(self.comm.rank(), 0, &mut result)?;
        let expected = filled(self.plan.dtype, sum, self.recv.size() / self.plan.dtype.size_bytes());
        ensure!(
            expected == Some(result),
            "a result is not {ranks}, the sum of all ranks' ones: please report it"
        );
        Ok(())
    }
}

/// One size.
struct Report<'a> {
    world: &'a World,
    plan: &'a Plan,
    /// Microseconds of one all-reduce: wall time and processors' time.
    figures: Vec<(Variant, Figure, Figure)>,
    mpi: MpiFigures,
}

impl<'a> Report<'a> {
    fn new(world: &'a World, plan: &'a Plan, ranks: &[Series], of_mpi: &MpiSamples, mpis: &Mpis) -> Self {
        let scale = 1.0 / (1e3 * f64::from(plan.repetitions()));
        let is_measured = |variant: &Variant| *variant != Variant::OneShot || plan.whole(world.ranks);
        let figure = |variant: Variant| {
            let (wall, cpu) = merge(ranks, variant.name());
            Some((variant, Figure::new(wall)?.scaled(scale), Figure::new(cpu)?.scaled(scale)))
        };
        let typeless = mpis.found.iter().filter(|mpi| !of_mpi.contains_key(mpi.name));
        let typeless = typeless.map(|mpi| (mpi.name, Err(format!("MPI has no {}", plan.dtype))));
        Self {
            world,
            plan,
            figures: Variant::ALL.into_iter().filter(is_measured).filter_map(figure).collect(),
            mpi: mpis.figures(of_mpi).into_iter().chain(typeless).collect(),
        }
    }

    fn of(&self, variant: Variant) -> Option<f64> {
        self.figures.iter().find(|(of, ..)| *of == variant).map(|(_, wall, _)| wall.median)
    }

    /// The faster plain loop.
    fn plain(&self) -> Option<f64> {
        let both = [Variant::OneShot, Variant::TwoShot].into_iter().filter_map(|variant| self.of(variant));
        both.min_by(f64::total_cmp)
    }

    fn to_json(&self) -> String {
        let spread = |of: fn(&(Variant, Figure, Figure)) -> Figure| -> Map<String, Value> {
            self.figures.iter().map(|row| (row.0.name().to_owned(), of(row).to_json())).collect()
        };
        let json = json!({
            "bench": "allreduce",
            "ranks": self.world.ranks,
            "processes": self.world.processes(),
            "mode": self.world.mode(),
            "bytes": self.plan.bytes,
            "dtype": self.plan.dtype.name(),
            "repetitions": self.plan.repetitions(),
            "samples": self.plan.samples,
            "us": self.of(Variant::Call),
            "kernel_us": self.of(Variant::Kernel),
            "plain_us": self.plain(),
            "plain_one_shot_us": self.of(Variant::OneShot),
            "plain_two_shot_us": self.of(Variant::TwoShot),
            "mpi_us": mpi_json(&self.mpi),
            "wall_us": spread(|row| row.1),
            "processors_us": spread(|row| row.2),
        });
        line(json)
    }

    fn to_table(&self) -> String {
        let (ranks, bytes, dtype) = (self.world.ranks, show_bytes(self.plan.bytes), self.plan.dtype);
        let place = self.world.describe();
        let mut lines =
            vec![format!("{} {place}, all-reduce of {bytes}, sum of {dtype}", plural(ranks, "rank"))];
        let own =
            self.figures.iter().map(|(variant, wall, cpu)| (variant.title().to_owned(), *wall, Some(*cpu)));
        let others = self.mpi.iter().filter_map(|(name, figure)| {
            Some((format!("{name}: MPI_Allreduce"), *figure.as_ref().ok()?, None))
        });
        lines.push(figures_table("us for each", &own.chain(others).collect::<Vec<_>>()).to_string());
        if let (Some(call), Some(plain)) = (self.of(Variant::Call), self.plain()) {
            lines.push(format!("Communicator::all_reduce / the faster plain loop: {}", ratio(call, plain)));
        }
        for (name, figure) in &self.mpi {
            match (figure, self.of(Variant::Call)) {
                (Ok(figure), Some(call)) => {
                    lines.push(format!("Communicator::all_reduce / {name}: {}", ratio(call, figure.median)));
                }
                (Err(why), _) => lines.push(format!("{name}: not measured: {why}")),
                (Ok(_), None) => {}
            }
        }
        lines.join("\n") + "\n\n"
    }
}

/// Samples that nobody counts, of each variant.
const WARM: u32 = 2;
