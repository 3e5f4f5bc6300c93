//! The handle on a runtime.

use std::sync::Arc;

use super::cell::Cell;
use super::scheduler::{ActorReport, Scheduler, Time};
use super::threads::Threads;
use super::{Actor, ActorId, Addr, Reply, Ticket, reply};
use crate::error::Result;

/// A runtime: cheap to clone, alive while any clone or address is. See the [module](super).
#[derive(Clone, Debug)]
pub struct Runtime {
    scheduler: Arc<dyn Scheduler>,
}

impl Runtime {
    /// A runtime of this many worker threads (and one for timers).
    ///
    /// # Errors
    /// [`Misuse::BadSetting`](crate::error::Misuse::BadSetting) for no workers;
    /// [`BootstrapError::Os`](crate::error::BootstrapError::Os) when a thread cannot be started.
    pub fn threads(workers: usize) -> Result<Self> {
        Ok(Self { scheduler: Threads::start(workers)? })
    }

    /// A runtime over any scheduler.
    #[must_use]
    pub fn from_scheduler(scheduler: Arc<dyn Scheduler>) -> Self {
        Self { scheduler }
    }

    /// The time since the runtime's start.
    #[must_use]
    pub fn now(&self) -> Time {
        self.scheduler.now()
    }

    /// Starts the actor that `make` makes. `make` runs here and now; messages that are sent to the address it is
    /// given wait until it has returned. If it panics the address is closed and the panic goes on.
    ///
    /// `mail_capacity` is the most messages that [`Addr::tell`] lets wait; the other lanes have no bound.
    pub fn spawn<A: Actor>(
        &self,
        name: &str,
        mail_capacity: usize,
        make: impl FnOnce(&Addr<A::Msg>) -> A,
    ) -> Addr<A::Msg> {
        Cell::spawn(self, name, mail_capacity, make)
    }

    /// Whether host threads may run actors that are [`Due`](super::Due).
    #[must_use]
    pub fn lends(&self) -> bool {
        self.scheduler.lends()
    }

    /// A reply port and the ticket that waits for what is sent to it.
    pub fn reply<T: Send + 'static>(&self) -> (Reply<T>, Ticket<T>) {
        reply::pair(self)
    }

    /// Starts a host thread: one of a program that uses this runtime. Under a simulation it runs when the schedule
    /// says so; elsewhere this is a thread like any other. The ticket has what `program` returns, or is
    /// [`Lost`](super::Lost) if it panics.
    ///
    /// # Errors
    /// [`BootstrapError::Os`](crate::error::BootstrapError::Os) when the thread cannot be started.
    pub fn host<T: Send + 'static>(
        &self,
        name: &str,
        program: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Ticket<T>> {
        let (reply, ticket) = self.reply();
        self.scheduler.host(name, Box::new(move || drop(reply.send(program()))))?;
        Ok(ticket)
    }

    /// What each living actor is doing, in the order of spawning. A snapshot of each, not of all at one moment.
    #[must_use]
    pub fn actors(&self) -> Vec<ActorReport> {
        self.scheduler.registry().reports()
    }

    /// A host thread is about to ask an actor for something: see [`Scheduler::pause`].
    pub(crate) fn pause(&self) {
        self.scheduler.pause();
    }

    /// What actor `id` finds was changed past its mailbox: see [`Scheduler::touched`].
    pub(crate) fn touched(&self, id: ActorId) {
        self.scheduler.touched(id);
    }

    pub(super) fn scheduler(&self) -> &dyn Scheduler {
        &*self.scheduler
    }
}
