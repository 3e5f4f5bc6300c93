//! The command line: what there is to say, and what is refused before anything starts.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use symwin::coll::{DType, ReduceOp};

use crate::backend::DeviceArgs;
use crate::bench::cli::BenchCommand;
use crate::launch;
use crate::sim;
use crate::size::parse_bytes;

/// Symmetric memory windows over all ranks, with and without GPUs.
///
/// symwin maps one buffer of every rank side by side into one range of addresses, so that code on any rank loads and
/// stores any peer's memory. This program runs the library's main job and checks it, and launches other programs as
/// processes of ranks.
#[derive(Debug, Parser)]
#[command(name = "symwin", version, after_help = "Start with: symwin run", after_long_help = ENVIRONMENT)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start ranks, register windows, all-reduce them and check every element.
    ///
    /// Every rank allocates its buffers, fills them with a pattern, registers all windows and one device communicator
    /// in one group, all-reduces every window in place, checks every element of the result, and gives everything back.
    /// It then says what each phase took.
    ///
    /// With --input, each rank's window holds the array of its own .npy file instead (f2, f4, f8, i4, i8 or u1 of
    /// either byte order, any shape), and the reduction over all files goes to --output: same shape, type and order.
    /// A file that cannot be used is an error, and the output is then left as it was.
    #[command(after_long_help = EXAMPLES)]
    Run(Box<RunArgs>),
    /// Measure, beside what else there is, in the same run.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Start a program once for each rank, or for each few ranks, and see all processes end.
    ///
    /// Every line that a process prints comes with its rank before it. When one process fails, the others are ended,
    /// and standard error says which failed first and how. Nothing that the program has started outlives this.
    #[command(after_long_help = launch::EXAMPLES)]
    Launch(launch::LaunchArgs),
    /// Explore symwin itself: many ranks in one process, under a scheduler that decides everything.
    ///
    /// Every rank drives several communicators in an order of its own and checks what it gets. Which step comes next, how
    /// long messages take, what fails and when comes from the seed. After every run all ranks must have agreed, nothing
    /// may be left, nobody may be stuck. A run that fails is told as a story, with the line that replays it.
    #[command(after_long_help = sim::EXAMPLES)]
    Sim(Box<sim::SimArgs>),
    /// One process of `--procs`. Takes its job from standard input.
    #[command(hide = true)]
    Child,
    /// The process of `symwin launch` that starts the others and waits for them.
    #[command(hide = true)]
    Supervise(launch::SuperviseArgs),
    /// A process of `symwin launch` that is about to be the program.
    #[command(hide = true)]
    ExecRank(launch::ExecArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// How many ranks there are [default: 4; with --input one for each file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    #[command(flatten)]
    place: Place,

    /// How many windows every rank registers [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "input")]
    windows: Option<u32>,

    /// The size of each window, such as 4MiB, 64K (KiB), 2GB (10^9) or 1_000_000; a multiple of 4 [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "input")]
    bytes: Option<u64>,

    /// How elements are combined; a mean of integers is truncated toward zero
    #[arg(long, value_name = "OP", default_value = "sum")]
    op: Op,

    /// One .npy file for each rank
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "output")]
    pub(crate) input: Vec<PathBuf>,

    /// Where the reduction of the --input files goes; replaced as a whole, or not at all
    #[arg(long, value_name = "FILE", requires = "input")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Print one JSON object instead of the table, and no progress bar
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    pub(crate) fn op(&self) -> ReduceOp {
        match self.op {
            Op::Sum => ReduceOp::Sum,
            Op::Mean => ReduceOp::Mean,
            Op::Min => ReduceOp::Min,
            Op::Max => ReduceOp::Max,
        }
    }

    /// How many ranks; ends the program if that contradicts the files.
    pub(crate) fn ranks(&self) -> u32 {
        if self.input.is_empty() {
            return self.ranks.unwrap_or(4);
        }
        let files = u32::try_from(self.input.len()).unwrap_or(u32::MAX);
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks != files) {
            let what = format!("--ranks {ranks} with {files} --input files: there is one rank for each file");
            refuse(ErrorKind::ArgumentConflict, &what);
        }
        files
    }

    /// As [`Place::ranks_per_process`].
    pub(crate) fn ranks_per_process(&self) -> Option<u32> {
        self.place.ranks_per_process(self.ranks())
    }

    /// How many windows.
    pub(crate) fn windows(&self) -> u32 {
        self.windows.unwrap_or(8)
    }

    /// The size of each window in bytes; ends the program if it is not one of whole elements.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.bytes.unwrap_or(4 << 20);
        let element = DType::F32.size_bytes() as u64;
        if bytes == 0 || !bytes.is_multiple_of(element) {
            let what =
                format!("--bytes {bytes} is no positive multiple of {element}, the size of one f32 element");
            refuse(ErrorKind::ValueValidation, &what);
        }
        bytes
    }
}

/// Where the ranks are.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Run the ranks as N processes of equally many ranks, the last one perhaps of fewer [default N: one for each rank]
    #[arg(long, value_name = "N", num_args = 0..=1, value_parser = clap::value_parser!(u32).range(1..))]
    #[allow(clippy::option_option, reason = "no flag, the flag alone, the flag with a number")]
    procs: Option<Option<u32>>,

    /// Run the ranks as threads of this process; so it is without --procs
    #[arg(long, conflicts_with = "procs")]
    threads: bool,
}

impl Place {
    /// How many ranks each process has, `None` for threads of this one; ends the program if there is no such
    /// division.
    pub(crate) fn ranks_per_process(&self, ranks: u32) -> Option<u32> {
        let procs = self.procs?.unwrap_or(ranks);
        let each = ranks.div_ceil(procs);
        if procs > ranks {
            let what = format!("--procs {procs} is more than the {ranks} ranks");
            refuse(ErrorKind::ValueValidation, &what);
        }
        let needed = ranks.div_ceil(each);
        if needed != procs {
            let what = format!(
                "--procs {procs} does not divide {ranks} ranks: with {each} ranks in a process there are {needed} \
                 processes"
            );
            refuse(ErrorKind::ValueValidation, &what);
        }
        Some(each)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Op {
    Sum,
    Mean,
    Min,
    Max,
}

/// A usage error, as clap makes them: status 2.
pub(crate) fn refuse(kind: ErrorKind, what: &str) -> ! {
    Cli::command().error(kind, what).exit()
}

const EXAMPLES: &str = "\
Examples:
  symwin run                               4 ranks as threads, 8 windows of 4 MiB
  symwin run --ranks 8 --procs 2           2 processes of 4 ranks each
  symwin run --procs --windows 64 --json   a process for each rank, JSON
  symwin run --ranks 8 --backend cuda      the ranks spread over the GPUs
  symwin run --op mean --input r0.npy r1.npy --output mean.npy

Exit status:
  0  everything was checked and is right
  1  something went wrong; standard error says which rank, what, why and what
     to do
  2  the command line is not valid

`symwin --help` lists the environment variables.";

const ENVIRONMENT: &str = "\
Environment:
  SYMWIN_STRIDE              bytes from one rank's part of the address range
                             to the next [default: the largest memory of any
                             rank's device]
  SYMWIN_LSA_TEAM_SIZE       how many consecutive ranks reach each other's
                             memory; each such team reduces by itself
                             [default: all ranks of the host]
  SYMWIN_DEADLINE            the longest that one operation may take, in
                             seconds [default: 60]
  SYMWIN_BOOTSTRAP_DEADLINE  the longest that ranks may take to find each
                             other, in seconds [default: 120]
  SYMWIN_WORKERS             threads that run a process's communicators
                             [default: the machine's cores]
  SYMWIN_LOG                 what is logged to standard error, such as
                             `symwin=debug` [default: nothing]

The program raises its limit of open descriptors (`ulimit -n`) to the hard
limit when it starts.";
