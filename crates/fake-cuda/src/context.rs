//! Primary contexts, the context of each thread, and what a device says after a kernel or a copy went wrong.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::abi::Out;
use crate::code::{Code, Done};
use crate::device;
use crate::stream;

/// Primary contexts that somebody holds.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    /// How often each device's was retained.
    retained: BTreeMap<i32, usize>,
    /// Devices whose context has ended, and why.
    broken: BTreeMap<i32, Code>,
}

thread_local! {
    /// The thread's context; 0 is none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The context of device 0; others follow at this distance.
const FIRST: u64 = 0xc0de_0000;
const DISTANCE: u64 = 0x100;

impl Contexts {
    /// The device of the thread's context.
    pub(crate) fn current(&self) -> Done<i32> {
        let device = device_of(CURRENT.get()).ok_or(Code::INVALID_CONTEXT)?;
        if !self.retained.contains_key(&device) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        self.broken.get(&device).map_or(Ok(device), |code| Err(*code))
    }

    /// Ends a device's context: every later call says why.
    pub(crate) fn end(&mut self, device: i32, why: Code) {
        self.broken.entry(device).or_insert(why);
    }
}

fn device_of(context: u64) -> Option<i32> {
    i32::try_from(context.checked_sub(FIRST)? / DISTANCE).ok()
}

fn context_of(device: i32) -> u64 {
    FIRST + u64::from(device.unsigned_abs()) * DISTANCE
}

entry! {
    [INIT] fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) |state| {
        device::check(device)?;
        context.put(context_of(device))?;
        *state.contexts.retained.entry(device).or_default() += 1;
        Ok(())
    }

    [INIT] fn cuDevicePrimaryCtxRelease_v2(device: i32) |state| {
        let count = state.contexts.retained.get_mut(&device).ok_or(Code::INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            state.contexts.retained.remove(&device);
            state.contexts.broken.remove(&device);
        }
        Ok(())
    }

    [INIT] fn cuCtxGetCurrent(context: Out<u64>) |_state| {
        context.put(CURRENT.get())
    }

    [INIT] fn cuCtxSetCurrent(context: u64) |state| {
        let known = |context| device_of(context).is_some_and(|device| state.contexts.retained.contains_key(&device));
        if context != 0 && !known(context) {
            return Err(Code::INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }

    [CONTEXT] fn cuCtxGetDevice(device: Out<i32>) |state| {
        device.put(state.contexts.current()?)
    }

    [CONTEXT] fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |_state| {
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    }

    [CONTEXT_NO_CAPTURE] fn cuCtxSynchronize() |state| {
        let device = state.contexts.current()?;
        stream::await_device(state, device)
    }
}
