//! Who hears what: the ranks of this process, what came too early for them, and what peers were last seen doing.
//!
//! One lock guards it all and is held while an [`Inbox`] takes a notice. That is what keeps the order between a join
//! and a message that arrives meanwhile, and between a death and a join (B-2, B-3).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::actors::Due;
use crate::bootstrap::layout::Layout;
use crate::bootstrap::{Inbox, Notice, Sighting, SightingKind, Tag};
use crate::ids::{CommId, ProcessId, Rank};

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// The peer broke the protocol.
    Broken(String),
    /// The peer died or closed.
    Lost(String),
}

impl Death {
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Broken(detail) | Self::Lost(detail) => detail,
        }
    }

    fn notice(&self, ranks: Vec<Rank>) -> Notice {
        match self {
            Self::Broken(detail) => Notice::Broken { ranks, detail: detail.clone() },
            Self::Lost(detail) => Notice::Lost { ranks, detail: detail.clone() },
        }
    }
}

/// Where an arriving notice comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) comm: CommId,
    pub(crate) from: Rank,
    pub(crate) to: &'a [Rank],
    pub(crate) kind: SightingKind,
    pub(crate) tag: Tag,
    /// What it costs to keep it, should it be early.
    pub(crate) bytes: usize,
}

/// A connection's early frames are over their bounds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

/// What sightings are dated by.
pub(crate) struct Clock(pub(crate) Box<dyn Fn() -> Duration + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({:?})", (self.0)())
    }
}

#[derive(Debug)]
pub(crate) struct Router {
    me: ProcessId,
    layout: Arc<Layout>,
    clock: Clock,
    /// What may still be kept of each other process's early frames.
    quotas: BTreeMap<ProcessId, Arc<Quota>>,
    state: Mutex<State>,
}

impl Router {
    pub(crate) fn new(me: ProcessId, layout: &Arc<Layout>, clock: Clock) -> Self {
        let others = layout.processes().filter(|&process| process != me);
        let quotas = others.map(|process| (process, Arc::default())).collect();
        Self { me, layout: Arc::clone(layout), clock, quotas, state: Mutex::default() }
    }

    /// Hands a notice to each receiver, or keeps it for those that have not joined. `make` gets the receiver's index in
    /// `to`; it is not called for receivers that have left. Frames of other processes are kept within bounds.
    pub(crate) fn deliver(
        &self,
        arrival: Arrival<'_>,
        make: impl FnMut(usize) -> Notice,
    ) -> Result<(), Overflow> {
        self.deliver_due(arrival, make, &mut Vec::new())
    }

    /// As [`Router::deliver`]; the actors that must be run for it come back in `due`.
    pub(crate) fn deliver_due(
        &self,
        arrival: Arrival<'_>,
        mut make: impl FnMut(usize) -> Notice,
        due: &mut Vec<Due>,
    ) -> Result<(), Overflow> {
        let source = self.layout.process_of(arrival.from);
        let quota = source.and_then(|source| self.quotas.get(&source));
        // Frames of this process itself are bounded by the protocol of those who send them.
        let mut ticket = None;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let comm = state.comms.entry(arrival.comm).or_default();
        if arrival.kind == SightingKind::Goodbye && !comm.gone.insert(arrival.from) {
            return Ok(());
        }
        state.seen += 1;
        let seen = Seen { tag: arrival.tag, at: (self.clock.0)(), order: state.seen, kind: arrival.kind };
        for (index, &rank) in arrival.to.iter().enumerate() {
            if !comm.may_have(rank) {
                continue;
            }
            let slot = comm.slots.entry(rank).or_default();
            match &mut slot.place {
                Place::Left => continue,
                Place::Joined { inbox, .. } => due.extend(inbox.deliver_due(make(index))),
                Place::Early(kept) => {
                    if ticket.is_none() {
                        ticket = quota.map(|quota| Quota::take(quota, arrival.bytes)).transpose()?;
                    }
                    kept.push(Kept { notice: make(index), _ticket: ticket.clone() });
                }
            }
            slot.seen.insert(arrival.from, seen);
        }
        if arrival.kind == SightingKind::Goodbye {
            self.retire(state, arrival.comm);
        }
        Ok(())
    }

    /// Puts a rank in; what came early is delivered first. The number names this stay.
    pub(crate) fn join(
        &self,
        id: CommId,
        name: &str,
        rank: Rank,
        members: &[Rank],
        inbox: Arc<dyn Inbox>,
    ) -> u64 {
        debug_assert!(members.contains(&rank), "who joins is a member");
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.stays += 1;
        let stay = state.stays;
        let comm = state.comms.entry(id).or_default();
        comm.name = Some(name.to_owned());
        comm.members = members.to_vec();
        comm.members.sort_unstable();
        let slot = comm.slots.entry(rank).or_default();
        let place = std::mem::replace(&mut slot.place, Place::Joined { inbox: Arc::clone(&inbox), stay });
        let mut strays = Vec::new();
        let (members, gone) = (&comm.members, &comm.gone);
        comm.slots.retain(|rank, slot| {
            let member = members.binary_search(rank).is_ok();
            if !member {
                strays.push(std::mem::take(slot));
            }
            member
        });
        let replaced = match place {
            Place::Early(kept) => {
                kept.into_iter().for_each(|kept| inbox.deliver(kept.notice));
                None
            }
            other => Some(other),
        };
        for (&process, death) in &state.dead {
            let ranks = lost_ranks(&self.layout, members, gone, process);
            if !ranks.is_empty() {
                inbox.deliver(death.notice(ranks));
            }
        }
        drop(guard);
        // Both may hold what must not be dropped under the lock.
        drop((replaced, strays));
        stay
    }

    /// Takes a rank out, unless it was put in anew after this stay began.
    pub(crate) fn leave(&self, id: CommId, rank: Rank, stay: u64) {
        let mut guard = self.state.lock();
        let Some(slot) = guard.comms.get_mut(&id).and_then(|comm| comm.slots.get_mut(&rank)) else { return };
        if !matches!(&slot.place, Place::Joined { stay: now, .. } if *now == stay) {
            return;
        }
        let inbox = std::mem::replace(&mut slot.place, Place::Left);
        slot.seen = BTreeMap::new();
        self.retire(&mut guard, id);
        drop(guard);
        // An inbox may hold the last handle of something that calls back here.
        drop(inbox);
    }

    /// Tells every member of communicators with ranks in that process, now and at later joins. Once for a process.
    pub(crate) fn died(&self, process: ProcessId, death: &Death) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.dead.contains_key(&process) {
            return;
        }
        state.dead.insert(process, death.clone());
        for comm in state.comms.values() {
            let ranks = lost_ranks(&self.layout, &comm.members, &comm.gone, process);
            if ranks.is_empty() {
                continue;
            }
            for slot in comm.slots.values() {
                if let Place::Joined { inbox, .. } = &slot.place {
                    inbox.deliver(death.notice(ranks.clone()));
                }
            }
        }
        let ids: Vec<CommId> = state.comms.keys().copied().collect();
        ids.into_iter().for_each(|id| self.retire(state, id));
    }

    /// A rank of this process is about to send the messages of a round.
    pub(crate) fn sends(&self, id: CommId, rank: Rank, tag: Tag) {
        let mut guard = self.state.lock();
        if let Some(slot) = guard.comms.get_mut(&id).and_then(|comm| comm.slots.get_mut(&rank)) {
            slot.sent = Some(tag);
        }
    }

    /// One notice for one rank, not from anyone.
    pub(crate) fn tell(&self, id: CommId, rank: Rank, notice: Notice) {
        let guard = self.state.lock();
        let slot = guard.comms.get(&id).and_then(|comm| comm.slots.get(&rank));
        if let Some(Place::Joined { inbox, .. }) = slot.map(|slot| &slot.place) {
            inbox.deliver(notice);
        }
    }

    /// What `me` last saw of `peer` in each communicator, the latest first.
    pub(crate) fn sightings(&self, me: Rank, peer: Rank) -> Vec<Sighting> {
        let guard = self.state.lock();
        let now = (self.clock.0)();
        let mut found: Vec<(u64, Sighting)> = Vec::new();
        for (&id, comm) in &guard.comms {
            let Some(seen) = comm.slots.get(&me).and_then(|slot| slot.seen.get(&peer)) else { continue };
            let comm_name = comm.name.clone().unwrap_or_else(|| format!("not joined yet, {id:?}"));
            let ago = now.saturating_sub(seen.at);
            let answered = comm.slots.get(&me).is_some_and(|slot| slot.sent >= Some(seen.tag));
            let sighting = Sighting { comm_name, comm: id, tag: seen.tag, ago, kind: seen.kind, answered };
            found.push((seen.order, sighting));
        }
        found.sort_unstable_by_key(|(order, _)| std::cmp::Reverse(*order));
        found.into_iter().map(|(_, sighting)| sighting).collect()
    }

    /// How many communicators are remembered.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.state.lock().comms.len()
    }

    /// Forgets a communicator from which no frame can come any more: all members here have left, all others
    /// have said goodbye or died. Until then those who left are remembered, so that late frames are dropped, not kept.
    fn retire(&self, state: &mut State, id: CommId) {
        let Some(comm) = state.comms.get(&id) else { return };
        let over = |&rank: &Rank| match self.layout.process_of(rank) {
            Some(process) if process == self.me => {
                comm.slots.get(&rank).is_some_and(|slot| matches!(slot.place, Place::Left))
            }
            Some(process) => comm.gone.contains(&rank) || state.dead.contains_key(&process),
            None => true,
        };
        if !comm.members.is_empty() && comm.members.iter().all(over) {
            state.comms.remove(&id);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    comms: HashMap<CommId, Comm>,
    dead: BTreeMap<ProcessId, Death>,
    /// Counts what was seen, to order sightings.
    seen: u64,
    /// Counts joins.
    stays: u64,
}

#[derive(Debug, Default)]
struct Comm {
    /// Not known until a rank of this process joins.
    name: Option<String>,
    /// Sorted; empty until a rank of this process joins.
    members: Vec<Rank>,
    /// The ranks of this process.
    slots: BTreeMap<Rank, Slot>,
    /// Who has said goodbye.
    gone: BTreeSet<Rank>,
}

impl Comm {
    fn may_have(&self, rank: Rank) -> bool {
        self.members.is_empty() || self.members.binary_search(&rank).is_ok()
    }
}

#[derive(Debug, Default)]
struct Slot {
    place: Place,
    /// The tag of the last message that this rank sent.
    sent: Option<Tag>,
    seen: BTreeMap<Rank, Seen>,
}

enum Place {
    /// Nobody has joined; what came so far, in order.
    Early(Vec<Kept>),
    Joined {
        inbox: Arc<dyn Inbox>,
        stay: u64,
    },
    Left,
}

impl Default for Place {
    fn default() -> Self {
        Self::Early(Vec::new())
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Early(kept) => write!(f, "Early({})", kept.len()),
            Self::Joined { stay, .. } => write!(f, "Joined({stay})"),
            Self::Left => f.write_str("Left"),
        }
    }
}

#[derive(Debug)]
struct Kept {
    notice: Notice,
    /// Gives its share of the bounds back.
    _ticket: Option<Arc<Ticket>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    tag: Tag,
    at: Duration,
    order: u64,
    kind: SightingKind,
}

#[derive(Debug, Default)]
struct Quota {
    frames: AtomicUsize,
    bytes: AtomicUsize,
}

impl Quota {
    /// One frame's share; it counts once however many ranks it is for. Called under the router's lock only.
    fn take(quota: &Arc<Self>, bytes: usize) -> Result<Arc<Ticket>, Overflow> {
        let frames = quota.frames.load(Ordering::Relaxed);
        let total = quota.bytes.load(Ordering::Relaxed);
        if frames >= EARLY_FRAMES_MAX || total + bytes > EARLY_BYTES_MAX {
            return Err(Overflow);
        }
        quota.frames.fetch_add(1, Ordering::Relaxed);
        quota.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Arc::new(Ticket { quota: Arc::clone(quota), bytes }))
    }
}

#[derive(Debug)]
struct Ticket {
    quota: Arc<Quota>,
    bytes: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.quota.frames.fetch_sub(1, Ordering::Relaxed);
        self.quota.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The members in that process that have not said goodbye.
fn lost_ranks(layout: &Layout, members: &[Rank], gone: &BTreeSet<Rank>, process: ProcessId) -> Vec<Rank> {
    let there = layout.ranks(process);
    members.iter().copied().filter(|rank| there.contains(&rank.get()) && !gone.contains(rank)).collect()
}

/// Early frames of one connection that are kept at most.
pub(crate) const EARLY_FRAMES_MAX: usize = 1_024;
/// Their bytes.
pub(crate) const EARLY_BYTES_MAX: usize = 64 << 20;
