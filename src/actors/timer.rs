//! Timers: a queue ordered by time, for any scheduler, and the thread that rings it for [`Threads`].
//!
//! [`Threads`]: super::threads::Threads

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::Time;

/// A pending timer. It means something only to whoever gave it: an actor's to that actor ([`super::Cx::timer`]), a
/// scheduler's to that scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId {
    // The time comes first: ordering by id is ordering by time, and a queue finds an entry by its id alone.
    at: Time,
    seq: u64,
}

impl TimerId {
    pub(super) const fn new(at: Time, seq: u64) -> Self {
        Self { at, seq }
    }

    /// When it rings.
    #[must_use]
    pub const fn at(self) -> Time {
        self.at
    }
}

/// Timers in the order of their times, those of equal time in the order in which they were set.
///
/// A tree rather than a heap: a cancelled entry is gone at once, in O(log n), so timers that are set and cancelled
/// (every operation's deadline) leave nothing behind.
#[derive(Default)]
pub struct TimerQueue {
    pending: BTreeMap<TimerId, Box<dyn FnOnce() + Send>>,
    next_seq: u64,
}

impl TimerQueue {
    /// Adds a timer.
    pub fn insert(&mut self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId {
        let id = TimerId::new(at, self.next_seq);
        self.next_seq += 1;
        self.pending.insert(id, ring);
        id
    }

    /// Takes a timer out. What it holds is returned for the caller to drop, outside of its locks; `None` if it has
    /// rung or was cancelled.
    #[must_use = "drop it outside of locks"]
    pub fn cancel(&mut self, id: TimerId) -> Option<Box<dyn FnOnce() + Send>> {
        self.pending.remove(&id)
    }

    /// When the next one rings.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.pending.keys().next().map(|id| id.at)
    }

    /// When each one rings.
    pub(crate) fn times(&self) -> impl Iterator<Item = Time> {
        self.pending.keys().map(|id| id.at)
    }

    /// Takes out the next one whose time has come. Ring it outside of locks.
    pub fn pop_due(&mut self, now: Time) -> Option<Box<dyn FnOnce() + Send>> {
        let first = self.pending.first_entry()?;
        (first.key().at <= now).then(|| first.remove())
    }

    /// How many are pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether none is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

impl fmt::Debug for TimerQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerQueue").field("pending", &self.len()).field("next_at", &self.next_at()).finish()
    }
}

/// What the timer thread shares with its [`Threads`](super::threads::Threads).
#[derive(Debug)]
pub(super) struct Timers {
    start: Instant,
    state: Mutex<State>,
    /// A timer before the next look, or the end has come.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: TimerQueue,
    /// When the thread looks again by itself, while it sleeps until a time. The timer that it slept for may be gone
    /// by then: it stays so, so that deadlines that are set and cancelled one after the other wake it seldom.
    looks_at: Option<Time>,
    closed: bool,
}

impl Timers {
    pub(super) fn new(start: Instant) -> Arc<Self> {
        Arc::new(Self { start, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// `at` on the operating system's clock; `None` where that cannot express it, which is never.
    pub(super) fn instant(&self, at: Time) -> Option<Instant> {
        self.start.checked_add(at.since(Time::ZERO))
    }

    pub(super) fn insert(&self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId {
        let mut state = self.state.lock();
        let sooner = state.looks_at.is_none_or(|looks| at < looks);
        let id = state.queue.insert(at, ring);
        drop(state);
        if sooner {
            self.changed.notify_one();
        }
        id
    }

    pub(super) fn cancel(&self, id: TimerId) {
        // In two statements: what the timer held is dropped after the lock was given back.
        let cancelled = self.state.lock().queue.cancel(id);
        drop(cancelled);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Ends [`Timers::run`]; pending timers are dropped unrung.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let unrung = std::mem::take(&mut state.queue);
        drop(state);
        self.changed.notify_one();
        drop(unrung);
    }

    /// The timer thread's program.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            if let Some(ring) = state.queue.pop_due(self.now()) {
                drop(state);
                // What rings is ours; whatever it drops may be a user's, and must not end this thread.
                let rung = panic::catch_unwind(AssertUnwindSafe(ring));
                if rung.is_err() {
                    tracing::debug!("timer.panic");
                }
                state = self.state.lock();
                continue;
            }
            // Idle: waits for work that somebody may bring, not for an answer that somebody owes.
            state.looks_at = state.queue.next_at();
            match state.looks_at.and_then(|at| self.instant(at)) {
                Some(at) => drop(self.changed.wait_until(&mut state, at)),
                None => self.changed.wait(&mut state),
            }
            state.looks_at = None;
        }
    }
}
