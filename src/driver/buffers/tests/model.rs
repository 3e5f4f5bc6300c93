//! The allocator against a model that knows where every buffer must be.
#![allow(unsafe_code, reason = "the closed driver passes unsafe methods on")]

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;
use crate::driver::{AddressRange, Driver, Event, Exported, Handle, HandleKind, Stream};

const GRANULES: usize = SLAB / PAGE;

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn buffers_are_where_the_model_says(sequential 1..40 => System);
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: usize },
    AllocOwn { size: usize },
    AllocSegments { sizes: Vec<usize> },
    Drop { which: usize },
}

/// Where a buffer is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Spot {
    Slab { index: usize, granule: usize },
    Own { allocations: usize },
}

#[derive(Clone, Debug, Default)]
struct Model {
    /// For each slab, who has each granule.
    slabs: Vec<Option<[Option<u32>; GRANULES]>>,
    live: BTreeMap<u32, (Spot, usize)>,
    last: u32,
}

impl Model {
    fn alloc(&mut self, size: usize) {
        let need = size.div_ceil(PAGE);
        if need > GRANULES / 2 {
            return self.own(size, 1);
        }
        let fit = |slab: &[Option<u32>; GRANULES]| {
            (0..=GRANULES - need).find(|&at| slab[at..at + need].iter().all(Option::is_none))
        };
        let found = (self.slabs.iter().enumerate())
            .find_map(|(index, slab)| slab.as_ref().and_then(fit).map(|granule| (index, granule)));
        let (index, granule) = found.unwrap_or_else(|| {
            let gap = self.slabs.iter().position(Option::is_none);
            let index = gap.unwrap_or(self.slabs.len());
            self.slabs.resize(self.slabs.len().max(index + 1), None);
            self.slabs[index] = Some([None; GRANULES]);
            (index, 0)
        });
        self.last += 1;
        self.slabs[index].as_mut().unwrap()[granule..granule + need].fill(Some(self.last));
        self.live.insert(self.last, (Spot::Slab { index, granule }, size));
    }

    fn own(&mut self, size: usize, allocations: usize) {
        self.last += 1;
        self.live.insert(self.last, (Spot::Own { allocations }, size));
    }

    fn nth(&self, which: usize) -> u32 {
        *self.live.keys().nth(which % self.live.len()).unwrap()
    }

    fn drop(&mut self, id: u32) {
        let (spot, _) = self.live.remove(&id).unwrap();
        let Spot::Slab { index, .. } = spot else { return };
        for granule in self.slabs[index].as_mut().unwrap() {
            granule.take_if(|owner| *owner == id);
        }
        let empty =
            |slab: &Option<[Option<u32>; GRANULES]>| slab.is_some_and(|s| s.iter().all(Option::is_none));
        let surplus: Vec<usize> = (0..self.slabs.len()).filter(|&i| empty(&self.slabs[i])).skip(1).collect();
        surplus.into_iter().for_each(|i| self.slabs[i] = None);
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Step> {
        let alloc = prop_oneof![
            6 => (1..=SLAB).prop_map(|size| Step::Alloc { size: size.div_ceil(2) }),
            1 => (SLAB / 2..=SLAB).prop_map(|size| Step::Alloc { size }),
            1 => (1..=3 * PAGE).prop_map(|size| Step::AllocOwn { size }),
            1 => prop::collection::vec((1..=3_usize).prop_map(|n| n * PAGE), 1..4)
                .prop_map(|sizes| Step::AllocSegments { sizes }),
        ];
        if state.live.is_empty() {
            return alloc.boxed();
        }
        prop_oneof![3 => alloc, 2 => (0..64_usize).prop_map(|which| Step::Drop { which })].boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        match step {
            Step::Alloc { size } => state.alloc(*size),
            Step::AllocOwn { size } => state.own(*size, 1),
            Step::AllocSegments { sizes } => state.own(sizes.iter().sum(), sizes.len()),
            Step::Drop { which } => {
                let id = state.nth(*which);
                state.drop(id);
            }
        }
        state
    }

    fn preconditions(state: &Self, step: &Step) -> bool {
        !matches!(step, Step::Drop { .. }) || !state.live.is_empty()
    }
}

struct System {
    host: Arc<HostDriver>,
    allocator: BufferAllocator,
    live: Live,
}

impl StateMachineTest for System {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let host = host();
        let allocator = BufferAllocator::new(host.clone(), SLAB);
        Self { host, allocator, live: Live::new() }
    }

    fn apply(mut system: Self, model: &Model, step: Step) -> Self {
        let made = match step {
            Step::Alloc { size } => system.allocator.alloc(size),
            Step::AllocOwn { size } => system.allocator.alloc_own(size),
            Step::AllocSegments { sizes } => system.allocator.alloc_segments(&sizes),
            Step::Drop { .. } => {
                // The model has dropped its own already: drop the one that it has no more.
                system.live.retain(|id, _| model.live.contains_key(id));
                return system;
            }
        };
        let buffer = made.unwrap();
        assert!(is_zero(&buffer), "fresh buffers read as zero");
        buffer.write(0, &vec![pattern(model.last); buffer.len()]).unwrap();
        system.live.insert(model.last, buffer);
        system
    }

    fn check_invariants(system: &Self, model: &Model) {
        let mut bases = BTreeMap::new();
        let mut owned = 0;
        for (id, (spot, size)) in &model.live {
            let buffer = &system.live[id];
            assert_eq!(buffer.len(), *size);
            assert_eq!(buffer.address() % PAGE, 0);
            let mut bytes = vec![0; *size];
            buffer.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == pattern(*id)), "nobody else wrote to it");
            let held = buffer.allocations();
            match spot {
                Spot::Slab { index, granule } => {
                    assert_eq!(buffer.address() - held[0].base, granule * PAGE);
                    assert_eq!(*bases.entry(*index).or_insert(held[0].base), held[0].base);
                }
                Spot::Own { allocations } => {
                    assert_eq!(held.len(), *allocations);
                    owned += allocations;
                }
            }
        }
        let mut ranges: Vec<_> = system
            .live
            .values()
            .map(|b| (b.address(), b.address() + b.len().next_multiple_of(PAGE)))
            .collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "buffers overlap");
        let slabs = model.slabs.iter().flatten().count();
        assert_eq!(system.host.counts().handles, slabs + owned);
        assert_eq!(system.host.counts().mappings, slabs + owned);
    }

    fn teardown(system: Self, _: Model) {
        let Self { host, allocator, live } = system;
        drop(allocator);
        drop(live);
        assert_eq!(host.counts(), HostCounts::default());
    }
}

fn pattern(id: u32) -> u8 {
    u8::try_from(id % 255).unwrap() + 1
}

/// A host device that says that the host has no access.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) inner: Arc<HostDriver>,
    pub(super) info: DeviceInfo,
}

// SAFETY: passed on to the host device, but that nothing of it is said to be accessible.
unsafe impl Driver for Closed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        self.inner.create(size)
    }
    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        self.inner.release(handle)
    }
    fn retain(&self, address: usize) -> Result<Handle, DeviceError> {
        self.inner.retain(address)
    }
    fn address_range(&self, address: usize) -> Result<AddressRange, DeviceError> {
        self.inner.address_range(address)
    }
    fn export(&self, handle: Handle, kind: HandleKind) -> Result<Exported, DeviceError> {
        self.inner.export(handle, kind)
    }
    fn import(&self, exported: &Exported, size: usize) -> Result<Handle, DeviceError> {
        self.inner.import(exported, size)
    }
    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        self.inner.reserve(size, align)
    }
    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.free(base, size) }
    }
    unsafe fn map(&self, address: usize, size: usize, offset: usize, h: Handle) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.map(address, size, offset, h) }
    }
    fn set_access(&self, address: usize, size: usize, ordinals: &[i32]) -> Result<(), DeviceError> {
        self.inner.set_access(address, size, ordinals)
    }
    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.unmap(address, size) }
    }
    fn stream_create(&self) -> Result<Stream, DeviceError> {
        self.inner.stream_create()
    }
    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError> {
        self.inner.stream_destroy(stream)
    }
    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.copy(stream, to, bytes) }
    }
    unsafe fn fill(&self, stream: Stream, to: usize, byte: u8, size: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        unsafe { self.inner.fill(stream, to, byte, size) }
    }
    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        self.inner.record(stream)
    }
    fn done(&self, event: Event) -> Result<bool, DeviceError> {
        self.inner.done(event)
    }
    fn event_destroy(&self, event: Event) -> Result<(), DeviceError> {
        self.inner.event_destroy(event)
    }
}
