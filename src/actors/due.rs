//! An actor that is due, in the hands of a thread that may run it by itself.

use std::fmt;
use std::sync::Arc;

use super::scheduler::{Runnable, Step};
use super::{ActorId, Runtime};

/// An actor that has just been sent a message and was idle before: somebody must run it. A thread that would only wait
/// for it does so itself ([`Due::run`]), which saves waking another one. Dropping it leaves that to the runtime.
#[must_use = "dropping it wakes a worker"]
pub struct Due {
    runtime: Runtime,
    /// `None` once somebody has it. Nobody else runs it before.
    cell: Option<Arc<dyn Runnable>>,
}

impl Due {
    pub(super) fn new(runtime: &Runtime, cell: Arc<dyn Runnable>) -> Self {
        Self { runtime: runtime.clone(), cell: Some(cell) }
    }

    /// Which actor.
    #[must_use]
    pub fn id(&self) -> Option<ActorId> {
        self.cell.as_ref().map(|cell| cell.id())
    }

    /// Lets the actor handle its messages in this thread, as many as a worker would at a time; where the runtime lends
    /// its actors to no thread ([`super::Scheduler::lends`]) it goes there.
    pub fn run(mut self) {
        if !self.runtime.scheduler().lends() {
            return;
        }
        let Some(cell) = self.cell.take() else { return };
        if turn(&*cell) == Step::More {
            self.runtime.scheduler().ready(cell);
        }
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            self.runtime.scheduler().ready(cell);
        }
    }
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Due").field(&self.id()).finish()
    }
}

/// Runs an actor until it is idle, or others should have their turn.
pub(super) fn turn(cell: &dyn Runnable) -> Step {
    for _ in 0..TURN {
        if cell.step() == Step::Idle {
            return Step::Idle;
        }
    }
    Step::More
}

/// Most messages that an actor handles before others have their turn.
const TURN: usize = 16;
