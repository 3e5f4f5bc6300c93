//! Runs of a simulation: one, many, and one again.

use std::collections::HashSet;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::faults::{Faults, Plan};
use super::net::NetCounts;
use super::oracle;
use super::policy::{Chooser, Policy};
use super::random::mix;
use super::schedule::Schedule;
use super::story::Story;
use super::world::{Device, World};
use crate::actors::text_of;
use crate::driver::Call;
use crate::error::Result;

/// How a world is simulated: everything that is no choice of the policy's.
#[derive(Clone, Debug)]
#[must_use]
pub struct Sim {
    device: Device,
    faults: Faults,
    deadline: Duration,
    patience: Duration,
    steps_max: u64,
    verify_every: u64,
    processes: usize,
    ranks: usize,
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            device: Device::Host,
            faults: Faults::empty(),
            deadline: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            steps_max: 10_000_000,
            verify_every: 64,
            processes: 4,
            ranks: 4,
        }
    }
}

impl Sim {
    /// On the host device, without faults, with deadlines of 60 virtual seconds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the devices of the world.
    pub const fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Sets which faults a run may have. Each run has some of them, drawn from its seed, in a world of so many
    /// processes and ranks.
    pub const fn faults(mut self, faults: Faults, processes: usize, ranks: usize) -> Self {
        self.faults = faults;
        self.processes = processes;
        self.ranks = ranks;
        self
    }

    /// Sets the deadline of operations, in virtual time.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long, in real time, a program may run before it comes to its next blocking point: a minute. It is taken
    /// to wait for something outside of the simulation then, and the run fails.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the most steps that a run may take; one that takes more fails.
    pub const fn steps_max(mut self, steps: u64) -> Self {
        self.steps_max = steps;
        self
    }

    /// Has every n-th run made twice, from the first one on, to see that equal schedules give equal digests; 0 for
    /// none.
    pub const fn verify_every(mut self, runs: u64) -> Self {
        self.verify_every = runs;
        self
    }

    /// Makes the policy's runs of the world that `build` builds, until one fails.
    ///
    /// # Errors
    /// What failed, with its story and the schedule that replays it.
    pub fn explore(
        &self,
        policy: &Policy,
        build: impl Fn(&Arc<World>) -> Result<()>,
    ) -> Result<Report, Box<Failure>> {
        self.explore_with(policy, build, |_| {})
    }

    /// The same; `progress` hears how far it is after each run.
    ///
    /// # Errors
    /// As [`Sim::explore`].
    pub fn explore_with(
        &self,
        policy: &Policy,
        build: impl Fn(&Arc<World>) -> Result<()>,
        mut progress: impl FnMut(&Report),
    ) -> Result<Report, Box<Failure>> {
        let start = Instant::now();
        let mut report = Report::new(policy);
        let mut digests = HashSet::new();
        let mut chooser = policy.chooser(0, self.steps_max);
        let mut steps = STEPS_GUESS;
        for number in 0..policy.runs {
            if !policy.is_depth_first() {
                chooser = policy.chooser(number, steps);
            }
            let run;
            (run, chooser) = self.run(chooser, None, &build);
            report.add(&run, &mut digests);
            report.elapsed = start.elapsed();
            steps = if run.pruned { steps } else { chooser.choices() };
            if !run.broken.is_empty() {
                return Err(Box::new(self.failure(number, run, report, &build)));
            }
            if self.verify_every > 0 && number % self.verify_every == 0 && !run.pruned {
                let (again, _) = self.run(Chooser::of(&run.schedule), None, &build);
                report.verified += 1;
                if !again.is_like(&run) {
                    return Err(Box::new(nondeterminism(number, run, &again, report)));
                }
            }
            let more = !policy.is_depth_first() || chooser.advance();
            report.states = chooser.states();
            report.exhausted = !more;
            progress(&report);
            if !more {
                break;
            }
        }
        report.elapsed = start.elapsed();
        Ok(report)
    }

    /// Makes the failed run again, with its story.
    fn failure(
        &self,
        number: u64,
        run: Run,
        report: Report,
        build: &impl Fn(&Arc<World>) -> Result<()>,
    ) -> Failure {
        let story = Story::new();
        let (again, _) = tracing::subscriber::with_default(story.clone(), || {
            self.run(Chooser::of(&run.schedule), Some(&story), build)
        });
        let mut broken = run.broken.clone();
        if again.broken.is_empty() {
            broken.push(
                "made again under the same schedule it did not fail: it depends on something else".to_owned(),
            );
        } else if !again.is_like(&run) {
            broken.push(
                "made again under the same schedule it went another way: it depends on something else, and the story \
                 is of the second run"
                    .to_owned(),
            );
        }
        Failure {
            run: number,
            broken,
            faults: run.drawn,
            schedule: run.schedule,
            story: story.lines(),
            report,
        }
    }

    /// One run. Gives the chooser back, which depth-first goes on with.
    fn run(
        &self,
        mut chooser: Chooser,
        story: Option<&Story>,
        build: &impl Fn(&Arc<World>) -> Result<()>,
    ) -> (Run, Chooser) {
        let plan = if self.faults.is_empty() {
            Plan::default()
        } else {
            Plan::draw(self.faults, &mut chooser, self.processes, self.ranks, FAULT_STEPS)
        };
        let drawn = plan.drawn.clone();
        let undo_may_fail = plan.driver.iter().any(|(_, call, _)| UNDO.contains(call));
        let engine = Engine::new(chooser, plan, self.steps_max, self.patience);
        if let Some(story) = story {
            story.follow(&engine);
        }
        let world = World::new(&engine, self.device, self.deadline);
        let mut broken = Vec::new();
        match panic::catch_unwind(AssertUnwindSafe(|| build(&world))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => broken.push(format!("the world could not be made: {error}")),
            Err(payload) => broken.push(format!("the world's own program panicked: {}", text_of(&*payload))),
        }
        engine.run();
        // A partition that lasts longer than the run ends too.
        let heals = engine.state().plan.heals();
        for group in heals {
            engine.hold(&group, false);
            engine.run();
        }
        let (pruned, endless, hung) = {
            let state = engine.state();
            (state.pruned, state.endless, state.hung.clone())
        };
        if let Some(program) = hung {
            return (abandoned(&engine, broken, drawn, &program), Chooser::of(&Schedule::Random { seed: 0 }));
        }
        if endless {
            broken.push(format!("it does not end: {} steps", self.steps_max));
        } else if !pruned {
            broken.extend(oracle::stuck(&world));
        }
        // What programs say that are let go is no news where the run was only cut short.
        broken.append(&mut world.inner.lock().failures);
        panic_out(&engine, &mut broken);
        if let Err(program) = engine.end_hosts() {
            return (abandoned(&engine, broken, drawn, &program), Chooser::of(&Schedule::Random { seed: 0 }));
        }
        engine.end_scripts();
        if !pruned && !endless {
            // What was dropped is closed.
            engine.run();
            broken.extend(oracle::agreement(&world));
            broken.extend(oracle::books(&world));
        }
        if !pruned {
            broken.append(&mut world.inner.lock().failures);
            panic_out(&engine, &mut broken);
        }
        drop(world.take_fleets());
        let kept = std::mem::take(&mut world.inner.lock().kept);
        let over = pruned || endless || !kept.is_empty();
        let mut run = Run::new(&engine, broken, drawn);
        run.traffic = Traffic::of(&world);
        run.ends = oracle::ends(&world);
        if !over {
            engine.run();
            run.broken.extend(oracle::leaks(&world, undo_may_fail));
        }
        end(&engine);
        drop(kept);
        for runtime in world.runtimes() {
            runtime.shut_down();
        }
        end(&engine);
        let chooser =
            std::mem::replace(&mut engine.state().chooser, Chooser::of(&Schedule::Random { seed: 0 }));
        (run, chooser)
    }
}

/// Takes out what can still run, so that nothing keeps the engine.
fn end(engine: &Engine) {
    let (actors, timers) = engine.clear();
    for actor in actors {
        actor.shutdown();
    }
    drop(timers);
    let net = engine.state().net.clear();
    drop(net);
}

/// A run that cannot go on, since a program does not come to a blocking point.
fn abandoned(engine: &Engine, mut broken: Vec<String>, drawn: Vec<String>, program: &str) -> Run {
    broken.push(format!(
        "`{program}` kept the baton for {:?}: it waits for something outside of the simulation, such as a lock that \
         another host thread holds across a call of symwin's",
        engine.patience()
    ));
    panic_out(engine, &mut broken);
    Run::new(engine, broken, drawn)
}

fn panic_out(engine: &Engine, broken: &mut Vec<String>) {
    broken.append(&mut engine.state().panics);
}

fn nondeterminism(number: u64, run: Run, again: &Run, report: Report) -> Failure {
    let what = format!(
        "the same schedule gave two runs: digest {:016x} in {} steps, which ended as {:016x}, and {:016x} in {} as \
         {:016x}; the program depends on something that is no part of the simulation (time, addresses, threads of its \
         own, random numbers, the order of a hash map)",
        run.digest, run.steps, run.ends, again.digest, again.steps, again.ends
    );
    Failure {
        run: number,
        broken: vec![what],
        faults: run.drawn,
        schedule: run.schedule,
        story: Vec::new(),
        report,
    }
}

/// Calls that give something back: after a failed one something may be left.
pub(super) const UNDO: [Call; 5] =
    [Call::Free, Call::MulticastUnbind, Call::Release, Call::StreamDestroy, Call::Unmap];

/// How long a run is taken to be before one has been made.
const STEPS_GUESS: u64 = 200;
/// Faults come in so many first steps.
const FAULT_STEPS: u64 = 400;

/// One run that was made.
struct Run {
    broken: Vec<String>,
    drawn: Vec<String>,
    digest: u64,
    /// What ranks agreed on. No part of the digest: it has the device's granularity in it.
    ends: u64,
    steps: u64,
    schedule: Schedule,
    pruned: bool,
    net: NetCounts,
    traffic: Traffic,
}

impl Run {
    fn new(engine: &Engine, broken: Vec<String>, drawn: Vec<String>) -> Self {
        let state = engine.state();
        Self {
            broken,
            drawn,
            digest: state.digest(),
            ends: 0,
            steps: state.steps,
            schedule: state.chooser.schedule(),
            pruned: state.pruned,
            net: state.net.counts,
            traffic: Traffic::default(),
        }
    }

    /// Whether it is the same run. Texts may have addresses in them.
    fn is_like(&self, other: &Self) -> bool {
        (self.digest, self.ends, self.broken.len()) == (other.digest, other.ends, other.broken.len())
    }
}

/// What the ranks of a run sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Batches of the communicator that had the most.
    pub batches: u64,
    /// The most rounds of any rank in one communicator.
    pub rounds_max: u64,
    /// The fewest: those within the LSA team.
    pub rounds_min: u64,
    /// The most messages of any rank in one communicator.
    pub messages_max: u64,
    /// Messages of all ranks.
    pub messages: u64,
}

impl Traffic {
    fn of(world: &World) -> Self {
        let inner = world.inner.lock();
        let mut traffic = Self { rounds_min: u64::MAX, ..Self::default() };
        for rank in &inner.ranks {
            let (rounds, messages, batches) = rank.board.sent();
            traffic.batches = traffic.batches.max(batches);
            traffic.rounds_max = traffic.rounds_max.max(rounds);
            traffic.rounds_min = traffic.rounds_min.min(rounds);
            traffic.messages_max = traffic.messages_max.max(messages);
            traffic.messages += messages;
        }
        traffic.rounds_min = traffic.rounds_min.min(traffic.rounds_max);
        traffic
    }

    /// Rounds of a batch that go between LSA teams: what leaders have more than others.
    #[must_use]
    pub const fn world_rounds(self) -> u64 {
        match self.batches {
            0 => 0,
            batches => (self.rounds_max - self.rounds_min) / batches,
        }
    }
}

/// What an exploration found: nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The policy's name.
    pub policy: &'static str,
    /// Its seed.
    pub seed: Option<u64>,
    /// Runs that were made, those included that were cut short.
    pub runs: u64,
    /// Runs that were cut short, since they came to a state that had been seen.
    pub pruned: u64,
    /// Runs that were made twice.
    pub verified: u64,
    /// Steps of all runs.
    pub steps: u64,
    /// Runs that differ.
    pub digests: u64,
    /// One number of all runs' digests, in order.
    pub digest_of_digests: u64,
    /// Different states, for depth-first.
    pub states: u64,
    /// Runs that had faults.
    pub faulty: u64,
    /// Depth-first has seen everything.
    pub exhausted: bool,
    /// What the network carried, in all runs.
    pub net: NetCounts,
    /// What the ranks of the latest run sent that was made to its end.
    pub traffic: Traffic,
    /// In real time.
    pub elapsed: Duration,
}

impl Report {
    fn new(policy: &Policy) -> Self {
        Self {
            policy: policy.name(),
            seed: policy.seed(),
            runs: 0,
            pruned: 0,
            verified: 0,
            steps: 0,
            digests: 0,
            digest_of_digests: 0,
            states: 0,
            faulty: 0,
            exhausted: false,
            net: NetCounts::default(),
            traffic: Traffic::default(),
            elapsed: Duration::ZERO,
        }
    }

    fn add(&mut self, run: &Run, digests: &mut HashSet<u64>) {
        self.runs += 1;
        self.pruned += u64::from(run.pruned);
        self.steps += run.steps;
        self.faulty += u64::from(!run.drawn.is_empty());
        self.digests += u64::from(digests.insert(run.digest));
        self.digest_of_digests = mix(self.digest_of_digests, run.digest);
        self.net.add(run.net);
        if !run.pruned {
            self.traffic = run.traffic;
        }
    }

    /// Steps a second, in real time.
    #[must_use]
    pub fn steps_per_s(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let steps = self.steps as f64;
        steps / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A run that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Which run of the exploration it was, from 0.
    pub run: u64,
    /// What did not hold, one text for each thing.
    pub broken: Vec<String>,
    /// The faults of the run, in words.
    pub faults: Vec<String>,
    /// What replays it.
    pub schedule: Schedule,
    /// The events of the run in order, one line each.
    pub story: Vec<String>,
    /// What was explored so far, this run included.
    pub report: Report,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.story.is_empty() {
            writeln!(f, "  step       time  event")?;
        }
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "run {} failed:", self.run)?;
        for what in &self.broken {
            writeln!(f, "- {what}")?;
        }
        if !self.faults.is_empty() {
            writeln!(f, "faults: {}", self.faults.join("; "))?;
        }
        write!(f, "replay: {}", self.schedule)
    }
}

impl std::error::Error for Failure {}

/// Makes the policy's runs of the world that `build` builds, and panics with the story and the schedule of the first
/// one that fails: for tests. See the [module](super).
///
/// # Panics
/// If a run fails.
pub fn check(policy: &Policy, build: impl Fn(&Arc<World>) -> Result<()>) -> Report {
    match Sim::new().explore(policy, build) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}
