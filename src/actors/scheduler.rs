//! The seam between actors and what runs them.
//!
//! [`Scheduler`] is all that a runtime must give: a clock, a place for runnable actors, timers, and the blocking of
//! host threads. [`Threads`](super::Runtime::threads) gives it with worker threads; a deterministic runtime gives it
//! by choosing the next [`Runnable`] itself, moving its clock only when nothing can run, and passing a baton between
//! host threads in [`Scheduler::block`].

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::timer::TimerId;
use super::{ActorId, Exit};
use crate::error::{BootstrapError, Result};

/// A point in time, counted from the runtime's start. Under a simulation it is virtual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The runtime's start.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The time from `earlier` to this; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at the end of time.
    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(after))
    }
}

/// What runs actors. Implemented by the threaded runtime, and by simulations through
/// [`Runtime::from_scheduler`](super::Runtime::from_scheduler).
///
/// Contract:
/// - a [`Runnable`] is given to [`Scheduler::ready`] at most once until its [`Runnable::step`] answered
///   [`Step::Idle`]; while it answers [`Step::More`] it is the scheduler's to run again. Steps of one runnable must
///   not overlap. Where the scheduler lends its actors, a host thread may run one in place of giving it to
///   [`Scheduler::ready`], by the same rule;
/// - a runnable keeps its scheduler alive. A scheduler that stops running while it holds some must take them out and
///   call [`Runnable::shutdown`] on each, or both leak;
/// - no method calls back into actors (no step, no ring) before it returned, except `block`; callers may hold locks
///   of theirs;
/// - all methods may be called from any thread, within a step too, except `block`, which is for host threads.
pub trait Scheduler: fmt::Debug + Send + Sync + 'static {
    /// The clock. Never goes back.
    fn now(&self) -> Time;

    /// The list of this scheduler's actors; one [`Registry`] for its whole life.
    fn registry(&self) -> &Registry;

    /// `cell` has a message to handle.
    fn ready(&self, cell: Arc<dyn Runnable>);

    /// Whether a host thread that holds a [`Due`](super::Due) actor may run it by itself. A scheduler that decides who
    /// runs when says no, as is the default.
    fn lends(&self) -> bool {
        false
    }

    /// Calls `ring` once, at `at` or soon after, from any thread and outside of steps. Timers of one time ring in
    /// the order in which they were set.
    fn timer(&self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId;

    /// Drops a timer unrung. Does nothing if it has rung.
    fn cancel(&self, id: TimerId);

    /// Blocks the calling host thread until `gate` is open, `until` has come, or the scheduler gives up (a
    /// simulation that is stuck). An open gate wins over a time that has come.
    fn block(&self, gate: &Gate, until: Option<Time>) -> Woken;

    /// `gate` has just been opened: wakes whoever is blocked on it.
    fn opened(&self, gate: &Gate);

    /// The number of a new gate.
    fn new_gate(&self) -> GateId {
        self.registry().next_gate()
    }

    /// Someone has changed what actor `id` finds: put a message into a lane of its, or something into a place that it
    /// shares. For a scheduler that tells apart which steps depend on each other.
    fn touched(&self, id: ActorId) {
        let _ = id;
    }

    /// A host thread, or a step, is about to ask an actor for something. A simulation may let others go first where
    /// this is a host thread. Callers hold no lock.
    fn pause(&self) {}

    /// Starts a host thread that runs `program`.
    ///
    /// # Errors
    /// [`BootstrapError::Os`](crate::error::BootstrapError::Os).
    fn host(&self, name: &str, program: Box<dyn FnOnce() + Send>) -> Result<()> {
        start_thread(name.to_owned(), program)
    }
}

/// Starts a thread that nobody joins.
pub(crate) fn start_thread(name: String, program: impl FnOnce() + Send + 'static) -> Result<()> {
    let what = format!("start thread `{name}`");
    match thread::Builder::new().name(name).spawn(program) {
        Ok(_detached) => Ok(()),
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(rustix::io::Errno::AGAIN.raw_os_error());
            Err(Arc::new(BootstrapError::Os { what, errno }).into())
        }
    }
}

/// Why [`Scheduler::block`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Woken {
    /// The scheduler runs nothing any more; the gate will not open.
    Ended,
    /// The gate is open.
    Opened,
    /// The time has come.
    TimedOut,
}

/// What is left to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Nothing: the next message brings the actor back through [`Scheduler::ready`].
    Idle,
    /// There is more: the scheduler runs it again.
    More,
}

/// An actor, as a scheduler sees it.
pub trait Runnable: Send + Sync {
    /// Its number.
    fn id(&self) -> ActorId;

    /// Its name.
    fn name(&self) -> &str;

    /// Handles at most one message.
    fn step(&self) -> Step;

    /// Ends the actor with [`Exit::Shutdown`] unless it has ended. Waits for a step in progress; so never call it
    /// from a step of this actor.
    fn shutdown(&self);

    /// Whether a handler is running now, and if not, what the actor says it waits for.
    fn waits_for(&self) -> (bool, Option<String>);

    /// How many messages wait.
    fn backlog(&self) -> Backlog;

    /// Has `peer` told of this actor's end, unless this has ended already: then returns how.
    fn link(&self, id: ActorId, peer: &Weak<dyn Runnable>) -> Result<(), Exit>;

    /// Tells this actor that a linked one ended.
    fn down(&self, who: ActorId, exit: &Exit);
}

/// How many messages wait in each lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// In the control lane.
    pub control: usize,
    /// In the mail lane.
    pub mail: usize,
    /// In the queue of callers' requests.
    pub queue: usize,
}

/// What an actor is doing, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActorReport {
    /// Its number.
    pub id: ActorId,
    /// Its name.
    pub name: String,
    /// Messages that wait for it.
    pub backlog: Backlog,
    /// Whether a handler was running at that moment; then it was not asked what it waits for.
    pub running: bool,
    /// What it waits for, in words.
    pub waits_for: Option<String>,
}

impl fmt::Display for ActorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match (self.running, &self.waits_for) {
            (true, _) => "running",
            (false, None) => "idle",
            (false, Some(what)) => what,
        };
        let Backlog { control, mail, queue } = self.backlog;
        write!(f, "{} {}: {doing} (control {control}, mail {mail}, queue {queue})", self.name, self.id)
    }
}

/// The list of a scheduler's actors, and the numbers it gives out. Numbers start from zero in each registry, so a
/// simulation gives the same ones in each run.
#[derive(Default)]
pub struct Registry {
    actors: Mutex<BTreeMap<ActorId, Weak<dyn Runnable>>>,
    next_actor: AtomicU64,
    next_gate: AtomicU64,
}

impl Registry {
    /// A list whose actors are counted from `first` on: one simulated process's among others.
    #[must_use]
    pub fn starting_at(first: u64) -> Self {
        Self { next_actor: AtomicU64::new(first), ..Self::default() }
    }

    /// What each living actor is doing, in order of their numbers.
    #[must_use]
    pub fn reports(&self) -> Vec<ActorReport> {
        self.actors().iter().map(|actor| report(&**actor)).collect()
    }

    /// The living actors, in order of their numbers.
    #[must_use]
    pub fn actors(&self) -> Vec<Arc<dyn Runnable>> {
        // Collected first: an actor whose last reference goes here takes itself out of this list.
        self.actors.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn next_actor(&self) -> ActorId {
        ActorId(self.next_actor.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn next_gate(&self) -> GateId {
        GateId(self.next_gate.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn add(&self, id: ActorId, actor: Weak<dyn Runnable>) {
        self.actors.lock().insert(id, actor);
    }

    pub(super) fn remove(&self, id: ActorId) {
        self.actors.lock().remove(&id);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("actors", &self.actors.lock().len()).finish_non_exhaustive()
    }
}

fn report(actor: &dyn Runnable) -> ActorReport {
    let (running, waits_for) = actor.waits_for();
    ActorReport {
        id: actor.id(),
        name: actor.name().to_owned(),
        backlog: actor.backlog(),
        running,
        waits_for,
    }
}

/// A gate's number in its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId(u64);

impl GateId {
    /// The gate of this number, for schedulers that count themselves.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The one-shot event under a [`Ticket`](super::Ticket): it opens once, for good.
#[derive(Debug)]
pub struct Gate {
    id: GateId,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(super) fn new(id: GateId) -> Self {
        Self { id, open: Mutex::new(false), opened: Condvar::new() }
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> GateId {
        self.id
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.open.lock()
    }

    /// Opens it. The scheduler's [`Scheduler::opened`] follows; a scheduler that looks at the gate under the lock
    /// that `opened` takes so never misses it.
    pub(super) fn open(&self) {
        *self.open.lock() = true;
    }

    /// For threads: wakes those in [`Gate::wait`].
    pub(super) fn notify(&self) {
        self.opened.notify_all();
    }

    /// For threads: waits until it is open or `until` has come, and says whether it is open.
    pub(super) fn wait(&self, until: Option<Instant>) -> bool {
        let mut open = self.open.lock();
        while !*open {
            match until {
                Some(at) if self.opened.wait_until(&mut open, at).timed_out() => return *open,
                Some(_) => {}
                None => self.opened.wait(&mut open),
            }
        }
        true
    }
}
