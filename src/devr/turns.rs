//! One rank's collectives run one after another, in the order in which they were started: they share barriers.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Who is next.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// The number of the next collective to be started.
    next: u64,
    /// The one whose turn it is.
    serving: u64,
    /// Those behind it that have ended without their turn.
    ended: Vec<u64>,
}

impl Turns {
    /// A place in the order.
    pub(crate) fn take(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.next += 1;
        inner.next - 1
    }

    /// Waits for its turn; false when the deadline passed or `failed` says so. `failed` is asked now and then.
    pub(crate) fn wait(&self, number: u64, deadline: Duration, failed: impl Fn() -> bool) -> bool {
        let now = Instant::now();
        let until = now.checked_add(deadline).unwrap_or(now + CENTURY);
        let mut inner = self.inner.lock();
        while inner.serving != number {
            let slice = until.min(Instant::now() + SLICE);
            self.changed.wait_until(&mut inner, slice);
            if failed() || Instant::now() >= until {
                return inner.serving == number;
            }
        }
        true
    }

    /// It has ended, whether it had its turn or not.
    pub(crate) fn end(&self, number: u64) {
        let mut inner = self.inner.lock();
        inner.ended.push(number);
        while let Some(index) = inner.ended.iter().position(|&ended| ended == inner.serving) {
            inner.ended.swap_remove(index);
            inner.serving += 1;
        }
        drop(inner);
        self.changed.notify_all();
    }
}

/// A deadline past the end of time.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How often a wait asks whether its communicator has failed.
const SLICE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_the_order_taken_whatever_ends_first() {
        let turns = Turns::default();
        let (a, b, c) = (turns.take(), turns.take(), turns.take());
        assert!(turns.wait(a, Duration::ZERO, || false));
        assert!(!turns.wait(b, Duration::from_millis(1), || false));
        turns.end(b);
        turns.end(a);
        assert!(turns.wait(c, Duration::ZERO, || false));
    }
}
