use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::run::{NONE, previous_greater};
use super::*;

/// A window that is a number.
#[derive(Debug)]
struct Window {
    node: Node,
    id: u64,
}

impl Window {
    fn new(base: usize, size: usize, id: u64) -> Arc<Self> {
        Arc::new(Self { node: Node::new(base, size).unwrap(), id })
    }
}

impl Indexed for Window {
    fn node(&self) -> Option<&Node> {
        Some(&self.node)
    }
}

/// An index of numbers, with their owner.
#[derive(Debug, Default)]
struct Numbered {
    index: WindowIndex<Window>,
    windows: Mutex<BTreeMap<u64, Arc<Window>>>,
}

impl Numbered {
    fn new() -> Self {
        Self::default()
    }

    /// By base, size and number.
    fn publish(&self, batch: Vec<(usize, usize, u64)>) {
        let windows: Vec<_> = batch.into_iter().map(|(base, size, id)| Window::new(base, size, id)).collect();
        self.windows.lock().extend(windows.iter().map(|window| (window.id, Arc::clone(window))));
        self.index.publish(&windows);
    }

    fn remove(&self, id: u64) -> bool {
        let window = self.windows.lock().remove(&id);
        window.is_some_and(|window| self.index.remove(&window.node))
    }

    fn find(&self, address: usize, len: usize) -> Option<u64> {
        self.index.find(address, len).map(|window| window.id)
    }

    fn find_with(&self, reader: &mut Reader<Window>, address: usize, len: usize) -> Option<u64> {
        self.index.find_with(reader, address, len).map(|window| window.id)
    }

    fn list(&self) -> Vec<(usize, usize, u64)> {
        self.index.iter().map(|window| (window.node.base(), window.node.size(), window.id)).collect()
    }

    /// The runs of the newest snapshot.
    fn runs(&self) -> Runs<Window> {
        self.index.published.load().runs.clone()
    }

    fn cells(&self) -> usize {
        self.runs().iter().map(Run::len).sum()
    }
}

impl Deref for Numbered {
    type Target = WindowIndex<Window>;

    fn deref(&self) -> &WindowIndex<Window> {
        &self.index
    }
}

fn index_of(batch: &[(usize, usize)]) -> Numbered {
    let index = Numbered::new();
    index.publish(batch.iter().zip(0..).map(|(&(base, size), id)| (base, size, id)).collect());
    index
}

#[test]
fn bug_03_a_window_known_by_another_address_is_removed_by_identity() {
    // The reference removes a resource window by its LSA address though it was put in under another one, and so
    // removes whichever window lies below.
    let index = index_of(&[(1000, 100), (2000, 100)]);
    index.publish(vec![(9000, 100, 7)]);
    assert!(index.remove(7));
    assert!(!index.remove(7));
    assert_eq!((index.find(1000, 100), index.find(2000, 100), index.len()), (Some(0), Some(1), 2));
}

#[test]
fn bug_04_of_two_windows_at_one_address_each_is_removed_by_its_own_id() {
    for (gone, stays) in [(0, 1), (1, 0)] {
        let index = index_of(&[(1000, 100), (1000, 100)]);
        assert_eq!(index.find(1000, 1), Some(1), "registered last");
        assert!(index.remove(gone));
        assert_eq!(index.find(1000, 1), Some(stays));
        assert!(index.remove(stays));
        assert_eq!((index.find(1000, 1), index.len()), (None, 0));
    }
}

#[test]
fn bug_04_an_address_below_all_windows_is_nobodys() {
    let index = index_of(&[(1000, 100)]);
    assert_eq!((index.find(999, 1), index.find(0, 0), index.find(999, 2)), (None, None, None));
    assert!(!index.remove(99));
}

#[test]
fn bug_05_a_small_window_does_not_hide_the_large_one_around_it() {
    let index = index_of(&[(1000, 1000), (1200, 100), (1250, 10)]);
    assert_eq!(index.find(1255, 1), Some(2));
    assert_eq!(index.find(1260, 1), Some(1));
    assert_eq!(index.find(1300, 1), Some(0), "behind both inner ones");
    assert_eq!(index.find(1255, 10), Some(1), "the whole range counts, not its start");
    assert_eq!(index.find(1255, 100), Some(0));
    assert_eq!(index.find(1255, 1000), None);
    assert_eq!(index.find(1999, 1), Some(0));
    assert_eq!(index.find(2000, 1), None);
}

#[test]
fn a_window_whose_last_handle_is_being_dropped_does_not_hide_the_one_around_it() {
    let index = index_of(&[(1000, 1000), (1200, 100), (1250, 10)]);
    // None of the three is removed, but nobody owns them any more.
    for (gone, found) in [(2, Some(1)), (1, Some(0)), (0, None)] {
        index.windows.lock().remove(&gone);
        assert_eq!((index.find(1255, 1), index.len()), (found, 3));
    }
}

#[test]
fn the_innermost_has_the_greatest_start_then_the_smallest_end_then_came_last() {
    let index = index_of(&[(1000, 100), (1000, 50), (1000, 50), (1010, 200), (1000, 300)]);
    assert_eq!(index.find(1005, 1), Some(2));
    assert_eq!(index.find(1050, 1), Some(3));
    assert_eq!(index.find(1005, 60), Some(0));
    assert_eq!(index.find(1005, 200), Some(4));
    index.publish(vec![(1000, 50, 9)]); // another run
    assert_eq!(index.find(1005, 1), Some(9));
}

#[test]
fn ranges_at_the_end_of_the_address_range_do_not_wrap() {
    let index = index_of(&[(usize::MAX - 9, 10), (0, 5)]);
    assert_eq!(index.find(usize::MAX, 1), Some(0));
    assert_eq!(index.find(usize::MAX, 2), None);
    assert_eq!(index.find(usize::MAX - 9, usize::MAX), None);
    assert_eq!(index.find(0, usize::MAX), None);
    assert_eq!(index.find(0, 0), Some(1));
    assert_eq!(index.find(5, 0), None);
}

#[test]
fn a_window_has_bytes_and_all_of_them_exist() {
    assert!(Node::new(1000, 0).is_none());
    assert!(Node::new(usize::MAX, 2).is_none());
    assert_eq!(Node::new(usize::MAX, 1).unwrap().size(), 1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "is in the index")]
fn a_window_is_published_once() {
    let index = WindowIndex::new();
    let windows = [Window::new(1000, 10, 0)];
    index.publish(&windows);
    index.publish(&windows);
}

#[test]
fn a_window_that_was_never_published_is_not_removed() {
    let index = index_of(&[(1000, 10)]);
    assert!(!index.index.remove(&Node::new(1000, 10).unwrap()));
    assert_eq!(index.len(), 1);
}

/// Leaves the index with its last reference, as a window does.
struct Handle {
    index: Arc<WindowIndex<Self>>,
    node: Node,
}

impl Indexed for Handle {
    fn node(&self) -> Option<&Node> {
        Some(&self.node)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        assert!(self.index.remove(&self.node));
    }
}

#[test]
fn a_handle_that_a_lookup_held_last_leaves_the_index_as_it_goes() {
    let index = Arc::new(WindowIndex::new());
    let handle = Arc::new(Handle { index: Arc::clone(&index), node: Node::new(0, 8).unwrap() });
    index.publish(&[Arc::clone(&handle)]);
    let found = index.find(0, 1).unwrap();
    drop(handle);
    assert_eq!(index.len(), 1);
    drop(found);
    assert_eq!((index.len(), index.find(0, 1).is_none()), (0, true));
}

#[test]
fn a_thousand_cycles_beside_open_windows_copy_few_of_them() {
    let open = 10_000usize;
    let index = index_of(&(0..open).map(|i| (i * 64, 64)).collect::<Vec<_>>());
    let large = index.runs()[0].clone();
    let mut rebuilt = 0;
    for id in 0..1_000u64 {
        index.publish(vec![(64 * open, 64, 1_000_000 + id)]);
        let runs = index.runs();
        assert!(runs.len() <= 8, "{index:?}");
        rebuilt += usize::from(!runs[0].is_same(&large));
        assert!(index.remove(1_000_000 + id));
    }
    assert_eq!((rebuilt, index.len()), (0, open));
    assert_eq!(index.find(64 * 77, 64), Some(77));
}

#[test]
fn empty_cells_are_bounded_by_a_fraction_of_the_living() {
    let index = index_of(&(0..1_000).map(|i| (i * 64, 64)).collect::<Vec<_>>());
    for id in 0..999 {
        assert!(index.remove(id));
        assert!(index.cells() - index.len() <= index.len() / DEAD_PER_LIVING + DEAD_ALWAYS_KEPT, "{index:?}");
    }
    assert_eq!((index.find(999 * 64, 64), index.find(0, 1)), (Some(999), None));
}

#[test]
fn the_last_of_equal_windows_is_the_innermost_after_a_rebuild_too() {
    let index = index_of(&(0..100).map(|i| (i * 64, 64)).collect::<Vec<_>>());
    index.publish(vec![(0, 64, 100)]);
    assert_eq!((index.find(0, 1), index.runs().len()), (Some(100), 2));
    for id in 1..90 {
        assert!(index.remove(id));
    }
    assert_eq!((index.find(0, 1), index.runs().len()), (Some(100), 1));
}

#[test]
fn the_list_is_sorted_from_outer_to_inner() {
    let index = index_of(&[(1200, 100), (1000, 1000), (1200, 50)]);
    index.publish(vec![(500, 1, 3)]);
    index.remove(0);
    assert_eq!(index.list(), [(500, 1, 3), (1000, 1000, 1), (1200, 50, 2)]);
}

#[test]
fn lookups_beside_a_writer_never_see_half_a_batch() {
    // Each batch is a pair, and closes the pair before it once it is open: so of each pair's two places, there is
    // always a window to find, and who saw a pair's second window must find its first one, or a later one.
    let pair = |round: u64| vec![(1024, 8, round * 2), (2048, 8, round * 2 + 1)];
    let index = Numbered::new();
    index.publish(pair(0));
    let done = AtomicBool::new(false);
    let start = Barrier::new(3);
    let rounds = 2_000;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                let (mut latest, mut reader) = (0, Reader::new());
                let mut find = |address| index.find_with(&mut reader, address, 8);
                while !done.load(Ordering::Acquire) {
                    let second = find(2048).expect("one is always open");
                    let first = find(1024).expect("one is always open");
                    assert!(first + 1 >= second, "half a batch: {first} {second}");
                    assert!(second >= latest, "a closed window came back: {second} after {latest}");
                    latest = second;
                }
            });
        }
        start.wait();
        for round in 1..=rounds {
            index.publish(pair(round));
            assert!(index.remove(round * 2 - 2));
            assert!(index.remove(round * 2 - 1));
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!((index.len(), index.find(2048, 8)), (2, Some(rounds * 2 + 1)));
}

#[test]
fn a_reader_sees_what_is_published_and_removed_in_any_of_many_indices() {
    let mut reader = Reader::new();
    let indices: Vec<_> = (0..7).map(|i| index_of(&[(1000 * i, 10)])).collect();
    for round in 1..5 {
        for (i, index) in indices.iter().enumerate() {
            for _ in 0..2 {
                assert_eq!(index.find_with(&mut reader, 1000 * i, 1), Some(round - 1));
                assert_eq!(index.find_with(&mut reader, 1000 * i + 10, 1), None);
            }
            index.publish(vec![(1000 * i, 10, round)]);
            assert_eq!(index.find_with(&mut reader, 1000 * i, 1), Some(round));
            assert!(index.remove(round));
            assert_eq!(index.find_with(&mut reader, 1000 * i, 1), Some(round - 1));
            index.publish(vec![(1000 * i, 10, round)]);
        }
    }
}

#[test]
fn a_reader_does_not_take_an_index_for_one_that_is_gone() {
    let mut reader = Reader::new();
    for id in 0..100 {
        let index = Numbered::new();
        assert_eq!(index.find_with(&mut reader, 0, 1), None);
        index.publish(vec![(0, 10, id)]);
        assert_eq!(index.find_with(&mut reader, 0, 1), Some(id));
    }
}

#[test]
fn a_reader_keeps_no_window_open_and_no_snapshot_longer_than_until_its_next_lookup() {
    let index = index_of(&[(0, 10)]);
    let mut reader = Reader::new();
    assert_eq!(index.find_with(&mut reader, 0, 1), Some(0));
    let window = Arc::downgrade(&index.windows.lock()[&0]);
    let snapshot = Arc::downgrade(&index.published.load_full());
    assert!(index.remove(0));
    assert_eq!(window.strong_count(), 0);
    index.publish(vec![(0, 10, 1)]);
    // The writer shares it, so that the lookup need not free it.
    assert_eq!(snapshot.strong_count(), 2);
    assert_eq!(index.find_with(&mut reader, 0, 1), Some(1));
    assert_eq!(snapshot.strong_count(), 1);
    index.publish(vec![(0, 10, 2)]);
    assert_eq!(snapshot.strong_count(), 0);
}

#[test]
fn outer_is_the_nearest_earlier_window_that_ends_later() {
    assert_eq!(previous_greater([9, 5, 5, 7, 3, 12, 1].into_iter()), [NONE, 0, 0, 0, 3, NONE, 5]);
}

/// The model: windows in order of registration, scanned.
#[derive(Clone, Debug, Default)]
struct Model {
    open: Vec<(usize, usize, u64)>,
    next_id: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<(usize, usize)>),
    /// Removes so many, each the n-th of those that are open.
    Remove(Vec<prop::sample::Index>),
}

impl Model {
    fn find(&self, address: usize, len: usize) -> Option<u64> {
        let holds =
            |&&(base, size, _): &&(usize, usize, u64)| base <= address && address + len.max(1) <= base + size;
        let innermost = |&&(base, size, id): &&(usize, usize, u64)| (base, Reverse(size), id);
        self.open.iter().filter(holds).max_by_key(innermost).map(|window| window.2)
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Step> {
        prop_oneof![
            3 => prop::collection::vec((0..40usize, 1..20usize), 0..12).prop_map(Step::Publish),
            2 => prop::collection::vec(any::<prop::sample::Index>(), 1..20).prop_map(Step::Remove),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        match step {
            Step::Publish(batch) => {
                for &(base, size) in batch {
                    state.open.push((base, size, state.next_id));
                    state.next_id += 1;
                }
            }
            Step::Remove(which) => {
                for which in which {
                    if !state.open.is_empty() {
                        state.open.remove(which.index(state.open.len()));
                    }
                }
            }
        }
        state
    }
}

/// The index, with the ids that are open in order of registration.
#[derive(Debug)]
struct Real {
    index: Numbered,
    reader: RefCell<Reader<Window>>,
    open: Vec<u64>,
    next_id: u64,
}

impl StateMachineTest for Real {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        Self { index: Numbered::new(), reader: RefCell::default(), open: Vec::new(), next_id: 0 }
    }

    fn apply(mut real: Self, _: &Model, step: Step) -> Self {
        match step {
            Step::Publish(batch) => {
                let entries = batch.iter().zip(real.next_id..).map(|(&(base, size), id)| (base, size, id));
                real.index.publish(entries.collect());
                real.open.extend(real.next_id..real.next_id + batch.len() as u64);
                real.next_id += batch.len() as u64;
            }
            Step::Remove(which) => {
                for which in which {
                    if !real.open.is_empty() {
                        assert!(real.index.remove(real.open.remove(which.index(real.open.len()))));
                    }
                }
            }
        }
        real
    }

    fn check_invariants(real: &Self, model: &Model) {
        assert_eq!(real.index.len(), model.open.len());
        for address in 0..62 {
            for len in [0, 1, 3, 9] {
                let found = real.index.find_with(&mut real.reader.borrow_mut(), address, len);
                assert_eq!(found, model.find(address, len), "{address} + {len}");
                assert_eq!(found, real.index.find(address, len), "{address} + {len}");
            }
        }
        let mut ids: Vec<u64> = real.index.list().into_iter().map(|window| window.2).collect();
        ids.sort_unstable();
        assert_eq!(ids, real.open);
        assert_eq!(real.index.cells() - model.open.len(), real.index.writer.lock().dead);
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_index_finds_what_a_scan_finds(sequential 1..30 => Real);
}
