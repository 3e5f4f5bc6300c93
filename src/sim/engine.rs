//! The engine: everything that can run, one step at a time, in one thread of control.
//!
//! A step is one handler call of an actor, one delivery of a link, one stretch of a host thread between two blocking
//! points, or one poll of a script. Virtual time moves only when nothing can run (or a fault moves it).
//!
//! **The baton.** Host programs are threads, one of which runs at a time: the one that holds the baton. Where it blocks,
//! it makes the next steps itself, until the policy picks a host thread: itself, and it goes on without any switch, or
//! another one, which gets the baton. The thread that runs the simulation is host 0. So a world without other hosts
//! makes no switch at all.
//!
//! Locks: the engine's own lock is held for a few instructions, never while a step runs.

mod baton;
mod scripts;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use self::scripts::Program;
use super::faults::{Fault, Plan};
use super::net::{More, Net};
use super::policy::{Chooser, Pick};
use super::prints::Prints;
use super::random::mix;
use super::task::TaskId;
use crate::actors::{Gate, GateId, Runnable, Step, Time, TimerId, TimerQueue};
use crate::devr::numbers::NumberMap;

/// Everything that can run in one run of a simulation.
pub(super) struct Engine {
    /// Itself, for timers.
    me: Weak<Self>,
    /// Nanoseconds of virtual time, as in the state: for who has no need of the lock.
    now: AtomicU64,
    next_gate: AtomicU64,
    /// States are told apart.
    prints: bool,
    state: Mutex<State>,
    /// The longest that a program may keep the baton, in real time, before the simulation gives up.
    patience: Duration,
}

/// What the engine's lock guards.
pub(super) struct State {
    pub(super) now: Time,
    timers: TimerQueue,
    /// What can run; the same order in `cells`.
    ready: Vec<TaskId>,
    cells: Vec<Ready>,
    pub(super) chooser: Chooser,
    last: Option<TaskId>,
    /// The task whose step runs; a host's while its program does.
    current: TaskId,
    in_step: bool,
    pub(super) steps: u64,
    /// Of what ran in which order.
    digest: u64,
    hosts: Vec<Host>,
    /// Who blocks on a gate.
    blocked: NumberMap<GateId, usize>,
    /// Who has the baton.
    holder: usize,
    /// The host whose program goes on.
    resumed: Option<usize>,
    scripts: Vec<Script>,
    pub(super) net: Net,
    pub(super) plan: Plan,
    pub(super) prints: Option<Prints>,
    /// Nothing can run any more.
    stalled: bool,
    /// Blocked hosts are let go, with an error.
    ending: bool,
    /// The policy has seen this state before.
    pub(super) pruned: bool,
    /// The run is over its limit of steps.
    pub(super) endless: bool,
    /// Panics of hosts and scripts.
    pub(super) panics: Vec<String>,
    /// The program that kept the baton for too long.
    pub(super) hung: Option<String>,
    steps_max: u64,
}

enum Ready {
    Actor(Arc<dyn Runnable>),
    Host(usize),
    Link(usize),
    Script(usize),
}

struct Host {
    name: String,
    awake: Arc<Condvar>,
    done: bool,
    /// It waits in the list of what can run.
    ready: bool,
    /// At which step it last ran.
    ran: u64,
}

struct Script {
    name: String,
    program: Option<Program>,
    waker: Waker,
    ready: bool,
    done: bool,
    /// At which step it last ran.
    ran: u64,
    /// It was woken while it ran.
    woken: bool,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// This host's program goes on.
    Host(usize),
    /// Nothing can run, or the run is over.
    Over,
    Ran,
}

/// The number of the thread that runs the simulation.
const MAIN: usize = 0;

impl Engine {
    pub(super) fn new(chooser: Chooser, plan: Plan, steps_max: u64, patience: Duration) -> Arc<Self> {
        let tells = chooser.tells_states_apart();
        let prints = tells.then(Prints::default);
        let state = State {
            now: Time::ZERO,
            timers: TimerQueue::default(),
            ready: Vec::new(),
            cells: Vec::new(),
            chooser,
            last: None,
            current: TaskId::host(0),
            in_step: false,
            steps: 0,
            digest: 0,
            hosts: vec![Host::new("main".to_owned())],
            blocked: NumberMap::default(),
            holder: MAIN,
            resumed: None,
            scripts: Vec::new(),
            net: Net::default(),
            plan,
            prints,
            stalled: false,
            ending: false,
            pruned: false,
            endless: false,
            panics: Vec::new(),
            hung: None,
            steps_max,
        };
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            now: AtomicU64::new(0),
            next_gate: AtomicU64::new(0),
            prints: tells,
            state: Mutex::new(state),
            patience,
        })
    }

    /// The state. Never held while anything of the world runs.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn now(&self) -> Time {
        // One thread runs at a time, and the baton's lock orders them.
        Time::ZERO + Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn ready(&self, cell: Arc<dyn Runnable>) {
        let mut state = self.state.lock();
        let id = TaskId::actor(cell.id());
        state.push(id, Ready::Actor(cell));
    }

    pub(super) fn timer(&self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId {
        self.state.lock().timers.insert(at, ring)
    }

    pub(super) fn cancel(&self, id: TimerId) {
        let cancelled = self.state.lock().timers.cancel(id);
        drop(cancelled);
    }

    pub(super) fn new_gate(&self) -> GateId {
        let id = self.next_gate.fetch_add(1, Ordering::Relaxed);
        if self.prints {
            let mut state = self.state.lock();
            let current = state.current;
            if let Some(prints) = &mut state.prints {
                prints.owns(id, current);
            }
        }
        GateId::new(id)
    }

    pub(super) fn opened(&self, gate: &Gate) {
        let mut state = self.state.lock();
        if let Some(prints) = &mut state.prints {
            prints.opened(gate.id().get());
        }
        if let Some(host) = state.blocked.remove(&gate.id()) {
            state.wake_host(host);
        }
    }

    /// A link has something to deliver from `at` on.
    pub(super) fn link_due(&self, state: &mut State, link: usize, at: Time) {
        if !state.net.announce(link) {
            return;
        }
        if at <= state.now {
            return state.push(TaskId::link(link as u64), Ready::Link(link));
        }
        self.later(state, at, move |state| state.push(TaskId::link(link as u64), Ready::Link(link)));
    }

    /// Has something done to the state at a time.
    fn later(&self, state: &mut State, at: Time, then: impl FnOnce(&mut State) + Send + 'static) -> TimerId {
        let engine = Weak::clone(&self.me);
        let ring = move || engine.upgrade().map_or((), |engine| then(&mut engine.state.lock()));
        state.timers.insert(at, Box::new(ring))
    }

    /// When the next program begins: later than now for the one that faults picked.
    pub(super) fn begins(&self) -> Time {
        let mut state = self.state.lock();
        let now = state.now;
        now + state.plan.next_late()
    }

    /// The program that runs says where it is.
    pub(super) fn position(&self, position: u64) {
        let mut state = self.state.lock();
        let current = state.current;
        if let Some(prints) = &mut state.prints {
            prints.position(current, position);
        }
    }

    /// A number below `bound`, for the program that asks: what it does from here on depends on it.
    pub(super) fn draw(&self, bound: u64) -> u64 {
        let mut state = self.state.lock();
        let (drawn, current) = (state.chooser.draw(bound), state.current);
        if let Some(prints) = &mut state.prints {
            prints.drew(current, drawn);
        }
        drawn
    }

    /// Runs until nothing can run any more, or the run is over. For host 0, when its own program has ended.
    pub(super) fn run(&self) {
        self.drive(MAIN);
        self.state.lock().stalled = false;
    }

    /// Takes out everything that can run and every timer, for the end. Drop it without the lock.
    pub(super) fn clear(&self) -> (Vec<Arc<dyn Runnable>>, TimerQueue) {
        let mut state = self.state.lock();
        state.ready.clear();
        let cells = std::mem::take(&mut state.cells);
        let actors = cells.into_iter().filter_map(|cell| match cell {
            Ready::Actor(cell) => Some(cell),
            _ => None,
        });
        let actors = actors.collect();
        (actors, std::mem::take(&mut state.timers))
    }

    /// How many steps were made, the time, and the program that runs, if one does; unless someone is looking.
    pub(super) fn try_at(&self) -> Option<(u64, Time, Option<String>)> {
        let state = self.state.try_lock()?;
        Some((state.steps, state.now, state.name_of(state.current).cloned()))
    }

    /// The programs that have not ended, and since when they wait.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let state = self.state.lock();
        let hosts = state.hosts.iter().skip(1).filter(|host| !host.done).map(|host| (&host.name, host.ran));
        let scripts = state.scripts.iter().filter(|script| !script.done);
        let programs = hosts.chain(scripts.map(|script| (&script.name, script.ran)));
        programs.map(|(name, ran)| format!("{name} (waits since step {ran})")).collect()
    }

    /// Takes one step, or finds the host whose turn it is.
    fn turn(&self) -> Turn {
        let mut state = self.state.lock();
        loop {
            if state.pruned || state.endless || state.hung.is_some() {
                return Turn::Over;
            }
            if let Some(fault) = state.due_fault() {
                drop(state);
                self.strike(fault);
                state = self.state.lock();
                continue;
            }
            if !state.ready.is_empty() {
                state.endless = state.steps >= state.steps_max;
                if state.endless {
                    return Turn::Over;
                }
                break;
            }
            let Some(at) = state.timers.next_at() else { return Turn::Over };
            state = self.ring(state, at);
        }
        let Some((id, cell)) = state.choose() else { return Turn::Over };
        state.count(id);
        match cell {
            Ready::Host(host) => {
                state.hosts[host].ready = false;
                return Turn::Host(host);
            }
            Ready::Actor(cell) => {
                state.in_step = true;
                drop(state);
                let more = cell.step() == Step::More;
                let mut state = self.state.lock();
                state.in_step = false;
                if more {
                    state.push(id, Ready::Actor(cell));
                }
            }
            Ready::Link(link) => {
                let (delivery, more) = state.net.take(link);
                if let More::At(at) = more {
                    self.link_due(&mut state, link, at);
                }
                state.in_step = true;
                drop(state);
                if let Some(delivery) = delivery {
                    delivery.deliver(self);
                }
                self.state.lock().in_step = false;
            }
            Ready::Script(number) => self.poll(state, number),
        }
        Turn::Ran
    }

    /// Moves time to `at` and rings every timer whose time has come.
    fn ring<'a>(&'a self, mut state: MutexGuard<'a, State>, at: Time) -> MutexGuard<'a, State> {
        state.now = state.now.max(at);
        let now = state.now;
        let (mut rings, mut count) = (Vec::new(), 0_u64);
        while let Some(ring) = state.timers.pop_due(now) {
            rings.push(ring);
            count += 1;
        }
        state.digest = mix(state.digest, count);
        self.now.store(nanos(now), Ordering::Relaxed);
        drop(state);
        rings.into_iter().for_each(|ring| ring());
        self.state.lock()
    }

    /// Time jumps to the next timer, though others can run.
    pub(super) fn hasten(&self) {
        let state = self.state.lock();
        if let Some(at) = state.timers.next_at() {
            drop(self.ring(state, at));
        }
    }

    fn strike(&self, fault: Fault) {
        self.state.lock().in_step = true;
        fault.strike(self);
        self.state.lock().in_step = false;
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Engine")
            .field("steps", &state.steps)
            .field("now", &state.now)
            .field("ready", &state.ready)
            .finish_non_exhaustive()
    }
}

impl State {
    fn push(&mut self, id: TaskId, cell: Ready) {
        debug_assert!(!self.ready.contains(&id), "{id:?} can run already");
        self.ready.push(id);
        self.cells.push(cell);
    }

    /// Takes out the task that goes next. `None`: the run ends here.
    fn choose(&mut self) -> Option<(TaskId, Ready)> {
        let index = if self.ready.len() == 1 {
            0
        } else {
            let (prints, now, net) = (&self.prints, self.now, &self.net);
            let (ready, timers, plan) = (&self.ready, &self.timers, &self.plan);
            let (steps, digest) = (self.steps, self.digest);
            let state = || {
                let Some(prints) = prints else { return 0 };
                let can_run = ready.iter().fold(0, |sum: u64, task| sum.wrapping_add(mix(task.bits(), 0)));
                // Of programs that wait for a while, when: actors tell of their own timers.
                let rings = timers.times().map(nanos).fold(0, |sum: u64, at| sum.wrapping_add(mix(at, 0)));
                [net.print(), can_run, rings, plan.print(steps, digest)]
                    .into_iter()
                    .fold(prints.programs(now), mix)
            };
            match self.chooser.pick(ready, self.last, state) {
                Pick::Index(index) => index,
                Pick::Prune => {
                    self.pruned = true;
                    return None;
                }
            }
        };
        self.digest = mix(self.digest, self.ready.len() as u64);
        Some((self.ready.swap_remove(index), self.cells.swap_remove(index)))
    }

    fn count(&mut self, id: TaskId) {
        self.steps += 1;
        self.last = Some(id);
        self.current = id;
        self.digest = mix(self.digest, id.bits());
        if let Some(prints) = &mut self.prints {
            prints.begin(id, self.now);
        }
    }

    /// A digest of the run so far: what ran in which order, and what could have.
    pub(super) const fn digest(&self) -> u64 {
        self.digest
    }

    /// Adds to the digest.
    pub(super) const fn note(&mut self, what: u64) {
        self.digest = mix(self.digest, what);
    }

    fn due_fault(&mut self) -> Option<Fault> {
        self.plan.due(self.steps)
    }

    fn wake_host(&mut self, host: usize) {
        if self.hosts[host].done || std::mem::replace(&mut self.hosts[host].ready, true) {
            return;
        }
        self.push(TaskId::host(host as u64), Ready::Host(host));
    }

    fn wake_script(&mut self, number: usize) {
        let script = &mut self.scripts[number];
        script.woken = true;
        // While it runs it is not in its place; it is looked at afterwards.
        if script.program.is_none() || std::mem::replace(&mut script.ready, true) {
            return;
        }
        self.push(TaskId::script(number as u64), Ready::Script(number));
    }

    fn forget_ready(&mut self, id: TaskId) {
        if let Some(index) = self.ready.iter().position(|ready| *ready == id) {
            self.ready.swap_remove(index);
            self.cells.swap_remove(index);
        }
    }

    /// Some program keeps the baton: nothing goes on, and whoever blocks from now on gets an error.
    fn give_up(&mut self) {
        let name = |id: TaskId| self.name_of(id).cloned();
        let hung = name(self.current).or_else(|| name(TaskId::host(self.holder as u64)));
        self.hung = Some(hung.unwrap_or_default());
        self.ending = true;
    }

    fn panicked(&mut self, program: TaskId, message: &str) {
        let name = self.name_of(program).cloned().unwrap_or_default();
        self.panics.push(format!("{name} panicked: {message}"));
    }

    fn name_of(&self, id: TaskId) -> Option<&String> {
        let hosts = self.hosts.iter().zip(0..).map(|(host, number)| (TaskId::host(number), &host.name));
        let scripts =
            self.scripts.iter().zip(0..).map(|(script, number)| (TaskId::script(number), &script.name));
        hosts.chain(scripts).find(|(task, _)| *task == id).map(|(_, name)| name)
    }

    fn hand_to(&mut self, host: usize) {
        self.holder = host;
        self.hosts[host].awake.notify_one();
    }
}

/// Since the world began.
fn nanos(at: Time) -> u64 {
    u64::try_from(at.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX)
}

impl Host {
    fn new(name: String) -> Self {
        Self { name, awake: Arc::new(Condvar::new()), done: false, ready: false, ran: 0 }
    }
}
