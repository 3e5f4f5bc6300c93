//! The runtime of worker threads: M actors on N threads.
//!
//! Runnable actors wait in one queue, which all workers take from: a crossbeam channel, for it is fast, fair and
//! wakes exactly one worker. A worker gives an actor a turn of at most [`TURN`] messages; then it goes to the back.
//! The threads hold no reference to [`Threads`]: when its last one goes, the channel ends and the threads with it.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::scheduler::{Gate, Registry, Runnable, Scheduler, Step, Time, Woken};
use super::timer::{TimerId, Timers};
use crate::error::{BootstrapError, Misuse, Result};

/// Most messages that an actor handles before others have their turn.
const TURN: usize = 16;

#[derive(Debug)]
pub(super) struct Threads {
    registry: Registry,
    run: Sender<Arc<dyn Runnable>>,
    timers: Arc<Timers>,
}

impl Threads {
    pub(super) fn start(workers: usize) -> Result<Arc<Self>> {
        if workers == 0 {
            let (name, why) = ("workers".to_owned(), "at least one worker thread is needed".to_owned());
            return Err(Misuse::BadSetting { name, value: "0".to_owned(), why }.into());
        }
        let (run, runnable) = unbounded();
        let timers = Timers::new(Instant::now());
        let threads = Arc::new(Self { registry: Registry::default(), run, timers: Arc::clone(&timers) });
        // Should one fail to start, `threads` is dropped here, which ends those that did.
        start_thread("symwin-timer".to_owned(), move || timers.run())?;
        for i in 0..workers {
            let (runnable, back) = (runnable.clone(), Arc::downgrade(&threads));
            start_thread(format!("symwin-work-{i}"), move || work(&runnable, &back))?;
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
        // The channel has no end and its receivers live as long as `self`: only a worker that died could fail this.
        let sent = self.run.send(cell);
        debug_assert!(sent.is_ok(), "workers outlive their scheduler");
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
        // The workers see the end of the channel. None is joined: this may be one of them.
        self.timers.close();
    }
}

fn start_thread(name: String, program: impl FnOnce() + Send + 'static) -> Result<()> {
    let what = format!("start thread `{name}`");
    match thread::Builder::new().name(name).spawn(program) {
        Ok(_detached) => Ok(()),
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(rustix::io::Errno::AGAIN.raw_os_error());
            Err(Arc::new(BootstrapError::Os { what, errno }).into())
        }
    }
}

/// A worker's program.
fn work(runnable: &Receiver<Arc<dyn Runnable>>, back: &Weak<Threads>) {
    while let Ok(cell) = runnable.recv() {
        if turn(&*cell) == Step::More {
            let threads = back.upgrade().expect("a runnable keeps its scheduler alive");
            threads.ready(cell);
        }
    }
}

fn turn(cell: &dyn Runnable) -> Step {
    for _ in 0..TURN {
        if cell.step() == Step::Idle {
            return Step::Idle;
        }
    }
    Step::More
}
