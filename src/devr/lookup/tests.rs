use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::devr::index::{Indexed, Node, WindowIndex};
use crate::devr::table::WindowTable;
use crate::devr::testing::{GRANULARITY, Held, TestDriver};

const STREAM: Stream = Stream(1);

fn lookup() -> (Arc<TestDriver>, Lookup) {
    let driver = TestDriver::new();
    let lookup = Lookup::new(Arc::clone(&driver) as Arc<dyn Driver>);
    (driver, lookup)
}

/// So many slots of a table, which only it can make.
fn slots(n: usize) -> Vec<TableSlot> {
    WindowTable::new(TestDriver::new()).reserve(n).unwrap()
}

/// The struct of the window with this number.
fn struct_of(number: usize) -> u64 {
    0xd000_0000 + 96 * number as u64
}

fn entry((base, size): (u64, u64), number: usize) -> TableEntry {
    TableEntry { base, size, window: struct_of(number) }
}

/// What the rule says of windows in the order of their publication.
fn innermost(entries: &[TableEntry], address: u64) -> Option<u64> {
    let holds = |entry: &&TableEntry| entry.base <= address && address - entry.base < entry.size;
    let found = entries.iter().filter(holds).max_by_key(|entry| (entry.base, std::cmp::Reverse(entry.size)));
    found.map(|entry| entry.window)
}

/// What a kernel finds: `find_window` of `include/symwin.cuh`, with memory that is read by `read`.
fn find(read: impl Fn(usize) -> u64, head: usize, address: u64) -> Option<u64> {
    loop {
        let before = read(head + offset_of_sequence());
        let tree = usize::try_from(read(head + offset_of_tree())).unwrap();
        let window = (tree != 0).then(|| search(|offset| read(tree + offset), address)).flatten();
        if read(head + offset_of_sequence()) == before {
            return window;
        }
    }
}

fn kernel_finds(driver: &TestDriver, lookup: &Lookup, address: u64) -> Option<u64> {
    find(|at| driver.peek(at), lookup.head(), address)
}

/// Windows that nest, overlap, touch and coincide.
fn windows(n: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..60u64, 1..30u64), 0..n)
}

/// All addresses that the windows of a test can hold, and some around them.
fn addresses() -> impl Iterator<Item = u64> {
    (0..100).chain([u64::MAX - 1, u64::MAX])
}

fn tree_of(entries: &[TableEntry]) -> Vec<u8> {
    let orders = entries.iter().zip(1..).map(|(e, number)| (Order::new(e.base, e.size, number), e.window));
    let pieces = pieces::of(&orders.collect());
    build(&pieces.iter().map(|piece| (piece.base, piece.leaf())).collect::<Vec<_>>())
}

fn word_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

#[derive(Debug)]
struct Indexing(Node, u64);

impl Indexed for Indexing {
    fn node(&self) -> Option<&Node> {
        Some(&self.0)
    }
}

#[test]
fn a_tree_of_any_size_finds_each_of_its_windows_and_nothing_between() {
    for n in [0, 1, 2, 15, 16, 17, 255, 256, 257, 1_024, 4_096, 4_097, 70_000] {
        let entries: Vec<_> = (0..n).map(|i| entry((0x1000 + i as u64 * 0x20, 0x10), i)).collect();
        let bytes = tree_of(&entries);
        assert!(bytes.len().is_multiple_of(layout::LINE));
        let read = |offset| word_at(&bytes, offset);
        for entry in entries.iter().step_by(1 + n / 1_000).chain(entries.last()) {
            let found = |address| search(read, address);
            assert_eq!(found(entry.base), Some(entry.window));
            assert_eq!(found(entry.base + 15), Some(entry.window));
            assert_eq!((found(entry.base - 1), found(entry.base + 16)), (None, None));
        }
        assert_eq!((search(read, 0), search(read, u64::MAX)), (None, None));
    }
}

#[test]
fn a_search_among_1024_windows_goes_through_three_nodes_and_among_8_through_one() {
    for (n, nodes) in [(8, 1), (16, 1), (256, 2), (1_024, 3), (4_096, 3)] {
        let entries: Vec<_> = (0..n).map(|i| entry((0x1000 + i as u64 * 0x20, 0x20), i)).collect();
        let bytes = tree_of(&entries);
        let reads = RefCell::new(0);
        let read = |offset| {
            *reads.borrow_mut() += 1;
            word_at(&bytes, offset)
        };
        assert_eq!(search(read, 0x1000 + 0x20 * n as u64 - 1), Some(struct_of(n - 1)));
        assert_eq!(reads.into_inner(), 1 + 16 * nodes + 2, "among {n}");
    }
}

#[test]
fn a_window_at_the_end_of_the_addresses_is_found() {
    let last = entry((u64::MAX - 0x1000, 0x1000), 0);
    let bytes = tree_of(&[last]);
    assert_eq!(search(|offset| word_at(&bytes, offset), u64::MAX - 1), Some(last.window));
    assert_eq!(search(|offset| word_at(&bytes, offset), u64::MAX), None, "no window holds it");
}

#[test]
fn before_the_first_publication_nothing_is_found() {
    let (driver, mut lookup) = lookup();
    assert_eq!((lookup.head(), lookup.is_empty()), (0, true));
    lookup.reserve(0).unwrap();
    assert_ne!(lookup.head(), 0);
    assert_eq!(kernel_finds(&driver, &lookup, 7), None);
    lookup.publish(STREAM, &[]).unwrap();
    assert!(driver.take_copies().is_empty());
    assert!(lookup.close().is_empty());
    assert_eq!(driver.held(), Held::default());
}

#[test]
fn lt_1_a_publication_counts_writes_the_other_place_and_switches() {
    let (driver, mut lookup) = lookup();
    let slots = slots(3);
    let mut trees = Vec::new();
    for (i, slot) in slots.into_iter().enumerate() {
        lookup.publish(STREAM, &[(slot, entry((0x1000 * (i as u64 + 1), 8), i))]).unwrap();
        let copies = driver.take_copies();
        let [(sequence, count), (tree, bytes), (root, to)] = &copies[..] else { panic!("{copies:?}") };
        assert_eq!((*sequence, word_at(count, 0)), (lookup.head(), i as u64 + 1));
        assert_eq!((*root, word_at(to, 0)), (lookup.head() + 8, *tree as u64));
        assert!(tree.is_multiple_of(layout::LINE) && bytes.len().is_multiple_of(layout::LINE));
        trees.push(*tree);
    }
    assert!(trees[0] != trees[1] && trees[0] == trees[2]);
}

#[test]
fn lt_3_a_window_is_withdrawn_in_place_and_the_one_around_it_is_found() {
    let (driver, mut lookup) = lookup();
    let [outer, inner] = slots(2)[..] else { panic!() };
    lookup.publish(STREAM, &[(outer, entry((0, 100), 0)), (inner, entry((40, 20), 1))]).unwrap();
    driver.take_copies();
    let found = |lookup: &Lookup| [39, 40, 59, 60].map(|address| kernel_finds(&driver, lookup, address));
    let [around, inside] = [0, 1].map(|number| Some(struct_of(number)));
    assert_eq!(found(&lookup), [around, inside, inside, around]);
    assert_eq!(lookup.withdraw(STREAM, inner), Ok(true));
    assert_eq!(driver.take_copies().len(), 1);
    assert_eq!(found(&lookup), [around; 4]);
    assert_eq!((lookup.withdraw(STREAM, inner), driver.take_copies().len()), (Ok(false), 0));
    assert_eq!(lookup.withdraw(STREAM, outer), Ok(true));
    assert_eq!((found(&lookup), lookup.len()), ([None; 4], 0));
}

#[test]
fn lt_4_memory_doubles_and_the_head_stays() {
    let (driver, mut lookup) = lookup();
    let slots = slots(1_000);
    let mut heads = BTreeSet::new();
    for (i, slot) in slots.iter().enumerate() {
        lookup.publish(STREAM, &[(*slot, entry((0x1000 + 0x10 * i as u64, 0x10), i))]).unwrap();
        heads.insert(lookup.head());
    }
    assert_eq!(heads.len(), 1);
    let held = driver.held();
    assert!(held.handles <= 7 && held.bytes <= 1 << 18, "{held:?}");
    for i in 0..1_000 {
        assert_eq!(kernel_finds(&driver, &lookup, 0x1000 + 0x10 * i as u64 + 15), Some(struct_of(i)));
    }
    assert!(lookup.close().is_empty());
    assert_eq!(driver.held(), Held::default());
}

#[test]
fn what_was_reserved_is_published_without_a_call_that_makes_memory() {
    let (driver, mut lookup) = lookup();
    lookup.reserve(500).unwrap();
    let held = driver.held();
    let batch: Vec<_> =
        slots(500).into_iter().enumerate().map(|(i, slot)| (slot, entry((8 * i as u64, 8), i))).collect();
    lookup.publish(STREAM, &batch).unwrap();
    assert_eq!(driver.held(), held);
    driver.fail(Call::Create, 1);
    assert!(lookup.reserve(GRANULARITY).is_err());
    assert_eq!((driver.held(), lookup.take_undo_errors()), (held, vec![]));
    assert_eq!(kernel_finds(&driver, &lookup, 8 * 499), Some(struct_of(499)));
}

#[test]
fn a_publication_that_fails_at_any_copy_can_be_made_again() {
    for nth in 1..=3 {
        let (driver, mut lookup) = lookup();
        let [first, second] = slots(2)[..] else { panic!() };
        lookup.publish(STREAM, &[(first, entry((0, 8), 0))]).unwrap();
        driver.fail(Call::Copy, nth);
        assert!(lookup.publish(STREAM, &[(second, entry((8, 8), 1))]).is_err());
        assert_eq!(kernel_finds(&driver, &lookup, 0), Some(struct_of(0)));
        assert_eq!((kernel_finds(&driver, &lookup, 8), lookup.len()), (None, 1));
        lookup.publish(STREAM, &[(second, entry((8, 8), 1))]).unwrap();
        assert_eq!([0, 8].map(|at| kernel_finds(&driver, &lookup, at)), [0, 1].map(|i| Some(struct_of(i))));
        driver.fail(Call::Copy, 1);
        assert!(lookup.withdraw(STREAM, second).is_err());
        assert_eq!(lookup.withdraw(STREAM, second), Ok(true));
        assert_eq!(kernel_finds(&driver, &lookup, 8), None);
    }
}

#[test]
fn our_own_bugs_are_refused_before_anything_is_written() {
    let (driver, mut lookup) = lookup();
    let [slot, other] = slots(2)[..] else { panic!() };
    let good = entry((8, 8), 0);
    lookup.publish(STREAM, &[(slot, good)]).unwrap();
    driver.take_copies();
    let bad = [
        TableEntry { window: 0, ..good },
        TableEntry { size: 0, ..good },
        TableEntry { base: u64::MAX, ..good },
    ];
    for entry in bad {
        assert!(lookup.publish(STREAM, &[(other, entry)]).is_err());
    }
    assert!(lookup.publish(STREAM, &[(slot, good)]).is_err(), "taken");
    assert!(lookup.publish(STREAM, &[(other, good), (other, good)]).is_err(), "given twice");
    assert_eq!((driver.take_copies().len(), lookup.len()), (0, 1));
}

/// What the host does: publishes windows, or withdraws one of those that are there.
#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<(u64, u64)>),
    Withdraw(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        windows(6).prop_map(Step::Publish),
        any::<prop::sample::Index>().prop_map(Step::Withdraw),
        any::<prop::sample::Index>().prop_map(Step::Withdraw),
    ]
}

/// A host and what it has published.
struct Host {
    driver: Arc<TestDriver>,
    lookup: Lookup,
    table: WindowTable,
    live: Vec<(TableSlot, TableEntry)>,
    made: usize,
}

impl Host {
    fn new() -> Self {
        let (driver, lookup) = lookup();
        // The table is on a device of its own, so that all copies are the tree's.
        let table = WindowTable::new(TestDriver::new());
        Self { driver, lookup, table, live: Vec::new(), made: 0 }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Publish(windows) => {
                let slots = self.table.reserve(windows.len()).unwrap();
                let numbers = self.made..;
                self.made += windows.len();
                let entries = windows.iter().zip(numbers).map(|(window, number)| entry(*window, number));
                let batch: Vec<_> = slots.into_iter().zip(entries).collect();
                self.lookup.publish(STREAM, &batch).unwrap();
                self.live.extend(batch);
            }
            Step::Withdraw(which) if !self.live.is_empty() => {
                let (slot, _) = self.live.remove(which.index(self.live.len()));
                assert_eq!(self.lookup.withdraw(STREAM, slot), Ok(true));
            }
            Step::Withdraw(_) => {}
        }
    }

    fn answer(&self, address: u64) -> Option<u64> {
        let entries: Vec<_> = self.live.iter().map(|(_, entry)| *entry).collect();
        innermost(&entries, address)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_answers_as_the_hosts_index_does(windows in windows(40)) {
        let index = WindowIndex::new();
        let entries: Vec<_> = windows.iter().enumerate().map(|(i, window)| entry(*window, i)).collect();
        let node = |entry: &TableEntry| {
            let [base, size] = [entry.base, entry.size].map(|word| usize::try_from(word).unwrap());
            Arc::new(Indexing(Node::new(base, size).unwrap(), entry.window))
        };
        let held: Vec<_> = entries.iter().map(node).collect();
        index.publish(&held);
        let bytes = tree_of(&entries);
        for address in addresses() {
            let found = search(|offset| word_at(&bytes, offset), address);
            prop_assert_eq!(found, innermost(&entries, address));
            let of_index = index.find(usize::try_from(address).unwrap(), 1);
            prop_assert_eq!(found, of_index.map(|window| window.1));
        }
    }

    #[test]
    fn a_kernel_finds_what_is_published_and_not_withdrawn(steps in prop::collection::vec(step(), 1..20)) {
        let mut host = Host::new();
        host.lookup.reserve(0).unwrap();
        for step in &steps {
            host.take(step);
            for address in addresses() {
                prop_assert_eq!(kernel_finds(&host.driver, &host.lookup, address), host.answer(address));
            }
        }
    }

    /// A kernel that searches while the host goes on: between its loads any number of words are written. What it finds
    /// was true at some time of the search, and it loads nothing outside of the tree's memory.
    #[test]
    fn a_search_beside_publications_finds_what_was_true_meanwhile(
        steps in prop::collection::vec(step(), 2..12),
        address in 0..90u64,
        begin in any::<prop::sample::Index>(),
        pauses in prop::collection::vec(prop_oneof![Just(0usize), 0..4usize, 0..400usize], 1..60),
    ) {
        let mut host = Host::new();
        host.lookup.reserve(0).unwrap();
        let mut writes = Vec::new();
        // The answer after each step, and how many words were written by then.
        let mut answers = vec![(0, host.answer(address))];
        for step in &steps {
            host.take(step);
            for (to, bytes) in host.driver.take_copies() {
                writes.extend(bytes.chunks_exact(8).zip(0..).map(|(word, i)| (to + 8 * i, word_at(word, 0))));
            }
            answers.push((writes.len(), host.answer(address)));
        }
        let written = RefCell::new(begin.index(writes.len() + 1));
        let start = *written.borrow();
        let memory = RefCell::new(writes[..start].iter().copied().collect::<HashMap<usize, u64>>());
        let pauses = RefCell::new(pauses.into_iter().chain(std::iter::repeat(1)));
        let read = |at: usize| {
            let _ = host.driver.peek(at); // panics where nothing is mapped
            let pause = pauses.borrow_mut().next().unwrap_or(1);
            let mut written = written.borrow_mut();
            let upto = (*written + pause).min(writes.len());
            memory.borrow_mut().extend(writes[*written..upto].iter().copied());
            *written = upto;
            memory.borrow().get(&at).copied().unwrap_or(0)
        };
        let found = find(read, host.lookup.head(), address);
        let end = written.into_inner();
        // True after a step: from when its last word may be seen until the next step's.
        let was_true = (0..answers.len()).any(|i| {
            let begins = i.checked_sub(1).map_or(0, |before| answers[before].0);
            let ends = answers.get(i + 1).map_or(usize::MAX, |next| next.0);
            answers[i].1 == found && begins <= end && ends >= start
        });
        prop_assert!(was_true, "found {found:x?} between words {start} and {end}: {answers:x?}");
    }
}
