//! The host's index of windows by address: lookups from any thread, without a lock.
//!
//! Readers search one published snapshot; a batch becomes visible by storing the next snapshot, so a lookup sees all
//! of it or none. Writers take turns at one mutex that no reader touches. A thread that looks up often has a
//! [`Reader`], which keeps the snapshot that it saw last: then a lookup writes to nothing but the count of the handles
//! of what it finds.
//!
//! A snapshot is a few sorted runs, each at least four times as long as the one after it, in the manner
//! of a log-structured merge tree: one window more beside 10,000 others costs a new short run, not a copy of all.
//! In a run, each window knows the nearest earlier one that ends behind it, its `outer` one (the "previous greater
//! element", found with a stack). A search starts at the last window that begins at or before the address, which a
//! directory of buckets finds, and follows `outer` until one holds the whole range, so windows that are too small
//! are never tried twice, and a lookup among disjoint windows looks at one bucket and one window a run.
//!
//! The index holds windows weakly, and who looks one up becomes one more of its owners: a window whose last owner is
//! gone is not found. Removal marks the window in its run, which the newest snapshot holds: from then on no lookup
//! that starts finds it. Marked windows go when they outnumber a fraction of the living, so that a removal costs
//! amortised logarithmic time.

mod directory;
mod reader;
mod run;
mod snapshot;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use reader::Published;
pub use reader::Reader;
use run::{Entry, Run};
use snapshot::{Runs, Snapshot};

/// Where a window is, and which one of those there: its owner removes it by this.
#[derive(Debug)]
pub struct Node {
    base: usize,
    /// The address of its last byte. Not of the one behind it: that may not exist.
    last: usize,
    /// Its number in the order of publication, from 1 on. 0 before it is published.
    number: AtomicU64,
}

impl Node {
    /// Of a window of `size` bytes from `base` on that is not in an index yet. `None` if it has no byte, or its last
    /// byte's address does not exist.
    #[must_use]
    pub fn new(base: usize, size: usize) -> Option<Self> {
        let last = base.checked_add(size.checked_sub(1)?)?;
        Some(Self { base, last, number: AtomicU64::new(0) })
    }

    /// The address of its first byte.
    #[must_use]
    pub fn base(&self) -> usize {
        self.base
    }

    /// Its length in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.last - self.base + 1
    }
}

/// What an index can hold.
pub trait Indexed {
    /// Where it is. What is nowhere is not published.
    fn node(&self) -> Option<&Node>;
}

/// The index. See the module's text.
///
/// IX-1: a lookup that starts after [`WindowIndex::publish`] returned sees all of its windows, and one that starts
/// after [`WindowIndex::remove`] returned does not see the window. IX-2: windows of one batch become visible together.
pub struct WindowIndex<T> {
    published: Published<T>,
    /// How many windows are open. Written under the lock of `writer` alone.
    living: AtomicUsize,
    writer: Mutex<Writer<T>>,
}

impl<T> WindowIndex<T> {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            published: Arc::new(ArcSwap::from_pointee(Snapshot { runs: Runs::new() })),
            living: AtomicUsize::new(0),
            writer: Mutex::new(Writer { numbers: 0, dead: 0, retired: Vec::new() }),
        }
    }

    /// Makes one batch visible, all of it at once. Of windows with equal bounds the last one counts as the
    /// innermost, in the order given here and from call to call.
    ///
    /// A window that is in the index is our own bug: it panics in debug builds and is left out in others. One that was
    /// in it may not come again.
    pub fn publish(&self, windows: &[Arc<T>])
    where
        T: Indexed,
    {
        let mut writer = self.writer.lock();
        let mut entries = Vec::with_capacity(windows.len());
        for window in windows {
            let Some(node) = window.node() else { continue };
            let is_fresh = node.number.load(Ordering::Relaxed) == 0;
            debug_assert!(is_fresh, "{node:?} is in the index");
            if is_fresh {
                writer.numbers += 1;
                node.number.store(writer.numbers, Ordering::Relaxed);
                let (base, last, window) = (node.base, node.last, Arc::downgrade(window));
                entries.push(Entry { base, last, number: writer.numbers, window });
            }
        }
        let fresh = entries.len();
        entries.sort_by_key(Entry::order);
        let mut runs = self.published.load().runs.clone();
        while let Some(run) = runs.last().filter(|run| run.len() < entries.len().saturating_mul(MERGE_RATIO))
        {
            let both = run.len() + entries.len();
            entries = run.merge(entries);
            writer.dead -= both - entries.len();
            runs.pop();
        }
        if !entries.is_empty() {
            runs.push(Run::new(entries));
        }
        self.living.fetch_add(fresh, Ordering::Release);
        writer.store(&self.published, runs);
    }

    /// Removes a window at once. Says whether it was there.
    pub fn remove(&self, node: &Node) -> bool {
        let mut writer = self.writer.lock();
        // Under the lock, so a number that is given is seen.
        let number = node.number.load(Ordering::Relaxed);
        let snapshot = self.published.load();
        if !snapshot.run_of(number).is_some_and(|run| run.remove(node.base, node.last, number)) {
            return false;
        }
        let living = self.living.fetch_sub(1, Ordering::Release) - 1;
        writer.dead += 1;
        if writer.dead > living / DEAD_PER_LIVING + DEAD_ALWAYS_KEPT {
            let living = snapshot.runs.iter().rfold(Vec::new(), |living, run| run.merge(living));
            let run = (!living.is_empty()).then(|| Run::new(living));
            drop(snapshot);
            writer.store(&self.published, run.into_iter().collect());
            writer.dead = 0;
        }
        true
    }

    /// The innermost window that holds the whole of `address..address + len`: of those the one with the greatest
    /// base, then the smallest end, then the one published last. A range of no bytes is where the byte at
    /// `address` is. A window without owners is about to be removed, and counts as removed: what is around it is found
    /// instead.
    ///
    /// Takes no lock and waits for no one. It starts anew only where it met a window that was removed and a
    /// batch was published meanwhile: what replaces that window may be in the newer snapshot alone.
    #[must_use]
    pub fn find(&self, address: usize, len: usize) -> Option<Arc<T>> {
        self.find_with(&mut Reader::new(), address, len)
    }

    /// The same by a thread that looks up often and so has a reader.
    #[must_use]
    pub fn find_with(&self, reader: &mut Reader<T>, address: usize, len: usize) -> Option<Arc<T>> {
        let last = address.checked_add(len.saturating_sub(1))?;
        loop {
            let snapshot = reader.newest(&self.published);
            let searched = Arc::as_ptr(snapshot);
            let found = snapshot.find(address, last);
            if !found.met_removed || Arc::as_ptr(reader.newest(&self.published)) == searched {
                return found.window;
            }
        }
    }

    /// How many windows are open. Never waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.living.load(Ordering::Acquire)
    }

    /// Whether no window is open. Never waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The windows that are open now, by base, outer ones before those inside. For status reports.
    pub fn iter(&self) -> impl Iterator<Item = Arc<T>> {
        let snapshot = self.published.load();
        let mut entries: Vec<_> = snapshot.runs.iter().flat_map(Run::living).collect();
        entries.sort_by_key(Entry::order);
        entries.into_iter().filter_map(|entry| entry.window.upgrade())
    }
}

impl<T> Default for WindowIndex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for WindowIndex<T> {
    fn drop(&mut self) {
        // A reader keeps where this was published.
        self.published.store(Arc::new(Snapshot { runs: Runs::new() }));
    }
}

impl<T> fmt::Debug for WindowIndex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<usize> = self.published.load().runs.iter().map(Run::len).collect();
        let living = self.living.load(Ordering::Acquire);
        f.debug_struct("WindowIndex").field("living", &living).field("runs", &runs).finish_non_exhaustive()
    }
}

/// A run is merged into the next batch unless it is this many times as long. Bounds the runs of a snapshot by the
/// logarithm of the windows to this base, and the copies of a window by a multiple of it.
const MERGE_RATIO: usize = 4;
/// All is rebuilt when more than the living divided by this ...
const DEAD_PER_LIVING: usize = 4;
/// ... plus this many nodes are dead.
const DEAD_ALWAYS_KEPT: usize = 32;

/// What only writers see.
struct Writer<T> {
    /// How many windows were published.
    numbers: u64,
    /// How many windows the published runs hold that are removed.
    dead: usize,
    /// Snapshots that readers may hold. Kept here so that freeing a long run is a writer's work, not that of the
    /// lookup that was the last to let go of it.
    retired: Vec<Arc<Snapshot<T>>>,
}

impl<T> Writer<T> {
    fn store(&mut self, published: &Published<T>, runs: Runs<T>) {
        self.retired.push(published.swap(Arc::new(Snapshot { runs })));
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }
}

#[cfg(test)]
mod tests;
