//! `symwin bench`: the library's work measured beside what else there is, in the same run.
//!
//! Every benchmark lets all ranks take samples together ([`meter`]); a sample lasts from the first rank's begin to the
//! last rank's end. What is compared takes turns, sample by sample.

mod allreduce;
mod barrier;
pub(crate) mod cli;
mod clock;
mod foreign;
mod gpu;
mod lineup;
mod lookup;
mod mesh;
mod meter;
mod mpi;
mod output;
mod plain;
mod pool;
mod raw;
mod register;
mod stats;
mod steps;
mod syscalls;

use std::env;
use std::io::{self, ErrorKind};
use std::sync::Barrier;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symwin::{Communicator, Config};

use self::cli::BenchCommand;
use self::meter::RankSamples;
use crate::backend::Device;
use crate::child::Work;
use crate::errors::{RankError, combine};
use crate::phases::Phase;
use crate::progress::Progress;
use crate::run::SILENCE;
use crate::{spawn, threads};

/// What the ranks measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    AllReduce(allreduce::Plan),
    Barrier(barrier::Plan),
    Gpu(gpu::Plan),
    Register(register::Plan),
}

impl Job {
    /// How many threads come to a barrier of the standard library.
    fn threads_that_meet(&self) -> usize {
        if let Self::Barrier(plan) = self { plan.threads() } else { 0 }
    }
}

pub(crate) fn run(command: &BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Allreduce(args) => allreduce::run(args),
        BenchCommand::Barrier(args) => barrier::run(args),
        BenchCommand::Lookup(args) => lookup::run(args),
        BenchCommand::Register(args) => register::run(args),
    }
}

/// Lets all ranks of this process measure. What they say is by rank.
pub(crate) fn ranks(
    device: Device,
    make: impl FnOnce(&Config) -> symwin::Result<Vec<Communicator>>,
    job: &Job,
    progress: &dyn Progress,
) -> Result<Vec<RankSamples>, Vec<RankError>> {
    if env::var_os("SYMWIN_LOG").is_none() {
        steps::install();
    }
    let shared = register::Shared::default();
    let meeting = Barrier::new(job.threads_that_meet());
    threads::run(device, make, |comm, _: Duration| {
        let rank = comm.rank().get();
        let samples = match job {
            Job::AllReduce(plan) => allreduce::rank(comm, plan, progress),
            Job::Barrier(plan) => barrier::rank(comm, plan, &meeting, progress),
            Job::Gpu(plan) => gpu::rank(comm, plan, progress),
            Job::Register(plan) => register::rank(comm, plan, &shared, progress),
        };
        samples.map_err(|error| {
            let told = RankError::new(Some(rank), Phase::Measure, &error);
            // A peer that is gone says itself why.
            let is_echo = error.downcast_ref().is_some_and(|error: &io::Error| LOST.contains(&error.kind()));
            RankError { echo: told.echo || is_echo, ..told }
        })
    })
}

/// How many samples each launch of the ranks takes: a launch may be lucky with its processors and its addresses.
fn launches(samples: u32) -> Vec<u32> {
    let each = samples.div_ceil(LAUNCHES);
    (0..samples).step_by(each as usize).map(|first| each.min(samples - first)).collect()
}

/// Where the ranks of a benchmark are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    pub(crate) ranks: u32,
    /// `None` for threads of this process.
    pub(crate) ranks_per_process: Option<u32>,
    pub(crate) device: Device,
    /// Whether threads count as processes of their own.
    pub(crate) apart: bool,
}

impl World {
    pub(crate) fn processes(&self) -> u32 {
        self.ranks_per_process.map_or(1, |each| self.ranks.div_ceil(each))
    }

    /// As in the report of a run.
    pub(crate) fn mode(&self) -> &'static str {
        match self.ranks_per_process {
            Some(1) => "processes",
            Some(_) if self.processes() > 1 => "mixed",
            _ => "threads",
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        match (self.processes(), self.apart) {
            (1, true) => "as threads, each mapping for itself".to_owned(),
            (1, false) => "as threads".to_owned(),
            (processes, _) => format!("in {processes} processes"),
        }
    }

    /// Lets all ranks measure.
    pub(crate) fn measure(&self, job: &Job, progress: &dyn Progress) -> anyhow::Result<Vec<RankSamples>> {
        let Self { ranks: count, ranks_per_process, device, apart } = *self;
        let Some(each) = ranks_per_process else {
            let make = |config: &Config| {
                if apart {
                    return Communicator::in_processes_with(&vec![1; count as usize], config);
                }
                Communicator::in_process_with(count, config)
            };
            return ranks(device, make, job, progress).map_err(|errors| combine(&[], errors));
        };
        spawn::run(Work::Bench { device, job: job.clone() }, count, each, SILENCE, progress)
    }
}

const LAUNCHES: u32 = 3;
/// What a rank sees of a peer that is gone.
const LOST: [ErrorKind; 3] = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];

#[cfg(test)]
mod tests {
    use super::launches;

    #[test]
    fn launches_take_all_samples_together() {
        assert_eq!(launches(15), [5, 5, 5]);
        assert_eq!(launches(4), [2, 2]);
        assert_eq!(launches(1), [1]);
    }
}
