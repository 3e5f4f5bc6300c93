//! Streams and events, and the staging memory through which a stream's copies go.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::collections::VecDeque;
use std::ptr;

use cudarc::driver::sys;

use super::failures::check;
use super::pinned::{CHUNK_BYTES, Chunk, Pool};
use crate::driver::{Call, DeviceError, DeviceProblem};

/// A stream of the runtime's own. It waits for no other stream, and goes before them where the device can choose.
#[derive(Debug)]
pub(super) struct OwnStream {
    stream: sys::CUstream,
    /// The chunk that copies are staged in now, and how much of it is used.
    current: Option<(Chunk, usize)>,
    /// Full ones, until the stream has passed their copies.
    busy: VecDeque<(sys::CUevent, Chunk)>,
}

// SAFETY: streams and events are the driver's, which any thread may call.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// A new stream. The caller has entered the context.
    pub(super) fn new() -> Result<Self, DeviceError> {
        let call = Call::StreamCreate;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes two numbers to places of this function's.
        check(call, unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) })?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut stream = ptr::null_mut();
        // SAFETY: writes the new stream to a place of this function's.
        check(call, unsafe { sys::cuStreamCreateWithPriority(&raw mut stream, flags, greatest) })?;
        Ok(Self { stream, current: None, busy: VecDeque::new() })
    }

    /// The stream.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// Stages bytes and queues their copy, in one piece if they fit a chunk.
    ///
    /// # Safety
    /// As [`Driver::copy`](crate::driver::Driver::copy).
    pub(super) unsafe fn copy(
        &mut self,
        pool: &Pool,
        call: Call,
        to: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        for (piece, at) in bytes.chunks(CHUNK_BYTES).zip((to..).step_by(CHUNK_BYTES)) {
            let (mut chunk, used) = self.room(pool, call, piece.len())?;
            let from = chunk.write(used, piece);
            // SAFETY: the caller says that the place is mapped; the staged bytes stay until the stream has passed.
            let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(at as u64, from, piece.len(), self.stream) };
            // Later pieces begin at a line of their own.
            self.current = Some((chunk, (used + piece.len()).next_multiple_of(ALIGN)));
            check(call, queued)?;
        }
        Ok(())
    }

    /// A chunk with room for so many bytes, and where.
    fn room(&mut self, pool: &Pool, call: Call, bytes: usize) -> Result<(Chunk, usize), DeviceError> {
        if let Some((chunk, used)) = self.current.take() {
            if used + bytes <= CHUNK_BYTES {
                return Ok((chunk, used));
            }
            let event = record(call, self.stream).inspect_err(|_| {
                // It is not known when its copies are done: it is not used again.
            })?;
            self.busy.push_back((event, chunk));
        }
        while let Some(&(event, _)) = self.busy.front() {
            if !has_passed(call, event)? {
                break;
            }
            if let Some((event, chunk)) = self.busy.pop_front() {
                destroy_event(call, event)?;
                pool.give(chunk);
            }
        }
        Ok((pool.take(call)?, 0))
    }

    /// Destroys the stream; what it holds still runs. Its chunks go back to the pool if it has passed all of them.
    pub(super) fn destroy(self, pool: &Pool) -> Result<(), DeviceError> {
        let call = Call::StreamDestroy;
        let Self { stream, current, busy } = self;
        let passed = match record(call, stream) {
            Ok(event) => has_passed(call, event).unwrap_or(false) & destroy_event(call, event).is_ok(),
            Err(_) => false,
        };
        let mut chunks: Vec<Chunk> = current.into_iter().map(|(chunk, _)| chunk).collect();
        for (event, chunk) in busy {
            destroy_event(call, event)?;
            chunks.push(chunk);
        }
        if passed {
            chunks.into_iter().for_each(|chunk| pool.give(chunk));
        }
        // SAFETY: the stream was made in `new`, and this value was its owner.
        check(call, unsafe { sys::cuStreamDestroy_v2(stream) })
    }
}

/// Marks a stream's present end with a new event.
pub(super) fn record(call: Call, stream: sys::CUstream) -> Result<sys::CUevent, DeviceError> {
    let event = new_event(call)?;
    let recorded = record_again(call, event, stream);
    if recorded.is_err() {
        destroy_event(call, event)?;
    }
    recorded.map(|()| event)
}

/// An event that marks nothing yet.
pub(super) fn new_event(call: Call) -> Result<sys::CUevent, DeviceError> {
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    let mut event = ptr::null_mut();
    // SAFETY: writes the new event to a place of this function's.
    check(call, unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
    Ok(event)
}

/// Marks a stream's present end. Streams that wait for what the event marked before still do.
pub(super) fn record_again(
    call: Call,
    event: sys::CUevent,
    stream: sys::CUstream,
) -> Result<(), DeviceError> {
    // SAFETY: the event is alive: who records it owns it. That the stream lives is the caller's promise (A-13: streams
    // of users are given by who owns them).
    check(call, unsafe { sys::cuEventRecord(event, stream) })
}

/// Whether an event has passed.
pub(super) fn has_passed(call: Call, event: sys::CUevent) -> Result<bool, DeviceError> {
    // SAFETY: the event is alive: who asks owns it.
    match unsafe { sys::cuEventQuery(event) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        result => check(call, result).map(|()| true),
    }
}

/// Forgets an event.
pub(super) fn destroy_event(call: Call, event: sys::CUevent) -> Result<(), DeviceError> {
    // SAFETY: the event is alive: who destroys it owns it.
    check(call, unsafe { sys::cuEventDestroy_v2(event) })
}

/// Whether a stream is being captured.
pub(super) fn is_capturing(call: Call, stream: sys::CUstream) -> Result<bool, DeviceError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: writes the status to a place of this function's; that the stream lives is the caller's promise.
    check(call, unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Whether a stream is being captured, or is the default one of a context in which another one is: that one cannot even
/// be asked then.
pub(super) fn has_no_end(call: Call, stream: sys::CUstream) -> Result<bool, DeviceError> {
    match is_capturing(call, stream) {
        Err(DeviceError { problem: DeviceProblem::Cuda { code: CAPTURE_IMPLICIT, .. }, .. }) => Ok(true),
        asked => asked,
    }
}

const CAPTURE_IMPLICIT: u32 = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as u32;

/// Where staged pieces begin: a line of the processor's cache.
const ALIGN: usize = 64;
