//! The actor of one rank's communicator: it takes batches, messages and closes, and polls the flush.
//!
//! A handler runs to completion and never waits (A-1). What takes several rounds is the [`flush`] job, an `async fn`
//! that is polled here whenever a message has come. Batches wait in a queue of their own that is never full.
//!
//! ```text
//! Open --finalize--> Draining --queue empty--> Closing --kernels ended--> closed
//!   \--failure--> Failed --finalize or drop--> Closing --kernels ended--> closed
//! ```

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::close;
use super::core::Core;
use super::flush::commit::Output;
use super::flush::message::{MemoryId, decode, encode, round, round_name};
use super::flush::{Ended, flush};
use super::request::{Answer, Batch};
use super::shadow::Slot;
use super::table::TableSlot;
use crate::actors::{Actor, ActorId, Addr, Cx, Exit, Flow, Reply, Time, TimerId};
use crate::bootstrap::{Incoming, Notice, SightingKind};
use crate::driver::DeviceError;
use crate::error::{Error, Failure, FailureCause, Missing, Peer, Result};
use crate::ids::Rank;

/// How soon a job that waits for its stream is polled again.
const TICK: Duration = Duration::from_micros(200);

/// What comes to the actor.
#[derive(Debug)]
pub(crate) enum CommMsg {
    /// The caller ends the communicator on all ranks.
    Abort(String),
    /// A batch of a group.
    Batch(Batch),
    /// A window or device communicator was closed.
    Close(Closing),
    /// An operation's deadline has passed.
    Deadline(u64),
    /// The last handle is gone without a finalize.
    Dropped,
    /// A host kernel's barrier has failed.
    Failed(Arc<Failure>),
    /// Close it once what is queued has ended.
    Finalize(Reply<Result<Vec<DeviceError>>>),
    /// A host kernel has ended.
    KernelEnded,
    /// From the bootstrap.
    Notice(Notice),
    /// Learn of the end of another rank's actor of this process.
    Link(Addr<Self>, Rank),
    /// Peers have sent more messages than the protocol allows.
    Overflow(String),
    /// Poll the job again.
    Tick,
}

/// A window (or resource buffer) that was closed.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) slot: Slot,
    pub(crate) entry: Option<TableSlot>,
    pub(crate) memory: MemoryId,
    /// The device address of its struct.
    pub(crate) struct_address: u64,
    /// The kernels of this rank that ran when its table entry was withdrawn: what they may see is not reused before
    /// they end.
    pub(crate) running: BTreeSet<u64>,
    /// The buffer under it.
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// See the module's text.
pub(crate) struct CommActor {
    core: Arc<Core>,
    queue: VecDeque<Queued>,
    current: Option<Current>,
    /// Closed while kernels ran.
    deferred: Vec<Closing>,
    mode: Mode,
    operations: u64,
    /// Who awaits the close.
    closers: Vec<CloseReply>,
    /// The communicator had not failed when it began to close.
    clean: bool,
    /// The close's deadline has passed.
    overdue: bool,
    /// The next rank's actor in this process.
    linked: Option<(ActorId, Rank)>,
}

#[derive(Debug)]
enum Mode {
    Open,
    /// Finalize was called.
    Draining,
    Failed(Arc<Failure>),
    /// Goodbye is said; kernels must end.
    Closing,
}

struct Queued {
    id: u64,
    batch: Batch,
    timer: TimerId,
}

struct Current {
    id: u64,
    job: Pin<Box<dyn Future<Output = Ended> + Send>>,
    answers: Vec<Answer>,
    done: Option<Reply<Result<()>>>,
    timer: TimerId,
    deadline: Time,
}

/// The close as an operation, for its deadline.
const CLOSE: u64 = 0;

/// A wait for other teams lasts at most this part of a deadline beyond it; see [`CommActor::grace`].
const GRACE_DIVISOR: u32 = 4;

/// Who awaits the close.
type CloseReply = Reply<Result<Vec<DeviceError>>>;

impl CommActor {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            queue: VecDeque::new(),
            current: None,
            deferred: Vec::new(),
            mode: Mode::Open,
            operations: 0,
            closers: Vec::new(),
            clean: true,
            overdue: false,
            linked: None,
        }
    }
}

impl Actor for CommActor {
    type Msg = CommMsg;

    fn handle(&mut self, msg: CommMsg, cx: &mut Cx<'_, CommMsg>) -> Flow {
        match msg {
            CommMsg::Abort(reason) => {
                let by = self.core.agreed.me().clone();
                drop(self.fail(FailureCause::Aborted { by, reason }, Told::Nobody, cx));
            }
            CommMsg::Batch(batch) => self.take(batch, cx),
            CommMsg::Close(closing) => self.close_window(closing),
            CommMsg::Deadline(id) => self.deadline(id, cx),
            CommMsg::Dropped => self.dropped(cx),
            CommMsg::Failed(failure) => drop(self.fail_with(failure, Told::Nobody, cx)),
            CommMsg::Finalize(reply) => self.finalize(reply, cx),
            CommMsg::KernelEnded => self.retire_deferred(),
            CommMsg::Link(next, rank) => {
                self.linked = Some((next.id(), rank));
                cx.link(&next);
            }
            CommMsg::Notice(notice) => self.notice(notice, cx),
            CommMsg::Overflow(detail) => drop(self.fail(FailureCause::Parted { detail }, Told::Nobody, cx)),
            CommMsg::Tick => {}
        }
        self.advance(cx);
        self.close_if_done()
    }

    fn down(&mut self, who: ActorId, exit: &Exit, cx: &mut Cx<'_, CommMsg>) -> Flow {
        if let (Exit::Panicked(message), Some((id, rank))) = (exit, self.linked)
            && id == who
        {
            let by = self.core.agreed.world[rank.index()].clone();
            self.fail(FailureCause::Panicked { by, message: message.clone() }, Told::Nobody, cx);
        }
        self.close_if_done()
    }

    fn panicked(&mut self, message: &str, cx: &mut Cx<'_, CommMsg>) -> Flow {
        let by = self.core.agreed.me().clone();
        let closing = matches!(self.mode, Mode::Closing);
        let error = self.fail(FailureCause::Panicked { by, message: message.to_owned() }, Told::Nobody, cx);
        if closing {
            // Half of it is given back; the rest is not touched again.
            self.core.flat.leak();
            return self.end(&Err(error));
        }
        self.close_if_done()
    }

    fn waits_for(&self) -> Option<String> {
        let waits = self.core.rounds.waits()?;
        let name = &self.core.agreed.name;
        Some(format!("`{name}`, batch {}: {} of {:?}", waits.seq, round_name(waits.round), waits.missing))
    }
}

/// Whether the peers know of a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// They must be told.
    Nobody,
    /// They see it themselves.
    All,
}

/// What an abort says to the peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Farewell {
    /// The sender dropped its communicator.
    Dropped,
    /// The sender failed, for this reason.
    Failed(String),
    /// The sender has lost these ranks, in this way: whoever hears it first, the ranks that died are named and not
    /// the one that saw it.
    Lost(Vec<Rank>, String),
}

/// Batches.
impl CommActor {
    fn take(&mut self, batch: Batch, cx: &mut Cx<'_, CommMsg>) {
        let error = match &self.mode {
            Mode::Open => {
                self.operations += 1;
                let id = self.operations;
                let timer = cx.timer(batch.deadline, CommMsg::Deadline(id));
                self.queue.push_back(Queued { id, batch, timer });
                return;
            }
            Mode::Failed(failure) => Error::Failed(Arc::clone(failure)),
            Mode::Draining | Mode::Closing => self.core.closed(),
        };
        answer_all(batch.answers, batch.done, &error);
    }

    /// Polls the job, and starts the next one when it has ended.
    fn advance(&mut self, cx: &mut Cx<'_, CommMsg>) {
        while matches!(self.mode, Mode::Open | Mode::Draining) {
            if self.current.is_none() && !self.start(cx) {
                break;
            }
            let Some(current) = &mut self.current else { break };
            match current.job.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => self.finish(ended, cx),
                Poll::Pending => {
                    if self.core.board.take_tick() {
                        let at = cx.now() + TICK;
                        cx.timer(at, CommMsg::Tick);
                    }
                    return;
                }
            }
        }
        if matches!(self.mode, Mode::Draining) && self.current.is_none() && self.queue.is_empty() {
            if let Some(endpoint) = self.core.endpoint() {
                endpoint.goodbye(&encode(&self.core.rounds.seq()));
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
        tracing::debug!(
            event = "batch.begin",
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            seq,
            tasks = batch.work.requests.len()
        );
        self.core.board.begin(format!("batch {seq}{group}"), cx.now());
        let job = Box::pin(flush(Arc::clone(&self.core), batch.work));
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
        self.core.board.digest(state.replicated.digest(self.core.rounds.seq()));
        self.core.board.committed(&state);
        drop(state);
        self.retire_deferred();
        self.core.board.end();
        let Some(Current { answers, done, timer, .. }) = self.current.take() else { return };
        cx.cancel(timer);
        let outcome = match ended {
            Ended::Committed(outputs) => {
                tracing::debug!(event = "batch.committed", comm = %self.core.agreed.name, rank = self.core.agreed.rank.get());
                deliver(answers, outputs);
                if let Some(done) = done {
                    let _ = done.send(Ok(()));
                }
                return;
            }
            Ended::RolledBack(rolled_back) => Error::RolledBack(rolled_back),
            Ended::Finalized(rank) => self.finalized(rank),
            Ended::Fatal(_) => return,
        };
        tracing::warn!(event = "batch.rolled_back", comm = %self.core.agreed.name, rank = self.core.agreed.rank.get(), error = %outcome);
        answer_all(answers, done, &outcome);
    }

    fn finalized(&self, rank: Rank) -> Error {
        let peer = self.core.agreed.world[rank.index()].clone();
        Error::Finalized { comm: self.core.agreed.name.clone(), peer }
    }
}

/// Failures.
impl CommActor {
    /// The communicator has failed for good. Everything queued, now and later, fails by name; nothing is unmapped.
    fn fail(&mut self, cause: FailureCause, told: Told, cx: &mut Cx<'_, CommMsg>) -> Error {
        let (operation, phase) = self.core.board.operation();
        let failure = self.core.failure(&operation, phase, cause);
        self.fail_with(failure, told, cx)
    }

    fn fail_with(&mut self, failure: Arc<Failure>, told: Told, cx: &mut Cx<'_, CommMsg>) -> Error {
        if let Mode::Failed(failure) = &self.mode {
            return Error::Failed(Arc::clone(failure));
        }
        let error = Error::Failed(Arc::clone(&failure));
        if matches!(self.mode, Mode::Closing) {
            // The close waits for kernels only, and they for peers that will not come.
            self.core.watch.fail(error.clone());
            return error;
        }
        tracing::error!(event = "comm.failed", comm = %self.core.agreed.name, rank = self.core.agreed.rank.get(), %error);
        if told == Told::Nobody
            && let Some(endpoint) = self.core.endpoint()
        {
            let farewell = match &failure.cause {
                FailureCause::Dropped { .. } => Farewell::Dropped,
                // The frame says who.
                FailureCause::Aborted { reason, .. } => Farewell::Failed(reason.clone()),
                FailureCause::PeerLost { peers, detail } => {
                    Farewell::Lost(peers.iter().map(|peer| peer.rank).collect(), detail.clone())
                }
                cause => Farewell::Failed(cause.to_string()),
            };
            endpoint.abort(&encode(&farewell));
        }
        self.mode = Mode::Failed(failure);
        self.core.board.failed(error.clone());
        self.core.watch.fail(error.clone());
        if let Some(Current { job, answers, done, timer, .. }) = self.current.take() {
            cx.cancel(timer);
            // The batch's own things go to the attic.
            drop(job);
            answer_all(answers, done, &error);
        }
        for Queued { batch, timer, .. } in self.queue.drain(..) {
            cx.cancel(timer);
            answer_all(batch.answers, batch.done, &error);
        }
        if !self.closers.is_empty() {
            self.begin_close(cx);
        }
        error
    }

    fn notice(&mut self, notice: Notice, cx: &mut Cx<'_, CommMsg>) {
        match notice {
            Notice::Message(incoming) => self.message(incoming, cx),
            Notice::Goodbye { from, body } => match decode(&body) {
                Ok(seq) => self.core.rounds.goodbye(from, seq),
                Err(detail) => {
                    let peer = self.core.agreed.world[from.index()].clone();
                    self.fail(FailureCause::Protocol { peer, detail }, Told::Nobody, cx);
                }
            },
            Notice::Abort { from, body } => {
                let by = self.core.agreed.world[from.index()].clone();
                let cause = match decode(&body) {
                    Ok(Farewell::Failed(reason)) => FailureCause::Aborted { by, reason },
                    Ok(Farewell::Dropped) => FailureCause::Dropped { by },
                    Ok(Farewell::Lost(mut ranks, detail)) => {
                        // What a peer sends is checked before it is used as an index.
                        ranks.retain(|rank| rank.index() < self.core.agreed.world.len());
                        FailureCause::PeerLost {
                            peers: self.peers(&ranks),
                            detail: format!("{detail}, as {by} saw it"),
                        }
                    }
                    Err(detail) => FailureCause::Protocol { peer: by, detail },
                };
                self.fail(cause, Told::All, cx);
            }
            Notice::Lost { ranks, detail } => {
                self.fail(FailureCause::PeerLost { peers: self.peers(&ranks), detail }, Told::Nobody, cx);
            }
            Notice::Broken { ranks, detail } => {
                let mut peers = self.peers(&ranks);
                let cause = if peers.is_empty() {
                    FailureCause::PeerLost { peers, detail }
                } else {
                    FailureCause::Protocol { peer: peers.remove(0), detail }
                };
                self.fail(cause, Told::Nobody, cx);
            }
        }
    }

    fn message(&mut self, incoming: Incoming, cx: &mut Cx<'_, CommMsg>) {
        let from = incoming.from;
        if matches!(self.mode, Mode::Failed(_) | Mode::Closing) {
            return;
        }
        if let Err(detail) = self.core.rounds.deliver(incoming) {
            let peer = self.core.agreed.world[from.index()].clone();
            self.fail(FailureCause::Protocol { peer, detail }, Told::Nobody, cx);
        }
    }

    fn deadline(&mut self, id: u64, cx: &mut Cx<'_, CommMsg>) {
        if matches!(self.mode, Mode::Closing) {
            self.overdue = id == CLOSE;
            return;
        }
        let runs = self.current.as_ref().is_some_and(|current| current.id == id);
        if !runs && !self.queue.iter().any(|queued| queued.id == id) {
            return;
        }
        if let Some(until) = self.grace()
            && cx.now() < until
        {
            cx.timer(until, CommMsg::Deadline(id));
            return;
        }
        let missing = self.core.rounds.waits().map(|waits| waits.missing).unwrap_or_default();
        let mut blocked = Vec::new();
        let missing: Vec<Missing> =
            missing.into_iter().map(|rank| self.missing(rank, &mut blocked)).collect();
        let after = self.core.deadline;
        self.fail(FailureCause::Deadline { after, missing, blocked }, Told::Nobody, cx);
    }

    /// Who waits for other teams' verdicts gives those who wait for the missing rank itself the time to fail first, by
    /// its name: a leader in merge step k a little longer than one in the step before, and members longer than leaders.
    fn grace(&self) -> Option<Time> {
        let round = self.core.rounds.waits()?.round;
        let steps = self.core.agreed.teams().next_power_of_two().trailing_zeros();
        let level = match round {
            round::VERDICT => steps + 1,
            step if step >= round::MERGE => u32::from(step - round::MERGE) + 1,
            _ => return None,
        };
        let grace = self.core.deadline / GRACE_DIVISOR * level / (steps + 1);
        Some(self.current.as_ref()?.deadline + grace)
    }

    /// A rank that did not answer, and where it waits for this rank meanwhile.
    fn missing(&self, rank: Rank, blocked: &mut Vec<String>) -> Missing {
        let peer = self.core.agreed.world[rank.index()].clone();
        let Some(endpoint) = self.core.endpoint() else {
            return Missing { peer, last_seen: "never heard from".to_owned() };
        };
        let last_seen = endpoint.last_seen(rank).map_or("never heard from".to_owned(), |seen| {
            format!(
                "last heard from in communicator `{}`, batch {}, {}, {:.1?} ago",
                seen.comm_name,
                seen.tag.seq,
                round_name(seen.tag.round),
                seen.ago
            )
        });
        for seen in endpoint.sightings(rank) {
            // It offers there and has no offer of this rank: it waits for it.
            if seen.comm != self.core.id
                && seen.kind == SightingKind::Message
                && seen.tag.round == round::OFFER
                && !seen.answered
            {
                blocked.push(format!(
                    "{peer} waits in communicator `{}`, batch {}, for this rank's offer",
                    seen.comm_name, seen.tag.seq
                ));
            }
        }
        Missing { peer, last_seen }
    }

    fn peers(&self, ranks: &[Rank]) -> Vec<Peer> {
        ranks.iter().map(|rank| self.core.agreed.world[rank.index()].clone()).collect()
    }
}

/// Closing.
impl CommActor {
    fn close_window(&mut self, mut closing: Closing) {
        if matches!(self.mode, Mode::Failed(_) | Mode::Closing) {
            self.deferred.push(closing);
            return;
        }
        if let (Some(entry), Some(objects)) = (closing.entry, self.core.state().objects.as_mut())
            && let Err(error) = objects.withdraw(entry)
        {
            self.undo_failed(&error);
        }
        closing.running = self.core.kernels.running();
        if closing.running.is_empty() {
            self.retire(closing);
        } else {
            self.deferred.push(closing);
        }
    }

    fn undo_failed(&self, error: &DeviceError) {
        tracing::error!(event = "window.undo_failed", comm = %self.core.agreed.name, %error);
        self.core.board.undo_failures(std::slice::from_ref(error));
    }

    /// Nothing of this rank can see the window any more.
    fn retire(&mut self, closing: Closing) {
        self.core.sizes.write().remove(&closing.struct_address);
        // Copies that began before the close are short; nothing is unmapped under them.
        drop(self.core.copies.write());
        let mut state = self.core.state();
        if let Some(objects) = state.objects.as_mut()
            && let Err(error) = objects.retire(closing.slot, closing.entry)
        {
            // Kernels may find it still, so its memory stays; tried again when a kernel or a batch has ended.
            self.undo_failed(&error);
            drop(state);
            return self.deferred.push(closing);
        }
        state.unuse(closing.memory, &self.core);
        drop(state);
        // Its buffer may go back to its slab now; the driver's calls for that are none of the state's.
        drop(closing.keep);
        // Last: who sees in the status that it is closed finds its buffer free.
        self.core.board.committed(&self.core.state());
    }

    /// Retires what was closed while kernels ran that have ended meanwhile.
    fn retire_deferred(&mut self) {
        if matches!(self.mode, Mode::Failed(_) | Mode::Closing) {
            return;
        }
        let (ended, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.deferred).into_iter().partition(|c| self.core.kernels.ended(&c.running));
        self.deferred = waiting;
        ended.into_iter().for_each(|closing| self.retire(closing));
    }

    fn dropped(&mut self, cx: &mut Cx<'_, CommMsg>) {
        if matches!(self.mode, Mode::Closing) || !self.closers.is_empty() {
            return;
        }
        let by = self.core.agreed.me().clone();
        self.fail(FailureCause::Dropped { by }, Told::Nobody, cx);
        self.begin_close(cx);
    }

    fn finalize(&mut self, reply: CloseReply, cx: &mut Cx<'_, CommMsg>) {
        self.closers.push(reply);
        match self.mode {
            Mode::Open => self.mode = Mode::Draining,
            Mode::Failed(_) => self.begin_close(cx),
            Mode::Draining | Mode::Closing => {}
        }
    }

    fn begin_close(&mut self, cx: &mut Cx<'_, CommMsg>) {
        if matches!(self.mode, Mode::Closing) {
            return;
        }
        self.clean = !matches!(self.mode, Mode::Failed(_));
        self.mode = Mode::Closing;
        self.core.closed.store(true, Ordering::Release);
        drop(self.core.collectives.lock().take());
        let at = cx.now() + self.core.deadline;
        cx.timer(at, CommMsg::Deadline(CLOSE));
    }

    /// Gives everything back once this rank's kernels have ended, or says that they have not.
    fn close_if_done(&mut self) -> Flow {
        if !matches!(self.mode, Mode::Closing) {
            return Flow::Continue;
        }
        let running = self.core.kernels.running();
        if !running.is_empty() && !self.overdue {
            return Flow::Continue;
        }
        let result = if running.is_empty() {
            Ok(close::close(&self.core, self.clean))
        } else {
            self.core.flat.leak();
            let what = format!(
                "{} host kernels of {} to end; its range stays mapped",
                running.len(),
                self.core.agreed.rank
            );
            Err(Error::Limit { what, waited: self.core.deadline })
        };
        self.end(&result)
    }

    /// The last thing that this actor does.
    fn end(&mut self, result: &Result<Vec<DeviceError>>) -> Flow {
        tracing::debug!(event = "comm.closed", comm = %self.core.agreed.name, rank = self.core.agreed.rank.get());
        self.deferred.clear();
        self.core.disconnect();
        self.core.board.closed();
        for closer in self.closers.drain(..) {
            let _ = closer.send(result.clone());
        }
        Flow::Stop
    }
}

impl fmt::Debug for CommActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommActor")
            .field("comm", &self.core.agreed.name)
            .field("rank", &self.core.agreed.rank)
            .field("mode", &self.mode)
            .field("queued", &self.queue.len())
            .field("deferred", &self.deferred.len())
            .finish_non_exhaustive()
    }
}

fn answer_all(answers: Vec<Answer>, done: Option<Reply<Result<()>>>, error: &Error) {
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
