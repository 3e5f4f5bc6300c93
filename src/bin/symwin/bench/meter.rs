//! One rank's measuring.

use serde::{Deserialize, Serialize};
use symwin::Communicator;

use super::clock;
use super::lineup::LineUp;
use super::stats::{Sample, Series};
use crate::phases::Phase;
use crate::progress::Progress;

/// What one rank has to say in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RankSamples {
    pub(crate) rank: u32,
    /// What its device is called.
    pub(crate) device: String,
    pub(crate) series: Series,
    /// Rounds of messages of each group, all of the same number.
    pub(crate) rounds: Vec<u64>,
    /// Nanoseconds of each step of a group, in order; one list for each sample.
    pub(crate) steps: Vec<Vec<(String, u64)>>,
}

/// Adds what the ranks of a launch have said to what those before them said, by rank.
pub(crate) fn add(all: &mut Vec<Series>, mut told: Vec<RankSamples>) {
    told.sort_by_key(|told| told.rank);
    all.resize_with(told.len(), Series::new);
    for (all, told) in all.iter_mut().zip(told) {
        for (name, samples) in told.series {
            all.entry(name).or_default().extend(samples);
        }
    }
}

/// Takes samples of one rank, together with all others.
pub(crate) struct Meter<'a> {
    lineup: &'a LineUp,
    progress: &'a dyn Progress,
    /// Whether this rank tells what its process takes of the processors.
    leads: bool,
    /// Whether this rank tells of progress.
    tells: bool,
    series: Series,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(comm: &Communicator, lineup: &'a LineUp, progress: &'a dyn Progress) -> Self {
        let pid = std::process::id();
        let first = comm.peers().iter().find(|peer| peer.pid == pid);
        let leads = first.is_none_or(|first| first.rank == comm.rank());
        Self { lineup, progress, leads, tells: comm.rank().get() == 0, series: Series::new() }
    }

    /// Runs a part of a sample: all ranks begin together, and none goes on before all have ended. Kept under `name`,
    /// if it has one: those before caches are warm have none.
    pub(crate) fn sample<T>(
        &mut self,
        name: Option<&str>,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.lineup.wait()?;
        let taken = if self.leads { clock::cpu() } else { 0 };
        self.lineup.wait()?;
        let begin = clock::now();
        let result = work()?;
        let end = clock::now();
        self.lineup.wait()?;
        let cpu = if self.leads { clock::cpu() - taken } else { 0 };
        if let Some(name) = name {
            self.series.entry(name.to_owned()).or_default().push(Sample { begin, end, cpu });
        }
        if self.tells {
            self.progress.tell(Phase::Measure, 1);
        }
        Ok(result)
    }

    /// The latest sample of a name.
    pub(crate) fn last(&self, name: &str) -> Option<Sample> {
        self.series.get(name)?.last().copied()
    }

    pub(crate) fn end(self) -> Series {
        self.series
    }
}
