//! Calls about memory that belong together.

use std::fmt;

use parking_lot::ReentrantMutexGuard;

/// While it lives, the other threads' calls about memory and addresses wait, where the device makes them one at a time;
/// those of this thread go on. Made by [`Driver::batch`](super::Driver::batch).
#[must_use = "it holds for as long as it lives"]
#[derive(Default)]
pub struct Batch(Option<ReentrantMutexGuard<'static, ()>>);

impl Batch {
    /// One that keeps a lock.
    #[cfg(feature = "cuda")]
    pub(super) fn holding(turn: ReentrantMutexGuard<'static, ()>) -> Self {
        Self(Some(turn))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("holds", &self.0.is_some()).finish()
    }
}
