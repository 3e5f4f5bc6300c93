//! How host kernels and their barriers learn that their communicator has failed.
//!
//! A [`Watch`] belongs to one rank of one communicator. Whoever sees the communicator fail tells it; then every
//! wait that is watched, now or later, ends at once with that error.
//!
//! A wait is for words in memory that processes share. It spins for moments, if the threads that wait for each other
//! fit the cores, or else lets others run a few times, and then sleeps on a [`bell`](super::bell), a *shared* futex. To
//! wake at once on failure it waits for two words, the bell and the watch's own, by `futex_waitv` (Linux 5.16). Where
//! the kernel lacks it, or a sandbox forbids it, the wait is cut into slices of [`SLICE`].

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use crate::device::bell::{Bell, EVERYONE};
use crate::error::Error;

/// The longest that a wait takes to see a failure where the kernel cannot wait for two words.
pub const SLICE: Duration = Duration::from_millis(50);

/// What runs once when a watch fails; see [`Watch::with_hook`].
pub type FailureHook = Box<dyn Fn(&Error) + Send + Sync>;

/// The failure of one rank's communicator, as its kernels see it. See the module.
pub struct Watch {
    /// How long a wait may take.
    deadline: Duration,
    /// 0 until the failure is set, then 1. Waiters wait for it.
    failed: AtomicU32,
    /// The first failure. Set before `failed`.
    error: OnceLock<Error>,
    /// Called once, by whoever set the failure.
    hook: Option<FailureHook>,
    /// How many threads this machine runs at once; asked once, as asking reads files.
    cores: usize,
    /// Whether `futex_waitv` is there, as far as is known.
    waitv: AtomicBool,
    /// How often a wait gives way before it sleeps.
    turns: u32,
}

/// How a wait spins on a machine that is busy with other things, where a wake may have put the awaited thread on the
/// very core of who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// It lets that thread run there: best where little is done between waits.
    Brisk,
    /// It keeps the core, so that the system moves that thread to another one: best where much is done.
    Steady,
}

/// Why a wait for a word ended without what it waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The communicator failed.
    #[error(transparent)]
    Failed(Error),
}

impl Watch {
    /// A watch whose waits may take as long as `deadline` each.
    #[must_use]
    pub fn new(deadline: Duration) -> Arc<Self> {
        Arc::new(Self::unfailed(deadline, None, true))
    }

    /// The same, with a hook that runs once, in the thread that failed the watch first. A kernel's barrier whose
    /// deadline passes fails the watch, so this is how the communicator hears of it. The hook must not block.
    #[must_use]
    pub fn with_hook(deadline: Duration, hook: FailureHook) -> Arc<Self> {
        Arc::new(Self::unfailed(deadline, Some(hook), true))
    }

    /// A watch that waits in slices, as on a kernel without `futex_waitv`.
    #[cfg(test)]
    pub(crate) fn sliced(deadline: Duration) -> Arc<Self> {
        Arc::new(Self::unfailed(deadline, None, false))
    }

    /// A watch whose waits sleep at once, without giving way.
    #[cfg(test)]
    pub(crate) fn sleepy(deadline: Duration) -> Arc<Self> {
        Arc::new(Self { turns: 0, ..Self::unfailed(deadline, None, true) })
    }

    fn unfailed(deadline: Duration, hook: Option<FailureHook>, waitv: bool) -> Self {
        Self {
            deadline,
            failed: AtomicU32::new(0),
            error: OnceLock::new(),
            hook,
            cores: cores(),
            waitv: AtomicBool::new(waitv),
            turns: TURNS,
        }
    }

    /// Fails the watch and wakes every waiter. The first error stays; later ones are dropped.
    pub fn fail(&self, error: Error) {
        if self.error.set(error).is_err() {
            return;
        }
        self.failed.store(1, Ordering::Release);
        // A failed wake can only mean a bad address, and this one is ours.
        let _ = futex::wake(&self.failed, futex::Flags::PRIVATE, EVERYONE);
        if let (Some(hook), Some(error)) = (&self.hook, self.error.get()) {
            hook(error);
        }
    }

    /// Why the communicator failed, if it has.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.error.get().cloned()
    }

    /// How long each wait may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// When a wait that begins now must end.
    #[must_use]
    pub fn until(&self) -> Instant {
        let now = Instant::now();
        // A deadline past the end of time is none that anyone lives to see.
        now.checked_add(self.deadline).unwrap_or_else(|| now + CENTURY)
    }

    /// Waits until `ready` says so, at most the watch's deadline, which runs from when the wait stops spinning.
    ///
    /// Who makes it ready rings the bell afterwards, if the bell says `name`: what the sleeper waits for, not 0.
    /// `threads` is how many threads of this machine wait for each other: if they fit the cores the wait begins with a
    /// short spin, or else it gives way to others a few times.
    ///
    /// # Errors
    /// [`WaitError::Failed`] at once when the watch fails or has failed, even if all is ready;
    /// [`WaitError::Deadline`].
    pub fn wait(
        &self,
        bell: Bell<'_>,
        name: u32,
        threads: usize,
        pace: Pace,
        ready: impl Fn() -> bool,
    ) -> Result<(), WaitError> {
        if threads <= self.cores {
            self.spin(pace, &ready);
        } else {
            self.give_way(&ready);
        }
        if let Some(error) = self.failure() {
            return Err(WaitError::Failed(error));
        }
        if ready() {
            return Ok(());
        }
        let until = self.until();
        let outcome = loop {
            if let Some(error) = self.failure() {
                break Err(WaitError::Failed(error));
            }
            bell.set(name);
            if ready() {
                break Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(WaitError::Deadline);
            }
            self.park(bell.word(), name, left);
        };
        bell.unset();
        outcome
    }

    /// Lets those run who are queued on this core: what is awaited may be theirs, and a sleep and a wake cost more.
    fn give_way(&self, ready: &impl Fn() -> bool) {
        for _ in 0..self.turns {
            if ready() || self.failed.load(Ordering::Relaxed) != 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn spin(&self, pace: Pace, ready: &impl Fn() -> bool) {
        let mut since = None;
        loop {
            for _ in 0..SPINS {
                if ready() || self.failed.load(Ordering::Relaxed) != 0 {
                    return;
                }
                std::hint::spin_loop();
            }
            // The clock is asked only where the wait is not over at once.
            if since.get_or_insert_with(Instant::now).elapsed() >= SPIN {
                return;
            }
            if pace == Pace::Brisk {
                std::thread::yield_now();
            }
        }
    }

    fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) == 0 { None } else { self.error() }
    }

    /// Waits until the word is no longer `value`, the watch fails, or time is up. May return early.
    fn park(&self, word: &AtomicU32, value: u32, left: Duration) {
        let outcome = if self.waitv.load(Ordering::Relaxed) {
            self.park_on_both(word, value, left)
        } else {
            futex::wait(word, futex::Flags::empty(), value, Some(&timespec(left.min(SLICE))))
        };
        match outcome {
            // Woken, changed before the wait began, time up, a signal: the caller looks again.
            Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::PERM) if self.waitv.swap(false, Ordering::Relaxed) => {}
            // The system has no wait for us; the caller's deadline still bounds it.
            Err(_) => std::thread::yield_now(),
        }
    }

    fn park_on_both(&self, word: &AtomicU32, value: u32, left: Duration) -> Result<(), Errno> {
        let mut awaited = futex::Wait::new();
        awaited.val = u64::from(value);
        awaited.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        awaited.flags = futex::WaitFlags::SIZE_U32;
        let mut failure = futex::Wait::new();
        failure.uaddr = futex::WaitPtr::new(self.failed.as_ptr().cast());
        failure.flags = futex::WaitFlags::SIZE_U32 | futex::WaitFlags::PRIVATE;
        // This call takes a point in time, the older one a span.
        let now = clock_gettime(ClockId::Monotonic);
        let until = now.checked_add(timespec(left)).unwrap_or(now);
        let waits = [awaited, failure];
        futex::waitv(&waits, futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic).map(|_| ())
    }
}

/// The cores that this process may use. Asked once: the system reads files to answer.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("deadline", &self.deadline)
            .field("error", &self.error.get())
            .finish_non_exhaustive()
    }
}

fn timespec(span: Duration) -> futex::Timespec {
    let span = span.min(CENTURY);
    futex::Timespec { tv_sec: span.as_secs().cast_signed(), tv_nsec: span.subsec_nanos().into() }
}

/// Polls between two looks at the clock: a microsecond or two.
const SPINS: u32 = 32;

/// How long a wait spins: a few times what it takes to sleep and be woken.
const SPIN: Duration = Duration::from_micros(50);

/// How often a wait gives way to others before it sleeps: enough for all who share the core with it to come, where
/// there are a few times as many threads as cores.
const TURNS: u32 = 16;

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
