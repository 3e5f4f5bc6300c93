use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;
use crate::devr::testing::{GRANULARITY, Held, TestDriver};
use crate::driver::{Call, DeviceProblem};

const STREAM: Stream = Stream(1);

/// Three words; so there is a word of padding between two objects.
type Object = [u64; 3];

/// Objects in a first page.
const PER_PAGE: usize = GRANULARITY / 32;

fn pool() -> (Arc<TestDriver>, ShadowPool<Object>) {
    let driver = TestDriver::new();
    let pool = ShadowPool::new(Arc::clone(&driver) as Arc<dyn Driver>);
    (driver, pool)
}

fn on_device(driver: &TestDriver, address: usize) -> Object {
    [0, 1, 2].map(|word| driver.peek(address + 8 * word))
}

#[test]
fn bug_28_foreign_stale_and_inner_addresses_are_told_apart() {
    let (_, mut pool) = pool();
    assert_eq!(
        (pool.slot_at(0), pool.slot_at(0x7000), pool.slot_at(usize::MAX)),
        (None, None, None),
        "never used"
    );
    let slot = pool.alloc([1; 3]).unwrap();
    let address = pool.address(slot).unwrap();
    for inner in 0..24 {
        assert_eq!(pool.slot_at(address + inner), Some(slot));
    }
    assert_eq!(pool.slot_at(address + 24), None, "padding");
    assert_eq!(pool.slot_at(address + 32), None, "a slot that was never used");
    assert_eq!((pool.slot_at(address - 1), pool.slot_at(address + GRANULARITY)), (None, None));
    assert_eq!((pool.slot_at(0), pool.slot_at(usize::MAX)), (None, None));
    assert!(pool.free(slot));
    assert_eq!(pool.slot_at(address), None);
}

#[test]
fn bug_28_a_stale_slot_does_nothing_even_where_the_place_is_in_use_again() {
    let (driver, mut pool) = pool();
    let old = pool.alloc([1; 3]).unwrap();
    assert!(pool.free(old));
    let new = pool.alloc([2; 3]).unwrap();
    assert_eq!(pool.address(new), Some(pool.pages[0].page.base()), "the same place");
    assert_ne!(old, new);
    assert_eq!((pool.get(old), pool.address(old)), (None, None));
    assert!(!pool.set(old, [3; 3]) && !pool.free(old) && !pool.forget_dirty(old));
    assert_eq!(pool.patch(STREAM, old, 0, &[0; 8]), Ok(false));
    assert_eq!((pool.get(new), driver.take_copies().len()), (Some(&[2; 3]), 0));
}

#[test]
fn a_reused_slot_holds_nothing_of_its_former_object() {
    let (driver, mut pool) = pool();
    let old = pool.alloc([7; 3]).unwrap();
    pool.upload(STREAM).unwrap();
    pool.free(old);
    let new = pool.alloc([0, 0, 9]).unwrap();
    pool.upload(STREAM).unwrap();
    assert_eq!(on_device(&driver, pool.address(new).unwrap()), [0, 0, 9]);
}

#[test]
fn neighbours_go_in_one_copy_and_each_change_goes_once() {
    let (driver, mut pool) = pool();
    let slots: Vec<Slot> = (0..PER_PAGE as u64).map(|i| pool.alloc([i; 3]).unwrap()).collect();
    assert_eq!(pool.upload(STREAM), Ok(1));
    assert_eq!(pool.upload(STREAM), Ok(0));
    assert_eq!(driver.take_copies().len(), 1);
    for i in [3, 4, 5, 9] {
        assert!(pool.set(slots[i], [100 + i as u64; 3]));
    }
    assert_eq!((pool.counts().dirty, pool.upload(STREAM)), (4, Ok(2)));
    for (i, &slot) in slots.iter().enumerate() {
        let value = if [3, 4, 5, 9].contains(&i) { 100 + i as u64 } else { i as u64 };
        assert_eq!(on_device(&driver, pool.address(slot).unwrap()), [value; 3]);
    }
}

#[test]
fn a_copy_never_spans_two_pages() {
    let (driver, mut pool) = pool();
    for i in 0..PER_PAGE as u64 + 1 {
        pool.alloc([i; 3]).unwrap();
    }
    assert_eq!((pool.counts().pages, pool.upload(STREAM)), (2, Ok(2)));
    let sizes: Vec<usize> = driver.take_copies().iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(sizes, [PER_PAGE * 32, 32]);
}

#[test]
fn a_failed_upload_goes_with_the_next_one() {
    let (driver, mut pool) = pool();
    let slots: Vec<Slot> = (0..3).map(|i| pool.alloc([i + 1; 3]).unwrap()).collect();
    pool.forget_dirty(slots[1]); // so that there are two copies
    driver.fail(Call::Copy, 2);
    assert_eq!(pool.upload(STREAM).unwrap_err().call, Call::Copy);
    assert_eq!(pool.counts().dirty, 1);
    assert_eq!(pool.upload(STREAM), Ok(1));
    let device: Vec<u64> = slots.iter().map(|&slot| driver.peek(pool.address(slot).unwrap())).collect();
    assert_eq!(device, [1, 0, 3], "forgotten is not copied");
}

#[test]
fn a_patch_writes_its_bytes_alone_and_a_failed_one_changes_nothing() {
    let (driver, mut pool) = pool();
    let slot = pool.alloc([1, 2, 3]).unwrap();
    pool.upload(STREAM).unwrap();
    driver.take_copies();
    assert_eq!(pool.patch(STREAM, slot, 8, &9u64.to_le_bytes()), Ok(true));
    let address = pool.address(slot).unwrap();
    assert_eq!(driver.take_copies(), [(address + 8, 9u64.to_le_bytes().to_vec())]);
    driver.fail(Call::Copy, 1);
    assert!(pool.patch(STREAM, slot, 0, &7u64.to_le_bytes()).is_err());
    assert_eq!((pool.get(slot), on_device(&driver, address)), (Some(&[1, 9, 3]), [1, 9, 3]));
    assert_eq!(pool.counts().dirty, 0);
}

#[test]
fn memory_is_flat_under_cycles_and_pages_are_few() {
    let (driver, mut pool) = pool();
    let kept: Vec<Slot> = (0..5_000).map(|i| pool.alloc([i; 3]).unwrap()).collect();
    let (counts, held) = (pool.counts(), driver.held());
    assert!(counts.pages <= 7, "{counts:?}");
    for i in 0..10_000usize {
        assert!(pool.free(kept[i % 1_000]) == (i < 1_000));
        if i < 1_000 {
            let slot = pool.alloc([0; 3]).unwrap();
            assert_eq!(slot.index as usize, i, "the lowest free slot");
        }
    }
    assert_eq!((pool.counts(), driver.held()), (counts, held));
    assert_eq!(pool.close(), []);
    assert_eq!(driver.held(), Held::default());
}

#[test]
fn an_object_larger_than_the_granularity_has_a_page_of_its_size() {
    let driver = TestDriver::new();
    let mut pool = ShadowPool::<[u64; 700]>::new(Arc::clone(&driver) as Arc<dyn Driver>);
    let slot = pool.alloc([5; 700]).unwrap();
    assert_eq!((pool.upload(STREAM), driver.held().bytes), (Ok(1), 2 * GRANULARITY));
    assert_eq!(driver.peek(pool.address(slot).unwrap() + 699 * 8), 5);
}

#[test]
fn every_failing_call_of_a_new_page_leaves_nothing_behind() {
    for call in [Call::Create, Call::Reserve, Call::Map, Call::SetAccess] {
        let (driver, mut pool) = pool();
        driver.fail(call, 1);
        let injected = DeviceError::new(call, DeviceProblem::Injected { nth: 1 });
        assert_eq!(pool.alloc([1; 3]), Err(injected));
        assert_eq!((driver.held(), pool.counts()), (Held::default(), ShadowCounts::default()));
        assert_eq!(pool.take_undo_errors(), []);
        assert!(pool.alloc([1; 3]).is_ok(), "usable afterwards");
    }
}

#[test]
fn undo_calls_that_fail_are_reported_and_the_rest_is_undone() {
    let (driver, mut pool) = pool();
    driver.fail(Call::Map, 1);
    driver.fail(Call::Free, 1);
    assert_eq!(pool.alloc([1; 3]).unwrap_err().call, Call::Map);
    let undo: Vec<Call> = pool.take_undo_errors().iter().map(|error| error.call).collect();
    assert_eq!((undo, pool.take_undo_errors()), (vec![Call::Free], vec![]));
    assert_eq!(driver.held(), Held { reservations: 1, ..Held::default() });
}

#[test]
fn close_collects_errors_and_frees_no_addresses_that_are_still_mapped() {
    let (driver, mut pool) = pool();
    for i in 0..PER_PAGE as u64 + 1 {
        pool.alloc([i; 3]).unwrap();
    }
    driver.fail(Call::Unmap, 1);
    driver.fail(Call::Release, 2);
    let errors: Vec<Call> = pool.close().iter().map(|error| error.call).collect();
    assert_eq!(errors, [Call::Unmap, Call::Release]);
    let held = Held { handles: 1, reservations: 1, mappings: 1, bytes: GRANULARITY };
    assert_eq!(driver.held(), held);
}

#[test]
fn a_dropped_pool_gives_its_pages_back() {
    let (driver, mut pool) = pool();
    pool.alloc([1; 3]).unwrap();
    drop(pool);
    assert_eq!(driver.held(), Held::default());
}

/// The model: slot by slot what is alive, what the device was last given, and what is dirty.
#[derive(Clone, Debug, Default)]
struct Model {
    alive: Vec<Option<Object>>,
    device: Vec<Object>,
    dirty: BTreeSet<usize>,
}

/// `usize` picks one of the living.
#[derive(Clone, Debug)]
enum Step {
    Alloc(Object),
    Set(prop::sample::Index, Object),
    Patch(prop::sample::Index, u64),
    Free(prop::sample::Index),
    Forget(prop::sample::Index),
    Upload,
}

impl Model {
    fn pick(&self, which: prop::sample::Index) -> Option<usize> {
        let living: Vec<usize> = (0..self.alive.len()).filter(|&i| self.alive[i].is_some()).collect();
        (!living.is_empty()).then(|| living[which.index(living.len())])
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Step> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            6 => any::<Object>().prop_map(Step::Alloc),
            2 => (index(), any::<Object>()).prop_map(|(i, value)| Step::Set(i, value)),
            1 => (index(), any::<u64>()).prop_map(|(i, word)| Step::Patch(i, word)),
            4 => index().prop_map(Step::Free),
            1 => index().prop_map(Step::Forget),
            2 => Just(Step::Upload),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        match *step {
            Step::Alloc(value) => {
                let at = state.alive.iter().position(Option::is_none).unwrap_or(state.alive.len());
                if at == state.alive.len() {
                    state.alive.push(None);
                    state.device.push([0; 3]);
                }
                state.alive[at] = Some(value);
                state.dirty.insert(at);
            }
            Step::Set(which, value) => {
                if let Some(at) = state.pick(which) {
                    state.alive[at] = Some(value);
                    state.dirty.insert(at);
                }
            }
            Step::Patch(which, word) => {
                if let Some(at) = state.pick(which) {
                    state.alive[at].as_mut().unwrap()[1] = word;
                    state.device[at][1] = word;
                }
            }
            Step::Free(which) => {
                if let Some(at) = state.pick(which) {
                    state.alive[at] = None;
                    state.dirty.remove(&at);
                }
            }
            Step::Forget(which) => {
                if let Some(at) = state.pick(which) {
                    state.dirty.remove(&at);
                }
            }
            Step::Upload => {
                for at in std::mem::take(&mut state.dirty) {
                    state.device[at] = state.alive[at].unwrap();
                }
            }
        }
        state
    }
}

#[derive(Debug)]
struct Real {
    driver: Arc<TestDriver>,
    pool: ShadowPool<Object>,
    /// By slot index.
    slots: Vec<Option<Slot>>,
    stale: Vec<Slot>,
    /// The device address of each slot that was ever used.
    addresses: Vec<usize>,
}

impl Real {
    fn pick(&self, which: prop::sample::Index) -> Option<Slot> {
        let living: Vec<Slot> = self.slots.iter().flatten().copied().collect();
        (!living.is_empty()).then(|| living[which.index(living.len())])
    }
}

impl StateMachineTest for Real {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let (driver, pool) = pool();
        Self { driver, pool, slots: Vec::new(), stale: Vec::new(), addresses: Vec::new() }
    }

    fn apply(mut real: Self, _: &Model, step: Step) -> Self {
        match step {
            Step::Alloc(value) => {
                let slot = real.pool.alloc(value).unwrap();
                if slot.index as usize == real.slots.len() {
                    real.slots.push(None);
                    real.addresses.push(real.pool.address(slot).unwrap());
                }
                assert!(real.slots[slot.index as usize].replace(slot).is_none());
            }
            Step::Set(which, value) => {
                if let Some(slot) = real.pick(which) {
                    assert!(real.pool.set(slot, value));
                }
            }
            Step::Patch(which, word) => {
                if let Some(slot) = real.pick(which) {
                    assert_eq!(real.pool.patch(STREAM, slot, 8, &word.to_le_bytes()), Ok(true));
                }
            }
            Step::Free(which) => {
                if let Some(slot) = real.pick(which) {
                    assert!(real.pool.free(slot));
                    real.stale.extend(real.slots[slot.index as usize].take());
                }
            }
            Step::Forget(which) => {
                if let Some(slot) = real.pick(which) {
                    assert!(real.pool.forget_dirty(slot));
                }
            }
            Step::Upload => assert!(real.pool.upload(STREAM).unwrap() <= real.slots.len()),
        }
        real
    }

    fn check_invariants(real: &Self, model: &Model) {
        assert_eq!(real.slots.len(), model.alive.len());
        for (at, slot) in real.slots.iter().enumerate() {
            let address = real.addresses[at];
            assert_eq!(on_device(&real.driver, address), model.device[at]);
            assert_eq!(slot.and_then(|slot| real.pool.get(slot).copied()), model.alive[at]);
            assert_eq!(real.pool.slot_at(address + 9), *slot);
            assert!(slot.is_none_or(|slot| real.pool.address(slot) == Some(address)));
        }
        assert!(real.stale.iter().all(|&slot| real.pool.get(slot).is_none()));
        let counts = real.pool.counts();
        assert_eq!(counts.slots, model.alive.iter().flatten().count());
        assert_eq!(counts.dirty, model.dirty.len());
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_pool_does_what_a_list_of_objects_does(sequential 1..60 => Real);
}
