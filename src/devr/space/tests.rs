use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;

const CAPACITY: u64 = 96;

#[test]
fn the_gap_before_an_aligned_offset_stays_free() {
    let mut space = Space::new(4096);
    assert_eq!(space.alloc(100, 1), Some(0));
    assert_eq!(space.alloc(512, 512), Some(512));
    assert_eq!(space.free_bytes(), 4096 - 612);
    assert_eq!(space.alloc(412, 4), Some(100), "all of the gap is given out");
    assert_eq!(space.alloc(1, 1), Some(1024));
}

#[test]
fn neighbours_merge_so_that_the_whole_space_is_free_again() {
    let mut space = Space::new(300);
    let offsets: Vec<u64> = (0..3).map(|_| space.alloc(100, 1).unwrap()).collect();
    assert_eq!((space.alloc(1, 1), space.largest_free()), (None, 0));
    space.free(offsets[0], 100).unwrap();
    space.free(offsets[2], 100).unwrap();
    assert_eq!((space.largest_free(), space.free_bytes()), (100, 200));
    space.free(offsets[1], 100).unwrap();
    assert_eq!(space, Space::new(300));
}

#[test]
fn a_quarantined_range_never_comes_back() {
    let mut space = Space::new(1000);
    let at = space.alloc(100, 1).unwrap();
    space.quarantine(50, 100).unwrap(); // half of it allocated, half free
    space.quarantine(50, 100).unwrap();
    assert_eq!((space.quarantined_bytes(), space.allocated_bytes(), space.free_bytes()), (100, 50, 850));
    space.free(at, 100).unwrap();
    assert_eq!((space.quarantined_bytes(), space.allocated_bytes(), space.free_bytes()), (100, 0, 900));
    assert_eq!(space.alloc(51, 1), Some(150));
    assert_eq!(space.alloc(50, 1), Some(0));
}

#[test]
fn a_quarantine_beyond_the_end_is_refused_and_changes_nothing() {
    let mut space = Space::new(1000);
    let before = space.clone();
    let beyond = |offset, size| Err(SpaceError::OutOfRange { offset, size, capacity: 1000 });
    assert_eq!(space.quarantine(999, 2), beyond(999, 2));
    assert_eq!(space.quarantine(u64::MAX, 2), beyond(u64::MAX, 2));
    assert_eq!(space, before);
}

#[test]
fn a_wrong_free_is_refused_and_changes_nothing() {
    let mut space = Space::new(1000);
    let at = space.alloc(100, 1).unwrap();
    let before = space.clone();
    for (offset, size) in [(at, 99), (at + 1, 99), (at, 101), (500, 100), (at, 0)] {
        assert_eq!(space.take_back(offset, size), Err(SpaceError::NotAllocated { offset, size }));
    }
    assert_eq!(space, before);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "only allocated ranges are freed")]
fn a_wrong_free_is_loud_in_debug_builds() {
    let _ = Space::new(1000).free(0, 100);
}

#[test]
fn the_far_end_of_the_address_range_does_not_overflow() {
    let mut space = Space::new(u64::MAX);
    assert_eq!(space.alloc(u64::MAX - 1, 1), Some(0));
    assert_eq!(space.alloc(1, 1 << 63), None);
    assert_eq!(space.alloc(u64::MAX, 1), None);
    assert_eq!(space.alloc(1, 1), Some(u64::MAX - 1));
    assert_eq!(space.alloc(0, 1), None);
}

#[test]
fn a_stride_that_is_no_power_of_two_is_used_to_its_last_byte() {
    let mut space = Space::new(35 << 32);
    assert_eq!(space.alloc(34 << 32, 1 << 21), Some(0));
    assert_eq!(space.alloc(1 << 32, 1 << 21), Some(34 << 32));
    assert_eq!(space.free_bytes(), 0);
}

#[test]
fn the_digest_tells_states_apart() {
    let mut a = Space::new(1000);
    let mut b = Space::new(1000);
    assert_eq!(fingerprint(&a), fingerprint(&b));
    let _ = a.alloc(100, 1);
    assert_ne!(fingerprint(&a), fingerprint(&b));
    b.quarantine(0, 100).unwrap();
    assert_ne!(fingerprint(&a), fingerprint(&b), "the same bytes are free, for other reasons");
    let mut c = Space::new(1000);
    let _ = (c.alloc(50, 1), c.alloc(50, 1));
    assert_ne!(fingerprint(&a), fingerprint(&c), "cut at other places");
}

fn fingerprint(space: &Space) -> Vec<u8> {
    let mut bytes = Vec::new();
    space.digest(&mut |part| bytes.extend_from_slice(part));
    bytes
}

/// What a byte of the model is. The model scans bytes, so it is right by sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Free,
    Allocated,
    Quarantined,
}

#[derive(Clone, Debug)]
struct Model {
    bytes: Vec<Byte>,
    allocations: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        size: u64,
        align: u64,
    },
    /// Frees the n-th living allocation.
    Free(prop::sample::Index),
    Quarantine {
        offset: u64,
        size: u64,
    },
    /// A batch that tries on a copy and rolls back.
    TryOnly {
        size: u64,
        align: u64,
    },
}

impl Model {
    fn lowest(&self, size: u64, align: u64) -> Option<u64> {
        (0..CAPACITY)
            .step_by(usize::try_from(align).unwrap())
            .find(|&at| at + size <= CAPACITY && self.slice(at, size).iter().all(|&byte| byte == Byte::Free))
    }

    fn slice(&self, offset: u64, size: u64) -> &[Byte] {
        &self.bytes[usize::try_from(offset).unwrap()..usize::try_from(offset + size).unwrap()]
    }

    fn set(&mut self, offset: u64, size: u64, to: Byte, only_if: impl Fn(Byte) -> bool) {
        for at in offset..offset + size {
            let byte = &mut self.bytes[usize::try_from(at).unwrap()];
            if only_if(*byte) {
                *byte = to;
            }
        }
    }

    fn count(&self, of: Byte) -> u64 {
        self.bytes.iter().filter(|&&byte| byte == of).count() as u64
    }

    fn longest_free(&self) -> u64 {
        self.bytes.split(|&byte| byte != Byte::Free).map(|run| run.len() as u64).max().unwrap_or(0)
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self { bytes: vec![Byte::Free; usize::try_from(CAPACITY).unwrap()], allocations: Vec::new() })
            .boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Step> {
        let align = (0u32..6).prop_map(|bits| 1u64 << bits);
        prop_oneof![
            6 => (1..24u64, align.clone()).prop_map(|(size, align)| Step::Alloc { size, align }),
            4 => any::<prop::sample::Index>().prop_map(Step::Free),
            1 => (0..CAPACITY, 0..6u64).prop_map(|(offset, size)| Step::Quarantine {
                offset,
                size: size.min(CAPACITY - offset),
            }),
            1 => (1..24u64, align).prop_map(|(size, align)| Step::TryOnly { size, align }),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        match step {
            Step::Alloc { size, align } => {
                if let Some(at) = state.lowest(*size, *align) {
                    state.set(at, *size, Byte::Allocated, |_| true);
                    state.allocations.push((at, *size));
                }
            }
            Step::Free(which) => {
                if !state.allocations.is_empty() {
                    let (at, size) = state.allocations.remove(which.index(state.allocations.len()));
                    state.set(at, size, Byte::Free, |byte| byte == Byte::Allocated);
                }
            }
            Step::Quarantine { offset, size } => state.set(*offset, *size, Byte::Quarantined, |_| true),
            Step::TryOnly { .. } => {}
        }
        state
    }
}

/// The space beside its own list of allocations, in the model's order.
#[derive(Debug)]
struct Real {
    space: Space,
    allocations: Vec<(u64, u64)>,
}

impl StateMachineTest for Real {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        Self { space: Space::new(CAPACITY), allocations: Vec::new() }
    }

    fn apply(mut real: Self, model: &Model, step: Step) -> Self {
        match step {
            Step::Alloc { size, align } => {
                if let Some(at) = real.space.alloc(size, align) {
                    real.allocations.push((at, size));
                }
            }
            Step::Free(which) => {
                if !real.allocations.is_empty() {
                    let (at, size) = real.allocations.remove(which.index(real.allocations.len()));
                    real.space.free(at, size).unwrap();
                }
            }
            Step::Quarantine { offset, size } => real.space.quarantine(offset, size).unwrap(),
            Step::TryOnly { size, align } => {
                let mut tried = real.space.clone();
                assert_eq!(tried.alloc(size, align), model.lowest(size, align));
            }
        }
        real
    }

    fn check_invariants(real: &Self, model: &Model) {
        let space = &real.space;
        assert_eq!(real.allocations, model.allocations, "first fit at the lowest offset");
        assert_eq!(space.free_bytes(), model.count(Byte::Free));
        assert_eq!(space.allocated_bytes(), model.count(Byte::Allocated));
        assert_eq!(space.quarantined_bytes(), model.count(Byte::Quarantined));
        assert_eq!(space.largest_free(), model.longest_free());
        // Merged: as many free ranges as the model has runs.
        let runs = model.bytes.split(|&byte| byte != Byte::Free).filter(|run| !run.is_empty()).count();
        assert_eq!(space.free.ends.len(), runs);
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_space_does_what_a_scan_over_its_bytes_does(sequential 1..60 => Real);
}
