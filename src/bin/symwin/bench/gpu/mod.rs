//! `symwin bench allreduce` and `symwin bench barrier` on GPUs: the library's kernel beside a bare one, in turns.

mod kernels;

use std::io::{self, Write};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use symwin::Communicator;
use symwin::coll::DType;

use self::kernels::{Contestant, Entry, Queue, entries};
use super::cli::OutputArgs;
use super::lineup::LineUp;
use super::meter::{self, Meter, RankSamples};
use super::output::{figures_table, line, ratio};
use super::stats::{Figure, Series, merge};
use super::{Job, World, launches};
use crate::processes::rendezvous;
use crate::progress::{Bar, Progress};
use crate::report::devices;
use crate::size::show_bytes;
use crate::table::plural;

/// What kernels do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Race {
    /// One all-reduce by sum in each launch, from one window to another.
    AllReduce { bytes: u64, dtype: DType },
    /// Rounds of one LSA barrier in each launch.
    Barrier { rounds: u32 },
}

/// What every rank does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    race: Race,
    samples: u32,
    /// By which the ranks' sockets find each other.
    mesh: String,
}

impl Race {
    /// Barriers of a world: a few in a launch where ranks are processes, which a GPU serves in turns, so that each takes
    /// milliseconds.
    pub(crate) fn barrier(world: &World) -> Self {
        Self::Barrier { rounds: if world.processes() == 1 { ROUNDS } else { 4 } }
    }

    /// As on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::AllReduce { .. } => "allreduce",
            Self::Barrier { .. } => "barrier",
        }
    }

    /// How often a sample starts the kernel.
    fn launches(self) -> u32 {
        match self {
            Self::AllReduce { bytes, .. } => {
                u32::try_from((256 << 20) / bytes.max(1)).unwrap_or(u32::MAX).clamp(8, 200)
            }
            Self::Barrier { .. } => 10,
        }
    }

    /// What a figure is of, in one launch.
    fn rounds(self) -> u32 {
        match self {
            Self::AllReduce { .. } => 1,
            Self::Barrier { rounds } => rounds,
        }
    }

    fn describe(self) -> String {
        match self {
            Self::AllReduce { bytes, dtype } => {
                format!("all-reduce of {}, sum of {dtype}", show_bytes(bytes))
            }
            Self::Barrier { .. } => "barrier".to_owned(),
        }
    }

    /// Bytes of a rank's windows.
    fn memory_bytes(self) -> Option<u64> {
        match self {
            // The bare kernel has as much.
            Self::AllReduce { bytes, .. } => bytes.checked_mul(4),
            Self::Barrier { .. } => Some(0),
        }
    }
}

/// Measures each race and prints what it says.
pub(crate) fn run(world: &World, races: &[Race], output: &OutputArgs) -> anyhow::Result<()> {
    for race in races {
        let what = |ranks| format!("{} of {}", race.describe(), plural(ranks, "rank"));
        world.device.check_memory(what, world.ranks, race.memory_bytes())?;
    }
    let launches = launches(output.samples);
    let units: u64 = launches.iter().map(|samples| u64::from(samples + WARM)).sum();
    let kernels: u64 = races.iter().map(|race| entries(*race).len() as u64).sum();
    let bar = Bar::new(units * kernels, !output.json);
    let mut measured: Vec<(Vec<Series>, Vec<String>)> = races.iter().map(|_| Default::default()).collect();
    for samples in launches {
        for (race, (ranks, names)) in races.iter().zip(&mut measured) {
            let told = world.measure(&Job::Gpu(Plan { race: *race, samples, mesh: rendezvous()? }), &bar)?;
            *names = devices(told.iter().map(|told| told.device.clone()));
            meter::add(ranks, told);
        }
    }
    drop(bar);
    let report = |(race, (ranks, names)): (&Race, &(Vec<Series>, Vec<String>))| {
        let report = Report::new(world, *race, ranks, names.join(", "));
        if output.json { report.to_json() } else { report.to_table() }
    };
    let text: String = races.iter().zip(&measured).map(report).collect();
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

/// What one rank does.
pub(crate) fn rank(comm: Communicator, plan: &Plan, progress: &dyn Progress) -> anyhow::Result<RankSamples> {
    let lineup = LineUp::by_messages(&comm, &plan.mesh)?;
    let mut meter = Meter::new(&comm, &lineup, progress);
    // All ranks make theirs before any other stream: neighbours have queues of their own in the CUDA driver.
    let queue = Queue::new(&comm)?;
    lineup.wait()?;
    let make = |entry: &'static Entry| Ok((entry, (entry.make)(&comm, &queue, plan.race)?));
    let contestants: Vec<(&Entry, Contestant<'_>)> =
        entries(plan.race).iter().map(make).collect::<anyhow::Result<_>>()?;
    for round in 0..WARM + plan.samples {
        for (entry, contestant) in &contestants {
            let name = (round >= WARM).then_some(entry.name);
            meter.sample(name, || contestant.repeat(plan.race.launches()))?;
        }
    }
    let (rank, device) = (comm.rank().get(), comm.device().name.clone());
    let told = RankSamples { rank, device, series: meter.end(), ..RankSamples::default() };
    drop(contestants);
    drop(queue);
    lineup.end()?;
    comm.finalize()?;
    Ok(told)
}

struct Report<'a> {
    world: &'a World,
    race: Race,
    devices: String,
    /// Microseconds of one round: wall time and processors' time. The library's kernel first.
    figures: Vec<(&'static Entry, Figure, Figure)>,
}

impl<'a> Report<'a> {
    fn new(world: &'a World, race: Race, ranks: &[Series], devices: String) -> Self {
        let scale = 1.0 / (1e3 * f64::from(race.launches()) * f64::from(race.rounds()));
        let figure = |entry: &'static Entry| {
            let (wall, cpu) = merge(ranks, entry.name);
            Some((entry, Figure::new(wall)?.scaled(scale), Figure::new(cpu)?.scaled(scale)))
        };
        Self { world, race, devices, figures: entries(race).iter().filter_map(figure).collect() }
    }

    /// How many times the bare kernel's time the library's takes.
    fn ratio(&self) -> Option<f64> {
        let [(_, own, _), (_, bare, _), ..] = self.figures.as_slice() else { return None };
        Some(own.median / bare.median)
    }

    fn to_json(&self) -> String {
        let spread: Map<String, Value> =
            self.figures.iter().map(|(entry, wall, _)| (entry.name.to_owned(), wall.to_json())).collect();
        let (bytes, dtype) = match self.race {
            Race::AllReduce { bytes, dtype } => (Some(bytes), Some(dtype.name())),
            Race::Barrier { .. } => (None, None),
        };
        line(json!({
            "bench": self.race.name(),
            "backend": self.world.device.backend(),
            "device": self.devices,
            "ranks": self.world.ranks,
            "processes": self.world.processes(),
            "mode": self.world.mode(),
            "bytes": bytes,
            "dtype": dtype,
            "launches": self.race.launches(),
            "rounds_per_launch": self.race.rounds(),
            "samples": self.figures.first().map(|figure| figure.1.samples),
            "us": self.figures.first().map(|figure| figure.1.median),
            "bare_us": self.figures.get(1).map(|figure| figure.1.median),
            "symwin_over_bare": self.ratio(),
            "wall_us": spread,
        }))
    }

    fn to_table(&self) -> String {
        let (ranks, place) = (plural(self.world.ranks, "rank"), self.world.describe());
        let mut lines = vec![format!("{ranks} {place} on {}, {}", self.devices, self.race.describe())];
        let rows = self.figures.iter().map(|(entry, wall, cpu)| (entry.title.to_owned(), *wall, Some(*cpu)));
        lines.push(figures_table("us for each", &rows.collect::<Vec<_>>()).to_string());
        if let [(own, own_wall, _), (bare, bare_wall, _), ..] = self.figures.as_slice() {
            let ratio = ratio(own_wall.median, bare_wall.median);
            lines.push(format!("{} / {}: {ratio}", own.title, bare.title));
        }
        lines.join("\n") + "\n\n"
    }
}

/// Rounds of the barrier in one launch of threads: its start must not matter.
const ROUNDS: u32 = 1000;
/// Samples that nobody counts, of each kernel.
const WARM: u32 = 2;
