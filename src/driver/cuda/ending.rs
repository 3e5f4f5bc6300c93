//! The end of the process. The CUDA driver takes itself apart then, while other threads go on: a worker that still
//! gives back what a dropped communicator had would call into what is gone, and now and then crash (seen on an H200).
//!
//! So every call is counted while it lasts. When the process exits, the last ones are waited for, and whoever calls
//! after that hears `CUDA_ERROR_DEINITIALIZED`; the system takes back what is left.
#![allow(unsafe_code, reason = "the end of a process is the C library's")]

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

// SAFETY: the C library's, with this signature.
unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// While it lives, the process does not get past the beginning of its end.
#[derive(Debug)]
pub(super) struct Calling(&'static Calls);

impl Calling {
    /// `None` when the process is ending.
    pub(super) fn begin() -> Option<Self> {
        let calls = INDEX.with(|index| &CALLS[*index]);
        // The one that ends sees this call, or this call sees the end: both are in the one order of all such accesses.
        calls.0.fetch_add(1, Ordering::SeqCst);
        let calling = Self(calls);
        (!ENDING.load(Ordering::SeqCst)).then_some(calling)
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// From here on the end of the process is noticed. To be called after `cuInit`: what is registered last goes first, and
/// the driver may have registered its own end.
pub(super) fn notice() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program, which stays.
        if unsafe { atexit(end) } != 0 {
            tracing::warn!(target: "symwin::driver", "the C library takes no more handlers for the end of the process");
        }
    });
}

extern "C" fn end() {
    ENDING.store(true, Ordering::SeqCst);
    let until = Instant::now() + LIMIT;
    while CALLS.iter().any(|calls| calls.0.load(Ordering::SeqCst) > 0) && Instant::now() < until {
        thread::yield_now();
    }
}

/// How many calls some of the threads are in; a line of the processor's cache for itself.
#[derive(Debug)]
#[repr(align(128))]
struct Calls(AtomicUsize);

/// How many threads have called.
static THREADS: AtomicUsize = AtomicUsize::new(0);

static ENDING: AtomicBool = AtomicBool::new(false);

static CALLS: [Calls; SHARDS] = [const { Calls(AtomicUsize::new(0)) }; SHARDS];

thread_local! {
    static INDEX: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// Few threads share one.
const SHARDS: usize = 32;

/// How long the end waits for calls, of which a long one takes milliseconds.
const LIMIT: Duration = Duration::from_secs(2);
