//! What a group's requests become: one pending for each request, one result for each communicator.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::actors::{Due, Lost, Ticket};
use crate::comm::Shared;
use crate::error::{Error, FailureCause, Misuse, Result};
use crate::ids::Rank;

/// A window or device communicator to be. It is complete once the batch of its group has ended; dropping it before
/// that closes what it would have been, on this rank.
#[must_use = "dropping a pending closes what it would have become"]
pub struct Pending<T> {
    what: &'static str,
    ticket: Ticket<Result<T>>,
    comm: Arc<Shared>,
    group_open: Arc<AtomicBool>,
    /// It has given its outcome, which comes once.
    taken: bool,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn new(
        what: &'static str,
        ticket: Ticket<Result<T>>,
        comm: &Arc<Shared>,
        group_open: &Arc<AtomicBool>,
    ) -> Self {
        Self { what, ticket, comm: Arc::clone(comm), group_open: Arc::clone(group_open), taken: false }
    }

    /// Waits for the end of the batch. The batch's own deadline bounds the wait.
    ///
    /// # Errors
    /// Why there is no such thing; [`Misuse::GroupOpen`] if the group has not ended within a deadline.
    pub fn wait(mut self) -> Result<T> {
        // Another thread may be about to end the group.
        while !self.taken && self.group_open.load(Ordering::Acquire) {
            let until = self.comm.core.runtime.now() + self.comm.core.deadline;
            match self.ticket.wait_until(until) {
                Ok(Some(outcome)) => return outcome,
                Ok(None) if self.group_open.load(Ordering::Acquire) => {
                    return Err(Misuse::GroupOpen { what: self.what.to_owned() }.into());
                }
                Ok(None) => {}
                Err(Lost) => return Err(self.comm.lost()),
            }
        }
        if self.taken {
            return Err(self.asked_again());
        }
        self.ticket.wait().unwrap_or_else(|Lost| Err(self.comm.lost()))
    }

    /// Waits at most `limit`. Giving up gives up waiting only: the batch goes on, and the pending can be awaited
    /// again.
    ///
    /// # Errors
    /// [`Error::Limit`] when it gave up; else as [`Pending::wait`]. The outcome comes once: [`Misuse::Other`] after it.
    pub fn wait_limit(&mut self, limit: Duration) -> Result<T> {
        if self.taken {
            return Err(self.asked_again());
        }
        let until = self.comm.core.runtime.now() + limit;
        let outcome = match self.ticket.wait_until(until) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Err(Error::Limit { what: format!("a {}", self.what), waited: limit }),
            Err(Lost) => Err(self.comm.lost()),
        };
        self.taken = true;
        outcome
    }

    /// The outcome if the batch has ended, once; `None` after it too.
    pub fn poll(&mut self) -> Option<Result<T>> {
        if self.taken {
            return None;
        }
        let outcome = self.ticket.poll()?;
        self.taken = true;
        Some(outcome.unwrap_or_else(|Lost| Err(self.comm.lost())))
    }

    fn asked_again(&self) -> Error {
        let what =
            format!("this pending {} has given its outcome; it does not come a second time", self.what);
        Misuse::Other { what }.into()
    }
}

impl<T: Send + 'static> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.taken {
            return Poll::Ready(Err(self.asked_again()));
        }
        let Poll::Ready(outcome) = Pin::new(&mut self.ticket).poll(cx) else { return Poll::Pending };
        self.taken = true;
        Poll::Ready(outcome.unwrap_or_else(|Lost| Err(self.comm.lost())))
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a pending {} of communicator `{}`", self.what, self.comm.core.agreed.name)
    }
}

/// One communicator's batch on its way.
pub(super) struct Sent {
    pub(super) comm: Arc<Shared>,
    pub(super) ticket: Ticket<Result<()>>,
}

impl Sent {
    /// Runs the batch in this thread as far as the runtime lets it, its I/O included. Its outcome, unless it comes some
    /// other way.
    pub(super) fn drive(&mut self, due: Option<Due>) -> Option<Result<()>> {
        let core = &self.comm.core;
        if !core.runtime.lends() {
            return None;
        }
        let endpoint = core.endpoint()?;
        let ticket = &mut self.ticket;
        let outcome = endpoint.help(self.comm.actor_id(), due, |cx| Pin::new(&mut *ticket).poll(cx))?;
        Some(outcome.unwrap_or_else(|Lost| Err(self.comm.lost())))
    }
}

/// The batches of a group on their way. Dropping it does not stop them.
pub struct Submitted {
    sent: Vec<(Sent, Option<Result<()>>)>,
}

impl Submitted {
    /// Some may have ended.
    pub(super) fn new(sent: Vec<(Sent, Option<Result<()>>)>) -> Self {
        Self { sent }
    }

    /// Waits for all batches, each bounded by its own deadline.
    ///
    /// # Errors
    /// [`GroupError`] with one result for each communicator if any of them failed.
    pub fn wait(self) -> Result<Vec<CommResult>, GroupError> {
        let results = self.sent.into_iter().map(|(Sent { comm, ticket }, ended)| {
            let result = ended.unwrap_or_else(|| ticket.wait().unwrap_or_else(|Lost| Err(comm.lost())));
            CommResult::new(&comm, result)
        });
        GroupError::check(results.collect())
    }

    /// Waits at most `limit` for all. Giving up gives up waiting only.
    ///
    /// # Errors
    /// This value back, if some batch has not ended.
    pub fn wait_limit(mut self, limit: Duration) -> Result<Result<Vec<CommResult>, GroupError>, Self> {
        // Each by its own runtime's clock, all from now.
        let untils: Vec<_> = self.sent.iter().map(|(sent, _)| sent.comm.core.runtime.now() + limit).collect();
        for ((sent, ended), until) in self.sent.iter_mut().zip(untils) {
            if ended.is_none() {
                *ended = match sent.ticket.wait_until(until) {
                    Ok(outcome) => outcome,
                    Err(Lost) => Some(Err(sent.comm.lost())),
                };
            }
        }
        if self.sent.iter().all(|(_, ended)| ended.is_some()) { Ok(self.wait()) } else { Err(self) }
    }

    /// Whether all batches have ended: then [`Submitted::wait`] does not wait.
    pub fn poll(&mut self) -> bool {
        for (sent, ended) in &mut self.sent {
            if ended.is_none() {
                *ended =
                    sent.ticket.poll().map(|outcome| outcome.unwrap_or_else(|Lost| Err(sent.comm.lost())));
            }
        }
        self.sent.iter().all(|(_, ended)| ended.is_some())
    }
}

impl Future for Submitted {
    type Output = Result<Vec<CommResult>, GroupError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        for (sent, ended) in &mut self.sent {
            if ended.is_none()
                && let Poll::Ready(outcome) = Pin::new(&mut sent.ticket).poll(cx)
            {
                *ended = Some(outcome.unwrap_or_else(|Lost| Err(sent.comm.lost())));
            }
        }
        if !self.sent.iter().all(|(_, ended)| ended.is_some()) {
            return Poll::Pending;
        }
        let sent = std::mem::take(&mut self.sent);
        Poll::Ready(Self { sent }.wait())
    }
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.sent.iter().filter(|(_, ended)| ended.is_none()).count();
        write!(f, "{} batches, {running} not seen to end", self.sent.len())
    }
}

/// How one communicator's batch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommResult {
    /// The communicator's name.
    pub comm: String,
    /// The rank of it that this group drove.
    pub rank: Rank,
    /// How it ended.
    pub result: Result<()>,
}

impl CommResult {
    fn new(comm: &Shared, result: Result<()>) -> Self {
        Self { comm: comm.core.agreed.name.clone(), rank: comm.core.agreed.rank, result }
    }
}

/// Some communicator's batch failed. Those of other communicators may have committed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupError {
    /// One result for each communicator (and rank of it) in the group, in the order in which they joined it.
    pub results: Vec<CommResult>,
}

impl GroupError {
    fn check(results: Vec<CommResult>) -> Result<Vec<CommResult>, Self> {
        if results.iter().all(|one| one.result.is_ok()) { Ok(results) } else { Err(Self { results }) }
    }

    /// The first error.
    #[must_use]
    pub fn first(&self) -> Option<&Error> {
        self.results.iter().find_map(|one| one.result.as_ref().err())
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.results.iter().filter(|one| one.result.is_err()).count();
        if self.results.len() > 1 {
            write!(f, "{failed} of {} batches failed: ", self.results.len())?;
        }
        let errors = self.results.iter().filter_map(|one| one.result.as_ref().err());
        for (i, error) in errors.enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for GroupError {}

impl From<GroupError> for Error {
    /// The first error, with which most programs end.
    fn from(error: GroupError) -> Self {
        let lost = || Misuse::Other { what: "a group failed without an error".to_owned() }.into();
        error.results.into_iter().find_map(|one| one.result.err()).unwrap_or_else(lost)
    }
}

impl Shared {
    /// The actor ended without an answer.
    pub(crate) fn lost(&self) -> Error {
        if let Some(error) = self.core.watch.error() {
            return error;
        }
        if self.core.closed.load(Ordering::Acquire) {
            return self.core.closed();
        }
        let (operation, phase) = self.core.board.operation();
        Error::Failed(self.core.failure(&operation, phase, FailureCause::RuntimeEnded))
    }
}
