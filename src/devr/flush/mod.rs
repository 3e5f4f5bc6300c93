//! The flush: how a batch becomes real on all ranks of a communicator or on none.
//!
//! ```text
//! prepare -> OFFER -> decide [-> HANDLES] -> map [-> MULTICAST -> bind] -> VOTE [-> MERGE.. -> VERDICT] -> commit
//! ```
//! Words in capitals are rounds; those in brackets happen only where the batch needs them:
//!
//! - `HANDLES`, when a new memory uses allocations that some peers had already and some not.
//! - `MULTICAST`, when a new multicast object is made: nothing is bound before every device was added.
//! - `MERGE` and `VERDICT`, when the world has several LSA teams: their leaders (LSA rank 0) merge the teams'
//!   verdicts in `ceil(log2(teams))` steps and tell their members.
//!
//! The number of rounds does not depend on the number of tasks (P-8). Until commit everything that the batch made
//! belongs to its [`made::Made`]: a batch that ends by verdict undoes itself through it, a job dropped at an await
//! point passes it to the communicator, which keeps it until its close (A-2). A batch that cannot be decided
//! (abandoned, mismatch, refused, exhausted) ends there on every rank alike, without a vote, where the world is one
//! team; otherwise the teams merge that verdict too.

pub(crate) mod bind;
pub(crate) mod commit;
pub(crate) mod decide;
pub(crate) mod made;
pub(crate) mod map;
pub(crate) mod merge;
pub(crate) mod message;
pub(crate) mod prepare;
pub(crate) mod tasks;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use self::commit::Output;
use self::decide::{Decision, decide};
use self::made::Made;
use self::message::{Offer, Vote, decode, encode, round};
use self::prepare::{Prepared, prepare};
use super::core::Core;
use super::request::Work;
use super::zoo::Bug;
use crate::bootstrap::{Attachment, Incoming, Parcel, Tag};
use crate::driver::DeviceError;
use crate::driver::passing::Passing;
use crate::error::{Cause, FailureCause, Fault, Phase, Reason, RolledBack, each_once};
use crate::ids::Rank;

/// How a batch ended on this rank.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is real on all ranks.
    Committed {
        /// What each task has become.
        outputs: Vec<Output>,
        /// What this rank exported for it, which no peer needs any more.
        exports: Vec<Attachment>,
    },
    /// It is undone on all ranks; the communicator is usable.
    RolledBack(Arc<RolledBack>),
    /// A rank has finalized: no batch can complete any more.
    Finalized(Rank),
    /// The communicator has failed.
    Fatal(FailureCause),
}

/// Why a batch stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// All ranks roll back.
    Cause(Cause),
    /// A rank has finalized.
    Finalized(Rank),
    /// The communicator has failed.
    Fatal(FailureCause),
}

impl From<FailureCause> for Stop {
    fn from(cause: FailureCause) -> Self {
        Self::Fatal(cause)
    }
}

/// Runs one batch. Polled by its communicator's actor whenever a message has come.
pub(crate) async fn flush(core: Arc<Core>, work: Work) -> Ended {
    let seq = core.rounds.seq();
    let group = work.group.clone();
    let mut flush = Flush { core: Arc::clone(&core), seq, made: Made::new(&core), exports: Vec::new() };
    let (cause, undo) = match flush.run(work).await {
        Ok(outputs) => return Ended::Committed { outputs, exports: flush.exports },
        Err(Stop::Fatal(cause)) => return Ended::Fatal(cause),
        Err(Stop::Finalized(rank)) => {
            flush.made.undo();
            return Ended::Finalized(rank);
        }
        Err(Stop::Cause(cause)) => (cause, flush.made.undo()),
    };
    let comm = core.agreed.name.clone();
    Ended::RolledBack(Arc::new(RolledBack { comm, seq, group, cause, undo }))
}

/// A batch that runs.
#[derive(Debug)]
pub(crate) struct Flush {
    core: Arc<Core>,
    seq: u64,
    made: Made,
    /// What this rank has exported for the batch and sent, to be closed when the batch has ended.
    exports: Vec<Attachment>,
}

impl Flush {
    async fn run(&mut self, work: Work) -> Result<Vec<Output>, Stop> {
        self.enter(Phase::Prepare);
        let prepared = prepare(&self.core, &work, &mut self.made);

        if self.core.has_bug(Bug::RefusesAlone) && !prepared.offer.refused.is_empty() {
            return Err(Stop::Cause(Cause::Refused { faults: prepared.offer.refused.clone() }));
        }
        self.enter(Phase::Offer);
        self.send(round::OFFER, &*prepared.offer, &prepared.parcels(&self.core));
        let incoming = self.gather(round::OFFER, self.team_peers()).await?;
        let (offers, arrived) = self.read_offers(&prepared, incoming)?;

        self.enter(Phase::Decide);
        let gone = self.core.state().replicated.open(&offers).map_err(parted)?;
        bind::unbind_gone(&self.core, &gone);
        let decided = decide(&self.core.state().replicated, &self.core.agreed, self.seq, &offers);
        drop(offers);
        let world = merge::Own::new(&prepared.offer);
        let (decision, outputs) = match decided {
            Err(cause) => {
                self.conclude(world, Some(cause)).await?;
                return Err(parted("the world accepted a batch that this team refused".to_owned()).into());
            }
            Ok(decision) => self.realise(&prepared, decision, arrived, world).await?,
        };
        self.enter(Phase::Commit);
        let outputs = commit::commit(&self.core, &mut self.made, &prepared, &decision, work, outputs)
            .map_err(|reason| FailureCause::Publish { by: self.core.agreed.me().clone(), reason })?;
        self.exports.extend(prepared.into_exports());
        Ok(outputs)
    }

    /// From a decision to a verdict of all ranks.
    async fn realise(
        &mut self,
        prepared: &Prepared,
        decision: Decision,
        mut arrived: map::Arrived,
        world: merge::Own,
    ) -> Result<(Decision, commit::Drafts), Stop> {
        if self.needs_handles(&decision) {
            self.enter(Phase::Handles);
            let mut faults = Vec::new();
            let exports = map::missing_handles(&self.core, &self.made, prepared, &decision, &mut faults);
            let parcels = parcels_with(&self.core, if faults.is_empty() { &exports } else { &[] });
            self.exports.extend(exports);
            let (faults, messages) = self.exchange(round::HANDLES, &decision, faults, &parcels).await?;
            if !faults.is_empty() {
                return self.refuse(world, faults).await;
            }
            messages.into_iter().for_each(|message| arrived.add_missing(&self.core, &decision, message));
        }

        self.enter(Phase::Map);
        let mut faults = Vec::new();
        let mut drafts = commit::Drafts::default();
        match map::map(&self.core, &mut self.made, prepared, &decision, &arrived) {
            Ok((made, event)) => {
                drafts = made;
                faults.extend(self.passed(event).await.err().map(|e| self.fault(Phase::Map, e.into())));
            }
            Err((task, reason)) => {
                faults.push(Fault { task, ..self.fault(Phase::Map, reason) });
                // What is queued may still write to what the roll-back unmaps.
                let fence = self.core.state().objects.as_ref().and_then(|objects| objects.fence().ok());
                if let Some(event) = fence {
                    faults.extend(self.passed(event).await.err().map(|e| self.fault(Phase::Map, e.into())));
                }
            }
        }
        if !decision.new_teams.is_empty() {
            self.enter(Phase::Multicast);
            if faults.is_empty() {
                let added = bind::add_devices(&self.core, &mut self.made, &decision, &arrived);
                faults.extend(added.err().map(|reason| self.fault(Phase::Multicast, reason)));
            }
            if !self.core.has_bug(Bug::BindsEarly) {
                (faults, _) =
                    self.exchange(round::MULTICAST, &decision, faults, &parcels_without(&self.core)).await?;
                if !faults.is_empty() {
                    return self.refuse(world, faults).await;
                }
            }
        }
        drop(arrived);
        if faults.is_empty() {
            self.enter(Phase::Bind);
            let bound = bind::bind(&self.core, &mut self.made, &decision);
            faults.extend(bound.err().map(|reason| self.fault(Phase::Bind, reason)));
        }

        self.enter(Phase::Vote);
        let (faults, _) = self.exchange(round::VOTE, &decision, faults, &parcels_without(&self.core)).await?;
        let cause = (!faults.is_empty()).then_some(Cause::Refused { faults });
        self.conclude(world, cause).await?;
        Ok((decision, drafts))
    }

    /// Whether a round for handles is needed: the same on every rank.
    fn needs_handles(&self, decision: &Decision) -> bool {
        if self.core.has_bug(Bug::ExtraRoundAlone) {
            return !decision.missing[self.core.agreed.lsa_rank().index()].is_empty();
        }
        decision.needs_handles()
    }

    /// Every rank of the team tells every other its faults. Returns the faults of all, in order of rank and each
    /// once, and the messages.
    async fn exchange(
        &self,
        round: u8,
        decision: &Decision,
        faults: Vec<Fault>,
        parcels: &[Parcel],
    ) -> Result<(Vec<Fault>, Vec<Incoming>), Stop> {
        let digest = decision.digest;
        let hidden = self.core.has_bug(Bug::HidesFault) && round == round::VOTE;
        let told = if hidden { Vec::new() } else { faults.clone() };
        self.send(round, &Vote { digest, faults: told }, parcels);
        if self.core.has_bug(Bug::CommitsEarly) && round == round::VOTE {
            return Ok((faults, Vec::new()));
        }
        let incoming = self.gather(round, self.team_peers()).await?;
        let mut all: Vec<Vec<Fault>> = Vec::with_capacity(incoming.len() + 1);
        for message in &incoming {
            let vote: Vote = self.read(message)?;
            self.check_digest(message, vote.digest, digest)?;
            all.push(vote.faults);
        }
        all.insert(self.core.agreed.lsa_rank().index(), faults);
        Ok((each_once(all.into_iter().flatten()), incoming))
    }

    /// All ranks of the team know these faults: no vote is needed among them.
    async fn refuse<T>(&self, world: merge::Own, faults: Vec<Fault>) -> Result<T, Stop> {
        self.conclude(world, Some(Cause::Refused { faults })).await?;
        Err(parted("the world accepted a batch that this team refused".to_owned()).into())
    }

    /// The verdict of the world, given that of this team.
    async fn conclude(&self, own: merge::Own, cause: Option<Cause>) -> Result<(), Stop> {
        let cause =
            if self.core.agreed.teams() == 1 { cause } else { merge::merge(self, own, cause).await? };
        cause.map_or(Ok(()), |cause| Err(Stop::Cause(cause)))
    }

    /// Lets the actor go through its control messages, if it has any, before the job goes on.
    async fn give_way(&self) {
        let mut told = false;
        poll_fn(|_| {
            if std::mem::replace(&mut told, true) || !self.core.tell_arrived() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits until the stream has passed, without keeping a worker.
    async fn passed(&self, point: Passing) -> Result<(), DeviceError> {
        poll_fn(|_| match point.has_passed() {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => {
                self.core.board.tick.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    fn read_offers(
        &self,
        prepared: &Prepared,
        incoming: Vec<Incoming>,
    ) -> Result<(Vec<Arc<Offer>>, map::Arrived), Stop> {
        let me = self.core.agreed.lsa_rank().index();
        let mut offers = Vec::with_capacity(incoming.len() + 1);
        let mut arrived = map::Arrived::default();
        for message in incoming {
            if offers.len() == me {
                offers.push(Arc::clone(&prepared.offer));
            }
            let offer: Offer = self.read(&message)?;
            offer.check().map_err(|detail| self.broken(message.from, detail))?;
            arrived.add_offer(&self.core, &offer, message);
            offers.push(Arc::new(offer));
        }
        if offers.len() == me {
            offers.push(Arc::clone(&prepared.offer));
        }
        Ok((offers, arrived))
    }

    fn send<T: serde::Serialize>(&self, round: u8, message: &T, parcels: &[Parcel]) {
        if let Some(endpoint) = self.core.endpoint() {
            endpoint.send(Tag::new(self.seq, round), &encode(message), parcels);
            self.core.board.counters(&endpoint);
        }
        tracing::debug!(
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            seq = self.seq,
            round = message::round_name(round),
            "round.sent"
        );
    }

    async fn gather(&self, round: u8, from: Vec<Rank>) -> Result<Vec<Incoming>, Stop> {
        if !from.is_empty() && self.core.rounds.is_complete(round, &from) {
            // An abort or a loss that this rank was told of meanwhile counts before what came without the mailbox.
            self.give_way().await;
        }
        let incoming = self.core.rounds.gather(round, from).await.map_err(Stop::Finalized)?;
        tracing::debug!(
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            seq = self.seq,
            round = message::round_name(round),
            "round.complete"
        );
        Ok(incoming)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, message: &Incoming) -> Result<T, Stop> {
        decode(&message.body).map_err(|detail| self.broken(message.from, detail))
    }

    fn broken(&self, from: Rank, detail: String) -> Stop {
        FailureCause::Protocol { peer: self.core.agreed.world[from.index()].clone(), detail }.into()
    }

    fn check_digest(&self, message: &Incoming, theirs: u64, mine: u64) -> Result<(), Stop> {
        if theirs == mine || self.core.has_bug(Bug::DigestUnchecked) {
            return Ok(());
        }
        let detail = format!(
            "batch {}: {} decided {theirs:016x}, {} decided {mine:016x}",
            self.seq, message.from, self.core.agreed.rank
        );
        Err(parted(detail).into())
    }

    fn team_peers(&self) -> Vec<Rank> {
        let me = self.core.agreed.rank;
        self.core.agreed.lsa_ranks().into_iter().filter(|&rank| rank != me).collect()
    }

    fn fault(&self, phase: Phase, reason: Reason) -> Fault {
        Fault { peer: self.core.agreed.me().clone(), phase, task: None, reason }
    }

    fn enter(&self, phase: Phase) {
        self.core.board.phase(phase);
        tracing::debug!(
            comm = %self.core.agreed.name,
            rank = self.core.agreed.rank.get(),
            seq = self.seq,
            phase = %phase,
            "batch.phase"
        );
    }
}

/// One parcel for each process of the team, without this rank, and with these handles where the process is another.
fn parcels_with(core: &Core, handles: &[Attachment]) -> Vec<Parcel> {
    let here = core.agreed.me().process;
    let mut parcels = parcels_without(core);
    for parcel in parcels.iter_mut().filter(|parcel| core.agreed.process(parcel.to[0]) != here) {
        parcel.handles = handles.to_vec();
    }
    parcels
}

/// One parcel for each process of the team, without handles and without this rank.
pub(crate) fn parcels_without(core: &Core) -> Vec<Parcel> {
    let me = core.agreed.rank;
    core.agreed
        .team_processes()
        .into_iter()
        .map(|(_, ranks)| Parcel::plain(ranks.into_iter().filter(|&rank| rank != me).collect()))
        .filter(|parcel| !parcel.to.is_empty())
        .collect()
}

pub(crate) fn parted(detail: String) -> FailureCause {
    FailureCause::Parted { detail }
}
