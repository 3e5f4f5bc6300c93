//! Copies between device memory and a caller's own, which end before the caller goes on: by the copy engines, through
//! pinned memory, a few pieces at a time.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::failures::check;
use super::pinned::{CHUNK_BYTES, Pool};
use super::stream::{destroy_event, has_passed, record};
use crate::driver::{Call, DeviceError, DeviceProblem};

/// Reads device memory. The caller has entered the context.
///
/// # Safety
/// The range is mapped.
pub(super) unsafe fn load(
    pool: &Pool,
    stream: sys::CUstream,
    from: usize,
    bytes: &mut [u8],
) -> Result<(), DeviceError> {
    let call = Call::Load;
    let mut under_way = VecDeque::new();
    let mut pieces = bytes.chunks_mut(CHUNK_BYTES).zip((from..).step_by(CHUNK_BYTES));
    loop {
        let next = if under_way.len() < COPIES_AT_ONCE { pieces.next() } else { None };
        if let Some((piece, at)) = next {
            let chunk = pool.take(call)?;
            let to = chunk.as_ptr().cast::<c_void>();
            // SAFETY: the caller says that the range is mapped; the chunk is this copy's until it has been waited
            // for.
            check(call, unsafe { sys::cuMemcpyDtoHAsync_v2(to, at as u64, piece.len(), stream) })?;
            under_way.push_back((record(call, stream)?, chunk, piece));
        } else if let Some((event, chunk, piece)) = under_way.pop_front() {
            await_copy(call, event)?;
            chunk.read(piece);
            pool.give(chunk);
        } else {
            return Ok(());
        }
    }
}

/// Writes device memory. The caller has entered the context.
///
/// # Safety
/// The range is mapped.
pub(super) unsafe fn store(
    pool: &Pool,
    stream: sys::CUstream,
    to: usize,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let call = Call::Store;
    let mut under_way = VecDeque::new();
    let mut pieces = bytes.chunks(CHUNK_BYTES).zip((to..).step_by(CHUNK_BYTES));
    loop {
        let next = if under_way.len() < COPIES_AT_ONCE { pieces.next() } else { None };
        if let Some((piece, at)) = next {
            let mut chunk = pool.take(call)?;
            let from = chunk.write(0, piece);
            // SAFETY: the caller says that the range is mapped; the chunk is this copy's until it has been waited
            // for.
            check(call, unsafe { sys::cuMemcpyHtoDAsync_v2(at as u64, from, piece.len(), stream) })?;
            under_way.push_back((record(call, stream)?, chunk));
        } else if let Some((event, chunk)) = under_way.pop_front() {
            await_copy(call, event)?;
            pool.give(chunk);
        } else {
            return Ok(());
        }
    }
}

/// Waits for a copy of the device, which takes no longer than its bytes take.
fn await_copy(call: Call, event: sys::CUevent) -> Result<(), DeviceError> {
    let until = Instant::now() + COPY_TAKES_AT_MOST;
    while !has_passed(call, event)? {
        if Instant::now() >= until {
            let seconds = COPY_TAKES_AT_MOST.as_secs();
            return Err(DeviceError::new(call, DeviceProblem::Late { seconds }));
        }
        // The device tells nobody when it is done; others may run meanwhile.
        std::thread::yield_now();
    }
    destroy_event(call, event)
}

/// Copies that a caller's load or store has under way at a time.
const COPIES_AT_ONCE: usize = 4;
/// A copy of a chunk takes microseconds, or some milliseconds beside kernels that fill the device.
const COPY_TAKES_AT_MOST: Duration = Duration::from_secs(60);
