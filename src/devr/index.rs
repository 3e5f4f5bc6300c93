//! The host's index of windows by address: lookups from any thread, without a lock.
//!
//! Readers load one published snapshot and search it; a batch becomes visible by storing the next snapshot, so a
//! lookup sees all of it or none. Writers take turns at one mutex that no reader touches.
//!
//! A snapshot is a few sorted runs, each at least four times as long as the one after it, in the manner
//! of a log-structured merge tree: one window more beside 10,000 others costs a new short run, not a copy of all.
//! In a run, `outer[i]` is the nearest earlier window that ends behind window `i` (the "previous greater
//! element", found with a stack). A search starts at the last window that begins at or before the address and
//! follows `outer` until one holds the whole range, so windows that are too small are never tried twice and a
//! lookup among disjoint windows is one binary search a run.
//!
//! Removal marks the window's node, which all snapshots share: from then on no lookup finds it. The marked nodes
//! themselves go when they outnumber a fraction of the living, so that a removal costs amortised constant time.
//! So a value may outlive its removal: give the index weak references, and give it no value whose drop calls it.

use std::cmp::Reverse;
use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

/// One window, as the index knows it: shared by all snapshots that hold it, and by its owner, who removes it by this
/// (windows may have equal bounds).
pub struct Node<T> {
    base: usize,
    /// The address of its last byte. Not of the one behind it: that may not exist.
    last: usize,
    /// From when it was published until it is removed.
    alive: AtomicBool,
    value: T,
}

impl<T> Node<T> {
    /// A window of `size` bytes from `base` on, not in an index yet. `None` if it has no byte, or its last byte's
    /// address does not exist.
    #[must_use]
    pub fn new(base: usize, size: usize, value: T) -> Option<Self> {
        let last = base.checked_add(size.checked_sub(1)?)?;
        Some(Self { base, last, alive: AtomicBool::new(false), value })
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

    /// What a lookup gives back.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    fn rank(&self) -> InnerRank {
        (self.base, Reverse(self.last))
    }

    fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl<T> fmt::Debug for Node<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({:#x}..={:#x}, alive: {})", self.base, self.last, self.alive())
    }
}

/// The index. See the module's text.
///
/// IX-1: a lookup that starts after [`WindowIndex::publish`] returned sees all of its windows, and one that starts
/// after [`WindowIndex::remove`] returned does not see the window. IX-2: windows of one batch become visible together.
pub struct WindowIndex<T> {
    published: ArcSwap<Vec<Arc<Run<T>>>>,
    /// How many windows are open. Written under the lock of `writer` alone.
    living: AtomicUsize,
    writer: Mutex<Writer>,
}

impl<T> WindowIndex<T> {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            published: ArcSwap::from_pointee(Vec::new()),
            living: AtomicUsize::new(0),
            writer: Mutex::new(Writer { dead: 0 }),
        }
    }

    /// Makes one batch visible, all of it at once. Of windows with equal bounds the last one counts as the
    /// innermost, in the order given here and from call to call.
    ///
    /// A window that is in the index is our own bug: it panics in debug builds and is left out in others. One that was
    /// in it may not come again.
    pub fn publish(&self, mut nodes: Vec<Arc<Node<T>>>) {
        let mut writer = self.writer.lock();
        nodes.retain(|node| {
            let is_fresh = !node.alive.swap(true, Ordering::AcqRel);
            debug_assert!(is_fresh, "{node:?} is in the index");
            is_fresh
        });
        let fresh = nodes.len();
        nodes.sort_by_key(|node| node.rank());
        let mut runs = Vec::clone(&self.published.load());
        while runs.last().is_some_and(|run| run.nodes.len() < nodes.len().saturating_mul(MERGE_RATIO)) {
            let before = runs.pop().expect("the loop saw a last run");
            let both = before.nodes.len() + nodes.len();
            nodes = merge(&before.nodes, nodes);
            writer.dead -= both - nodes.len();
        }
        if !nodes.is_empty() {
            runs.push(Arc::new(Run::new(nodes)));
        }
        self.living.fetch_add(fresh, Ordering::Release);
        self.published.store(Arc::new(runs));
    }

    /// Removes a window at once. Says whether it was there.
    pub fn remove(&self, node: &Node<T>) -> bool {
        let mut writer = self.writer.lock();
        if !node.alive.swap(false, Ordering::AcqRel) {
            return false;
        }
        let living = self.living.fetch_sub(1, Ordering::Release) - 1;
        writer.dead += 1;
        if writer.dead > living / DEAD_PER_LIVING + DEAD_ALWAYS_KEPT {
            let runs = self.published.load();
            let living = runs.iter().rfold(Vec::new(), |living, run| merge(&run.nodes, living));
            let run = (!living.is_empty()).then(|| Arc::new(Run::new(living)));
            self.published.store(Arc::new(run.into_iter().collect()));
            writer.dead = 0;
        }
        true
    }

    /// The innermost window that holds the whole of `address..address + len`: of those the one with the greatest
    /// base, then the smallest end, then the one published last. A range of no bytes is where the byte at
    /// `address` is.
    ///
    /// Takes no lock and waits for no one. It starts anew only where it met a window that was removed and a
    /// batch was published meanwhile: what replaces that window may be in the newer snapshot alone.
    #[must_use]
    pub fn find(&self, address: usize, len: usize) -> Option<T>
    where
        T: Clone,
    {
        self.find_map(address, len, |value| Some(T::clone(value)))
    }

    /// As [`WindowIndex::find`], of what `open` makes of the values. A window of which it makes nothing is about to be
    /// removed, and counts as removed: what is around it is found instead.
    #[must_use]
    pub fn find_map<U>(&self, address: usize, len: usize, open: impl Fn(&T) -> Option<U>) -> Option<U> {
        let last = address.checked_add(len.saturating_sub(1))?;
        let mut runs = self.published.load();
        loop {
            let mut search = Search { address, last, innermost: None, met_removed: false };
            for run in runs.iter() {
                search.visit(run, &open);
            }
            if search.met_removed {
                let newest = self.published.load();
                if !Arc::ptr_eq(&runs, &newest) {
                    runs = newest;
                    continue;
                }
            }
            return search.innermost.map(|(_, found)| found);
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
    pub fn iter(&self) -> impl Iterator<Item = Arc<Node<T>>> {
        let runs = self.published.load();
        let mut nodes: Vec<_> = runs.iter().flat_map(|run| run.nodes.iter().cloned()).collect();
        nodes.sort_by_key(|node| node.rank());
        nodes.into_iter().filter(|node| node.alive())
    }
}

impl<T> Default for WindowIndex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for WindowIndex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<usize> = self.published.load().iter().map(|run| run.nodes.len()).collect();
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
struct Writer {
    /// How many dead nodes the published runs hold.
    dead: usize,
}

/// How far inside a window is: of two windows that hold a range, the one of the greater rank is the inner one, and of
/// equal ones the one published last. That order needs no number: runs are in order of publication, and sorting
/// and merging keep it among equals.
type InnerRank = (usize, Reverse<usize>);

/// Windows sorted by rank, never changed but for their marks.
struct Run<T> {
    /// `bases[i]` is the base of `nodes[i]`; apart, so that the binary search stays within few cache lines.
    bases: Box<[usize]>,
    /// `lasts[i]` is the last byte of `nodes[i]`.
    lasts: Box<[usize]>,
    /// `outer[i]` is the greatest `j < i` with `lasts[j] > lasts[i]`, or [`NONE`].
    outer: Box<[u32]>,
    nodes: Box<[Arc<Node<T>>]>,
}

const NONE: u32 = u32::MAX;

impl<T> Run<T> {
    fn new(nodes: Vec<Arc<Node<T>>>) -> Self {
        let lasts: Box<[usize]> = nodes.iter().map(|node| node.last).collect();
        Self {
            bases: nodes.iter().map(|node| node.base).collect(),
            outer: previous_greater(&lasts),
            lasts,
            nodes: nodes.into_boxed_slice(),
        }
    }
}

/// One lookup in one snapshot.
struct Search<U> {
    address: usize,
    /// The address of the range's last byte.
    last: usize,
    /// The innermost of the visited runs.
    innermost: Option<(InnerRank, U)>,
    /// Whether a dead node was among the candidates.
    met_removed: bool,
}

impl<U> Search<U> {
    fn visit<T>(&mut self, run: &Run<T>, open: impl Fn(&T) -> Option<U>) {
        let mut next = run.bases.partition_point(|&base| base <= self.address).checked_sub(1);
        while let Some(i) = next {
            if run.lasts[i] < self.last {
                // So are all between `outer[i]` and `i`.
                next = (run.outer[i] != NONE).then_some(run.outer[i] as usize);
                continue;
            }
            let rank = (run.bases[i], Reverse(run.lasts[i]));
            let node = &run.nodes[i];
            if self.innermost.as_ref().is_some_and(|(inner, _)| *inner > rank) {
                return;
            } else if let Some(found) = node.alive().then(|| open(&node.value)).flatten() {
                self.innermost = Some((rank, found));
                return;
            } else {
                self.met_removed = true;
                next = i.checked_sub(1);
            }
        }
    }
}

fn previous_greater(lasts: &[usize]) -> Box<[u32]> {
    let mut stack: Vec<usize> = Vec::new();
    let outer = lasts.iter().enumerate().map(|(i, &last)| {
        while stack.last().is_some_and(|&j| lasts[j] <= last) {
            stack.pop();
        }
        let outer = stack.last().map_or(NONE, |&j| u32::try_from(j).expect("fewer than 2^32 - 1 windows"));
        stack.push(i);
        outer
    });
    outer.collect()
}

/// The living of an older run and what was published after it, sorted, in linear time.
fn merge<T>(run: &[Arc<Node<T>>], fresh: Vec<Arc<Node<T>>>) -> Vec<Arc<Node<T>>> {
    let mut merged = Vec::with_capacity(run.len() + fresh.len());
    let mut left = run.iter().cloned().peekable();
    let mut right = fresh.into_iter().peekable();
    let next = iter::from_fn(|| {
        let from_left = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) => a.rank() <= b.rank(),
            (a, _) => a.is_some(),
        };
        if from_left { left.next() } else { right.next() }
    });
    merged.extend(next.filter(|node| node.alive()));
    merged
}

#[cfg(test)]
mod tests;
