//! What surrounds every driver call.
//!
//! Steps of actors run on any thread, users' threads included, so nothing may be left on it: a call finds this driver's
//! context current and leaves the thread's own one. And it is made in the relaxed mode of stream capture: the user may
//! be capturing a stream just now, on this thread or with effect on all, and a query of an event or an allocation of
//! pinned memory would otherwise end that capture (both were seen to, on a real driver).
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys;

use super::ending::Calling;
use super::failures::{check, failed};
use crate::driver::{Call, DeviceError};

/// While it lives, driver calls of this thread are made in a context and in the relaxed mode.
#[must_use]
pub(super) struct Entered {
    /// The thread's own context, if it is another one.
    previous: Option<sys::CUcontext>,
    /// The thread's own mode.
    mode: sys::CUstreamCaptureMode,
    /// Dropped last: leaving is made of calls too.
    _calling: Calling,
    /// It belongs to this thread.
    _thread: PhantomData<*const ()>,
}

impl Entered {
    /// Enters a context for a call.
    pub(super) fn new(context: sys::CUcontext, call: Call) -> Result<Self, DeviceError> {
        let calling =
            Calling::begin().ok_or_else(|| failed(call, sys::CUresult::CUDA_ERROR_DEINITIALIZED))?;
        let mut current = ptr::null_mut();
        // SAFETY: writes the thread's context to a place of this function's.
        check(call, unsafe { sys::cuCtxGetCurrent(&raw mut current) })?;
        let previous = (current != context).then_some(current);
        if previous.is_some() {
            // SAFETY: the context is alive as long as its driver, which makes this call.
            check(call, unsafe { sys::cuCtxSetCurrent(context) })?;
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mut entered = Self { previous, mode, _calling: calling, _thread: PhantomData };
        // SAFETY: exchanges the thread's mode with that of a place of this function's.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut entered.mode) };
        check(call, exchanged).map(|()| entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: as in `new`; what it had then comes back.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.mode) };
        debug_assert_eq!(exchanged, sys::CUresult::CUDA_SUCCESS, "it was exchanged before");
        if let Some(previous) = self.previous {
            // SAFETY: it was the thread's current context a moment ago. If its owner has destroyed it meanwhile, this
            // fails and changes nothing.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}
