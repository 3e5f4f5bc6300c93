//! Snapshots: all that one lookup looks into.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use super::run::{Cell, Run};

/// What a lookup sees: runs in order of publication, each at least [`super::MERGE_RATIO`] times as long as the next.
pub(super) struct Snapshot<T> {
    pub(super) runs: Runs<T>,
}

/// A few of them without a heap, so that a lookup has one reference less to follow.
pub(super) type Runs<T> = SmallVec<[Run<T>; 4]>;

/// What one lookup found in one snapshot.
pub(super) struct Found<T> {
    pub(super) window: Option<Arc<T>>,
    /// Whether it passed by a window that is removed, or about to be.
    pub(super) met_removed: bool,
}

impl<T> Snapshot<T> {
    /// The run that has the window of this number, if one has it.
    pub(super) fn run_of(&self, number: u64) -> Option<&Run<T>> {
        self.runs.iter().rfind(|run| run.begins_before(number))
    }

    /// The innermost window that holds a range, if a handle of it can be had.
    pub(super) fn find(&self, address: usize, last: usize) -> Found<T> {
        let mut met_removed = false;
        let mut innermost = self.innermost(address, last, |_| true, || met_removed = true);
        while let Some(cell) = innermost {
            if let Some(window) = cell.window.upgrade() {
                return Found { window: Some(window), met_removed };
            }
            // Its last handle is being dropped. Whoever drops it may have published what replaces it: this orders
            // the look for a newer snapshot behind the sight of no handles.
            fence(Ordering::Acquire);
            met_removed = true;
            innermost = self.innermost(address, last, |cell| cell.window.strong_count() > 0, || {});
        }
        Found { window: None, met_removed }
    }

    fn innermost(
        &self,
        address: usize,
        last: usize,
        wanted: impl Fn(&Cell<T>) -> bool,
        mut passed: impl FnMut(),
    ) -> Option<&Cell<T>> {
        let mut innermost: Option<&Cell<T>> = None;
        for run in self.runs.iter().filter(|run| run.may_hold(address, last)) {
            let found = run.innermost(address, last, &wanted, &mut passed);
            // Of equal ranks the later run has the later window.
            if let Some(cell) = found
                && innermost.is_none_or(|other| other.rank() <= cell.rank())
            {
                innermost = Some(cell);
            }
        }
        innermost
    }
}
