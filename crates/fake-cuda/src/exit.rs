//! Calls of a process that is ending. A real driver has taken itself apart by then, and a thread that still calls it
//! crashes now and then; here it does so always, and says by which call.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::CONFIG;

static ENDING: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library's, with this signature.
unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Has the end of the process noticed, from the first call of `cuInit` on, as a driver registers its own end there.
pub(crate) fn notice() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function that stays: a library that was initialized is never unloaded.
        let registered = unsafe { atexit(end) };
        assert_eq!(registered, 0, "the C library has room for a handler");
    });
}

#[allow(clippy::disallowed_methods, reason = "a driver that takes time is what is played")]
extern "C" fn end() {
    ENDING.store(true, Ordering::SeqCst);
    std::thread::sleep(CONFIG.end);
}

/// Ends the process if it is ending already.
#[allow(clippy::print_stderr, reason = "nobody else could tell")]
pub(crate) fn check(call: &'static str) {
    if ENDING.load(Ordering::SeqCst) {
        let name = thread();
        eprintln!("fake-cuda: `{name}` calls {call} while the process exits: a real driver may crash here");
        std::process::abort();
    }
}

/// The thread's own name: this library has a standard library of its own, which knows none.
pub(crate) fn thread() -> String {
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}
