//! The actor's batches: queued, run one after another, answered.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tracing::Instrument as _;

use super::failing::Told;
use super::{CommActor, Current, Mode, Queued};
use crate::actors::{Cx, Reply};
use crate::devr::flush::commit::Output;
use crate::devr::flush::message::encode;
use crate::devr::flush::{Ended, flush};
use crate::devr::leftovers;
use crate::devr::mail::CommMsg;
use crate::devr::request::{Answer, Batch};
use crate::devr::status::{Counts, Ending};
use crate::devr::zoo::Bug;
use crate::error::{Error, Result};
use crate::ids::Rank;

impl CommActor {
    pub(super) fn take(&mut self, batch: Batch, cx: &mut Cx<'_, CommMsg>) {
        let error = match &self.mode {
            Mode::Open => {
                self.operations += 1;
                let id = self.operations;
                let timer = cx.timer(batch.deadline, CommMsg::Deadline(id));
                if self.core.has_bug(Bug::NoDeadline) {
                    cx.cancel(timer);
                }
                self.queue.push_back(Queued { id, batch, timer });
                return;
            }
            Mode::Failed(failure) => Error::Failed(Arc::clone(failure)),
            Mode::Draining | Mode::Closing => self.core.closed(),
        };
        answer_all(batch.answers, batch.done, &error);
    }

    /// Polls the job, and starts the next one when it has ended.
    pub(super) fn advance(&mut self, cx: &mut Cx<'_, CommMsg>) {
        while matches!(self.mode, Mode::Open | Mode::Draining) {
            if self.current.is_none() && !self.start(cx) {
                break;
            }
            let Some(current) = &mut self.current else { break };
            match current.job.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => self.finish(ended, cx),
                Poll::Pending => {
                    if self.core.board.take_tick() {
                        self.tick(TICK, cx);
                    }
                    return;
                }
            }
        }
        if matches!(self.mode, Mode::Draining) && self.current.is_none() && self.queue.is_empty() {
            if !self.core.has_bug(Bug::GoodbyeEarly) {
                self.say_goodbye();
            }
            self.begin_close(cx);
        }
    }

    fn start(&mut self, cx: &mut Cx<'_, CommMsg>) -> bool {
        if let Some(rank) = self.core.rounds.gone() {
            // No batch can complete any more: nothing is sent, so nobody gets out of step.
            let error = self.finalized(rank);
            for Queued { batch, timer, .. } in self.queue.drain(..) {
                cx.cancel(timer);
                answer_all(batch.answers, batch.done, &error);
            }
        }
        let Some(Queued { id, batch, timer }) = self.queue.pop_front() else { return false };
        let seq = self.core.rounds.seq();
        let group = batch.work.group.as_ref().map_or_else(String::new, |name| format!(" of group `{name}`"));
        let span = tracing::debug_span!(
            "batch",
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            seq,
            tasks = batch.work.requests.len()
        );
        tracing::debug!(
            parent: &span,
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            "batch.begin"
        );
        self.core.board.begin(format!("batch {seq}{group}"), cx.now());
        let job = Box::pin(flush(Arc::clone(&self.core), batch.work).instrument(span));
        let Batch { answers, done, deadline, .. } = batch;
        self.current = Some(Current { id, job, answers, done, timer, deadline });
        true
    }

    fn finish(&mut self, ended: Ended, cx: &mut Cx<'_, CommMsg>) {
        if let Ended::Fatal(cause) = ended {
            // It answers the batch too; the operation stays on the board: the failure names it.
            self.fail(cause, Told::Nobody, cx);
            return;
        }
        // Until this is through, the batch is the current one: a panic in here answers it like any other.
        let mut state = self.core.state();
        state.batch_ended(&self.core);
        self.core.rounds.next();
        let digest = state.replicated.digest(self.core.rounds.seq());
        let (committed, counts) = (matches!(ended, Ended::Committed { .. }), Counts::of(&state));
        self.core.board.ended(Ending { committed, digest, counts });
        self.core.board.committed(&state);
        drop(state);
        self.retire_deferred();
        self.core.board.end();
        let Some(Current { answers, done, timer, .. }) = self.current.take() else { return };
        cx.cancel(timer);
        let outcome = match ended {
            Ended::Committed { outputs, exports } => {
                tracing::debug!(
                    comm = %self.core.agreed.name,
                    rank = self.core.agreed.rank.get(),
                    "batch.committed"
                );
                deliver(answers, outputs);
                if let Some(done) = done {
                    let _ = done.send(Ok(()));
                }
                leftovers::close_later(&self.core.runtime, exports);
                return;
            }
            Ended::RolledBack(rolled_back) => Error::RolledBack(rolled_back),
            Ended::Finalized(rank) => self.finalized(rank),
            Ended::Fatal(_) => return,
        };
        tracing::warn!(
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            error = %outcome,
            "batch.rolled_back"
        );
        answer_all(answers, done, &outcome);
    }

    pub(super) fn say_goodbye(&self) {
        if let Some(endpoint) = self.core.endpoint() {
            endpoint.goodbye(&encode(&self.core.rounds.seq()));
        }
    }

    fn finalized(&self, rank: Rank) -> Error {
        let peer = self.core.agreed.world[rank.index()].clone();
        Error::Finalized { comm: self.core.agreed.name.clone(), peer }
    }
}

pub(super) fn answer_all(answers: Vec<Answer>, done: Option<Reply<Result<()>>>, error: &Error) {
    // Who has dropped its pending does not want to know.
    for answer in answers {
        match answer {
            Answer::Window(reply) => drop(reply.send(Err(error.clone()))),
            Answer::DevComm(reply) => drop(reply.send(Err(error.clone()))),
        }
    }
    if let Some(done) = done {
        let _ = done.send(Err(error.clone()));
    }
}

/// An answer that nobody wants comes back and is dropped here, which closes its window.
fn deliver(answers: Vec<Answer>, outputs: Vec<Output>) {
    for (answer, output) in answers.into_iter().zip(outputs) {
        match (answer, output) {
            (Answer::Window(reply), Output::Window(window)) => drop(reply.send(Ok(window))),
            (Answer::DevComm(reply), Output::DevComm(dev_comm)) => drop(reply.send(Ok(dev_comm))),
            // Outputs are made from the same requests as answers.
            _ => debug_assert!(false, "an output of another kind than its request"),
        }
    }
}

/// How soon a job that waits for its stream is polled again.
const TICK: Duration = Duration::from_micros(200);
