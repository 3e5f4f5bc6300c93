//! Calls about memory and addresses, one at a time in the process.
//!
//! On an H200 with driver 580.159.04 eight threads that created, mapped, unmapped and released at once corrupted the
//! heap of the CUDA driver: a program of nothing but these calls was aborted in `cuMemUnmap` within seconds
//! (`scripts/baselines/memory_threads.c`), and `symwin bench register` in 2 of 13 runs. One at a time they do not.
//! Nothing is lost: the driver makes them one at a time anyway, and ranks that took turns at each call were slower than
//! one after another. So a batch keeps the lock for its calls: [`Driver::batch`](crate::driver::Driver::batch).
//!
//! There is no deadline, as the driver has none: only its calls are made under the lock, and none of these waits
//! for a kernel. (`cuMulticastBindMem` waits for devices that were not added; the vote before it sees to that.) What a
//! program calls beside the runtime does not come here.

use parking_lot::ReentrantMutex;

use crate::driver::Batch;

/// Addresses and handles are the process's, whichever GPU they are of.
static TURN: ReentrantMutex<()> = ReentrantMutex::new(());

/// This thread's turn, until the guard goes. A thread that has it already takes it again.
pub(super) fn take() -> Batch {
    Batch::holding(TURN.lock())
}
