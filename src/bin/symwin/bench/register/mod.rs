//! `symwin bench register`: what it takes until every rank may use every window.

mod floor;
mod protocol;
mod rank;
mod report;

use std::io::{self, Write};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::cli::{Maps, RegisterArgs};
use super::meter::{self, RankSamples};
use super::mpi::{Mpi, MpiSamples, Mpis};
use super::stats::Series;
use super::syscalls::{self, Counts};
use super::{Job, World, launches};
use crate::processes::rendezvous;
use crate::progress::Bar;
use crate::report::devices;
use crate::size::show_bytes;

pub(crate) use self::rank::{Shared, run as rank};
use self::report::Report;

/// What every rank does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    windows: u32,
    /// Of each window.
    bytes: u64,
    arena: bool,
    /// Whether every sample has new allocations, and ranks line up by messages: as with GPUs.
    fresh: bool,
    /// What is measured, in turns.
    variants: Vec<Variant>,
    samples: u32,
    /// How many more samples of symwin's are taken whose steps are recorded.
    steps: u32,
    /// Whether ranks show strace where samples begin and end.
    marks: bool,
    /// By which the ranks' sockets for the baselines find each other.
    mesh: String,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Variant {
    /// The system calls that a registration cannot do without, one mapping for each rank in each process.
    Bare,
    /// The same, one mapping for each rank in each rank.
    BareEach,
    /// The reference's protocol with deduplication.
    Dedup,
    /// The calls of the bare driver, by so many threads in each process.
    Floor1,
    Floor4,
    Floor16,
    /// What taking a sample takes.
    Nothing,
    /// The reference's protocol.
    Protocol,
    Symwin,
}

impl Variant {
    /// All of them, as they are shown.
    pub(crate) const ALL: [Self; 9] = [
        Self::Bare,
        Self::BareEach,
        Self::Floor1,
        Self::Floor4,
        Self::Floor16,
        Self::Symwin,
        Self::Protocol,
        Self::Dedup,
        Self::Nothing,
    ];
    /// The bare driver. Between processes more threads make it slower.
    const FLOORS: [Self; 3] = [Self::Floor1, Self::Floor4, Self::Floor16];

    /// How many threads each process has for the bare driver's calls.
    const fn threads(self) -> usize {
        match self {
            Self::Floor4 => 4,
            Self::Floor16 => 16,
            _ => 1,
        }
    }

    /// Its name for people.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Bare => "bare calls",
            Self::BareEach => "bare calls, ranks x ranks maps",
            Self::Dedup => "per-window protocol with dedup",
            Self::Floor1 => "bare driver, 1 thread",
            Self::Floor4 => "bare driver, 4 threads",
            Self::Floor16 => "bare driver, 16 threads",
            Self::Nothing => "nothing",
            Self::Protocol => "per-window protocol",
            Self::Symwin => "symwin",
        }
    }

    /// Its name among the samples.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::BareEach => "bare_each",
            Self::Dedup => "dedup",
            Self::Floor1 => "driver_1_thread",
            Self::Floor4 => "driver_4_threads",
            Self::Floor16 => "driver_16_threads",
            Self::Nothing => "nothing",
            Self::Protocol => "protocol",
            Self::Symwin => "symwin",
        }
    }
}

/// Everything of one number of windows.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// By rank, of every launch after each other.
    pub(crate) ranks: Vec<Series>,
    pub(crate) rounds: Vec<u64>,
    pub(crate) steps: Vec<Vec<(String, u64)>>,
    /// What each MPI says.
    pub(crate) mpi: MpiSamples,
    /// Calls of one group.
    pub(crate) syscalls: Option<anyhow::Result<Counts>>,
    /// What the devices are called.
    pub(crate) devices: Vec<String>,
}

pub(crate) fn run(args: &RegisterArgs) -> anyhow::Result<()> {
    let world = args.world.world(args.maps == Maps::Each)?;
    let most = args.windows.iter().copied().max().unwrap_or(1);
    let each = args.bytes().checked_next_multiple_of(world.device.page_bytes());
    let what = |ranks| format!("{most} windows x {} x {ranks} ranks", show_bytes(args.bytes()));
    world.device.check_memory(what, world.ranks, each.and_then(|each| each.checked_mul(most.into())))?;
    if args.traced {
        syscalls::end_with_strace()?;
        let plan = Plan { marks: true, ..plan(args, vec![Variant::Symwin], most, args.output.samples)? };
        world.measure(&Job::Register(plan), &Bar::new(0, false))?;
        return Ok(());
    }
    // Its windows are host memory of its own making.
    let mpis = if args.floor() { Mpis::none() } else { args.mpi.find()? };
    let measured = measure(args, &world, &mpis)?;
    let reports = args.windows.iter().zip(measured);
    let reports = reports.map(|(windows, measured)| Report::new(args, &world, *windows, &measured, &mpis));
    let texts: Vec<String> =
        reports.map(|report| if args.output.json { report.to_json() } else { report.to_table() }).collect();
    io::stdout().write_all(texts.concat().as_bytes()).context("writing to standard output")
}

/// Everything, by number of windows. Launches of the ranks and of the MPIs take turns.
fn measure(args: &RegisterArgs, world: &World, mpis: &Mpis) -> anyhow::Result<Vec<Measured>> {
    let launches = launches(args.output.samples);
    let units: u64 = launches.iter().map(|samples| u64::from(samples + rank::WARM)).sum();
    let kinds = |windows: &u32| variants(args, world, *windows).0.len() as u64;
    let timed = units * args.windows.iter().map(kinds).sum::<u64>();
    let recorded = launches.len() as u64 * args.windows.len() as u64 * u64::from(STEPS + 1);
    let bar = Bar::new(timed + recorded, !args.output.json);
    let mut measured: Vec<Measured> = args.windows.iter().map(|_| Measured::default()).collect();
    for samples in launches {
        for (windows, measured) in args.windows.iter().zip(&mut measured) {
            let plan = plan(args, variants(args, world, *windows).0, *windows, samples)?;
            measured.add(world.measure(&Job::Register(plan), &bar)?);
            for mpi in &mpis.found {
                measured.add_mpi(mpi, world.ranks, *windows, args.bytes(), samples);
            }
        }
    }
    for (windows, measured) in args.windows.iter().zip(&mut measured) {
        measured.syscalls = Some(if args.floor() {
            // A device's driver calls the system as it likes.
            Err(anyhow::anyhow!("not asked for beside the bare driver"))
        } else {
            syscalls::count(traced(args, world, *windows), world.ranks)
        });
    }
    Ok(measured)
}

fn plan(args: &RegisterArgs, variants: Vec<Variant>, windows: u32, samples: u32) -> anyhow::Result<Plan> {
    let steps = if args.traced { 0 } else { STEPS };
    let (bytes, arena, fresh, mesh) = (args.bytes(), args.arena, args.floor(), rendezvous()?);
    Ok(Plan { windows, bytes, arena, fresh, variants, samples, steps, marks: false, mesh })
}

/// The arguments of a run whose calls are counted.
fn traced(args: &RegisterArgs, world: &World, windows: u32) -> Vec<String> {
    let numbers =
        [("--ranks", u64::from(world.ranks)), ("--windows", windows.into()), ("--bytes", args.bytes())];
    let mut traced = vec!["bench".to_owned(), "register".to_owned(), "--traced".to_owned()];
    traced.extend(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]));
    traced.extend(["--samples".to_owned(), "3".to_owned()]);
    if world.ranks_per_process.is_some() {
        traced.extend(["--procs".to_owned(), world.processes().to_string()]);
    }
    if world.apart {
        traced.extend(["--maps".to_owned(), "each".to_owned()]);
    }
    if args.arena {
        traced.push("--arena".to_owned());
    }
    traced
}

impl Measured {
    fn add_mpi(&mut self, mpi: &Mpi, ranks: u32, windows: u32, bytes: u64, samples: u32) {
        let args = ["windows".to_owned(), windows.to_string(), bytes.to_string(), samples.to_string()];
        mpi.add(&mut self.mpi, ranks, &args);
    }

    fn add(&mut self, mut told: Vec<RankSamples>) {
        for told in &mut told {
            self.rounds.append(&mut told.rounds);
            self.steps.append(&mut told.steps);
        }
        self.devices = devices(told.iter().map(|told| told.device.clone()));
        meter::add(&mut self.ranks, told);
    }
}

/// What is measured with so many windows, and whether some of it was left out for want of mappings.
pub(crate) fn variants(args: &RegisterArgs, world: &World, windows: u32) -> (Vec<Variant>, bool) {
    if args.floor() {
        let variants = [Variant::Nothing, Variant::Symwin].into_iter().chain(floors(world)).collect();
        return (variants, false);
    }
    let mut variants = vec![Variant::Nothing, Variant::Symwin, Variant::Bare];
    let ranks_here = world.ranks_per_process.unwrap_or(world.ranks);
    // Ranks that map for themselves: the windows of all ranks, in each rank of a process, beside its own buffers.
    let maps = u64::from(windows) * u64::from(ranks_here) * (u64::from(world.ranks) + 1) + MAPS_OF_OTHERS;
    if !args.arena && maps_max().is_some_and(|max| maps > max) {
        return (variants, true);
    }
    variants.push(Variant::Protocol);
    if world.ranks_per_process != Some(1) && !world.apart {
        variants.push(Variant::BareEach);
    }
    if args.arena {
        // Where each window has an allocation of its own, there is nothing to recognise.
        variants.push(Variant::Dedup);
    }
    (variants, false)
}

/// Between processes more threads than that only get in each other's way, and there are as many for each process.
fn floors(world: &World) -> impl Iterator<Item = Variant> {
    let most = if world.processes() > 1 { 4 } else { 16 };
    Variant::FLOORS.into_iter().filter(move |floor| floor.threads() <= most)
}

/// How many mappings the system allows a process.
fn maps_max() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

/// What a process maps for other reasons, and some more.
const MAPS_OF_OTHERS: u64 = 1000;
/// Of each launch.
const STEPS: u32 = 5;
