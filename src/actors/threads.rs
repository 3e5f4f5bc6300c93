//! The runtime of worker threads: M actors on N threads.
//!
//! Runnable actors wait in one queue, which all workers take from. A worker gives an actor a turn of at most
//! [`TURN`] messages; then it goes to the back. A worker that finds the queue empty sleeps at once: it waits for
//! other ranks, which may be processes that need its core. (So this is no crossbeam channel, whose receiver looks and
//! yields for a while first.)
//! The threads hold no reference to [`Threads`]: when its last one goes, the queue ends and the threads with it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::due::turn;
use super::scheduler::{Gate, Registry, Runnable, Scheduler, Step, Time, Woken, start_thread};
use super::timer::{TimerId, Timers};
use crate::error::{Misuse, Result};

#[derive(Debug)]
pub(super) struct Threads {
    registry: Registry,
    queue: Arc<Queue>,
    timers: Arc<Timers>,
}

impl Threads {
    pub(super) fn start(workers: usize) -> Result<Arc<Self>> {
        if workers == 0 {
            let (name, why) = ("workers".to_owned(), "at least one worker thread is needed".to_owned());
            return Err(Misuse::BadSetting { name, value: "0".to_owned(), why }.into());
        }
        let queue = Arc::new(Queue::default());
        let timers = Timers::new(Instant::now());
        let threads = Arc::new(Self {
            registry: Registry::default(),
            queue: Arc::clone(&queue),
            timers: Arc::clone(&timers),
        });
        // Should one fail to start, `threads` is dropped here, which ends those that did.
        start_thread("symwin-timer".to_owned(), move || timers.run())?;
        for i in 0..workers {
            let (queue, back) = (Arc::clone(&queue), Arc::downgrade(&threads));
            start_thread(format!("symwin-work-{i}"), move || work(&queue, &back))?;
        }
        Ok(threads)
    }

    #[cfg(test)]
    pub(super) fn pending_timers(&self) -> usize {
        self.timers.len()
    }
}

impl Scheduler for Threads {
    fn now(&self) -> Time {
        self.timers.now()
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn ready(&self, cell: Arc<dyn Runnable>) {
        self.queue.push(cell);
    }

    fn lends(&self) -> bool {
        true
    }

    fn timer(&self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId {
        self.timers.insert(at, ring)
    }

    fn cancel(&self, id: TimerId) {
        self.timers.cancel(id);
    }

    fn block(&self, gate: &Gate, until: Option<Time>) -> Woken {
        let until = until.and_then(|at| self.timers.instant(at));
        if gate.wait(until) { Woken::Opened } else { Woken::TimedOut }
    }

    fn opened(&self, gate: &Gate) {
        gate.notify();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // None is joined: this may be one of them.
        self.queue.end();
        self.timers.close();
    }
}

/// Runnable actors, in the order in which they became so.
#[derive(Default)]
struct Queue {
    state: Mutex<Queued>,
    /// For workers: there is a cell, or will never be one again.
    filled: Condvar,
}

#[derive(Default)]
struct Queued {
    cells: VecDeque<Arc<dyn Runnable>>,
    ended: bool,
}

impl Queue {
    fn push(&self, cell: Arc<dyn Runnable>) {
        self.state.lock().cells.push_back(cell);
        // Makes no system call where nobody sleeps.
        self.filled.notify_one();
    }

    /// The next cell, once there is one. `None` when the queue has ended and is empty.
    fn pop(&self) -> Option<Arc<dyn Runnable>> {
        let mut state = self.state.lock();
        loop {
            if let Some(cell) = state.cells.pop_front() {
                return Some(cell);
            }
            if state.ended {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    fn end(&self) {
        self.state.lock().ended = true;
        self.filled.notify_all();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Queue")
            .field("cells", &state.cells.len())
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}

/// A worker's program.
fn work(queue: &Queue, back: &Weak<Threads>) {
    while let Some(cell) = queue.pop() {
        if turn(&*cell) == Step::More {
            let threads = back.upgrade().expect("a runnable keeps its scheduler alive");
            threads.ready(cell);
        }
    }
}
