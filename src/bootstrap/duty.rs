//! Who does a hub's I/O: its I/O thread, or a thread that would only wait for what comes (leader and follower).
//!
//! A thread that waits for its batch reads the connections itself meanwhile, and runs its actor when the last message
//! of a round has come: otherwise each round would wake the I/O thread, that a worker, and that in the end the caller.
//! The connections are behind a lock that nobody holds while it waits or runs an actor, so any thread may serve them at
//! any time; what is passed from hand to hand is only who waits for their events. The I/O thread waits at `duty`, which
//! holds `sockets`. A helper mutes that and waits at `sockets` itself; when it goes, it puts that right, and what came
//! meanwhile is an event at once. What its last turn left that is no event, it tells the I/O thread.
//!
//! An actor's step may hang in a driver. So a helper runs one under a lease: at its end the I/O thread takes its duty
//! back, and both wait at `sockets` until the helper goes.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::actors::{ActorId, Due};
use crate::bootstrap::io::{Connections, Shared, Turn};
use crate::bootstrap::reader::Reader;
use crate::ids::ProcessId;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Duty {
    shared: Arc<Shared>,
    connections: Mutex<Connections>,
    /// The events of all connections, and of who wants attention.
    sockets: Arc<OwnedFd>,
    /// Where the I/O thread waits: `sockets` unless muted, and `lease`.
    duty: OwnedFd,
    lease: OwnedFd,
    lent: Mutex<Lent>,
    /// The helper waits for events, or is about to.
    waits: AtomicBool,
}

/// Who has the duty. What `duty` listens to changes under the same lock, so that it always fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    /// The I/O thread has it.
    No,
    /// A helper has it, one at a time.
    Yes,
    /// A helper has it and runs an actor.
    Leased,
    /// A helper still runs its actor; the I/O thread listens again.
    Revoked,
}

impl Duty {
    /// Prepares everything; what the system refuses is refused here, before any thread is started.
    pub(crate) fn new(shared: &Arc<Shared>, readers: Vec<(ProcessId, Reader)>) -> Result<Self, Errno> {
        let sockets = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let duty = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let lease =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&duty, &sockets, epoll::EventData::new_u64(SOCKETS), epoll::EventFlags::IN)?;
        epoll::add(&duty, &lease, epoll::EventData::new_u64(LEASE), epoll::EventFlags::IN)?;
        let connections = Mutex::new(Connections::new(shared, &sockets, readers)?);
        Ok(Self {
            shared: Arc::clone(shared),
            connections,
            sockets,
            duty,
            lease,
            lent: Mutex::new(Lent::No),
            waits: AtomicBool::new(false),
        })
    }

    /// The I/O thread's program: until the last handle is gone and the queues are written out.
    pub(crate) fn run(&self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut on_duty = Vec::with_capacity(2);
        loop {
            let mut due = Vec::new();
            let turn = self.turn(&events, &mut due);
            // Workers run them: this thread has other things to do.
            drop(due);
            // What was taken here may have been to wake a helper: its answer, which comes once. A helper that runs an
            // actor looks for its answer afterwards anyway.
            if !events.is_empty() && *self.lent.lock() == Lent::Yes {
                self.shared.wake.wake();
            }
            let Turn::Wait(timeout) = turn else { break };
            events.clear();
            on_duty.clear();
            let waited = wait(&self.duty, &mut on_duty, timeout.as_ref())
                .and_then(|()| self.end_lease(&on_duty))
                .and_then(|taken_back| {
                    // A lease that ends while its helper waits is no reason to look: that is what the helper does.
                    let only_a_lease = !on_duty.is_empty() && on_duty.iter().all(is_lease);
                    if only_a_lease && !taken_back {
                        return Ok(());
                    }
                    wait(&self.sockets, &mut events, Some(&NOT_AT_ALL))
                });
            if let Err(errno) = waited {
                self.connections.lock().end_all(&format!("waiting for events failed: {errno}"));
                break;
            }
        }
        self.connections.lock().close();
    }

    /// Takes the duty back from a helper that is still in an actor's step. Says whether it did.
    fn end_lease(&self, events: &[epoll::Event]) -> Result<bool, Errno> {
        if !events.iter().any(is_lease) {
            return Ok(false);
        }
        // Only resets the timer; not being readable any more is as good.
        let _ = rustix::io::read(&self.lease, &mut [0; 8]);
        let mut lent = self.lent.lock();
        let runs = *lent == Lent::Leased;
        if runs {
            *lent = Lent::Revoked;
            self.listen(true)?;
        }
        Ok(runs)
    }

    /// Whether the I/O thread hears of the sockets' events. Under the lock of `lent`.
    fn listen(&self, listen: bool) -> Result<(), Errno> {
        let events = if listen { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.duty, &self.sockets, epoll::EventData::new_u64(SOCKETS), events)
    }

    /// Serves the connections once. A panic ends every one of them, by name.
    fn turn(&self, events: &[epoll::Event], due: &mut Vec<Due>) -> Turn {
        let mut connections = self.connections.lock();
        let turn = catch_unwind(AssertUnwindSafe(|| connections.turn(events, due)));
        turn.unwrap_or_else(|_| {
            connections.end_all("the I/O panicked; this is a bug in symwin or in an inbox, please report it");
            Turn::Over
        })
    }

    /// Does the I/O in this thread, and runs actor `mine` whenever it is due, `first` to begin with, until `answer` is
    /// ready. `None` if that is not possible now, or no longer: then nothing is lost by waiting.
    pub(crate) fn help<T>(
        self: &Arc<Self>,
        mine: ActorId,
        first: Option<Due>,
        mut answer: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let Some(mut help) = Help::begin(self) else {
            first.into_iter().for_each(Due::run);
            return None;
        };
        let waker = Waker::from(Arc::clone(self));
        let mut next = first;
        let mut due = Vec::new();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        // Something may have come before this thread was here.
        let mut timeout = Some(NOT_AT_ALL);
        loop {
            if let Some(next) = next.take() {
                help.run(next)?;
            }
            // From here on who answers wakes this thread.
            self.waits.store(true, Ordering::SeqCst);
            if let Poll::Ready(answer) = answer(&mut Context::from_waker(&waker)) {
                return Some(answer);
            }
            events.clear();
            // Who is awaited may need this very core: giving way costs less than sleeping and being woken.
            let looks = if timeout == Some(NOT_AT_ALL) { 0 } else { GIVE_WAY };
            for _ in 0..looks {
                wait(&self.sockets, &mut events, Some(&NOT_AT_ALL)).ok()?;
                if !events.is_empty() {
                    break;
                }
                thread::yield_now();
            }
            if events.is_empty() {
                // Bounded by the batch's own deadline: its timer has the actor answer, which wakes this thread.
                wait(&self.sockets, &mut events, timeout.as_ref()).ok()?;
            }
            self.waits.store(false, Ordering::SeqCst);
            match self.turn(&events, &mut due) {
                Turn::Wait(until) => timeout = until,
                Turn::Over => return None,
            }
            help.owes_turn = timeout.is_some();
            for due in due.drain(..) {
                if due.id() == Some(mine) {
                    next = Some(due);
                }
                // Others are the workers': it may take long.
            }
        }
    }
}

/// The answer is there; if its helper does not see it by itself, it is told.
impl Wake for Duty {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.waits.swap(false, Ordering::SeqCst) {
            self.shared.wake.wake();
        }
    }
}

/// The duty, lent.
struct Help<'a> {
    duty: &'a Duty,
    /// The last turn left something for which no event will come: more to read, or a time to try again.
    owes_turn: bool,
}

impl<'a> Help<'a> {
    fn begin(duty: &'a Duty) -> Option<Self> {
        let mut lent = duty.lent.lock();
        if *lent != Lent::No {
            return None;
        }
        duty.listen(false).ok()?;
        *lent = Lent::Yes;
        Some(Self { duty, owes_turn: false })
    }

    /// Runs an actor under a lease. `None` where there can be no lease: then the duty goes back first.
    fn run(&self, due: Due) -> Option<()> {
        *self.duty.lent.lock() = Lent::Leased;
        self.set_lease(LEASE_TIME).ok()?;
        due.run();
        let mut lent = self.duty.lent.lock();
        if std::mem::replace(&mut *lent, Lent::Yes) == Lent::Revoked {
            self.duty.listen(false).ok()?;
        }
        Some(())
    }

    fn set_lease(&self, time: Timespec) -> Result<(), Errno> {
        let once = Itimerspec { it_interval: NOT_AT_ALL, it_value: time };
        timerfd_settime(&self.duty.lease, TimerfdTimerFlags::empty(), &once).map(drop)
    }
}

impl Drop for Help<'_> {
    fn drop(&mut self) {
        self.duty.waits.store(false, Ordering::SeqCst);
        // Both work on descriptors that are there; a lease that ends later is heard and ends nothing.
        let _ = self.set_lease(NOT_AT_ALL);
        let mut lent = self.duty.lent.lock();
        let _ = self.duty.listen(true);
        *lent = Lent::No;
        drop(lent);
        if self.owes_turn {
            self.duty.shared.wake.wake();
        }
    }
}

fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> Result<(), Errno> {
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn is_lease(event: &epoll::Event) -> bool {
    event.data.u64() == LEASE
}

const SOCKETS: u64 = 0;
const LEASE: u64 = 1;
const EVENTS_MAX: usize = 64;
/// How often a helper looks before it sleeps.
const GIVE_WAY: usize = 16;
const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// For so long a step may keep the I/O: most take a fraction of it.
const LEASE_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
