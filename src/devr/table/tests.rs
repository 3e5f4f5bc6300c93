use std::collections::BTreeMap;

use super::*;
use crate::devr::testing::{Held, TestDriver};

const STREAM: Stream = Stream(1);

fn table() -> (Arc<TestDriver>, WindowTable) {
    let driver = TestDriver::new();
    let table = WindowTable::new(Arc::clone(&driver) as Arc<dyn Driver>);
    (driver, table)
}

/// The `i`-th of many windows that do not overlap.
fn entry(i: usize) -> TableEntry {
    let i = i as u64;
    TableEntry { base: 0x10_0000 + i * 0x1000, size: 0x1000, window: 0xd000_0000 + i * 96 }
}

fn publish(table: &mut WindowTable, windows: std::ops::Range<usize>) -> Vec<TableSlot> {
    let slots = table.reserve(windows.len()).unwrap();
    let batch: Vec<_> = slots.iter().copied().zip(windows.map(entry)).collect();
    table.publish_all(STREAM, &batch).unwrap();
    slots
}

/// All entries as a kernel reads them, following the chain to its end.
fn walk(driver: &TestDriver, head: usize) -> Vec<TableEntry> {
    let mut entries = Vec::new();
    let mut chunk = head;
    while chunk != 0 {
        for i in 0..CHUNK_ENTRIES {
            let at = chunk + i * size_of::<TableEntry>();
            let window = driver.peek(at + 16);
            entries.push(TableEntry { base: driver.peek(at), size: driver.peek(at + 8), window });
        }
        chunk = usize::try_from(driver.peek(chunk + 768)).unwrap();
    }
    entries
}

/// Places that hold the address for a kernel that compares bounds before it looks at the pointer.
fn matches(driver: &TestDriver, table: &WindowTable, address: u64) -> Vec<TableEntry> {
    let holds = |entry: &TableEntry| entry.base <= address && address - entry.base < entry.size;
    walk(driver, table.head()).into_iter().filter(holds).collect()
}

#[test]
fn bug_02_an_address_behind_a_window_is_not_in_it() {
    let (driver, mut table) = table();
    publish(&mut table, 0..3);
    let TableEntry { base, size, .. } = entry(2);
    assert_eq!(matches(&driver, &table, base + size - 1), [entry(2)]);
    assert_eq!(matches(&driver, &table, base + size), []);
    assert_eq!(matches(&driver, &table, base + size + 1), []);
}

#[test]
fn bug_03_withdrawing_one_window_leaves_those_at_lower_addresses_alone() {
    let (driver, mut table) = table();
    let slots = publish(&mut table, 0..3);
    assert_eq!(table.withdraw(STREAM, slots[2]), Ok(true));
    assert!(table.live().map(|(_, entry)| entry).eq([entry(0), entry(1)]));
    for i in 0..2 {
        assert_eq!(matches(&driver, &table, entry(i).base), [entry(i)]);
    }
}

#[test]
fn bug_04_of_two_windows_at_one_address_the_one_asked_for_goes() {
    let (driver, mut table) = table();
    let slots = table.reserve(2).unwrap();
    let twin = TableEntry { window: 0xe000, ..entry(0) };
    table.publish_all(STREAM, &[(slots[0], entry(0)), (slots[1], twin)]).unwrap();
    assert_eq!(table.withdraw(STREAM, slots[0]), Ok(true));
    assert_eq!(matches(&driver, &table, entry(0).base), [twin]);
}

#[test]
fn bug_34_a_withdrawn_slot_is_not_given_out_before_it_is_freed() {
    let (_, mut table) = table();
    let slots = publish(&mut table, 0..CHUNK_ENTRIES);
    for &slot in &slots {
        assert_eq!(table.withdraw(STREAM, slot), Ok(true));
    }
    let others = table.reserve(CHUNK_ENTRIES).unwrap();
    assert!(others.iter().all(|other| slots.iter().all(|slot| slot.index != other.index)));
    assert!(table.free(slots[5]));
    let again = table.reserve(1).unwrap()[0];
    assert_eq!(again.index, slots[5].index);
    assert!(!table.free(slots[5]) && table.withdraw(STREAM, slots[5]) == Ok(false), "the old name is stale");
    assert!(table.publish(STREAM, slots[5], entry(0)).is_err());
}

#[test]
fn bug_34_a_live_slot_cannot_be_freed_nor_withdrawn_twice() {
    let (_, mut table) = table();
    let slot = publish(&mut table, 0..1)[0];
    assert!(!table.free(slot));
    assert_eq!((table.withdraw(STREAM, slot), table.withdraw(STREAM, slot)), (Ok(true), Ok(false)));
    assert!(table.free(slot) && !table.free(slot));
}

#[test]
fn bug_36_the_chain_ends_with_zero_and_an_absent_address_is_nowhere() {
    let (driver, mut table) = table();
    publish(&mut table, 0..3 * CHUNK_ENTRIES);
    assert_eq!(walk(&driver, table.head()), (0..3 * CHUNK_ENTRIES).map(entry).collect::<Vec<_>>());
    assert_eq!(matches(&driver, &table, 7), []);
    assert_eq!(matches(&driver, &table, entry(95).base + 1), [entry(95)], "in the last chunk");
}

#[test]
fn bug_36_a_closed_and_registered_again_buffer_matches_one_entry() {
    // Where two lanes match, NCCL's kernels index a wrong one. The withdrawn entry must not match beside the new.
    let (driver, mut table) = table();
    let old = publish(&mut table, 0..1)[0];
    table.withdraw(STREAM, old).unwrap();
    publish(&mut table, 0..1);
    assert_eq!(matches(&driver, &table, entry(0).base), [entry(0)]);
    assert_eq!(walk(&driver, table.head())[0], TableEntry { base: entry(0).base, ..TableEntry::default() });
}

#[test]
fn the_first_chunk_is_there_before_the_first_window() {
    let (driver, mut table) = table();
    assert_eq!((table.head(), table.counts()), (0, TableCounts::default()));
    assert_eq!(driver.held(), Held::default());
    assert_eq!(table.reserve(0), Ok(vec![]));
    let head = table.head();
    assert_ne!(head, 0);
    assert_eq!((table.upload(STREAM), table.upload(STREAM)), (Ok(1), Ok(0)));
    assert_eq!(walk(&driver, head), [TableEntry::default(); CHUNK_ENTRIES]);
    publish(&mut table, 0..100);
    assert_eq!(table.head(), head, "kernels keep it");
}

#[test]
fn publishing_costs_two_copies_a_run_of_neighbours() {
    let (driver, mut table) = table();
    table.reserve(3).unwrap();
    table.upload(STREAM).unwrap();
    driver.take_copies();
    publish(&mut table, 0..29);
    let head = table.head();
    let copies: Vec<(usize, usize)> =
        driver.take_copies().iter().map(|(at, b)| (at - head, b.len())).collect();
    assert_eq!(copies, [(3 * 24, 29 * 24 - 8), (3 * 24 + 16, 29 * 24 - 16)]);
    let slot = table.reserve(1).unwrap()[0];
    table.upload(STREAM).unwrap();
    driver.take_copies();
    table.publish(STREAM, slot, entry(77)).unwrap();
    let sizes: Vec<usize> = driver.take_copies().iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(sizes, [16, 8], "base and size, then the pointer");
}

#[test]
fn new_chunks_come_before_the_link_to_them() {
    let (driver, mut table) = table();
    publish(&mut table, 0..CHUNK_ENTRIES);
    let head = table.head();
    driver.take_copies();
    table.reserve(3 * CHUNK_ENTRIES).unwrap();
    assert_eq!(driver.peek(head + 768), 0, "not linked before the upload");
    table.upload(STREAM).unwrap();
    let copies = driver.take_copies();
    let (link, before) = copies.split_last().unwrap();
    assert_eq!((link.0, link.1.len()), (head + 768, 8));
    assert_eq!(before.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), 3 * 800);
    assert_eq!(walk(&driver, head).len(), 4 * CHUNK_ENTRIES);
}

#[test]
fn a_failed_upload_links_nothing_and_can_be_repeated() {
    for nth in 1.. {
        let (driver, mut table) = table();
        publish(&mut table, 0..CHUNK_ENTRIES);
        let slots = table.reserve(6 * CHUNK_ENTRIES).unwrap();
        driver.fail(Call::Copy, nth);
        if table.upload(STREAM).is_ok() {
            assert_eq!(nth, 4, "two pages and the link were tried");
            break;
        }
        assert_eq!(walk(&driver, table.head()).len(), CHUNK_ENTRIES);
        table.publish(STREAM, slots[6 * CHUNK_ENTRIES - 1], entry(500)).unwrap();
        assert_eq!(walk(&driver, table.head()).last(), Some(&entry(500)));
    }
}

#[test]
fn a_failed_reservation_takes_no_slot() {
    let (driver, mut table) = table();
    table.reserve(CHUNK_ENTRIES - 1).unwrap();
    driver.fail(Call::Create, 1);
    assert_eq!(table.reserve(1_000).unwrap_err().call, Call::Create);
    let counts = table.counts();
    assert_eq!((counts.reserved, counts.reserved + counts.free), (31, counts.chunks * CHUNK_ENTRIES));
    assert!(table.reserve(1_000).is_ok());
}

#[test]
fn a_batch_that_fails_half_way_publishes_no_half_entry() {
    // Copies: two runs of bases and sizes, two of pointers.
    for nth in 1..=4 {
        let (driver, mut table) = table();
        table.reserve(0).unwrap();
        table.upload(STREAM).unwrap();
        let slots = table.reserve(5).unwrap();
        let batch: Vec<_> = [0, 1, 3, 4].map(|i| (slots[i], entry(i))).to_vec();
        driver.fail(Call::Copy, nth);
        assert_eq!(table.publish_all(STREAM, &batch).unwrap_err().call, Call::Copy);
        let found: Vec<TableEntry> =
            walk(&driver, table.head()).into_iter().filter(|entry| entry.window != 0).collect();
        assert!(table.live().map(|(_, entry)| entry).eq(found.iter().copied()), "{nth}");
        assert_eq!(found, if nth == 4 { vec![entry(0), entry(1)] } else { vec![] });
        for slot in slots {
            assert!(table.withdraw(STREAM, slot).is_ok() && table.free(slot));
        }
    }
}

#[test]
fn entries_that_are_no_windows_are_refused_before_anything_is_written() {
    let (driver, mut table) = table();
    let slots = table.reserve(2).unwrap();
    let good = (slots[0], entry(0));
    let bad = [
        TableEntry { window: 0, ..entry(1) },
        TableEntry { size: 0, ..entry(1) },
        TableEntry { base: u64::MAX, ..entry(1) },
    ];
    for bad in bad {
        assert!(table.publish_all(STREAM, &[good, (slots[1], bad)]).is_err(), "{bad:?}");
    }
    assert!(table.publish_all(STREAM, &[good, good]).is_err(), "twice");
    assert_eq!(driver.take_copies(), []);
    table.publish(STREAM, good.0, good.1).unwrap();
    assert!(table.publish(STREAM, good.0, good.1).is_err(), "live already");
}

#[test]
fn a_kernel_that_reads_the_pointer_first_never_sees_half_an_entry() {
    // What a kernel may see: every place's words after every word that was written. A slot is used again only when
    // no kernel runs any more (WT-3), which a new epoch stands for.
    let (driver, mut table) = table();
    table.reserve(0).unwrap();
    table.upload(STREAM).unwrap();
    let slots = table.reserve(6).unwrap();
    let first: Vec<_> = (0..4).map(|i| (slots[i], entry(i))).collect();
    table.publish_all(STREAM, &first).unwrap();
    table.publish(STREAM, slots[5], entry(5)).unwrap();
    table.withdraw(STREAM, slots[1]).unwrap();
    table.withdraw(STREAM, slots[2]).unwrap();
    table.publish(STREAM, slots[4], entry(4)).unwrap();
    check_history(&driver, table.head(), &mut BTreeMap::new());
    let mut device = BTreeMap::new();
    for at in (0..8).flat_map(|i| [0, 8, 16].map(|word| i * 24 + word)) {
        device.insert(table.head() + at, driver.peek(table.head() + at));
    }
    assert!(table.free(slots[1]) && table.free(slots[2]));
    let again: Vec<_> = table.reserve(2).unwrap().into_iter().zip([entry(11), entry(12)]).collect();
    table.publish_all(STREAM, &again).unwrap();
    check_history(&driver, table.head(), &mut device);
}

/// For each place and any three moments in order: a pointer read at the first, the base at the second and the size at
/// the third are of one window, or the size is zero.
fn check_history(driver: &TestDriver, head: usize, device: &mut BTreeMap<usize, u64>) {
    let mut histories = vec![Vec::new(); 8];
    let mut note = |device: &BTreeMap<usize, u64>| {
        for (i, history) in histories.iter_mut().enumerate() {
            let word = |at| device.get(&(head + i * 24 + at)).copied().unwrap_or(0);
            history.push([word(16), word(0), word(8)]);
        }
    };
    note(device);
    for (to, bytes) in driver.take_copies() {
        for (at, word) in (to..).step_by(8).zip(bytes.chunks(8)) {
            device.insert(at, u64::from_le_bytes(word.try_into().unwrap()));
            note(device);
        }
    }
    for history in histories {
        for (i, &[window, ..]) in history.iter().enumerate().filter(|(_, state)| state[0] != 0) {
            let known = (0..20).map(entry).find(|entry| entry.window == window).expect("a whole pointer");
            for (j, &[_, base, _]) in history.iter().enumerate().skip(i) {
                for &[_, _, size] in &history[j..] {
                    assert!(size == 0 || (base, size) == (known.base, known.size));
                }
            }
        }
    }
}

#[test]
fn slots_and_chunks_are_flat_under_cycles() {
    let (driver, mut table) = table();
    publish(&mut table, 0..40);
    let (counts, held) = (table.counts(), driver.held());
    for i in 0..2_000 {
        let slot = publish(&mut table, i..i + 1)[0];
        assert_eq!(slot.index, 40, "the lowest free slot");
        assert_eq!(table.withdraw(STREAM, slot), Ok(true));
        assert!(table.free(slot));
    }
    assert_eq!((table.counts(), driver.held()), (counts, held));
    assert_eq!(table.close(), []);
    assert_eq!(driver.held(), Held::default());
}
