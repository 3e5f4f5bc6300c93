//! One-shot answers: a [`Reply`] rides in a message, its [`Ticket`] waits.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::Runtime;
use super::scheduler::{Gate, Time, Woken};

/// The answer will not come: whoever owed it dropped its [`Reply`], or the runtime ended. Also what a [`Ticket`]
/// says that has already given its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the answer is lost: whoever owed it has ended")]
#[non_exhaustive]
pub struct Lost;

/// Where one answer goes. Dropping it unsent answers [`Lost`].
pub struct Reply<T> {
    /// `None` once sent.
    slot: Option<Arc<Slot<T>>>,
}

impl<T> Reply<T> {
    /// Answers.
    ///
    /// # Errors
    /// Gives the value back if the ticket is gone.
    pub fn send(mut self, value: T) -> Result<(), T> {
        let slot = self.slot.take().expect("a reply is sent once, by value");
        slot.answer(State::Answered(value)).map_err(|answer| match answer {
            State::Answered(value) => value,
            State::Done | State::Lost | State::Waiting(_) => unreachable!("it gives back what it was given"),
        })
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // A ticket that is gone need not know.
            let _gone = slot.answer(State::Lost);
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("gate", &self.slot.as_ref().map(|slot| slot.gate.id())).finish()
    }
}

/// Waits for one answer: by blocking a host thread, by polling, or as a future on any executor. An actor polls or
/// awaits; only host threads block.
#[must_use = "dropping a ticket gives the answer up"]
pub struct Ticket<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Ticket<T> {
    /// Blocks until the answer is there. It comes, or is lost, when its [`Reply`] is gone; where that may take for
    /// ever, use [`Ticket::wait_until`].
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait(mut self) -> Result<T, Lost> {
        loop {
            if let Some(answer) = self.poll() {
                return answer;
            }
            if self.block(None) == Woken::Ended {
                return self.poll().unwrap_or(Err(Lost));
            }
        }
    }

    /// Blocks until the answer is there or `at` has come. `None`: gave up waiting, only that; the answer may still
    /// come and this ticket still takes it.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait_until(&mut self, at: Time) -> Result<Option<T>, Lost> {
        loop {
            if let Some(answer) = self.poll() {
                return answer.map(Some);
            }
            match self.block(Some(at)) {
                Woken::Ended => return self.poll().unwrap_or(Err(Lost)).map(Some),
                Woken::Opened => {}
                Woken::TimedOut => return self.poll().transpose(),
            }
        }
    }

    /// Takes the answer if it is there.
    pub fn poll(&mut self) -> Option<Result<T, Lost>> {
        self.slot.take()
    }

    fn block(&self, until: Option<Time>) -> Woken {
        self.slot.runtime.scheduler().block(&self.slot.gate, until)
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, Lost>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.take_or_wake(cx.waker())
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        // In two statements: an answer or a waker is dropped after the lock was given back.
        let left = std::mem::replace(&mut *self.slot.state.lock(), State::Done);
        drop(left);
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("gate", &self.slot.gate.id()).finish()
    }
}

pub(super) fn pair<T>(runtime: &Runtime) -> (Reply<T>, Ticket<T>) {
    let gate = Gate::new(runtime.scheduler().new_gate());
    let state = Mutex::new(State::Waiting(None));
    let slot = Arc::new(Slot { gate, runtime: runtime.clone(), state });
    (Reply { slot: Some(Arc::clone(&slot)) }, Ticket { slot })
}

/// What a reply and its ticket share.
struct Slot<T> {
    /// Open once the state is no longer `Waiting` by the reply's doing.
    gate: Gate,
    runtime: Runtime,
    state: Mutex<State<T>>,
}

enum State<T> {
    Answered(T),
    /// Taken, or the ticket is gone.
    Done,
    Lost,
    /// The waker of whoever polled last.
    Waiting(Option<Waker>),
}

impl<T> Slot<T> {
    /// The reply's side, once. Gives the answer back if nobody waits for it.
    fn answer(&self, answer: State<T>) -> Result<(), State<T>> {
        let mut state = self.state.lock();
        if !matches!(*state, State::Waiting(_)) {
            return Err(answer);
        }
        let before = std::mem::replace(&mut *state, answer);
        drop(state);
        self.gate.open();
        self.runtime.scheduler().opened(&self.gate);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
        Ok(())
    }

    fn take(&self) -> Option<Result<T, Lost>> {
        take(&mut self.state.lock())
    }

    fn take_or_wake(&self, waker: &Waker) -> Poll<Result<T, Lost>> {
        let mut state = self.state.lock();
        if let Some(answer) = take(&mut state) {
            return Poll::Ready(answer);
        }
        let before = std::mem::replace(&mut *state, State::Waiting(Some(waker.clone())));
        drop(state);
        drop(before);
        Poll::Pending
    }
}

fn take<T>(state: &mut State<T>) -> Option<Result<T, Lost>> {
    if matches!(state, State::Waiting(_)) {
        return None;
    }
    match std::mem::replace(state, State::Done) {
        State::Answered(value) => Some(Ok(value)),
        _ => Some(Err(Lost)),
    }
}
