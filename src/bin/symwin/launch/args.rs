//! The command line of `symwin launch`, and of the hidden commands that it uses.

use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::processes::Ranks;

#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    /// How many ranks there are in all
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: u32,

    /// How many ranks each process has, fewer in the last
    #[arg(
        long,
        value_name = "K",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX)
    )]
    ranks_per_process: u32,

    /// Leave the output as it is: no rank before each line, and lines of several processes may mix
    #[arg(long)]
    pub(super) no_prefix: bool,

    /// How long processes may take to end on SIGTERM before they are killed, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub(super) grace: Duration,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// The supervisor's: what to launch and for whom.
#[derive(Args, Debug)]
pub(crate) struct SuperviseArgs {
    #[arg(long)]
    pub(super) parent: u32,
    #[command(flatten)]
    pub(super) launch: LaunchArgs,
}

/// Those of a process on its way to become the program.
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    #[arg(long)]
    pub(super) parent: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) program: Vec<OsString>,
}

impl LaunchArgs {
    /// The ranks in all, and how many of them each process has.
    pub(super) fn ranks(&self) -> (u32, u32) {
        (self.ranks, self.ranks_per_process)
    }

    /// The ranks of each process.
    pub(super) fn processes(&self) -> impl ExactSizeIterator<Item = Ranks> {
        Ranks::divide(self.ranks, self.ranks_per_process)
    }

    pub(super) fn program(&self) -> &OsStr {
        &self.program[0]
    }

    pub(super) fn program_and_arguments(&self) -> &[OsString] {
        &self.program
    }

    /// The same as arguments of [`SuperviseArgs`].
    pub(super) fn to_command(&self, mut command: Command, parent: u32) -> Command {
        command.args(["--parent", &parent.to_string(), "--ranks", &self.ranks.to_string()]);
        command.args(["--ranks-per-process", &self.ranks_per_process.to_string()]);
        command.args(["--grace", &self.grace.as_secs_f64().to_string()]);
        command.args(self.no_prefix.then_some("--no-prefix")).arg("--").args(&self.program);
        command
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("a number of seconds from 0 to {SECONDS_MAX}"))
}

/// As many processes as the bootstrap connects.
const RANKS_MAX: i64 = 4096;

/// Longer than anybody waits, and short enough to be added to any time.
const SECONDS_MAX: f64 = 1e6;

pub(crate) const EXAMPLES: &str = "\
Examples:
  symwin launch -n 4 -- ./train --steps 100
  symwin launch -n 8 --ranks-per-process 4 -- ./train    2 processes
  symwin launch -n 2 -- sh -c 'echo I am rank $RANK of $WORLD_SIZE'

Environment of each process:
  RANK                     its rank, the first if it has several
  WORLD_SIZE               how many ranks there are in all
  LOCAL_RANK               which process of this host it is, from 0
  LOCAL_WORLD_SIZE         how many processes this host has
  SYMWIN_RANKS_PER_PROCESS, SYMWIN_RENDEZVOUS
                           what `Communicator::ranks_from_env` needs besides

Standard input goes to the first process, unless it is a terminal: no process
reads from that. Each process has its own process group, without a terminal.

SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on to every
process group, those apart that were ignored when this program started; a
second SIGINT (Ctrl-C) kills. SIGTSTP (Ctrl-Z) stops all, SIGCONT continues.

When a process fails, the others get SIGTERM and, after the grace, SIGKILL.
What processes have left running is killed in the end, and everything is if
the launcher itself is killed. Only if its second process (`supervise`) is
killed at the same moment, what the program has started in turn can stay.

Exit status:
  0        all processes ended with 0
  1        the launcher itself had a problem
  2        the command line is not valid
  126      the program cannot be executed
  127      the program was not found
  128 + S  the process that failed first was killed by signal S
  other    the exit status of the process that failed first";
