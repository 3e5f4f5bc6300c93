//! Pinned memory of the host.

use std::collections::BTreeMap;

use crate::abi::Out;
use crate::code::Code;
use crate::{range, stream};

/// Live allocations by address, with their sizes.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) pinned: BTreeMap<usize, usize>,
}

impl Host {
    /// Whether the range lies in one allocation.
    pub(crate) fn has(&self, at: usize, len: usize) -> bool {
        let below = self.pinned.range(..=at).next_back();
        below.is_some_and(|(&start, &size)| at + len <= start + size)
    }
}

entry! {
    [CONTEXT_NO_CAPTURE] fn cuMemHostAlloc(pointer: Out<usize>, size: usize, flags: u32) |state| {
        pointer.check()?;
        if size == 0 || flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        let start = range::allocate(size)?;
        state.host.pinned.insert(start, size);
        pointer.put(start)
    }

    // As a real one: waits for what the device does.
    [CONTEXT_NO_CAPTURE] fn cuMemFreeHost(pointer: usize) |state| {
        let size = *state.host.pinned.get(&pointer).ok_or(Code::INVALID_VALUE)?;
        let device = state.contexts.current()?;
        stream::await_device(state, device)?;
        state.host.pinned.remove(&pointer);
        range::give_back(pointer..pointer + size)
    }

    [CONTEXT] fn cuMemHostGetDevicePointer_v2(device: Out<u64>, pointer: usize, flags: u32) |state| {
        if flags != 0 || !state.host.has(pointer, 1) {
            return Err(Code::INVALID_VALUE);
        }
        device.put(pointer as u64)
    }
}
