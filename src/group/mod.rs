//! Groups: requests that go to their communicators together, one batch for each.
//!
//! A [`Group`] is a value, not thread-local state. Requests queue in it and never fail there: what is wrong with one
//! becomes a refusal that every rank hears of. [`Group::end`] sends each communicator's batch to its actor, all in
//! flight together, and waits for all; [`Group::submit`] does not wait. All-or-none is per communicator, so there is
//! one result for each.
//!
//! A group may hold several communicators, several ranks of one communicator (driven by one thread), and be filled
//! from several threads. Within a batch registrations come before device communicators, each in call order.
//!
//! Ranks must ask a communicator for the same things in the same order. Requests that differ in kind, size, flags,
//! label or group name are reported on all ranks; requests of equal shape in swapped order cannot be told apart:
//! give them labels, or their groups names.

mod pending;
mod region;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub use pending::{CommResult, GroupError, Pending, Submitted};
pub use region::{Region, Registration};

use crate::actors::Due;
use crate::comm::{Communicator, Shared};
use crate::devr::dev_comm::DevCommRequirements;
use crate::devr::dev_comm_handle::DevComm;
use crate::devr::flush::message::WindowFlags;
use crate::devr::request::{Answer, Batch, Request, WindowRequest, Work};
use crate::devr::window::Window;
use crate::devr::zoo::Bug;
use crate::error::Result;

/// Requests on their way to their communicators. See the module's text.
///
/// A group dropped before its end is abandoned: every rank's batch that would have met it fails, by name, and the
/// communicators stay usable.
pub struct Group {
    name: Option<String>,
    parts: Mutex<Vec<Part>>,
    /// Not ended. Shared with the pendings, which say so when they are awaited too early.
    open: Arc<AtomicBool>,
    /// The same of groups that have joined this one.
    joined: Mutex<Vec<Arc<AtomicBool>>>,
}

/// What the group asks of one rank's communicator.
struct Part {
    comm: Arc<Shared>,
    windows: Queue,
    dev_comms: Queue,
}

/// Requests, and who awaits each. Two lists, as the batch has them: at the end nothing is copied.
#[derive(Default)]
struct Queue {
    requests: Vec<Request>,
    answers: Vec<Answer>,
}

impl Queue {
    fn push(&mut self, request: Request, answer: Answer) {
        self.requests.push(request);
        self.answers.push(answer);
    }

    fn append(&mut self, mut other: Self) {
        self.requests.append(&mut other.requests);
        self.answers.append(&mut other.answers);
    }

    fn len(&self) -> usize {
        self.requests.len()
    }
}

impl Group {
    /// An empty group without a name.
    #[must_use]
    pub fn start() -> Self {
        Self::new(None)
    }

    /// An empty group with a name. It is part of the fingerprint: ranks whose groups have other names are told so
    /// instead of mixing up requests of equal shape.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self::new(Some(name.into()))
    }

    fn new(name: Option<String>) -> Self {
        let open = Arc::new(AtomicBool::new(true));
        Self { name, parts: Mutex::new(Vec::new()), open, joined: Mutex::new(Vec::new()) }
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Queues the registration of a range of this rank's memory as a window.
    pub fn register(
        &self,
        comm: &Communicator,
        region: impl Into<Region>,
        flags: WindowFlags,
    ) -> Pending<Window> {
        self.register_with(comm, Registration::new(region).flags(flags))
    }

    /// Queues a registration with a label or with sizes that may differ between ranks.
    pub fn register_with(&self, comm: &Communicator, registration: Registration) -> Pending<Window> {
        let Registration { region: Region { address, size, keep }, flags, label, asymmetric } = registration;
        let (reply, ticket) = comm.shared().core.runtime.reply();
        let request = Request::Window(WindowRequest { address, size, flags, label, asymmetric, keep });
        self.part(comm, |part| part.windows.push(request, Answer::Window(reply)));
        Pending::new("window", ticket, comm.shared(), &self.open)
    }

    /// Queues a device communicator.
    pub fn create_dev_comm(
        &self,
        comm: &Communicator,
        requirements: DevCommRequirements,
    ) -> Pending<DevComm> {
        let (reply, ticket) = comm.shared().core.runtime.reply();
        let request = Request::DevComm(requirements);
        self.part(comm, |part| part.dev_comms.push(request, Answer::DevComm(reply)));
        Pending::new("device communicator", ticket, comm.shared(), &self.open)
    }

    /// Takes over everything that another group has queued, behind what this one has. The name of this group stays.
    pub fn join(&self, mut other: Self) {
        let mut joined = std::mem::take(&mut *other.joined.lock());
        // Its pendings are open until this group ends, not until that value is dropped.
        joined.push(std::mem::take(&mut other.open));
        self.joined.lock().extend(joined);
        let theirs = std::mem::take(&mut *other.parts.lock());
        let mut parts = self.parts.lock();
        for part in theirs {
            match parts.iter_mut().find(|mine| Arc::ptr_eq(&mine.comm, &part.comm)) {
                Some(mine) => {
                    mine.windows.append(part.windows);
                    mine.dev_comms.append(part.dev_comms);
                }
                None => parts.push(part),
            }
        }
    }

    /// Sends every batch and waits for all of them, each at most as long as its communicator's deadline. Meanwhile this
    /// thread does the last one's work, as far as nobody else is at it.
    ///
    /// # Errors
    /// [`GroupError`] with one result for each communicator if any of them failed.
    pub fn end(self) -> Result<Vec<CommResult>, GroupError> {
        let mut parts = self.close();
        // This thread has nothing else to do: it runs the last one's actor by itself.
        let last = parts.pop();
        let send = |part: Part| part.send(self.name.clone(), false);
        let mut sent: Vec<_> = parts.into_iter().map(|part| (send(part).0, None)).collect();
        sent.extend(last.map(send).map(|(mut last, due)| {
            let outcome = last.drive(due);
            (last, outcome)
        }));
        Submitted::new(sent).wait()
    }

    /// Sends every batch and returns at once.
    #[must_use = "the results of the batches come from it"]
    pub fn submit(self) -> Submitted {
        let parts = self.close();
        let sent = parts.into_iter().map(|part| (part.send(self.name.clone(), false).0, None));
        Submitted::new(sent.collect())
    }

    /// Nothing is queued any more, and the pendings are on their way.
    fn close(&self) -> Vec<Part> {
        let parts = std::mem::take(&mut *self.parts.lock());
        for open in self.joined.lock().drain(..).chain([Arc::clone(&self.open)]) {
            open.store(false, Ordering::Release);
        }
        parts
    }

    fn part(&self, comm: &Communicator, add: impl FnOnce(&mut Part)) {
        let mut parts = self.parts.lock();
        let index =
            parts.iter().position(|part| Arc::ptr_eq(&part.comm, comm.shared())).unwrap_or_else(|| {
                parts.push(Part {
                    comm: Arc::clone(comm.shared()),
                    windows: Queue::default(),
                    dev_comms: Queue::default(),
                });
                parts.len() - 1
            });
        add(&mut parts[index]);
    }
}

impl Part {
    /// Sends the batch to its actor, which comes back if it must be run for it.
    fn send(self, group: Option<String>, abandoned: bool) -> (pending::Sent, Option<Due>) {
        let core = &self.comm.core;
        let (done, ticket) = core.runtime.reply();
        let mut queue = self.windows;
        queue.append(self.dev_comms);
        let Queue { requests, answers } = queue;
        let work = Work { group, abandoned, requests };
        tracing::debug!(
            comm = %core.agreed.name,
            rank = core.agreed.rank.get(),
            tasks = work.requests.len(),
            abandoned,
            "group.submitted"
        );
        let deadline = core.runtime.now() + core.deadline;
        let batch = Batch { work, answers, done: Some(done), deadline };
        let due = self.comm.send(batch);
        (pending::Sent { comm: self.comm, ticket }, due)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for part in self.close() {
            let abandoned = !part.comm.core.has_bug(Bug::AbandonedRuns);
            drop(part.send(self.name.clone(), abandoned));
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts.lock();
        let comms: Vec<_> = parts
            .iter()
            .map(|part| (part.comm.core.agreed.name.as_str(), part.windows.len(), part.dev_comms.len()))
            .collect();
        f.debug_struct("Group").field("name", &self.name).field("queued", &comms).finish()
    }
}
