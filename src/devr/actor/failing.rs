//! How a communicator fails: by peers, by deadlines, by its own.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::batches::answer_all;
use super::closing::CLOSE;
use super::{CommActor, Current, Mode, Queued};
use crate::actors::{Cx, Time};
use crate::bootstrap::{Endpoint, Notice, SightingKind};
use crate::devr::flush::message::{decode, encode, round, round_name};
use crate::devr::mail::CommMsg;
use crate::devr::zoo::Bug;
use crate::error::{Error, Failure, FailureCause, Missing, Peer};
use crate::ids::Rank;

impl CommActor {
    /// The communicator has failed for good. Everything queued, now and later, fails by name; nothing is unmapped.
    pub(super) fn fail(&mut self, cause: FailureCause, told: Told, cx: &mut Cx<'_, CommMsg>) -> Error {
        let (operation, phase) = self.core.board.operation();
        let failure = self.core.failure(&operation, phase, cause);
        self.fail_with(failure, told, cx)
    }

    pub(super) fn fail_with(&mut self, failure: Arc<Failure>, told: Told, cx: &mut Cx<'_, CommMsg>) -> Error {
        if let Mode::Failed(failure) = &self.mode {
            return Error::Failed(Arc::clone(failure));
        }
        let error = Error::Failed(Arc::clone(&failure));
        if matches!(self.mode, Mode::Closing) {
            // The close waits for kernels only, and they for peers that will not come.
            self.core.watch.fail(error.clone());
            return error;
        }
        tracing::error!(
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            %error,
            "comm.failed"
        );
        if told == Told::Nobody
            && !self.core.has_bug(Bug::AbortUntold)
            && let Some(endpoint) = self.core.endpoint()
        {
            say_farewell(&endpoint, &failure.cause);
        }
        self.mode = Mode::Failed(failure);
        self.core.rounds.close();
        self.core.board.failed(error.clone());
        self.core.watch.fail(error.clone());
        if let Some(Current { job, answers, done, timer, .. }) = self.current.take() {
            cx.cancel(timer);
            // The batch's own things go to the attic.
            drop(job);
            answer_all(answers, done, &error);
        }
        let asleep = if self.core.has_bug(Bug::QueueAsleep) { self.queue.len() } else { 0 };
        for Queued { batch, timer, .. } in self.queue.drain(asleep..) {
            cx.cancel(timer);
            answer_all(batch.answers, batch.done, &error);
        }
        if !self.closers.is_empty() {
            self.begin_close(cx);
        }
        error
    }

    pub(super) fn notice(&mut self, notice: Notice, cx: &mut Cx<'_, CommMsg>) {
        match notice {
            Notice::Message(incoming) => {
                debug_assert!(false, "{incoming:?} goes to the rounds, not to the actor");
            }
            Notice::Goodbye { .. } if self.core.has_bug(Bug::GoodbyeUnheard) => {}
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
            Notice::Lost { .. } if self.core.has_bug(Bug::LossUnheard) => {}
            Notice::Lost { ranks, detail } => {
                self.fail(FailureCause::PeerLost { peers: self.peers(&ranks), detail }, Told::Nobody, cx);
            }
            Notice::Broken { .. } if self.core.has_bug(Bug::DamageUnheard) => {}
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

    pub(super) fn deadline(&mut self, id: u64, cx: &mut Cx<'_, CommMsg>) {
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

/// Tells all ranks of this one's failure.
pub(super) fn say_farewell(endpoint: &Endpoint, cause: &FailureCause) {
    let farewell = match cause {
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

/// Whether the peers know of a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
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

/// A wait for other teams lasts at most this part of a deadline beyond it; see [`CommActor::grace`].
const GRACE_DIVISOR: u32 = 4;
