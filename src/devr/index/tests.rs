use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Barrier, OnceLock, Weak};
use std::thread;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;

/// An index whose windows are known by a number, which is also what lookups give back.
#[derive(Debug, Default)]
struct Numbered {
    index: WindowIndex<u64>,
    nodes: Mutex<BTreeMap<u64, Arc<Node<u64>>>>,
}

impl Numbered {
    fn new() -> Self {
        Self::default()
    }

    /// By base, size and number.
    fn publish(&self, batch: Vec<(usize, usize, u64)>) {
        let nodes = batch.into_iter().map(|(base, size, id)| Arc::new(Node::new(base, size, id).unwrap()));
        let nodes: Vec<_> = nodes.collect();
        self.nodes.lock().extend(nodes.iter().map(|node| (*node.value(), Arc::clone(node))));
        self.index.publish(nodes);
    }

    fn remove(&self, id: u64) -> bool {
        let node = self.nodes.lock().remove(&id);
        node.is_some_and(|node| self.index.remove(&node))
    }

    fn list(&self) -> Vec<(usize, usize, u64)> {
        self.index.iter().map(|node| (node.base(), node.size(), *node.value())).collect()
    }
}

impl Deref for Numbered {
    type Target = WindowIndex<u64>;

    fn deref(&self) -> &WindowIndex<u64> {
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
    let open = |gone: &'static [u64]| move |id: &u64| (!gone.contains(id)).then_some(*id);
    assert_eq!(index.find_map(1255, 1, open(&[2])), Some(1));
    assert_eq!(index.find_map(1255, 1, open(&[1, 2])), Some(0));
    assert_eq!(index.find_map(1255, 1, open(&[0, 1, 2])), None);
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
    assert!(Node::new(1000, 0, ()).is_none());
    assert!(Node::new(usize::MAX, 2, ()).is_none());
    assert_eq!(Node::new(usize::MAX, 1, ()).unwrap().size(), 1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "is in the index")]
fn a_window_is_published_once() {
    let index = WindowIndex::new();
    let node = Arc::new(Node::new(1000, 10, ()).unwrap());
    index.publish(vec![Arc::clone(&node)]);
    index.publish(vec![node]);
}

#[test]
fn a_window_that_was_never_published_is_not_removed() {
    let index = index_of(&[(1000, 10)]);
    assert!(!index.index.remove(&Node::new(1000, 10, 7).unwrap()));
    assert_eq!(index.len(), 1);
}

/// Leaves the index with its last reference, as a window does.
struct Handle {
    index: Arc<WindowIndex<Weak<Self>>>,
    node: OnceLock<Arc<Node<Weak<Self>>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.index.remove(self.node.get().unwrap());
    }
}

#[test]
fn a_handle_that_a_lookup_held_last_leaves_the_index_as_it_goes() {
    let index: Arc<WindowIndex<Weak<Handle>>> = Arc::new(WindowIndex::new());
    let handle = Arc::new(Handle { index: Arc::clone(&index), node: OnceLock::new() });
    let node = Arc::new(Node::new(0, 8, Arc::downgrade(&handle)).unwrap());
    handle.node.set(Arc::clone(&node)).unwrap();
    index.publish(vec![node]);
    let found = index.find_map(0, 1, Weak::upgrade).unwrap();
    drop(handle);
    assert_eq!(index.len(), 1);
    drop(found);
    assert_eq!((index.len(), index.find_map(0, 1, Weak::upgrade).is_none()), (0, true));
}

#[test]
fn a_thousand_cycles_beside_open_windows_copy_few_of_them() {
    let open = 10_000usize;
    let index = index_of(&(0..open).map(|i| (i * 64, 64)).collect::<Vec<_>>());
    let large = Arc::clone(&index.published.load()[0]);
    let mut rebuilt = 0;
    for id in 0..1_000u64 {
        index.publish(vec![(64 * open, 64, 1_000_000 + id)]);
        let runs = index.published.load();
        assert!(runs.len() <= 8, "{index:?}");
        rebuilt += usize::from(!Arc::ptr_eq(&runs[0], &large));
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
        let cells: usize = index.published.load().iter().map(|run| run.nodes.len()).sum();
        assert!(cells - index.len() <= index.len() / DEAD_PER_LIVING + DEAD_ALWAYS_KEPT, "{index:?}");
    }
    assert_eq!((index.find(999 * 64, 64), index.find(0, 1)), (Some(999), None));
}

#[test]
fn the_last_of_equal_windows_is_the_innermost_after_a_rebuild_too() {
    let index = index_of(&(0..100).map(|i| (i * 64, 64)).collect::<Vec<_>>());
    index.publish(vec![(0, 64, 100)]);
    assert_eq!((index.find(0, 1), index.published.load().len()), (Some(100), 2));
    for id in 1..90 {
        assert!(index.remove(id));
    }
    assert_eq!((index.find(0, 1), index.published.load().len()), (Some(100), 1));
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
                let mut latest = 0;
                while !done.load(Ordering::Acquire) {
                    let second = index.find(2048, 8).expect("one is always open");
                    let first = index.find(1024, 8).expect("one is always open");
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
fn outer_is_the_nearest_earlier_window_that_ends_later() {
    assert_eq!(*previous_greater(&[9, 5, 5, 7, 3, 12, 1]), [NONE, 0, 0, 0, 3, NONE, 5]);
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
    open: Vec<u64>,
    next_id: u64,
}

impl StateMachineTest for Real {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        Self { index: Numbered::new(), open: Vec::new(), next_id: 0 }
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
                assert_eq!(real.index.find(address, len), model.find(address, len), "{address} + {len}");
            }
        }
        let mut ids: Vec<u64> = real.index.list().into_iter().map(|window| window.2).collect();
        ids.sort_unstable();
        assert_eq!(ids, real.open);
        let runs = real.index.published.load();
        let cells = || runs.iter().flat_map(|run| run.nodes.iter());
        assert_eq!(cells().filter(|node| !node.alive()).count(), real.index.writer.lock().dead);
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_index_finds_what_a_scan_finds(sequential 1..30 => Real);
}
