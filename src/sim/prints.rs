//! Fingerprints of states, so that a search does not explore a state twice.
//!
//! A state is told by how it came about, not by looking into actors: each object (an actor with all that is its own, a
//! host thread, a script, a link) has a hash of the steps that it took part in, in their order, each step being told by
//! what its own object was before it. Steps that share no object may come in either order and give the same hashes: so
//! two schedules that differ only in the order of independent steps meet in one fingerprint (they are one Mazurkiewicz
//! trace), and what was explored from it once is not explored again. Objects that a step changes are reported by
//! [`Scheduler::touched`](crate::actors::Scheduler::touched), by gates, and by the network.

use std::collections::HashMap;

use super::random::mix;
use super::task::TaskId;
use crate::actors::Time;

#[derive(Debug, Default)]
pub(super) struct Prints {
    objects: HashMap<TaskId, u64>,
    /// The sum over all objects, so that a change of one costs one addition.
    sum: u64,
    /// The step that runs.
    event: u64,
    /// Changes that it has made to other objects.
    touches: u64,
    current: Option<TaskId>,
    /// Who made each gate, and so waits for it.
    owners: HashMap<u64, TaskId>,
}

impl Prints {
    /// A step of this task begins.
    pub(super) fn begin(&mut self, task: TaskId) {
        let before = self.objects.get(&task).copied().unwrap_or(0);
        self.event = mix(mix(task.bits(), STEP), before);
        self.touches = 0;
        self.current = Some(task);
        self.set(task, self.event);
    }

    /// Timers ring: a step of no object.
    pub(super) fn time(&mut self, now: u64) {
        self.event = mix(now, TIME);
        self.touches = 0;
        self.current = None;
    }

    /// The step changes what this task finds.
    pub(super) fn touch(&mut self, task: TaskId) {
        self.touches += 1;
        if self.current == Some(task) {
            return;
        }
        let before = self.objects.get(&task).copied().unwrap_or(0);
        let after = mix(before, mix(self.event, self.touches));
        self.set(task, after);
    }

    /// A gate was made in a step of this task.
    pub(super) fn owns(&mut self, gate: u64, task: TaskId) {
        self.owners.insert(gate, task);
    }

    /// The step has opened a gate.
    pub(super) fn opened(&mut self, gate: u64) {
        if let Some(owner) = self.owners.remove(&gate) {
            self.touch(owner);
        }
    }

    /// The state's fingerprint.
    pub(super) fn state(&self, now: Time) -> u64 {
        mix(self.sum, u64::try_from(now.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX))
    }

    fn set(&mut self, task: TaskId, hash: u64) {
        let share = |hash| mix(task.bits(), hash);
        let before = self.objects.insert(task, hash).map_or(0, share);
        self.sum = self.sum.wrapping_sub(before).wrapping_add(share(hash));
    }
}

const STEP: u64 = 0x5354_4550;
const TIME: u64 = 0x5449_4d45;

#[cfg(test)]
mod tests {
    use super::*;

    const A: TaskId = TaskId::script(1);
    const B: TaskId = TaskId::script(2);
    const C: TaskId = TaskId::script(3);

    fn state(steps: &[(TaskId, &[TaskId])]) -> u64 {
        let mut prints = Prints::default();
        for (task, touched) in steps {
            prints.begin(*task);
            touched.iter().for_each(|other| prints.touch(*other));
        }
        prints.state(Time::ZERO)
    }

    #[test]
    fn the_order_of_independent_steps_does_not_count() {
        assert_eq!(state(&[(A, &[]), (B, &[])]), state(&[(B, &[]), (A, &[])]));
        assert_eq!(state(&[(A, &[C]), (B, &[])]), state(&[(B, &[]), (A, &[C])]));
    }

    #[test]
    fn the_order_of_steps_that_meet_counts() {
        assert_ne!(state(&[(A, &[C]), (B, &[C])]), state(&[(B, &[C]), (A, &[C])]), "two messages for one");
        assert_ne!(state(&[(A, &[B]), (B, &[])]), state(&[(B, &[]), (A, &[B])]), "before and after a message");
        assert_ne!(state(&[(A, &[])]), state(&[(A, &[]), (A, &[])]));
    }

    #[test]
    fn an_opened_gate_changes_who_made_it() {
        let run = |gate_first: bool| {
            let mut prints = Prints::default();
            prints.begin(A);
            prints.owns(7, A);
            if gate_first {
                prints.begin(B);
                prints.opened(7);
                prints.begin(A);
            } else {
                prints.begin(A);
                prints.begin(B);
                prints.opened(7);
            }
            prints.state(Time::ZERO)
        };
        assert_ne!(run(true), run(false));
    }
}
