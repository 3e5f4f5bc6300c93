//! The phases of a run, and what each took.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a rank does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Bootstrap,
    Allocate,
    Fill,
    Register,
    AllReduce,
    Check,
    Write,
    Deregister,
    Finalize,
    /// A benchmark, all of it.
    Measure,
}

impl Phase {
    /// All of them, in order.
    pub(crate) const ALL: [Self; 10] = [
        Self::Bootstrap,
        Self::Allocate,
        Self::Fill,
        Self::Register,
        Self::AllReduce,
        Self::Check,
        Self::Write,
        Self::Deregister,
        Self::Finalize,
        Self::Measure,
    ];

    /// Its name in JSON.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Allocate => "allocate",
            Self::Fill => "fill",
            Self::Register => "register",
            Self::AllReduce => "all_reduce",
            Self::Check => "check",
            Self::Write => "write",
            Self::Deregister => "deregister",
            Self::Finalize => "finalize",
            Self::Measure => "measure",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AllReduce => "all-reduce",
            Self::Register => "register (group)",
            other => other.key(),
        })
    }
}

/// What one phase took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lap {
    pub(crate) phase: Phase,
    pub(crate) micros: u64,
    /// Rounds of messages between ranks, counted by the bootstrap.
    pub(crate) rounds: u64,
}

impl Lap {
    pub(crate) fn new(phase: Phase, took: Duration, rounds: u64) -> Self {
        Self { phase, micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX), rounds }
    }
}

/// Takes the times of one rank's phases.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    phase: Phase,
    began: Instant,
    rounds: u64,
    laps: Vec<Lap>,
}

impl Stopwatch {
    /// Begins with the phase after the bootstrap, which took so long and after which so many rounds were counted.
    pub(crate) fn start(bootstrap: Duration, rounds: u64) -> Self {
        let laps = vec![Lap::new(Phase::Bootstrap, bootstrap, rounds)];
        Self { phase: Phase::Allocate, began: Instant::now(), rounds, laps }
    }

    /// The phase that runs.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Ends the phase that runs, with so many rounds counted in all, and begins the next.
    pub(crate) fn next(&mut self, rounds: u64, phase: Phase) {
        self.lap(rounds);
        self.phase = phase;
    }

    /// Ends the last phase. A communicator that is gone counts no more rounds.
    pub(crate) fn end(mut self) -> Vec<Lap> {
        self.lap(self.rounds);
        self.laps
    }

    fn lap(&mut self, rounds: u64) {
        let now = Instant::now();
        self.laps.push(Lap::new(self.phase, now - self.began, rounds - self.rounds));
        self.began = now;
        self.rounds = rounds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopwatch_has_one_lap_for_each_phase_with_its_own_rounds() {
        let mut watch = Stopwatch::start(Duration::from_micros(7), 1);
        assert_eq!(watch.phase(), Phase::Allocate);
        watch.next(1, Phase::Register);
        watch.next(3, Phase::Finalize);
        let laps: Vec<_> = watch.end().iter().map(|lap| (lap.phase, lap.rounds)).collect();
        assert_eq!(
            laps,
            [(Phase::Bootstrap, 1), (Phase::Allocate, 0), (Phase::Register, 2), (Phase::Finalize, 0)]
        );
    }

    #[test]
    fn keys_are_what_serde_makes_of_the_names() {
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_string(&phase).unwrap(), format!("\"{}\"", phase.key()));
        }
    }
}
