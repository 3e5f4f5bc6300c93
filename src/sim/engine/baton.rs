//! Host threads and their baton: one of them runs at a time, the one that has it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::{Engine, Host, MAIN, State, Turn};
use crate::actors::{Gate, Time, Woken, start_thread, text_of};
use crate::sim::task::TaskId;

impl Engine {
    /// Starts a host thread. It runs when it is picked, from `from` on.
    pub(in crate::sim) fn host(
        self: &Arc<Self>,
        name: &str,
        from: Time,
        program: Box<dyn FnOnce() + Send>,
    ) -> crate::error::Result<()> {
        let mut state = self.state.lock();
        let number = state.hosts.len();
        state.hosts.push(Host::new(name.to_owned()));
        if from <= state.now {
            state.wake_host(number);
        } else {
            self.later(&mut state, from, move |state| state.wake_host(number));
        }
        drop(state);
        let engine = Arc::clone(self);
        let trace = tracing::dispatcher::get_default(Clone::clone);
        let run = move || {
            tracing::dispatcher::with_default(&trace, || {
                engine.await_baton(number);
                engine.begin(number);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(program));
                engine.end_host(number, outcome.err().map(|payload| text_of(&*payload)));
            });
        };
        start_thread(name.to_owned(), run).inspect_err(|_| {
            // Nobody would ever take its turn.
            let mut state = self.state.lock();
            state.hosts[number].done = true;
            state.forget_ready(TaskId::host(number as u64));
        })
    }

    /// Lets others run before the program of this host goes on, if that is who calls.
    pub(in crate::sim) fn pause(&self) {
        let mut state = self.state.lock();
        if state.in_step || state.ending {
            return;
        }
        let me = state.holder;
        state.wake_host(me);
        drop(state);
        self.drive(me);
    }

    /// Blocks the program that has the baton.
    pub(in crate::sim) fn block(self: &Arc<Self>, gate: &Gate, until: Option<Time>) -> Woken {
        let mut timer = None;
        let woken = loop {
            let mut state = self.state.lock();
            if gate.is_open() {
                break Woken::Opened;
            }
            if state.ending || state.in_step {
                break Woken::Ended;
            }
            if until.is_some_and(|until| until <= state.now) {
                break Woken::TimedOut;
            }
            let me = state.holder;
            state.blocked.insert(gate.id(), me);
            if let (Some(until), None) = (until, timer) {
                timer = Some(self.later(&mut state, until, move |state| state.wake_host(me)));
            }
            drop(state);
            if !self.drive(me) {
                break if gate.is_open() { Woken::Opened } else { Woken::Ended };
            }
        };
        let mut state = self.state.lock();
        state.blocked.remove(&gate.id());
        let cancelled = timer.and_then(|timer| state.timers.cancel(timer));
        drop(state);
        drop(cancelled);
        woken
    }

    /// Lets every host that still blocks go, one after another: each gets an error where it waits.
    ///
    /// # Errors
    /// The name of a program that does not come to its end.
    pub(in crate::sim) fn end_hosts(&self) -> Result<(), String> {
        self.state.lock().ending = true;
        loop {
            let mut state = self.state.lock();
            let Some(next) = state.hosts.iter().skip(1).position(|host| !host.done).map(|at| at + 1) else {
                return Ok(());
            };
            state.forget_ready(TaskId::host(next as u64));
            state.hand_to(next);
            state.resumed = Some(next);
            if !self.await_main(&mut state) {
                return Err(state.hung.clone().unwrap_or_default());
            }
        }
    }

    /// Makes steps until host `me` is to go on. False if nothing can run any more, or the run is over.
    pub(super) fn drive(&self, me: usize) -> bool {
        loop {
            match self.turn() {
                Turn::Ran => {}
                Turn::Host(host) if host == me => {
                    self.begin(me);
                    return true;
                }
                Turn::Host(host) => {
                    let mut state = self.state.lock();
                    state.resumed = Some(host);
                    state.hand_to(host);
                    if let Some(went_on) = self.rest(me, state) {
                        return went_on;
                    }
                }
                Turn::Over if me == MAIN => return false,
                Turn::Over => {
                    let mut state = self.state.lock();
                    state.stalled = true;
                    state.hand_to(MAIN);
                    if let Some(went_on) = self.rest(me, state) {
                        return went_on;
                    }
                }
            }
        }
    }

    /// Waits for the baton; `None` if it came for making steps only.
    pub(super) fn rest<'a>(&'a self, me: usize, mut state: MutexGuard<'a, State>) -> Option<bool> {
        if me == MAIN {
            if !self.await_main(&mut state) {
                return Some(false);
            }
        } else {
            drop(state);
            self.await_baton(me);
            state = self.state.lock();
        }
        if state.resumed == Some(me) {
            let ending = state.ending;
            drop(state);
            self.begin(me);
            return Some(!ending);
        }
        (me == MAIN && std::mem::take(&mut state.stalled)).then_some(false)
    }

    pub(super) fn await_baton(&self, me: usize) {
        let mut state = self.state.lock();
        let awake = Arc::clone(&state.hosts[me].awake);
        // The thread that has the baton is bounded by its own steps; should host 0 give up, the baton comes too.
        while state.holder != me {
            awake.wait(&mut state);
        }
    }

    /// False if the baton did not come back in time.
    pub(super) fn await_main(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let mut progress = (state.steps, state.holder);
        // What is longer than clocks count is for ever.
        let limit = || Instant::now().checked_add(self.patience);
        let mut until = limit();
        let awake = Arc::clone(&state.hosts[MAIN].awake);
        while state.holder != MAIN {
            let timed_out = match until {
                Some(until) => awake.wait_until(state, until).timed_out(),
                None => {
                    awake.wait(state);
                    false
                }
            };
            if timed_out {
                if progress == (state.steps, state.holder) {
                    state.give_up();
                    return false;
                }
                progress = (state.steps, state.holder);
                until = limit();
            }
        }
        true
    }

    /// The program of host `me` goes on.
    pub(super) fn begin(&self, me: usize) {
        let mut state = self.state.lock();
        state.resumed = None;
        state.hosts[me].ran = state.steps;
        state.current = TaskId::host(me as u64);
        state.holder = me;
    }

    pub(super) fn end_host(&self, me: usize, panic: Option<String>) {
        let mut state = self.state.lock();
        state.hosts[me].done = true;
        if let Some(message) = panic {
            state.panicked(TaskId::host(me as u64), &message);
        }
        state.hand_to(MAIN);
    }
}
