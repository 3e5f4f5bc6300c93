//! Calls about memory and addresses, one at a time in the process.
//!
//! The CUDA driver makes them so anyway, under a lock that costs much: ranks that map at once take longer together than
//! one after another (measured on an H200, see `docs/measurements.md`). So there is a lock of ours, which a batch keeps
//! for all of its calls ([`Driver::batch`](crate::driver::Driver::batch)).
//!
//! Nobody waits longer for it than for the driver's own: only calls of the driver are made under it, and none of them
//! waits for a kernel.

use parking_lot::ReentrantMutex;

use crate::driver::Batch;

/// Addresses and handles are the process's, whichever GPU they are of.
static TURN: ReentrantMutex<()> = ReentrantMutex::new(());

/// This thread's turn, until the guard goes. A thread that has it already takes it again.
pub(super) fn take() -> Batch {
    Batch::holding(TURN.lock())
}
