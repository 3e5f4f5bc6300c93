//! Pinned host memory: what copies go through, and words that kernels and the host share.
//!
//! It is never given back while the driver lives: freeing it waits for every kernel on the device (seen: as long as a
//! spinning kernel spins), and allocating it does not.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::failures::check;
use crate::driver::{Call, DeviceError, Flag};

/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Pinned memory of [`CHUNK_BYTES`], owned by whoever holds it. It goes back to its pool by [`Pool::give`]; dropped, it
/// stays allocated.
#[derive(Debug)]
pub(super) struct Chunk {
    start: NonNull<u8>,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for Chunk {}
// SAFETY: a shared chunk can only be asked for its address.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Its address.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` to `offset`. No copy of the device may be under way there.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) -> *const c_void {
        assert!(offset + bytes.len() <= CHUNK_BYTES, "a piece fits its chunk");
        // SAFETY: the offset lies in the chunk, by the assertion.
        let to = unsafe { self.as_ptr().add(offset) };
        // SAFETY: both are as long, by the assertion, and the chunk is this value's own.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        to.cast()
    }

    /// Copies its first bytes to `bytes`. No copy of the device may be under way there.
    pub(super) fn read(&self, bytes: &mut [u8]) {
        assert!(bytes.len() <= CHUNK_BYTES, "a piece fits its chunk");
        // SAFETY: both are as long, by the assertion, and the chunk is this value's own.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }
}

/// Chunks that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Vec<Chunk>>,
    bytes: AtomicUsize,
}

impl Pool {
    /// A chunk; a new one only where none is free. The caller has entered the context.
    pub(super) fn take(&self, call: Call) -> Result<Chunk, DeviceError> {
        if let Some(chunk) = self.free.lock().pop() {
            return Ok(chunk);
        }
        let start = allocate(call, CHUNK_BYTES)?;
        self.bytes.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
        Ok(Chunk { start })
    }

    /// Takes one back.
    pub(super) fn give(&self, chunk: Chunk) {
        self.free.lock().push(chunk);
    }

    /// Bytes allocated so far.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Zeroed pinned memory that every context can use, mapped for devices.
fn allocate(call: Call, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
    let mut start = ptr::null_mut();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: writes the new allocation's address to a place of this function's.
    check(call, unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, flags) })?;
    let start = NonNull::new(start.cast::<u8>()).expect("an allocation that succeeded has an address");
    // SAFETY: the allocation is this long and nobody else knows of it.
    unsafe { start.as_ptr().write_bytes(0, bytes) };
    Ok(start)
}

/// A page of words for flags.
#[derive(Debug)]
pub(super) struct FlagPage {
    words: NonNull<u8>,
    /// Where the device has it.
    device: u64,
    free: Mutex<Vec<usize>>,
}

// SAFETY: its words are only accessed by atomics.
unsafe impl Send for FlagPage {}
// SAFETY: as above.
unsafe impl Sync for FlagPage {}

impl FlagPage {
    /// A page. The caller has entered the context.
    pub(super) fn new() -> Result<Arc<Self>, DeviceError> {
        let words = allocate(Call::Flag, FLAGS * size_of::<u32>())?;
        let mut device = 0;
        // SAFETY: the allocation above is pinned and mapped.
        let got = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, words.as_ptr().cast(), 0) };
        check(Call::Flag, got)?;
        Ok(Arc::new(Self { words, device, free: Mutex::new((0..FLAGS).collect()) }))
    }

    /// A flag that is not raised, if any word is left.
    pub(super) fn take(self: &Arc<Self>) -> Option<Arc<Word>> {
        let index = self.free.lock().pop()?;
        let word = Word { page: Arc::clone(self), index };
        word.atomic().store(0, Ordering::Release);
        Some(Arc::new(word))
    }
}

/// One of its words.
#[derive(Debug)]
pub(super) struct Word {
    page: Arc<FlagPage>,
    index: usize,
}

impl Word {
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: the index is below FLAGS, and the page, which this value keeps, has as many words.
        let word = unsafe { self.page.words.cast::<u32>().add(self.index) };
        // SAFETY: it is aligned, lives as long as the page, and is only accessed by atomics and the device.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }
}

impl Flag for Word {
    fn address(&self) -> u64 {
        self.page.device + (self.index * size_of::<u32>()) as u64
    }

    fn raise(&self) {
        // What a kernel has left there stays.
        let _ = self.atomic().compare_exchange(0, 1, Ordering::Release, Ordering::Relaxed);
    }

    fn value(&self) -> u32 {
        self.atomic().load(Ordering::Acquire)
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.page.free.lock().push(self.index);
    }
}

/// Words of a page.
const FLAGS: usize = 1024;
