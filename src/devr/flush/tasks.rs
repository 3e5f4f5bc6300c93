//! The tasks of an offer, in order. Mostly they are rows of windows that differ in their place only: such a row is kept
//! and sent as one [`Run`], so that offers and their checks cost as much as there are rows, not windows.

use std::iter;

use serde::{Deserialize, Serialize};

use super::message::TaskOffer;

/// Tasks in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tasks {
    runs: Vec<Run>,
}

/// A task and what follows it in equal steps. What a peer says is to be checked ([`Run::last`]) before its tasks are
/// looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) first: TaskOffer,
    /// How many tasks these are, at least one.
    pub(crate) count: u32,
    /// From one task's range to the next one's: 0 in a row from one allocation, 1 where each has its own.
    pub(crate) range_step: u32,
    /// From one task's head to the next one's.
    pub(crate) head_step: u64,
}

impl Run {
    const fn of(first: TaskOffer) -> Self {
        Self { first, count: 1, range_step: 0, head_step: 0 }
    }

    /// The last task; `None` where there is none, or its numbers would be too great.
    pub(crate) fn last(&self) -> Option<TaskOffer> {
        let steps = self.count.checked_sub(1)?;
        let range = self.first.range.checked_add(self.range_step.checked_mul(steps)?)?;
        let head = self.first.head.checked_add(self.head_step.checked_mul(steps.into())?)?;
        Some(TaskOffer { range, head, ..self.first })
    }

    /// Its tasks in order.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskOffer> + use<> {
        let Self { first, count, range_step, head_step } = *self;
        // Wraps where the numbers of a peer are too great; those are refused before anybody relies on them.
        let next = move |task: &TaskOffer| {
            let (range, head) = (task.range.wrapping_add(range_step), task.head.wrapping_add(head_step));
            Some(TaskOffer { range, head, ..*task })
        };
        iter::successors(Some(first), next).take(count as usize)
    }

    /// Takes the task in if it follows.
    fn extend(&mut self, task: &TaskOffer) -> bool {
        let Some(last) = self.last().filter(|last| (last.print, last.size) == (task.print, task.size)) else {
            return false;
        };
        let (Some(range), Some(head)) =
            (task.range.checked_sub(last.range), task.head.checked_sub(last.head))
        else {
            return false;
        };
        if self.count == 1 {
            (self.range_step, self.head_step) = (range, head);
        }
        let follows = (range, head) == (self.range_step, self.head_step) && self.count < u32::MAX;
        self.count += u32::from(follows);
        follows
    }
}

impl Tasks {
    /// Adds a task at the end.
    pub(crate) fn push(&mut self, task: TaskOffer) {
        if !self.runs.last_mut().is_some_and(|run| run.extend(&task)) {
            self.runs.push(Run::of(task));
        }
    }

    /// How many there are; `None` if they are more than tasks have numbers.
    pub(crate) fn count(&self) -> Option<u32> {
        self.runs.iter().try_fold(0u32, |count, run| count.checked_add(run.count))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }

    /// The rows, each with the number of its first task.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, &Run)> {
        self.runs.iter().scan(0, |start, run| {
            let first = *start;
            *start += run.count as usize;
            Some((first, run))
        })
    }

    /// All in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TaskOffer> {
        self.runs.iter().flat_map(Run::tasks)
    }

    /// One by its number. Looks through the rows: not for every task of a batch.
    pub(crate) fn get(&self, task: usize) -> Option<TaskOffer> {
        let (start, run) =
            self.runs().find(|(start, run)| (*start..start + run.count as usize).contains(&task))?;
        run.tasks().nth(task - start)
    }
}

impl FromIterator<TaskOffer> for Tasks {
    fn from_iter<I: IntoIterator<Item = TaskOffer>>(tasks: I) -> Self {
        let mut all = Self::default();
        tasks.into_iter().for_each(|task| all.push(task));
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task(print: u32, range: u32, head: u64) -> TaskOffer {
        TaskOffer { print, range, head, size: 64 }
    }

    #[test]
    fn a_row_of_windows_is_one_run() {
        let from_one: Tasks = (0..1000).map(|i| task(0, 0, i * 64)).collect();
        assert_eq!(from_one.runs().count(), 1);
        let own: Tasks = (0..1000).map(|i| task(0, i, 0)).collect();
        assert_eq!(own.runs().count(), 1);
        let encoded = super::super::message::encode(&from_one);
        assert!(encoded.len() < 16, "{} bytes for a row", encoded.len());
    }

    #[test]
    fn a_run_whose_numbers_are_too_great_has_no_last_task() {
        let run = |count, range_step, head_step| Run { first: task(0, 1, 64), count, range_step, head_step };
        assert_eq!(run(3, 1, 64).last(), Some(task(0, 3, 192)));
        for wrong in [run(0, 0, 0), run(3, u32::MAX, 0), run(3, 0, u64::MAX), run(u32::MAX, 2, 0)] {
            assert_eq!(wrong.last(), None, "{wrong:?}");
            // Looking at them all the same does not panic.
            assert!(wrong.tasks().take(5).count() <= 5);
        }
        let many = Tasks { runs: vec![run(u32::MAX, 0, 0); 2] };
        assert_eq!(many.count(), None);
        assert_eq!(many.get(usize::MAX), None);
    }

    proptest! {
        #[test]
        fn what_is_pushed_comes_back(
            tasks in prop::collection::vec((0..2u32, 0..3u32, 0..3u64), 0..40)
        ) {
            let tasks: Vec<_> = tasks.into_iter().map(|(print, range, head)| task(print, range, head)).collect();
            let kept: Tasks = tasks.iter().copied().collect();
            prop_assert_eq!(&kept.iter().collect::<Vec<_>>(), &tasks);
            prop_assert_eq!((kept.len(), kept.count()), (tasks.len(), u32::try_from(tasks.len()).ok()));
            for index in 0..=tasks.len() {
                prop_assert_eq!(kept.get(index), tasks.get(index).copied());
            }
            let decoded: Result<Tasks, _> = super::super::message::decode(&super::super::message::encode(&kept));
            prop_assert_eq!(decoded, Ok(kept));
        }
    }
}
