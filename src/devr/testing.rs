//! A memory device for unit tests: bookkeeping over one arena, with contract checks, a log of copies and faults.
#![allow(unsafe_code, reason = "a test driver: the trait has unsafe methods")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::space::Space;
use crate::driver::{
    AddressRange, Call, DeviceError, DeviceInfo, DeviceProblem, Driver, Event, Exported, Handle, HandleKind,
    Stream,
};

pub(crate) const GRANULARITY: usize = 4096;
const ARENA: usize = 4 << 20;

/// What a device holds. All zero when everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) handles: usize,
    pub(crate) reservations: usize,
    pub(crate) mappings: usize,
    pub(crate) bytes: usize,
}

/// The device. A breach of the driver's contract panics. Copies take effect at once, word by word.
#[derive(Debug)]
pub(crate) struct TestDriver {
    info: DeviceInfo,
    /// The arena's words, one granule longer than it so that its start can be aligned.
    words: Box<[AtomicU64]>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    space: Space,
    handles: BTreeMap<u64, usize>,
    next_handle: u64,
    reservations: BTreeMap<usize, usize>,
    mappings: BTreeMap<usize, (usize, bool)>,
    copies: Vec<(usize, Vec<u8>)>,
    calls: HashMap<Call, u64>,
    faults: HashMap<Call, u64>,
}

impl TestDriver {
    pub(crate) fn new() -> Arc<Self> {
        let words = (0..(ARENA + GRANULARITY) / 8).map(|_| AtomicU64::new(0)).collect();
        let state = State {
            space: Space::new(ARENA as u64),
            handles: BTreeMap::new(),
            next_handle: 1,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            copies: Vec::new(),
            calls: HashMap::new(),
            faults: HashMap::new(),
        };
        let info = DeviceInfo::new("test", "test", ARENA as u64, GRANULARITY as u64);
        Arc::new(Self { info, words, state: Mutex::new(state) })
    }

    /// The `nth` call of this kind from now fails.
    pub(crate) fn fail(&self, call: Call, nth: u64) {
        let mut state = self.state.lock();
        let made = state.calls.get(&call).copied().unwrap_or(0);
        state.faults.insert(call, made + nth);
    }

    pub(crate) fn held(&self) -> Held {
        let state = self.state.lock();
        Held {
            handles: state.handles.len(),
            reservations: state.reservations.len(),
            mappings: state.mappings.len(),
            bytes: state.handles.values().sum(),
        }
    }

    /// All copies since the last call, in order.
    pub(crate) fn take_copies(&self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.state.lock().copies)
    }

    /// The word at a mapped address, as a kernel reads it.
    pub(crate) fn peek(&self, address: usize) -> u64 {
        assert!(self.state.lock().is_mapped(address, 8), "a kernel would fault at {address:#x}");
        self.word(address).load(Ordering::Acquire)
    }

    fn base(&self) -> usize {
        self.words.as_ptr().addr().next_multiple_of(GRANULARITY)
    }

    fn word(&self, address: usize) -> &AtomicU64 {
        assert!(address.is_multiple_of(8));
        &self.words[(address - self.words.as_ptr().addr()) / 8]
    }

    fn enter(&self, call: Call) -> Result<parking_lot::MutexGuard<'_, State>, DeviceError> {
        let mut state = self.state.lock();
        let nth = state.calls.entry(call).or_default();
        *nth += 1;
        let nth = *nth;
        if state.faults.get(&call) == Some(&nth) {
            return Err(DeviceError::new(call, DeviceProblem::Injected { nth }));
        }
        Ok(state)
    }
}

impl State {
    fn is_mapped(&self, address: usize, size: usize) -> bool {
        let before = self.mappings.range(..=address).next_back();
        before.is_some_and(|(&base, &(len, access))| access && address + size <= base + len)
    }
}

// SAFETY: addresses are those of an arena that lives as long as the driver.
unsafe impl Driver for TestDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        let mut state = self.enter(Call::Create)?;
        assert!(size > 0 && size.is_multiple_of(GRANULARITY));
        let handle = state.next_handle;
        state.next_handle += 1;
        state.handles.insert(handle, size);
        Ok(Handle(handle))
    }

    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        let mut state = self.enter(Call::Release)?;
        assert!(state.handles.remove(&handle.0).is_some(), "{handle:?} is released once");
        Ok(())
    }

    fn retain(&self, _: usize) -> Result<Handle, DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn address_range(&self, _: usize) -> Result<AddressRange, DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn export(&self, _: Handle, _: HandleKind) -> Result<Exported, DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn import(&self, _: &Exported, _: usize) -> Result<Handle, DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        let mut state = self.enter(Call::Reserve)?;
        assert!(align <= GRANULARITY && size.is_multiple_of(GRANULARITY));
        let offset = state.space.alloc(size as u64, align as u64).expect("the test's arena is large enough");
        let base = self.base() + usize::try_from(offset).unwrap();
        state.reservations.insert(base, size);
        Ok(base)
    }

    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        let mut state = self.enter(Call::Free)?;
        assert_eq!(state.reservations.remove(&base), Some(size), "a whole reservation is freed");
        assert!(state.mappings.range(base..base + size).next().is_none(), "nothing is mapped any more");
        state.space.free((base - self.base()) as u64, size as u64).unwrap();
        Ok(())
    }

    unsafe fn map(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError> {
        let mut state = self.enter(Call::Map)?;
        assert!(offset + size <= state.handles[&handle.0]);
        assert_eq!(state.reservations.get(&address), Some(&size));
        assert!(state.mappings.insert(address, (size, false)).is_none());
        for at in (address..address + size).step_by(8) {
            self.word(at).store(0, Ordering::Release);
        }
        Ok(())
    }

    fn set_access(&self, address: usize, size: usize, _: &[i32]) -> Result<(), DeviceError> {
        let mut state = self.enter(Call::SetAccess)?;
        assert_eq!(state.mappings.insert(address, (size, true)), Some((size, false)));
        Ok(())
    }

    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        let mut state = self.enter(Call::Unmap)?;
        assert_eq!(state.mappings.remove(&address).map(|mapping| mapping.0), Some(size));
        Ok(())
    }

    fn stream_create(&self) -> Result<Stream, DeviceError> {
        Ok(Stream(1))
    }

    fn stream_destroy(&self, _: Stream) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy(&self, _: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.enter(Call::Copy)?;
        assert!(state.is_mapped(to, bytes.len()), "a copy to {to:#x} + {} faults", bytes.len());
        for (at, word) in (to..).step_by(8).zip(bytes.chunks(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("copies are of whole words"));
            self.word(at).store(word, Ordering::Release);
        }
        state.copies.push((to, bytes.to_vec()));
        Ok(())
    }

    unsafe fn fill(&self, _: Stream, _: usize, _: u8, _: usize) -> Result<(), DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn record(&self, _: Stream) -> Result<Event, DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn done(&self, _: Event) -> Result<bool, DeviceError> {
        unreachable!("not used by what is tested here")
    }

    fn event_destroy(&self, _: Event) -> Result<(), DeviceError> {
        unreachable!("not used by what is tested here")
    }
}
