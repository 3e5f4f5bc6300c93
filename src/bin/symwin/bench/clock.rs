//! Clocks that all processes of a host share, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// Of the system: what two processes read of it can be compared.
pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// What all threads of this process have taken of the processors, in user and system mode.
pub(crate) fn cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock is ever negative.
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
