//! `symwin bench barrier`: the barrier of kernels beside that of the standard library and MPI's.

use std::io::{self, Write};
use std::sync::Barrier;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::json;
use symwin::{Communicator, DevCommRequirements};

use super::cli::BarrierArgs;
use super::gpu::{self, Race};
use super::lineup::LineUp;
use super::meter::{self, Meter, RankSamples};
use super::mpi::MpiSamples;
use super::output::{figures_table, line, mpi_json};
use super::stats::{Figure, Series, merge};
use super::{Job, launches};
use crate::progress::{Bar, Progress};
use crate::table::plural;

/// What every rank does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    samples: u32,
    /// How many ranks meet as threads; none where they are not all in one process.
    threads: u32,
}

impl Plan {
    /// How many threads come to the standard library's barrier.
    pub(crate) fn threads(&self) -> usize {
        self.threads as usize
    }
}

pub(crate) fn run(args: &BarrierArgs) -> anyhow::Result<()> {
    let world = args.world.world(false)?;
    if world.device.is_cuda() {
        return gpu::run(&world, &[Race::barrier(&world)], &args.output);
    }
    let mpis = args.mpi.find()?;
    let launches = launches(args.output.samples);
    let length = launches.iter().map(|samples| u64::from(2 * (samples + WARM))).sum();
    let bar = Bar::new(length, !args.output.json);
    let (mut ranks, mut of_mpi): (Vec<Series>, MpiSamples) = Default::default();
    for samples in launches {
        let threads = if world.processes() == 1 { world.ranks } else { 0 };
        meter::add(&mut ranks, world.measure(&Job::Barrier(Plan { samples, threads }), &bar)?);
        for mpi in &mpis.found {
            let args = ["barrier".to_owned(), ROUNDS.to_string(), samples.to_string()];
            mpi.add(&mut of_mpi, world.ranks, &args);
        }
    }
    drop(bar);
    let scale = 1.0 / (1e3 * f64::from(ROUNDS));
    let figure = |name| {
        let (wall, cpu) = merge(&ranks, name);
        Some((Figure::new(wall)?.scaled(scale), Figure::new(cpu)?.scaled(scale)))
    };
    let (own, std) = (figure(OWN).context("no sample of the barrier")?, figure(STD));
    let mpi = mpis.figures(&of_mpi);
    let text = if args.output.json {
        let json = json!({
            "bench": "barrier",
            "ranks": world.ranks,
            "processes": world.processes(),
            "mode": world.mode(),
            "rounds": ROUNDS,
            "samples": args.output.samples,
            "us_per_round": own.0.median,
            "cpu_us_per_round": own.1.median,
            "std_us_per_round": std.map(|(wall, _)| wall.median),
            "mpi_us_per_round": mpi_json(&mpi),
            "wall_us_per_round": own.0.to_json(),
            "std_wall_us_per_round": std.map(|(wall, _)| wall.to_json()),
        });
        line(json)
    } else {
        let mut rows = vec![("LSA barrier".to_owned(), own.0, Some(own.1))];
        rows.extend(std.map(|(wall, cpu)| ("std::sync::Barrier".to_owned(), wall, Some(cpu))));
        let found = mpi.iter().filter_map(|(name, figure)| Some((name, figure.as_ref().ok()?)));
        rows.extend(found.map(|(name, figure)| (format!("{name}: MPI_Barrier"), *figure, None)));
        let ranks = plural(world.ranks, "rank");
        let mut lines = vec![format!("{ranks} {}, barrier", world.describe())];
        lines.push(figures_table("us per round", &rows).to_string());
        for (name, why) in mpi.iter().filter_map(|(name, figure)| Some((name, figure.as_ref().err()?))) {
            lines.push(format!("{name}: not measured: {why}"));
        }
        lines.join("\n") + "\n"
    };
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

/// What one rank does.
pub(crate) fn rank(
    comm: Communicator,
    plan: &Plan,
    meeting: &Barrier,
    progress: &dyn Progress,
) -> anyhow::Result<RankSamples> {
    let lineup = LineUp::new(&comm)?;
    let mut meter = Meter::new(&comm, &lineup, progress);
    let dev_comm = comm.create_dev_comm(DevCommRequirements::new().lsa_barriers(1))?;
    for round in 0..WARM + plan.samples {
        meter.sample((round >= WARM).then_some(OWN), || {
            Ok(dev_comm.run(|kernel| {
                let mut session = kernel.barrier(0)?;
                (0..ROUNDS).try_for_each(|_| session.sync())
            })?)
        })?;
        if plan.threads > 0 {
            // It has no deadline, but nothing here can keep a thread from it.
            meter.sample((round >= WARM).then_some(STD), || {
                for _ in 0..ROUNDS {
                    meeting.wait();
                }
                Ok(())
            })?;
        }
    }
    let told = RankSamples {
        rank: comm.rank().get(),
        device: comm.device().name.clone(),
        series: meter.end(),
        ..RankSamples::default()
    };
    drop(dev_comm);
    lineup.end()?;
    comm.finalize()?;
    Ok(told)
}

const OWN: &str = "lsa";
const STD: &str = "std";
/// Rounds of a sample.
const ROUNDS: u32 = 200;
/// Samples that nobody counts, of each barrier.
const WARM: u32 = 2;
