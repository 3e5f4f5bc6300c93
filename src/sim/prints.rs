//! Fingerprints of states, so that a search does not explore a state twice.
//!
//! Actors, what waits for them and what links carry are hashed as they are: [`Actor::fingerprint`]. What a program will do
//! cannot be seen; it is told by how it came about: the steps it has made, and before which of them each gate of its own
//! was open. A program may say where it is instead ([`World::position`](super::World::position)): then two ways that lead
//! to the same place are one state from there on.
//!
//! [`Actor::fingerprint`]: crate::actors::Actor::fingerprint

use std::collections::HashMap;

use super::random::mix;
use super::task::TaskId;
use crate::actors::Time;

#[derive(Debug, Default)]
pub(super) struct Prints {
    /// Programs: host threads and scripts.
    programs: HashMap<TaskId, Program>,
    /// Who made each gate, and so waits for it, and the how manieth of its own that is.
    owners: HashMap<u64, (TaskId, u64)>,
}

#[derive(Debug, Default)]
struct Program {
    /// How it came here, or where it says it is.
    way: u64,
    /// The gates of its own that are open.
    open: u64,
    gates: u64,
}

impl Prints {
    /// A step of this task begins. A program can ask for the time.
    pub(super) fn begin(&mut self, task: TaskId, now: Time) {
        if task.is_program() {
            let program = self.programs.entry(task).or_default();
            program.way = [STEP, program.open, nanos(now)].into_iter().fold(program.way, mix);
        }
    }

    /// A program was given a random number, on which it depends from here on.
    pub(super) fn drew(&mut self, task: TaskId, number: u64) {
        let program = self.programs.entry(task).or_default();
        program.way = mix(mix(program.way, DRAW), number);
    }

    /// What a program will do depends on this number alone, and on its gates that open later.
    pub(super) fn position(&mut self, task: TaskId, position: u64) {
        self.programs.entry(task).or_default().way = mix(POSITION, position);
    }

    /// A gate was made in a step of this task.
    pub(super) fn owns(&mut self, gate: u64, task: TaskId) {
        let program = self.programs.entry(task).or_default();
        program.gates += 1;
        self.owners.insert(gate, (task, program.gates));
    }

    /// A gate was opened.
    pub(super) fn opened(&mut self, gate: u64) {
        if let Some((task, number)) = self.owners.remove(&gate) {
            let program = self.programs.entry(task).or_default();
            program.open = program.open.wrapping_add(mix(GATE, number));
        }
    }

    /// The fingerprint of all programs.
    pub(super) fn programs(&self, now: Time) -> u64 {
        let of = |(task, program): (&TaskId, &Program)| mix(mix(task.bits(), program.way), program.open);
        let sum = self.programs.iter().map(of).fold(0, u64::wrapping_add);
        mix(sum, nanos(now))
    }
}

fn nanos(at: Time) -> u64 {
    u64::try_from(at.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX)
}

const STEP: u64 = 0x5354_4550;
const POSITION: u64 = 0x504f_5349;
const GATE: u64 = 0x4741_5445;
const DRAW: u64 = 0x4452_4157;

#[cfg(test)]
mod tests {
    use super::*;

    const A: TaskId = TaskId::script(1);
    const B: TaskId = TaskId::script(2);

    fn state(run: impl Fn(&mut Prints)) -> u64 {
        let mut prints = Prints::default();
        run(&mut prints);
        prints.programs(Time::ZERO)
    }

    #[test]
    fn the_order_of_steps_of_different_programs_does_not_count() {
        let ab = state(|prints| [A, B].into_iter().for_each(|task| prints.begin(task, Time::ZERO)));
        let ba = state(|prints| [B, A].into_iter().for_each(|task| prints.begin(task, Time::ZERO)));
        let aa = state(|prints| [A, A].into_iter().for_each(|task| prints.begin(task, Time::ZERO)));
        assert_eq!(ab, ba);
        assert_ne!(ab, aa);
    }

    #[test]
    fn before_which_step_a_gate_was_open_counts_until_the_program_says_where_it_is() {
        let run = |first: bool, says: bool| {
            state(|prints| {
                prints.owns(7, A);
                if first {
                    prints.opened(7);
                }
                prints.begin(A, Time::ZERO);
                if !first {
                    prints.opened(7);
                }
                prints.begin(A, Time::ZERO);
                if says {
                    prints.position(A, 3);
                }
            })
        };
        assert_ne!(run(true, false), run(false, false));
        assert_eq!(run(true, true), run(false, true));
        assert_ne!(state(|prints| prints.owns(7, A)), run(true, true));
    }
}
