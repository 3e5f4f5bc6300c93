//! Faults: which may happen, drawn from the seed for each run, and what they do.

use std::fmt;
use std::str::FromStr;
use std::sync::Weak;
use std::time::Duration;

use super::engine::Engine;
use super::policy::Chooser;
use super::random::{mix, mix_bytes};
use super::world::PROCESSES_MAX;
use crate::comm::Shared;
use crate::driver::Call;
use crate::error::{Error, Misuse, Result};

bitflags::bitflags! {
    /// Kinds of faults that a run may have. Which of them it has, when and where, is drawn from its seed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Faults: u32 {
        /// A rank aborts a communicator at some step.
        const ABORT = 1;
        /// Frames are damaged or cut short.
        const CORRUPT = 1 << 1;
        /// The connection between two processes breaks at some step.
        const CUT = 1 << 2;
        /// Time jumps to the next deadline at some step, though others can still run.
        const DEADLINE = 1 << 3;
        /// Frames take their time.
        const DELAY = 1 << 4;
        /// A device call fails.
        const DRIVER = 1 << 5;
        /// An actor is shut down at some step, its job with it, wherever that waits.
        const DROP = 1 << 6;
        /// A process is killed at some step.
        const KILL = 1 << 7;
        /// One of the world's programs begins late.
        const LATE = 1 << 8;
        /// Some processes do not hear of the others for a while.
        const PARTITION = 1 << 9;
        /// Everything that one process sends takes long.
        const SLOW = 1 << 10;
    }
}

/// Their names on the command line, in alphabetical order.
const NAMES: [(&str, Faults); 11] = [
    ("abort", Faults::ABORT),
    ("corrupt", Faults::CORRUPT),
    ("cut", Faults::CUT),
    ("deadline", Faults::DEADLINE),
    ("delay", Faults::DELAY),
    ("driver", Faults::DRIVER),
    ("drop", Faults::DROP),
    ("kill", Faults::KILL),
    ("late", Faults::LATE),
    ("partition", Faults::PARTITION),
    ("slow", Faults::SLOW),
];

impl FromStr for Faults {
    type Err = Error;

    /// Names with commas between them, or `all`, or `none`.
    fn from_str(text: &str) -> Result<Self> {
        let mut faults = Self::empty();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "none") {
            let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, fault)| *fault);
            let Some(fault) = found.or_else(|| (name == "all").then(Self::all)) else {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                let why = format!("`all`, `none`, or some of {}", names.join(", "));
                return Err(
                    Misuse::BadSetting { name: "faults".to_owned(), value: name.to_owned(), why }.into()
                );
            };
            faults |= fault;
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        if *self == Self::all() {
            return f.write_str("all");
        }
        let names = NAMES.iter().filter(|(_, fault)| self.contains(*fault)).map(|(name, _)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// Something that happens at a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A communicator of this number, modulo how many there are, is aborted.
    Abort(usize),
    Cut(usize, usize),
    /// An actor of a communicator of this number, modulo how many there are, is shut down.
    Drop(usize),
    Hasten,
    Heal(Vec<usize>),
    Kill(usize),
    Partition(Vec<usize>),
}

/// What one run's faults are.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What happens at which step, the next one last.
    at: Vec<(u64, Fault)>,
    /// One in so many frames is delayed.
    delay_one_in: Option<u64>,
    /// All that this process sends is delayed.
    slow: Option<usize>,
    /// One in so many frames is damaged.
    damage_one_in: Option<u64>,
    /// The device of this process fails this call of this kind.
    pub(super) driver: Vec<(usize, Call, u64)>,
    /// The program of this number, as they are started, begins so late: that of a rank where each rank has one.
    late: Option<(usize, Duration)>,
    /// How many programs were started.
    programs: usize,
    /// The communicators of the world, for those that faults pick.
    pub(super) comms: Vec<Weak<Shared>>,
    /// Some of it is more than a delay.
    pub(super) may_fail: bool,
    /// What was drawn, in words.
    pub(super) drawn: Vec<String>,
}

impl Plan {
    /// Draws a plan for a world of so many processes and ranks. `steps` is about how many steps a run has.
    pub(super) fn draw(
        faults: Faults,
        chooser: &mut Chooser,
        processes: usize,
        ranks: usize,
        steps: u64,
    ) -> Self {
        let mut plan = Self::default();
        let mut at = Vec::new();
        let processes = (processes as u64).clamp(1, PROCESSES_MAX.into());
        for (name, fault) in NAMES {
            // A run has some of them: a run with all would always die early.
            if !faults.contains(fault) || chooser.draw(4) != 0 {
                continue;
            }
            let step = chooser.draw(steps.max(1));
            let Some(told) = plan.draw_one(fault, step, steps, (processes, ranks as u64), chooser, &mut at)
            else {
                continue;
            };
            plan.may_fail |= !(Faults::DELAY | Faults::SLOW).contains(fault);
            plan.drawn.push(if told.is_empty() { name.to_owned() } else { format!("{name} {told}") });
        }
        // Stable: a partition comes before its end.
        at.sort_by_key(|(step, _)| *step);
        at.reverse();
        plan.at = at;
        plan
    }

    /// Draws one fault of a kind. What it is, in words; nothing if none came of it.
    fn draw_one(
        &mut self,
        fault: Faults,
        step: u64,
        steps: u64,
        (processes, ranks): (u64, u64),
        chooser: &mut Chooser,
        at: &mut Vec<(u64, Fault)>,
    ) -> Option<String> {
        let pick = |chooser: &mut Chooser, of: u64| usize::try_from(chooser.draw(of)).unwrap_or(0);
        Some(match fault {
            Faults::ABORT => {
                at.push((step, Fault::Abort(pick(chooser, 64))));
                format!("at step {step}")
            }
            Faults::CORRUPT => {
                self.damage_one_in = Some(2 + chooser.draw(100));
                String::new()
            }
            Faults::CUT => {
                let (a, b) = (pick(chooser, processes), pick(chooser, processes));
                if a == b {
                    return None;
                }
                at.push((step, Fault::Cut(a, b)));
                format!("between processes {a} and {b} at step {step}")
            }
            Faults::DEADLINE => {
                at.push((step, Fault::Hasten));
                format!("at step {step}")
            }
            Faults::DELAY => {
                self.delay_one_in = Some(1 + chooser.draw(8));
                String::new()
            }
            Faults::DRIVER => {
                let process = pick(chooser, processes);
                let call = Call::ALL[pick(chooser, Call::ALL.len() as u64)];
                let nth = 1 + chooser.draw(12);
                self.driver.push((process, call, nth));
                format!("call {nth} of {call} in process {process}")
            }
            Faults::DROP => {
                at.push((step, Fault::Drop(pick(chooser, 64))));
                format!("at step {step}")
            }
            Faults::KILL => {
                let process = pick(chooser, processes);
                at.push((step, Fault::Kill(process)));
                format!("process {process} at step {step}")
            }
            Faults::LATE => {
                let rank = pick(chooser, ranks.max(1));
                let after = Duration::from_millis(1 + chooser.draw(90_000));
                self.late = Some((rank, after));
                format!("rank {rank} by {after:?}")
            }
            Faults::PARTITION => {
                let members = chooser.draw(1 << processes.min(16));
                let group: Vec<usize> = (0..usize::try_from(processes).unwrap_or(0))
                    .filter(|p| members >> (p % 16) & 1 == 1)
                    .collect();
                let heal = step + chooser.draw(steps.max(1));
                let told = format!("of processes {group:?} from step {step} to {heal}");
                at.push((step, Fault::Partition(group.clone())));
                at.push((heal, Fault::Heal(group)));
                told
            }
            Faults::SLOW => {
                let process = pick(chooser, processes);
                self.slow = Some(process);
                format!("process {process}")
            }
            _ => return None,
        })
    }

    /// How late the next program begins.
    pub(super) fn next_late(&mut self) -> Duration {
        let number = self.programs;
        self.programs += 1;
        self.late.filter(|(who, _)| *who == number).map_or(Duration::ZERO, |(_, after)| after)
    }

    /// What may still come of it, for who tells states apart.
    pub(super) fn print(&self, steps: u64, digest: u64) -> u64 {
        let odds = [self.delay_one_in, self.damage_one_in, self.slow.map(|process| process as u64)];
        let print = odds.into_iter().map(|odds| odds.map_or(0, |odds| odds + 1)).fold(0, mix);
        let print = self.at.iter().fold(print, |print, (at, fault)| {
            mix(mix(print, at.saturating_sub(steps)), mix_bytes(0, format!("{fault:?}").as_bytes()))
        });
        // How many calls a device has seen is part of no state: such a run equals no other.
        if self.driver.is_empty() { print } else { mix(print, digest) }
    }

    /// The fault whose step has come.
    pub(super) fn due(&mut self, step: u64) -> Option<Fault> {
        if self.at.last().is_some_and(|(at, _)| *at <= step) {
            self.at.pop().map(|(_, fault)| fault)
        } else {
            None
        }
    }

    /// Partitions end, however few steps there were.
    pub(super) fn heals(&mut self) -> Vec<Vec<usize>> {
        let heals = self.at.drain(..).filter_map(|(_, fault)| match fault {
            Fault::Heal(group) => Some(group),
            _ => None,
        });
        heals.collect()
    }

    /// How long a frame of this process is on its way.
    pub(super) fn delay(&self, chooser: &mut Chooser, from: usize) -> Duration {
        let slow = if self.slow == Some(from) {
            Duration::from_millis(20 + chooser.draw(200))
        } else {
            Duration::ZERO
        };
        match self.delay_one_in {
            Some(of) if chooser.draw(of) == 0 => slow + Duration::from_micros(1 + chooser.draw(5_000)),
            _ => slow,
        }
    }

    /// Damages a frame, now and then. Says whether it did.
    pub(super) fn damage(&self, chooser: &mut Chooser, bytes: &mut Vec<u8>) -> bool {
        let Some(of) = self.damage_one_in else { return false };
        if chooser.draw(of) != 0 || bytes.is_empty() {
            return false;
        }
        let index = usize::try_from(chooser.draw(bytes.len() as u64)).unwrap_or(0);
        if chooser.draw(2) == 0 {
            bytes[index] ^= 1 << chooser.draw(8);
        } else {
            bytes.truncate(index);
        }
        true
    }

    fn comm(&self, number: usize) -> Option<Weak<Shared>> {
        let living: Vec<&Weak<Shared>> = self.comms.iter().filter(|comm| comm.strong_count() > 0).collect();
        living.get(number % living.len().max(1)).map(|comm| Weak::clone(comm))
    }
}

impl Fault {
    /// Lets it happen.
    pub(super) fn strike(self, engine: &Engine) {
        tracing::info!(fault = ?self, "sim.fault");
        let comm = |number| engine.state().plan.comm(number).and_then(|comm| comm.upgrade());
        match self {
            Self::Abort(number) => {
                if let Some(comm) = comm(number) {
                    comm.abort("the simulation aborts it");
                }
            }
            Self::Cut(a, b) => engine.sever(a, b),
            Self::Drop(number) => {
                if let Some(comm) = comm(number) {
                    comm.shut_down();
                }
            }
            Self::Hasten => engine.hasten(),
            Self::Heal(group) => engine.hold(&group, false),
            Self::Kill(process) => engine.kill(process),
            Self::Partition(group) => engine.hold(&group, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::policy::Policy;

    #[test]
    fn names_are_read_as_they_are_written() {
        for faults in [Faults::empty(), Faults::all(), Faults::KILL | Faults::DRIVER] {
            assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults);
        }
        assert_eq!(" kill, cut ,".parse::<Faults>().unwrap(), Faults::KILL | Faults::CUT);
        let error = "kill,flood".parse::<Faults>().unwrap_err().to_string();
        assert!(error.contains("flood") && error.contains("partition"), "{error}");
    }

    #[test]
    fn plans_come_from_the_seed_and_differ() {
        let plan = |run| {
            let mut chooser = Policy::random(9).chooser(run, 0);
            Plan::draw(Faults::all(), &mut chooser, 4, 8, 100).drawn
        };
        let plans: Vec<_> = (0..100).map(plan).collect();
        assert_eq!(plans, (0..100).map(plan).collect::<Vec<_>>());
        for (name, _) in NAMES {
            assert!(plans.iter().flatten().any(|told| told.starts_with(name)), "{name} in none of 100 plans");
        }
        assert!(plans.iter().any(Vec::is_empty), "some runs are without faults");
    }
}
