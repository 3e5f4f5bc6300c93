//! What a rank shows of its communicator, at any time, without asking its actor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::agreed::Agreed;
use super::core::State;
use crate::actors::Time;
use crate::bootstrap::Endpoint;
use crate::driver::DeviceError;
use crate::error::{Error, Peer, Phase};

/// A snapshot of one rank's communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The communicator's name.
    pub name: String,
    /// This rank.
    pub me: Peer,
    /// What it is doing.
    pub activity: Activity,
    /// Batches that have ended, committed or not.
    pub batches: u64,
    /// Open windows, without resource buffers.
    pub windows: usize,
    /// Memories that this rank has not retired.
    pub memories: usize,
    /// Memories of the agreed state, those included that some ranks have retired.
    pub agreed_memories: usize,
    /// Names of allocations that live.
    pub allocations: usize,
    /// Window structs in use.
    pub shadow_slots: usize,
    /// Entries of the device window table in use.
    pub table_slots: usize,
    /// Bytes of every stride that memories take.
    pub space_bytes: u64,
    /// Bytes of every stride that are out for good, since an undo call failed on some rank: what all ranks have
    /// heard of, and what this rank tells with its next batch.
    pub quarantined_bytes: u64,
    /// Undo calls that have failed on this rank so far, the latest ones (at most 16).
    pub undo_failures: Vec<DeviceError>,
    /// Rounds in which this rank has sent messages, counted by the bootstrap.
    pub rounds: u64,
    /// Messages that this rank has sent.
    pub messages: u64,
    /// Descriptors that this rank has sent.
    pub descriptors: u64,
    /// The digest of the agreed state after the latest batch: equal on all ranks of the LSA team (P-1).
    pub digest: u64,
}

/// What a rank's communicator is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// Closed.
    Closed,
    /// Failed for good.
    Failed(Error),
    /// Nothing.
    Idle,
    /// A batch runs.
    Running {
        /// Which.
        operation: String,
        /// Where it is.
        phase: Phase,
        /// For how long it has run.
        since: Duration,
        /// The ranks whose messages are missing.
        waits_for: Vec<Peer>,
    },
}

/// Where the actor writes and [`Status`] is read.
#[derive(Debug)]
pub(crate) struct Board {
    inner: Mutex<Inner>,
    /// The job waits for its stream: poll it again soon.
    pub(crate) tick: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    status: Status,
    operation: Option<(String, Phase, Time)>,
    failed: Option<Error>,
    closed: bool,
    /// The number of the first batch in `history`.
    first: u64,
    /// How the latest batches ended.
    history: VecDeque<Ending>,
}

/// How a batch ended on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) committed: bool,
    /// Of the agreed state after it.
    pub(crate) digest: u64,
    /// What the rank held after it.
    pub(crate) counts: Counts,
}

/// What a rank holds of its communicator: what a roll-back must bring back to what it was (P-5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Windows that memories count, resource buffers included.
    pub(crate) windows: usize,
    pub(crate) memories: usize,
    pub(crate) allocations: usize,
    pub(crate) shadow_slots: usize,
    pub(crate) table_slots: usize,
}

impl Counts {
    pub(crate) fn of(state: &State) -> Self {
        let objects = state.objects.as_ref();
        Self {
            windows: state.memories.values().map(|memory| memory.windows).sum(),
            memories: state.memories.len(),
            allocations: state.tokens.len(),
            shadow_slots: objects.map_or(0, |objects| objects.windows.counts().slots),
            table_slots: objects.map_or(0, |objects| objects.table.counts().live),
        }
    }

    /// Whether this is no more than that, each count by itself.
    pub(crate) fn within(&self, other: &Self) -> bool {
        self.memories <= other.memories
            && self.allocations <= other.allocations
            && self.shadow_slots <= other.shadow_slots
            && self.table_slots <= other.table_slots
    }
}

/// How many batches' ends are kept.
const HISTORY_MAX: usize = 256;

impl Board {
    pub(crate) fn new(agreed: &Agreed) -> Self {
        let status = Status {
            name: agreed.name.clone(),
            me: agreed.me().clone(),
            activity: Activity::Idle,
            batches: 0,
            windows: 0,
            memories: 0,
            agreed_memories: 0,
            allocations: 0,
            shadow_slots: 0,
            table_slots: 0,
            space_bytes: 0,
            quarantined_bytes: 0,
            undo_failures: Vec::new(),
            rounds: 0,
            messages: 0,
            descriptors: 0,
            digest: 0,
        };
        let (first, history) = (0, VecDeque::new());
        let inner = Inner { status, operation: None, failed: None, closed: false, first, history };
        Self { inner: Mutex::new(inner), tick: AtomicBool::new(false) }
    }

    /// A batch begins.
    pub(crate) fn begin(&self, operation: String, now: Time) {
        self.inner.lock().operation = Some((operation, Phase::Prepare, now));
    }

    /// The batch has come to a phase.
    pub(crate) fn phase(&self, phase: Phase) {
        if let Some(operation) = &mut self.inner.lock().operation {
            operation.1 = phase;
        }
    }

    /// The batch has ended.
    pub(crate) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.operation = None;
        inner.status.batches += 1;
    }

    /// What runs, for errors.
    pub(crate) fn operation(&self) -> (String, Phase) {
        let inner = self.inner.lock();
        inner.operation.as_ref().map_or(("no operation".to_owned(), Phase::Idle), |(o, p, _)| (o.clone(), *p))
    }

    pub(crate) fn failed(&self, error: Error) {
        self.inner.lock().failed = Some(error);
    }

    pub(crate) fn closed(&self) {
        self.inner.lock().closed = true;
    }

    /// Counts of what the actor owns.
    pub(crate) fn committed(&self, state: &State) {
        let mut inner = self.inner.lock();
        let status = &mut inner.status;
        status.memories = state.memories.len();
        status.agreed_memories = state.replicated.memories.len();
        status.allocations = state.tokens.len();
        status.space_bytes = state.replicated.space.allocated_bytes();
        status.quarantined_bytes = state.quarantined_bytes();
        if let Some(objects) = &state.objects {
            status.shadow_slots = objects.windows.counts().slots;
            status.table_slots = objects.table.counts().live;
        } else {
            status.shadow_slots = 0;
            status.table_slots = 0;
        }
    }

    /// The close has given up: what this rank has mapped stays so.
    pub(crate) fn leaked(&self, state: &State) {
        let spans: u64 = state.memories.values().map(|memory| memory.span).sum();
        self.inner.lock().status.quarantined_bytes = state.quarantined_bytes() + spans;
    }

    /// How a batch ended.
    pub(crate) fn ended(&self, ending: Ending) {
        let mut inner = self.inner.lock();
        inner.status.digest = ending.digest;
        inner.history.push_back(ending);
        if inner.history.len() > HISTORY_MAX {
            inner.history.pop_front();
            inner.first += 1;
        }
    }

    /// Rounds and messages that this rank has sent, and batches that have ended.
    pub(crate) fn sent(&self) -> (u64, u64, u64) {
        let inner = self.inner.lock();
        (inner.status.rounds, inner.status.messages, inner.status.batches)
    }

    /// How the latest batches ended, each with its number, and whether the communicator has failed or is closed.
    pub(crate) fn history(&self) -> (Vec<(u64, Ending)>, bool) {
        let inner = self.inner.lock();
        let history = (inner.first..).zip(inner.history.iter().copied()).collect();
        (history, inner.failed.is_some() || inner.closed)
    }

    pub(crate) fn undo_failures(&self, errors: &[DeviceError]) {
        let mut inner = self.inner.lock();
        for error in errors {
            if inner.status.undo_failures.len() == 16 {
                inner.status.undo_failures.remove(0);
            }
            inner.status.undo_failures.push(error.clone());
        }
    }

    /// What the bootstrap has counted.
    pub(crate) fn counters(&self, endpoint: &Endpoint) {
        let mut inner = self.inner.lock();
        inner.status.rounds = endpoint.rounds();
        inner.status.messages = endpoint.messages_sent();
        inner.status.descriptors = endpoint.descriptors_sent();
    }

    /// A snapshot. `missing` are the ranks that the job waits for.
    pub(crate) fn snapshot(&self, now: Time, windows: usize, missing: Vec<Peer>) -> Status {
        let inner = self.inner.lock();
        let activity = if inner.closed {
            Activity::Closed
        } else if let Some(error) = &inner.failed {
            Activity::Failed(error.clone())
        } else if let Some((operation, phase, since)) = &inner.operation {
            let (operation, since) = (operation.clone(), now.since(*since));
            Activity::Running { operation, phase: *phase, since, waits_for: missing }
        } else {
            Activity::Idle
        };
        Status { activity, windows, ..inner.status.clone() }
    }

    /// Whether the job asked to be polled again soon.
    pub(crate) fn take_tick(&self) -> bool {
        self.tick.swap(false, Ordering::Relaxed)
    }
}
