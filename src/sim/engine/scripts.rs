//! Scripts: programs that await instead of blocking, polled by the engine.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::MutexGuard;

use super::{Engine, Script, State};
use crate::actors::{Time, text_of};
use crate::sim::task::TaskId;

/// A script: a program that never blocks.
pub(in crate::sim) type Program = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Engine {
    /// Adds a script. It is polled when it is picked, first at `from`.
    pub(in crate::sim) fn script(self: &Arc<Self>, name: &str, from: Time, program: Program) {
        let mut state = self.state.lock();
        let number = state.scripts.len();
        let waker = Waker::from(Arc::new(ScriptWaker { engine: Arc::downgrade(self), number }));
        let script = Script {
            name: name.to_owned(),
            program: Some(program),
            waker,
            ready: false,
            done: false,
            ran: 0,
            woken: false,
        };
        state.scripts.push(script);
        if from <= state.now {
            state.wake_script(number);
        } else {
            self.later(&mut state, from, move |state| state.wake_script(number));
        }
    }

    /// Drops the programs of scripts that have not ended.
    pub(in crate::sim) fn end_scripts(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(number) = state.scripts.iter().position(|script| script.program.is_some()) else {
                return;
            };
            let program = state.scripts[number].program.take();
            state.forget_ready(TaskId::script(number as u64));
            drop(state);
            self.drop_program(number, program);
        }
    }

    pub(super) fn poll(&self, mut state: MutexGuard<'_, State>, number: usize) {
        let steps = state.steps;
        let script = &mut state.scripts[number];
        script.ready = false;
        script.woken = false;
        script.ran = steps;
        let (program, waker) = (script.program.take(), script.waker.clone());
        let Some(mut program) = program else { return };
        state.in_step = true;
        drop(state);
        let run = || program.as_mut().poll(&mut Context::from_waker(&waker));
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let panic = match polled {
            Ok(Poll::Pending) => {
                let mut state = self.state.lock();
                state.in_step = false;
                state.scripts[number].program = Some(program);
                if state.scripts[number].woken {
                    state.wake_script(number);
                }
                return;
            }
            Ok(Poll::Ready(())) => None,
            Err(payload) => Some(text_of(&*payload)),
        };
        let mut state = self.state.lock();
        state.scripts[number].done = true;
        if let Some(message) = panic {
            state.panicked(TaskId::script(number as u64), &message);
        }
        drop(state);
        self.drop_program(number, Some(program));
        self.state.lock().in_step = false;
    }

    /// Drops a script's program; what it holds may panic.
    pub(super) fn drop_program(&self, number: usize, program: Option<Program>) {
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(program)));
        if let Err(payload) = dropped {
            self.state.lock().panicked(TaskId::script(number as u64), &text_of(&*payload));
        }
    }
}

struct ScriptWaker {
    engine: Weak<Engine>,
    number: usize,
}

impl Wake for ScriptWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(engine) = self.engine.upgrade() {
            engine.state.lock().wake_script(self.number);
        }
    }
}
