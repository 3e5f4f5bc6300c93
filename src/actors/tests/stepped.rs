//! A scheduler of one thread: a seed picks the next actor, time is virtual.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::actors::{
    ActorId, Gate, Registry, Runnable, Runtime, Scheduler, Step, Time, TimerId, TimerQueue, Woken,
};

#[derive(Debug)]
pub(super) struct Stepped {
    registry: Registry,
    state: Mutex<State>,
}

struct State {
    ready: Vec<Arc<dyn Runnable>>,
    timers: TimerQueue,
    now: Time,
    random: u64,
    /// Who ran, in order.
    trace: Vec<ActorId>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Stepped {
    pub(super) fn new(seed: u64) -> (Arc<Self>, Runtime) {
        let state = State {
            ready: Vec::new(),
            timers: TimerQueue::default(),
            now: Time::ZERO,
            random: seed,
            trace: Vec::new(),
        };
        let stepped = Arc::new(Self { registry: Registry::default(), state: Mutex::new(state) });
        let runtime = Runtime::from_scheduler(Arc::<Self>::clone(&stepped));
        (stepped, runtime)
    }

    /// Runs until nothing can run and no timer is pending.
    pub(super) fn run(&self) {
        while self.step() || self.ring() {}
    }

    /// Runs one message of one actor, if one is ready.
    pub(super) fn step(&self) -> bool {
        let Some(cell) = self.pick() else { return false };
        if cell.step() == Step::More {
            self.ready(cell);
        }
        true
    }

    /// Runs this actor alone, until it has nothing to do.
    pub(super) fn run_only(&self, id: ActorId) {
        let mut state = self.state.lock();
        let index = state.ready.iter().position(|cell| cell.id() == id).expect("it is ready");
        let cell = state.ready.remove(index);
        drop(state);
        while cell.step() == Step::More {}
    }

    /// Moves time to the next timer and rings it, if there is one.
    pub(super) fn ring(&self) -> bool {
        self.ring_next(None)
    }

    pub(super) fn trace(&self) -> Vec<ActorId> {
        self.state.lock().trace.clone()
    }

    pub(super) fn pending_timers(&self) -> usize {
        self.state.lock().timers.len()
    }

    fn pick(&self) -> Option<Arc<dyn Runnable>> {
        let mut state = self.state.lock();
        let count = u64::try_from(state.ready.len()).ok().filter(|count| *count > 0)?;
        state.random =
            state.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = usize::try_from((state.random >> 33) % count).unwrap();
        let cell = state.ready.remove(index);
        state.trace.push(cell.id());
        Some(cell)
    }

    /// Moves time to the next timer, if that is not after `until`, and rings it.
    fn ring_next(&self, until: Option<Time>) -> bool {
        let mut state = self.state.lock();
        let next = state.timers.next_at().filter(|next| until.is_none_or(|until| *next <= until));
        let Some(next) = next else { return false };
        state.now = state.now.max(next);
        let now = state.now;
        let ring = state.timers.pop_due(now).unwrap();
        drop(state);
        ring();
        true
    }
}

impl Scheduler for Stepped {
    fn now(&self) -> Time {
        self.state.lock().now
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn ready(&self, cell: Arc<dyn Runnable>) {
        let mut state = self.state.lock();
        assert!(state.ready.iter().all(|other| other.id() != cell.id()), "{} is ready twice", cell.id());
        state.ready.push(cell);
    }

    fn timer(&self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId {
        self.state.lock().timers.insert(at, ring)
    }

    fn cancel(&self, id: TimerId) {
        let cancelled = self.state.lock().timers.cancel(id);
        drop(cancelled);
    }

    /// The only host thread is the one that runs everything: it does so here.
    fn block(&self, gate: &Gate, until: Option<Time>) -> Woken {
        loop {
            if gate.is_open() {
                return Woken::Opened;
            }
            if self.step() || self.ring_next(until) {
                continue;
            }
            let Some(until) = until else { return Woken::Ended };
            let mut state = self.state.lock();
            state.now = state.now.max(until);
            return Woken::TimedOut;
        }
    }

    fn opened(&self, _gate: &Gate) {}
}
