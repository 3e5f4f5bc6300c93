//! Readers: what a thread keeps of an index from one lookup to the next.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;

use super::snapshot::Snapshot;

/// Where an index publishes its snapshots. Counted, so that readers can tell a new index from one that is gone.
pub(super) type Published<T> = Arc<ArcSwap<Snapshot<T>>>;

/// One index's newest snapshot, as far as is known.
type Seen<T> = Cache<Published<T>, Arc<Snapshot<T>>>;

/// The snapshots that one thread has seen last, of a few indices. As long as nothing is published, a lookup that has
/// a reader changes no memory on its way to the window: it neither counts nor announces that it reads.
///
/// It keeps a snapshot until a lookup in the same index sees a newer one, or lookups in others need its place. So
/// what an index held may stay for that long, but weakly: it keeps no window open.
pub struct Reader<T> {
    seen: [Option<Seen<T>>; INDICES],
    /// Which one makes room next.
    next: usize,
}

/// Of so many indices a reader keeps a snapshot. For a thread that looks into more of them by turns it is no faster
/// than none.
const INDICES: usize = 4;

impl<T> Reader<T> {
    /// One that has seen nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { seen: [const { None }; INDICES], next: 0 }
    }

    /// The snapshot that is published now.
    pub(super) fn newest(&mut self, published: &Published<T>) -> &Arc<Snapshot<T>> {
        // No other index can come to be at this address while it is kept here.
        let is_of_this = |seen: &Seen<T>| ptr::eq(seen.arc_swap(), Arc::as_ptr(published));
        let place = self.seen.iter().position(|seen| seen.as_ref().is_some_and(is_of_this));
        let place = place.unwrap_or_else(|| {
            let place = self.next;
            self.next = (place + 1) % INDICES;
            self.seen[place] = None;
            place
        });
        self.seen[place].get_or_insert_with(|| Cache::new(Arc::clone(published))).load()
    }
}

impl<T> Default for Reader<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.seen.iter().flatten().count();
        f.debug_struct("Reader").field("indices", &known).finish_non_exhaustive()
    }
}
