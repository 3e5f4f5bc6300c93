use proptest::prelude::*;

use super::*;

/// The longest part in which an address of the list must be looked for.
fn longest_part(addresses: &[usize]) -> usize {
    let directory = Directory::new(addresses);
    let length = |address: &usize| {
        let (from, to) = directory.around(*address);
        to - from
    };
    addresses.iter().map(length).max().unwrap()
}

fn numbers(directory: &Directory) -> usize {
    directory.starts.len() + directory.crowded.iter().map(|(_, inner)| numbers(inner)).sum::<usize>()
}

fn depth(directory: &Directory) -> u32 {
    1 + directory.crowded.iter().map(|(_, inner)| depth(inner)).max().unwrap_or(0)
}

#[test]
fn side_by_side_each_address_has_its_bucket() {
    let addresses: Vec<usize> = (0..10_000).map(|i| (1 << 40) + i * 4096).collect();
    assert_eq!(longest_part(&addresses), 1);
}

#[test]
fn places_far_from_each_other_are_as_good_as_one() {
    let near = |start: usize| (0..1000).map(move |i| start + i * 4096);
    let addresses: Vec<usize> =
        [0, 1 << 32, 1 << 46, usize::MAX - (1 << 30)].into_iter().flat_map(near).collect();
    assert!(longest_part(&addresses) <= CROWD);
}

#[test]
fn equal_addresses_are_one_part() {
    assert_eq!(longest_part(&[usize::MAX; 1000]), 1000);
    assert_eq!(longest_part(&[0; 1000]), 1000);
}

#[test]
fn a_directory_has_few_numbers_an_address_however_the_addresses_lie() {
    // All sums of these: pairs of pairs of pairs, each pair far apart beside what it is made of. No directory tells
    // more than a few of these levels apart.
    let mut addresses = vec![0];
    for bit in (0..usize::BITS).step_by(4) {
        let upper: Vec<usize> = addresses.iter().map(|address| address + (1 << bit)).collect();
        addresses.extend(upper);
    }
    let directory = Directory::new(&addresses);
    assert_eq!(depth(&directory), LEVELS, "without a bound it would be deeper");
    assert!(numbers(&directory) <= LEVELS as usize * addresses.len());
}

/// Addresses evenly, in crowds, at both ends, and many equal ones.
fn address() -> impl Strategy<Value = usize> {
    prop_oneof![
        any::<usize>(),
        0..50usize,
        (0..3usize, 0..100usize).prop_map(|(place, near)| (place << 40) + (near << 3)),
        (0..usize::BITS, 0..40usize).prop_map(|(bit, near)| (1usize << bit).saturating_add(near)),
        (0..50usize).prop_map(|below| usize::MAX - below),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn all_before_the_part_is_below_and_all_behind_it_is_above(
        mut addresses in prop::collection::vec(address(), 0..400),
        others in prop::collection::vec(address(), 50),
    ) {
        addresses.sort_unstable();
        let directory = Directory::new(&addresses);
        for &address in addresses.iter().chain(&others) {
            let (from, to) = directory.around(address);
            prop_assert!(from <= to && to <= addresses.len());
            // Not only at or below: removal looks for all equal ones in the part.
            prop_assert!(addresses[..from].iter().all(|&other| other < address));
            prop_assert!(addresses[to..].iter().all(|&other| other > address));
        }
    }
}
