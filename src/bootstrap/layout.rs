//! Which ranks are in which process.

use std::ops::Range;

use crate::error::{Misuse, Result};
use crate::ids::{ProcessId, Rank};

/// How many ranks each process has. Ranks are numbered process after process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    counts: Vec<u32>,
    /// `firsts[p]..firsts[p + 1]` are the ranks of process p.
    firsts: Vec<u32>,
}

impl Layout {
    /// # Errors
    /// `Misuse` for no process, too many, a process without a rank, or more ranks than 32 bits count.
    pub(crate) fn new(counts: &[u32]) -> Result<Self> {
        let refuse = |why: &str| {
            let (name, value) = ("layout".to_owned(), format!("{counts:?}"));
            Err(Misuse::BadSetting { name, value, why: why.to_owned() }.into())
        };
        if counts.is_empty() || counts.len() > PROCESSES_MAX {
            return refuse("there are 1 to 4096 processes");
        }
        if counts.contains(&0) {
            return refuse("every process has at least one rank");
        }
        let mut firsts = vec![0_u32];
        for (process, count) in counts.iter().enumerate() {
            let Some(next) = firsts[process].checked_add(*count) else {
                return refuse("there are at most 2^32 - 1 ranks");
            };
            firsts.push(next);
        }
        Ok(Self { counts: counts.to_vec(), firsts })
    }

    pub(crate) fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessId> + use<> {
        (0_u32..).take(self.counts.len()).map(ProcessId::new)
    }

    pub(crate) fn contains(&self, process: ProcessId) -> bool {
        process.index() < self.counts.len()
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.firsts[self.counts.len()]
    }

    /// The ranks of a process that is in the layout.
    pub(crate) fn ranks(&self, process: ProcessId) -> Range<u32> {
        self.firsts[process.index()]..self.firsts[process.index() + 1]
    }

    /// `None` for a rank that is not in the world.
    pub(crate) fn process_of(&self, rank: Rank) -> Option<ProcessId> {
        let after = self.firsts.partition_point(|&first| first <= rank.get());
        let process = u32::try_from(after).ok()?.checked_sub(1).map(ProcessId::new)?;
        self.contains(process).then_some(process)
    }

    /// "process 2 (ranks 3 to 5)", for messages.
    pub(crate) fn describe(&self, process: ProcessId) -> String {
        if !self.contains(process) {
            return process.to_string();
        }
        let Range { start, end } = self.ranks(process);
        match end - start {
            1 => format!("{process} (rank {start})"),
            _ => format!("{process} (ranks {start} to {})", end - 1),
        }
    }
}

pub(crate) const PROCESSES_MAX: usize = 4_096;
