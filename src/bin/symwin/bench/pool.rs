//! Threads that wait for work, so that a sample contains the work and no start of a thread.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow};
use crossbeam_channel::{Receiver, Sender, unbounded};

/// What each of the threads that take part does once, until nothing is left to do.
pub(crate) type Task = Arc<dyn Fn() -> anyhow::Result<()> + Send + Sync>;

pub(crate) struct Pool {
    tasks: Option<Sender<Task>>,
    done: Receiver<anyhow::Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// So many threads beside the caller's.
    pub(crate) fn new(helpers: usize) -> anyhow::Result<Self> {
        let (tasks, hears) = unbounded::<Task>();
        let (says, done) = unbounded();
        let start = |_| {
            let (hears, says) = (hears.clone(), says.clone());
            let help = move || {
                while let Ok(task) = hears.recv() {
                    let result = task();
                    // What the task holds is gone before anybody hears that it is done.
                    drop(task);
                    if says.send(result).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("floor".to_owned()).spawn(help)
        };
        let threads =
            (0..helpers).map(start).collect::<Result<_, _>>().context("a thread for the bare calls")?;
        Ok(Self { tasks: Some(tasks), done, threads })
    }

    /// Does it on the caller's thread and on `threads - 1` others, and waits for all of them. The first error is told.
    pub(crate) fn run(&self, threads: usize, task: &Task) -> anyhow::Result<()> {
        let helpers = threads.saturating_sub(1).min(self.threads.len());
        let tasks = self.tasks.as_ref().context("a pool has its threads until it is dropped")?;
        for _ in 0..helpers {
            tasks.send(Arc::clone(task)).map_err(|_| anyhow!("the threads for the bare calls have ended"))?;
        }
        let mut result = task();
        for _ in 0..helpers {
            let of_other = self.done.recv().context("a thread for the bare calls has ended")?;
            result = result.and(of_other);
        }
        result
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn so_many_threads_take_part_and_errors_are_told() {
        let pool = Pool::new(3).unwrap();
        for threads in [4, 1, 2] {
            let (meeting, seen) = (Barrier::new(threads), Arc::new(Mutex::new(HashSet::new())));
            let noted = Arc::clone(&seen);
            let task: Task = Arc::new(move || {
                noted.lock().insert(thread::current().id());
                // All are at it at once, so no thread does another one's part.
                meeting.wait();
                Ok(())
            });
            pool.run(threads, &task).unwrap();
            assert_eq!(seen.lock().len(), threads);
        }
        let fails: Task = Arc::new(|| anyhow::bail!("no"));
        assert_eq!(pool.run(4, &fails).unwrap_err().to_string(), "no");
    }
}
