//! Actors, and the runtimes that run them.
//!
//! An [`Actor`] is a value with one message enum and one handler. It lives in a cell that a [`Runtime`] runs one
//! message at a time, on whichever thread is free: handlers of one actor never overlap, so its state needs no
//! lock. A handler runs to completion and never blocks on another actor (A-1); so any number of actors makes
//! progress on any number of worker threads, one included.
//!
//! ```
//! use symwin::actors::{Actor, Cx, Flow, Reply, Runtime};
//!
//! struct Counter(u64);
//!
//! enum Count {
//!     Add(u64),
//!     Total(Reply<u64>),
//! }
//!
//! impl Actor for Counter {
//!     type Msg = Count;
//!
//!     fn handle(&mut self, msg: Count, _cx: &mut Cx<'_, Count>) -> Flow {
//!         match msg {
//!             Count::Add(n) => self.0 += n,
//!             Count::Total(reply) => drop(reply.send(self.0)), // Whoever asked may have given up.
//!         }
//!         Flow::Continue
//!     }
//! }
//!
//! let rt = Runtime::threads(2)?;
//! let counter = rt.spawn("counter", 16, |_me| Counter(0));
//! let (reply, total) = rt.reply();
//! assert!(counter.tell(Count::Add(3)).is_ok());
//! assert!(counter.tell(Count::Total(reply)).is_ok());
//! assert_eq!(total.wait(), Ok(3));
//! # Ok::<(), symwin::Error>(())
//! ```
//!
//! # Lanes
//! Each actor has three lanes. Before every single message the first non-empty one is chosen:
//! 1. *control* ([`Addr::control`], timers, `down`): unbounded, for abort and loss;
//! 2. *mail* ([`Addr::tell`]): bounded, a full one hands the message back;
//! 3. *queue* ([`Addr::queue`]): callers' requests in order, never full, since a request must not fail on one rank
//!    alone.
//!
//! # Life and death
//! An actor ends when a handler answers [`Flow::Stop`], when it panics (unless [`Actor::panicked`] says
//! otherwise), or when its last [`Addr`] is dropped and its lanes are empty. Then its value is dropped, once;
//! then its unread messages, so that a [`Reply`] in one answers [`Lost`]; then linked actors hear of it.
//!
//! Who keeps whom alive:
//! - an [`Addr`] keeps its actor and its runtime alive; a [`WeakAddr`], a link and a pending timer keep nothing;
//! - a [`Reply`] and a [`Ticket`] keep the runtime alive, whose clock and blocking they use, but no actor;
//! - an actor must not store an [`Addr`] of itself, nor two actors one of each other: they would never be out of
//!   reach. Take [`Cx::me`] in each call, store [`Addr::downgrade`], or end them by message.
//!
//! Worker and timer threads end when the last [`Runtime`], [`Addr`], [`Reply`] and [`Ticket`] is gone and what was
//! queued has been handled. Nobody joins them, so the last of these may go anywhere, on a worker too.
//!
//! # The seam
//! Everything that differs between real threads and a deterministic simulation is behind [`Scheduler`]: the clock,
//! which actor runs next, timers, and the blocking of host threads. Actors cannot tell the difference.
#![forbid(unsafe_code)]

mod cell;
mod due;
mod mailbox;
mod reply;
mod runtime;
mod scheduler;
#[cfg(test)]
mod tests;
mod threads;
mod timer;

use std::fmt;
use std::sync::Arc;

pub use due::Due;
pub use mailbox::{Addr, Rejected, WeakAddr};
pub use reply::{Lost, Reply, Ticket};
pub use runtime::Runtime;
pub use scheduler::{ActorReport, Backlog, Gate, GateId, Registry, Runnable, Scheduler, Step, Time, Woken};
pub use timer::{TimerId, TimerQueue};

pub(crate) use cell::text_of;
pub(crate) use scheduler::start_thread;

use cell::Timers;

/// A value that handles messages one after another. See the [module](self).
pub trait Actor: Send + 'static {
    /// What it is told.
    type Msg: Send + 'static;

    /// Handles one message. Runs to completion; must not block on another actor (A-1).
    fn handle(&mut self, msg: Self::Msg, cx: &mut Cx<'_, Self::Msg>) -> Flow;

    /// A linked actor ended ([`Cx::link`]).
    fn down(&mut self, who: ActorId, exit: &Exit, cx: &mut Cx<'_, Self::Msg>) -> Flow {
        let _ = (who, exit, cx);
        Flow::Continue
    }

    /// `handle` or `down` panicked with this message; this actor's own state may be half changed. After
    /// [`Flow::Stop`], the default, or a second panic, it ends with [`Exit::Panicked`].
    fn panicked(&mut self, message: &str, cx: &mut Cx<'_, Self::Msg>) -> Flow {
        let _ = (message, cx);
        Flow::Stop
    }

    /// What it waits for, in words, for [`Runtime::actors`] and for reports of a deadlock. `None`: for nothing but
    /// the next message. Must not send.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

/// What becomes of an actor after a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// It waits for the next message.
    Continue,
    /// It ends.
    Stop,
}

/// How an actor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// A handler panicked with this message.
    Panicked(String),
    /// Its last address was dropped, or its runtime was shut down.
    Shutdown,
    /// A handler answered [`Flow::Stop`].
    Stopped,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::Shutdown => f.write_str("shut down"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// An actor's number in its runtime, in the order of spawning. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorId(u64);

impl ActorId {
    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What a handler can use of its surroundings, for the time of one call.
pub struct Cx<'a, M> {
    me: &'a Addr<M>,
    timers: &'a mut Timers<M>,
}

impl<'a, M: Send + 'static> Cx<'a, M> {
    /// The runtime's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.me.runtime().now()
    }

    /// This actor's own address. Do not store it in the actor: store [`Addr::downgrade`].
    #[must_use]
    pub const fn me(&self) -> &'a Addr<M> {
        self.me
    }

    /// The runtime that runs this actor.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        self.me.runtime().clone()
    }

    /// Has `msg` delivered on the control lane at `at`, soon if that has passed. A pending timer does not keep the
    /// actor alive; when the actor ends, so do its timers.
    pub fn timer(&mut self, at: Time, msg: M) -> TimerId {
        self.timers.set(self.me, at, msg)
    }

    /// Takes a timer back. After this its message is not delivered, even if its time has come meanwhile. Does
    /// nothing for a timer that was delivered or cancelled.
    pub fn cancel(&mut self, id: TimerId) {
        drop(self.timers.cancel(self.me.runtime(), id));
    }

    /// Links this actor and `other`: when either ends, the other's [`Actor::down`] is called, once, on the control
    /// lane. Linking twice is linking once, linking oneself nothing. If `other` has already ended, this actor's
    /// `down` is called soon.
    pub fn link<N: Send + 'static>(&self, other: &Addr<N>) {
        let (me, other) = (self.me.runnable(), other.runnable());
        if me.id() == other.id() {
            return;
        }
        match other.link(me.id(), &Arc::downgrade(&me)) {
            // This actor is in a handler, so it has not ended, or is being shut down and needs no news.
            Ok(()) => drop(me.link(other.id(), &Arc::downgrade(&other))),
            Err(exit) => me.down(other.id(), &exit),
        }
    }
}

impl<M> fmt::Debug for Cx<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("me", self.me).finish_non_exhaustive()
    }
}
