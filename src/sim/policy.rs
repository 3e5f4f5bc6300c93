//! Policies: what runs next. The only source of nondeterminism of a simulation.
//!
//! A [`Policy`] says how many runs there are and how their choices are made; each run gets a [`Chooser`] that makes
//! them and is named by a [`Schedule`] that replays it.

use std::collections::{HashMap, HashSet};

use super::random::{below, mix, next};
use super::schedule::Schedule;
use super::task::TaskId;
use crate::error::Result;

/// How a simulation is explored.
///
/// | policy | finds | cost |
/// | --- | --- | --- |
/// | [`Policy::random`] | most ordering bugs | many short runs |
/// | [`Policy::pct`] | bugs that need a few orders in particular, with a known probability | the same |
/// | [`Policy::depth_first`] | everything in a small world, and says when it is through | grows with the world's states |
/// | [`Policy::round_robin`] | nothing in particular: the plain order | one run |
/// | [`Policy::replay`] | what a schedule found | one run |
#[derive(Clone, Debug)]
#[must_use]
pub struct Policy {
    kind: Kind,
    pub(super) runs: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    DepthFirst,
    Pct { seed: u64, depth: u32 },
    Random { seed: u64 },
    Replay(Schedule),
    RoundRobin { seed: u64 },
}

impl Policy {
    /// Every choice is random: 100 runs, each of a seed of its own made from `seed`.
    pub const fn random(seed: u64) -> Self {
        Self { kind: Kind::Random { seed }, runs: RUNS }
    }

    /// Probabilistic concurrency testing (Burckhardt and others, ASPLOS 2010): tasks have random priorities, and the
    /// running one loses its own at `depth - 1` random steps. A bug that needs `depth` ordering constraints among n
    /// tasks in k steps is found by a run with a probability of at least 1 / (n k^(depth - 1)).
    pub const fn pct(seed: u64, depth: u32) -> Self {
        Self { kind: Kind::Pct { seed, depth }, runs: RUNS }
    }

    /// Every order, one after another, states that were seen before left out; at most a million runs. Faults are
    /// choices like any other.
    pub const fn depth_first() -> Self {
        Self { kind: Kind::DepthFirst, runs: 1_000_000 }
    }

    /// The runnable task with the next number, in turn.
    pub const fn round_robin() -> Self {
        Self { kind: Kind::RoundRobin { seed: 0 }, runs: 1 }
    }

    /// One run again.
    ///
    /// # Errors
    /// [`Misuse::BadSetting`](crate::error::Misuse::BadSetting) for what is no schedule.
    pub fn replay(schedule: &str) -> Result<Self> {
        Ok(Self::of(schedule.parse()?))
    }

    /// The same, of a schedule that was read.
    pub const fn of(schedule: Schedule) -> Self {
        Self { kind: Kind::Replay(schedule), runs: 1 }
    }

    /// Sets the number of runs; the most there are, for depth-first.
    pub const fn runs(mut self, runs: u64) -> Self {
        self.runs = runs;
        self
    }

    /// How many runs there are, at most for depth-first.
    #[must_use]
    pub const fn run_count(&self) -> u64 {
        self.runs
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.kind {
            Kind::DepthFirst => "dfs",
            Kind::Pct { .. } => "pct",
            Kind::Random { .. } => "random",
            Kind::Replay(_) => "replay",
            Kind::RoundRobin { .. } => "rr",
        }
    }

    /// Its seed, where it has one.
    #[must_use]
    pub const fn seed(&self) -> Option<u64> {
        match self.kind {
            Kind::Pct { seed, .. } | Kind::Random { seed } | Kind::RoundRobin { seed } => Some(seed),
            Kind::DepthFirst | Kind::Replay(_) => None,
        }
    }

    /// What chooses in run `number`; in the run before there was a choice at so many `steps`.
    pub(super) fn chooser(&self, number: u64, steps: u64) -> Chooser {
        match &self.kind {
            Kind::DepthFirst => Chooser::depth_first(),
            Kind::Pct { seed, depth } => Chooser::of(&Schedule::Pct {
                seed: of_run(*seed, number),
                depth: *depth,
                steps: steps.max(1),
            }),
            Kind::Random { seed } => Chooser::of(&Schedule::Random { seed: of_run(*seed, number) }),
            Kind::Replay(schedule) => Chooser::of(schedule),
            Kind::RoundRobin { seed } => Chooser::of(&Schedule::RoundRobin { seed: of_run(*seed, number) }),
        }
    }

    /// Whether runs go on from where the one before was, so that one chooser makes them all.
    pub(super) const fn is_depth_first(&self) -> bool {
        matches!(self.kind, Kind::DepthFirst)
    }
}

/// The first run has the seed itself, so that a schedule shows what was asked for.
const fn of_run(seed: u64, number: u64) -> u64 {
    if number == 0 { seed } else { mix(seed, number) }
}

const RUNS: u64 = 100;

/// Makes the choices of one run; of all of them, for depth-first.
#[derive(Debug)]
pub(super) struct Chooser {
    schedule: Schedule,
    /// The state of the random numbers.
    random: u64,
    steps: u64,
    way: Way,
}

#[derive(Debug)]
enum Way {
    DepthFirst(DepthFirst),
    Pct { priorities: HashMap<TaskId, u64>, changes: HashSet<u64>, lowest: u64 },
    Random,
    Replay { choices: Vec<u32>, at: usize },
    RoundRobin,
}

/// What becomes of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// This one of the runnable tasks.
    Index(usize),
    /// The run ends here: everything from this state on has been seen.
    Prune,
}

impl Chooser {
    pub(super) fn of(schedule: &Schedule) -> Self {
        let (mut random, way) = match schedule {
            Schedule::DepthFirst { choices } => (0, Way::Replay { choices: choices.clone(), at: 0 }),
            Schedule::Pct { seed, .. } => (*seed, Way::Random),
            Schedule::Random { seed } => (*seed, Way::Random),
            Schedule::RoundRobin { seed } => (*seed, Way::RoundRobin),
        };
        let way = if let Schedule::Pct { depth, steps, .. } = schedule {
            // More changes than steps change nothing more.
            let count = u64::from(depth.saturating_sub(1)).min(*steps).min(CHANGES_MAX);
            let changes = (0..count).map(|_| below(&mut random, (*steps).max(1))).collect();
            Way::Pct { priorities: HashMap::new(), changes, lowest: PRIORITY_LEAST }
        } else {
            way
        };
        Self { schedule: schedule.clone(), random, steps: 0, way }
    }

    fn depth_first() -> Self {
        let schedule = Schedule::DepthFirst { choices: Vec::new() };
        Self { schedule, random: 0, steps: 0, way: Way::DepthFirst(DepthFirst::default()) }
    }

    /// Which of the runnable tasks, two or more, goes next. `state` tells states apart.
    pub(super) fn pick(&mut self, ready: &[TaskId], last: Option<TaskId>, state: impl Fn() -> u64) -> Pick {
        self.steps += 1;
        Pick::Index(match &mut self.way {
            Way::DepthFirst(search) => return search.pick(ready.len(), Some(state())),
            Way::Pct { priorities, changes, lowest } => {
                let random = &mut self.random;
                for task in ready {
                    // Any new task is above all that were lowered.
                    priorities.entry(*task).or_insert_with(|| next(random) | PRIORITY_LEAST);
                }
                if changes.contains(&self.steps)
                    && let Some(last) = last
                {
                    *lowest -= 1;
                    priorities.insert(last, *lowest);
                }
                let best = ready.iter().enumerate().max_by_key(|(_, task)| (priorities[task], **task));
                best.map_or(0, |(index, _)| index)
            }
            Way::Random => index_below(&mut self.random, ready.len()),
            Way::Replay { choices, at } => {
                let choice = choices.get(*at).copied().unwrap_or(0) as usize;
                *at += 1;
                choice.min(ready.len() - 1)
            }
            Way::RoundRobin => {
                let after = |task: &&(usize, TaskId)| last.is_none_or(|last| task.1 > last);
                let tasks: Vec<(usize, TaskId)> = ready.iter().copied().enumerate().collect();
                let in_order = |tasks: &mut dyn Iterator<Item = &(usize, TaskId)>| {
                    tasks.min_by_key(|(_, task)| *task).map(|(index, _)| *index)
                };
                let next = in_order(&mut tasks.iter().filter(after));
                next.or_else(|| in_order(&mut tasks.iter())).unwrap_or(0)
            }
        })
    }

    /// A number below `bound`, for faults and delays. For depth-first a choice like any other.
    pub(super) fn draw(&mut self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        match &mut self.way {
            Way::DepthFirst(search) => {
                match search.pick(usize::try_from(bound).unwrap_or(usize::MAX), None) {
                    Pick::Index(index) => index as u64,
                    Pick::Prune => 0,
                }
            }
            Way::Replay { choices, at } => {
                let choice = choices.get(*at).copied().unwrap_or(0);
                *at += 1;
                u64::from(choice).min(bound - 1)
            }
            _ => below(&mut self.random, bound),
        }
    }

    /// Whether it asks for states.
    pub(super) const fn tells_states_apart(&self) -> bool {
        matches!(self.way, Way::DepthFirst(_))
    }

    /// At how many steps there was something to choose.
    pub(super) const fn choices(&self) -> u64 {
        self.steps
    }

    /// What replays this run.
    pub(super) fn schedule(&self) -> Schedule {
        match &self.way {
            Way::DepthFirst(search) => Schedule::DepthFirst { choices: search.choices() },
            _ => self.schedule.clone(),
        }
    }

    /// The run has ended: goes on to the next one. False if there is none.
    pub(super) fn advance(&mut self) -> bool {
        match &mut self.way {
            Way::DepthFirst(search) => search.advance(),
            _ => false,
        }
    }

    /// How many states were told apart.
    pub(super) fn states(&self) -> u64 {
        match &self.way {
            Way::DepthFirst(search) => search.seen.len() as u64,
            _ => 0,
        }
    }
}

fn index_below(random: &mut u64, len: usize) -> usize {
    usize::try_from(below(random, len as u64)).unwrap_or(0)
}

/// Most changes of priorities in a run: a bound on what a text can make this allocate.
const CHANGES_MAX: u64 = 1 << 16;

/// Priorities at and above this are those of tasks that were not lowered.
const PRIORITY_LEAST: u64 = 1 << 63;

/// A search through all choices, depth first.
#[derive(Debug, Default)]
struct DepthFirst {
    /// The present run's choices: which, of how many.
    path: Vec<(usize, usize)>,
    /// How far into the path the run is.
    at: usize,
    /// States at which a choice was made.
    seen: HashSet<u64>,
}

impl DepthFirst {
    fn pick(&mut self, count: usize, state: Option<u64>) -> Pick {
        if let Some(&(index, _)) = self.path.get(self.at) {
            self.at += 1;
            return Pick::Index(index.min(count - 1));
        }
        // A state that was met before is explored, or is being explored further up in this path.
        if state.is_some_and(|state| !self.seen.insert(state)) {
            return Pick::Prune;
        }
        self.path.push((0, count));
        self.at += 1;
        Pick::Index(0)
    }

    fn choices(&self) -> Vec<u32> {
        let mut choices: Vec<u32> =
            self.path[..self.at].iter().map(|(index, _)| u32::try_from(*index).unwrap_or(u32::MAX)).collect();
        while choices.last() == Some(&0) {
            choices.pop();
        }
        choices
    }

    fn advance(&mut self) -> bool {
        self.path.truncate(self.at);
        self.at = 0;
        while let Some((index, count)) = self.path.last_mut() {
            *index += 1;
            if index < count {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(count: u64) -> Vec<TaskId> {
        (0..count).map(TaskId::script).collect()
    }

    /// Runs of a world of two tasks of two steps each, without states: every interleaving once.
    #[test]
    fn depth_first_makes_every_choice_once() {
        let mut chooser = Policy::depth_first().chooser(0, 0);
        let mut orders = Vec::new();
        loop {
            let mut left = [2, 2];
            let mut order = Vec::new();
            while left != [0, 0] {
                let ready: Vec<usize> = (0..2).filter(|&i| left[i] > 0).collect();
                let index = usize::try_from(chooser.draw(ready.len() as u64)).unwrap();
                left[ready[index]] -= 1;
                order.push(ready[index]);
            }
            orders.push(order);
            if !chooser.advance() {
                break;
            }
        }
        orders.sort();
        let count = orders.len();
        orders.dedup();
        assert_eq!((orders.len(), count), (6, 6), "4! / (2! 2!)");
    }

    #[test]
    fn a_state_that_was_seen_is_not_explored_again() {
        let mut chooser = Policy::depth_first().chooser(0, 0);
        let ready = tasks(2);
        assert_eq!(chooser.pick(&ready, None, || 1), Pick::Index(0));
        assert_eq!(chooser.pick(&ready, None, || 2), Pick::Index(0));
        assert!(chooser.advance());
        assert_eq!(chooser.pick(&ready, None, || 1), Pick::Index(0), "on the way there it is not new");
        assert_eq!(chooser.pick(&ready, None, || 2), Pick::Index(1));
        assert!(chooser.advance());
        assert_eq!(chooser.pick(&ready, None, || 1), Pick::Index(1));
        assert_eq!(chooser.pick(&ready, None, || 2), Pick::Prune);
        assert_eq!(chooser.schedule().to_string(), "s1.d.1");
        assert!(!chooser.advance(), "exhausted");
        assert_eq!(chooser.states(), 2);
    }

    #[test]
    fn the_same_schedule_makes_the_same_choices() {
        let ready = tasks(5);
        for text in ["s1.r.77", "s1.p.77.3.50", "s1.b.77", "s1.d.3041"] {
            let choices = || {
                let mut chooser = Chooser::of(&text.parse().unwrap());
                let mut last = None;
                let mut picks = Vec::new();
                for _ in 0..50 {
                    let Pick::Index(index) = chooser.pick(&ready, last, || 0) else { panic!("not pruned") };
                    last = Some(ready[index]);
                    picks.push((index, chooser.draw(9)));
                }
                (picks, chooser.schedule().to_string())
            };
            assert_eq!(choices(), choices(), "{text}");
            assert_eq!(choices().1, text);
        }
    }

    #[test]
    fn round_robin_takes_turns() {
        let mut chooser = Policy::round_robin().chooser(0, 0);
        let ready = [TaskId::script(5), TaskId::script(1), TaskId::script(3)];
        let mut last = None;
        let mut order = Vec::new();
        for _ in 0..4 {
            let Pick::Index(index) = chooser.pick(&ready, last, || 0) else { panic!("not pruned") };
            last = Some(ready[index]);
            order.push(ready[index]);
        }
        assert_eq!(order, [1, 3, 5, 1].map(TaskId::script));
    }

    /// Of three tasks the first one must take its second step after all others have ended: random runs find that with
    /// a probability that falls with their length, PCT of depth 2 with 1 / (3 tasks x 31 steps) at least.
    #[test]
    fn pct_lowers_the_running_task_at_some_step() {
        let policy = Policy::pct(1, 2);
        let found = (0..2_000).filter(|&run| {
            let mut chooser = policy.chooser(run, 31);
            let mut left = [11_u32, 10, 10];
            let mut last = None;
            while left[1] + left[2] > 0 {
                let ready: Vec<TaskId> = (0_u64..)
                    .zip(left)
                    .filter(|(_, left)| *left > 0)
                    .map(|(i, _)| TaskId::script(i))
                    .collect();
                let index = match ready.len() {
                    1 => 0,
                    _ => match chooser.pick(&ready, last, || 0) {
                        Pick::Index(index) => index,
                        Pick::Prune => panic!("not pruned"),
                    },
                };
                last = Some(ready[index]);
                let task = usize::try_from(ready[index].number()).unwrap();
                left[task] -= 1;
            }
            left[0] == 10
        });
        assert!(found.count() > 2_000 / (3 * 31));
    }
}
