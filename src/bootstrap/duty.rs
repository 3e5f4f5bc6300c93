//! Who does a hub's I/O: its I/O thread, or a thread that would only wait for what comes (leader and follower).
//!
//! A thread that waits for its batch reads the connections itself meanwhile, and runs its actor when the last message of
//! a round has come: otherwise each round would wake the I/O thread, that a worker, and that in the end the caller.
//! The connections are behind a lock that nobody holds while it waits or runs an actor, so any thread may serve them at
//! any time; what is passed from hand to hand is only who waits for their events. The I/O thread waits at `duty`, which
//! holds `sockets`. A helper mutes that and waits at `sockets` itself; when it goes, it puts that right, and what came
//! meanwhile is an event at once.
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
    /// Somebody helps; one at a time.
    helped: AtomicBool,
    /// The helper runs an actor.
    runs: AtomicBool,
    /// Its lease has ended since it began to.
    revoked: AtomicBool,
    /// It waits for events, or is about to.
    waits: AtomicBool,
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
            helped: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
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
            let Turn::Wait(timeout) = turn else { break };
            events.clear();
            on_duty.clear();
            let waited = wait(&self.duty, &mut on_duty, timeout.as_ref())
                .and_then(|()| self.end_lease(&on_duty))
                .and_then(|()| wait(&self.sockets, &mut events, Some(&NOT_AT_ALL)));
            if let Err(errno) = waited {
                self.connections.lock().end_all(&format!("waiting for events failed: {errno}"));
                break;
            }
        }
        self.connections.lock().close();
    }

    /// Takes the duty back from a helper that is still in an actor's step.
    fn end_lease(&self, events: &[epoll::Event]) -> Result<(), Errno> {
        if events.iter().all(|event| event.data.u64() != LEASE) {
            return Ok(());
        }
        // Only resets the timer; not being readable any more is as good.
        let _ = rustix::io::read(&self.lease, &mut [0; 8]);
        if self.runs.load(Ordering::SeqCst) {
            self.revoked.store(true, Ordering::SeqCst);
            self.listen(true)?;
        }
        Ok(())
    }

    /// Whether the I/O thread hears of the sockets' events.
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
        let Some(help) = Help::begin(self) else {
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
                wait(&self.sockets, &mut events, timeout.as_ref()).ok()?;
            }
            self.waits.store(false, Ordering::SeqCst);
            match self.turn(&events, &mut due) {
                Turn::Wait(until) => timeout = until,
                Turn::Over => return None,
            }
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
struct Help<'a>(&'a Duty);

impl<'a> Help<'a> {
    fn begin(duty: &'a Duty) -> Option<Self> {
        if duty.helped.swap(true, Ordering::SeqCst) {
            return None;
        }
        // Gone, should the next line fail, it puts everything right.
        let help = Self(duty);
        duty.listen(false).ok()?;
        Some(help)
    }

    /// Runs an actor under a lease. `None` where there can be no lease: then the duty goes back first.
    fn run(&self, due: Due) -> Option<()> {
        self.0.runs.store(true, Ordering::SeqCst);
        self.set_lease(LEASE_TIME).ok()?;
        due.run();
        self.0.runs.store(false, Ordering::SeqCst);
        if self.0.revoked.swap(false, Ordering::SeqCst) {
            self.0.listen(false).ok()?;
        }
        Some(())
    }

    fn set_lease(&self, time: Timespec) -> Result<(), Errno> {
        let once = Itimerspec { it_interval: NOT_AT_ALL, it_value: time };
        timerfd_settime(&self.0.lease, TimerfdTimerFlags::empty(), &once).map(drop)
    }
}

impl Drop for Help<'_> {
    fn drop(&mut self) {
        self.0.waits.store(false, Ordering::SeqCst);
        self.0.runs.store(false, Ordering::SeqCst);
        // Both work on descriptors that are there; a lease that ends later is heard and ends nothing.
        let _ = self.set_lease(NOT_AT_ALL);
        let _ = self.0.listen(true);
        self.0.revoked.store(false, Ordering::SeqCst);
        self.0.helped.store(false, Ordering::SeqCst);
    }
}

fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> Result<(), Errno> {
    match epoll::wait(epoll, spare_capacity(events), timeout) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

const SOCKETS: u64 = 0;
const LEASE: u64 = 1;
const EVENTS_MAX: usize = 64;
/// How often a helper looks before it sleeps.
const GIVE_WAY: usize = 16;
const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// For so long a step may keep the I/O: most take a fraction of it.
const LEASE_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
