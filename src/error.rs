//! One error tree. The first level says what it means for the communicator, the next who is to blame.
//!
//! | variant | blame | the communicator |
//! | --- | --- | --- |
//! | [`Error::Misuse`] | this caller | untouched |
//! | [`Error::Device`] | this rank's device | untouched |
//! | [`Error::RolledBack`] | the ranks it names | usable: nothing of the batch remains on any rank |
//! | [`Error::Finalized`] | the peer it names, or this rank | only good for closing |
//! | [`Error::Failed`] | the ranks it names | failed for good, only good for closing |
//! | [`Error::Bootstrap`] | transport, or the ranks it names | was never made |
//! | [`Error::Limit`] | nobody | untouched: a wait gave up waiting, what it waited for goes on |
//!
//! Errors are values: they compare, clone and travel between ranks.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::driver::DeviceError;
use crate::ids::{ProcessId, Rank};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. See the module's table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The communicator could not be made.
    #[error(transparent)]
    Bootstrap(#[from] Arc<BootstrapError>),
    /// A call to this rank's device failed outside of any batch.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The communicator has failed for good.
    #[error(transparent)]
    Failed(#[from] Arc<Failure>),
    /// A rank has finalized, so this batch can never complete.
    #[error("communicator `{comm}`: {peer} has finalized; no further batch can complete")]
    Finalized {
        /// The communicator's name.
        comm: String,
        /// The rank that finalized first, as this rank knows.
        peer: Peer,
    },
    /// A wait with a limit gave up waiting; what it waited for goes on.
    #[error("gave up waiting for {what} after {waited:?}; it goes on")]
    Limit {
        /// What was awaited.
        what: String,
        /// For how long.
        waited: Duration,
    },
    /// This caller's mistake, seen without asking anyone.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The batch was rolled back on all ranks.
    #[error(transparent)]
    RolledBack(#[from] Arc<RolledBack>),
}

/// Who a rank is, for messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Peer {
    /// Its rank in the world.
    pub rank: Rank,
    /// Its process, as the bootstrap counts.
    pub process: ProcessId,
    /// Its host's name.
    pub host: String,
    /// Its operating-system process.
    pub pid: u32,
}

impl Peer {
    /// A peer of these names.
    #[must_use]
    pub fn new(rank: Rank, process: ProcessId, host: &str, pid: u32) -> Self {
        Self { rank, process, host: host.to_owned(), pid }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// A mistake of the caller that no other rank needs to hear of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A value in the configuration or the environment is not valid.
    #[error("{name} = `{value}` is not valid: {why}")]
    BadSetting {
        /// The variable or builder method.
        name: String,
        /// What it was set to.
        value: String,
        /// What is allowed.
        why: String,
    },
    /// The handle is of a window, communicator or device communicator that has been closed.
    #[error("{what} is closed; handles do not come back to life, register again")]
    Closed {
        /// What the handle was of.
        what: String,
    },
    /// A pending was awaited whose group has not ended.
    #[error("the group of this {what} has not ended: call `end` or `submit` before waiting")]
    GroupOpen {
        /// What was queued.
        what: String,
    },
    /// A host kernel panicked.
    #[error("block {block} of a host kernel panicked: {message}")]
    KernelPanicked {
        /// Which block.
        block: u32,
        /// The panic's message.
        message: String,
    },
    /// An offset or length beyond the end.
    #[error("{what}: {offset} + {len} bytes is beyond its {size} bytes")]
    OutOfRange {
        /// Of what.
        what: String,
        /// Where the access starts.
        offset: u64,
        /// How long it is.
        len: u64,
        /// How large the thing is.
        size: u64,
    },
    /// The rank is in no such team.
    #[error("{rank} is not in {team}")]
    NotInTeam {
        /// The rank asked for.
        rank: Rank,
        /// The team asked.
        team: String,
    },
    /// Anything else, in words.
    #[error("{what}")]
    Other {
        /// What is wrong and what to do.
        what: String,
    },
}

/// Why a batch was rolled back. The communicator remains usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("communicator `{comm}`, batch {seq}{}: rolled back on all ranks: {cause}", GroupName(.group.as_deref()))]
#[non_exhaustive]
pub struct RolledBack {
    /// The communicator's name.
    pub comm: String,
    /// The batch's number on this communicator.
    pub seq: u64,
    /// The group's name, where it has one.
    pub group: Option<String>,
    /// Why.
    pub cause: Cause,
    /// Undo calls of this rank that failed. Their ranges are quarantined.
    pub undo: Vec<DeviceError>,
}

struct GroupName<'a>(Option<&'a str>);

impl fmt::Display for GroupName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, " of group `{name}`"))
    }
}

/// Why a batch was rolled back, in the order in which several causes are reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Ranks dropped their group before its end.
    #[error("the group was dropped before its end on {}", List(.by))]
    Abandoned {
        /// Which ranks.
        by: Vec<Peer>,
    },
    /// Ranks asked for different things.
    #[error("ranks differ in {what}: {}", Requests(.requests))]
    Mismatch {
        /// The first thing in which they differ.
        what: String,
        /// What each rank asked for, in words.
        requests: Vec<(Peer, String)>,
    },
    /// Ranks could not do their part.
    #[error("{}", List(.faults))]
    Refused {
        /// Each with its reason.
        faults: Vec<Fault>,
    },
    /// The address range of the stride has no room left; the same on every rank.
    #[error(
        "the address range is exhausted: {need} bytes needed in one piece, {free} bytes free in the largest; \
         close windows or set a larger stride (SYMWIN_STRIDE)"
    )]
    Exhausted {
        /// Bytes needed.
        need: u64,
        /// The largest free range.
        free: u64,
    },
}

struct Requests<'a>(&'a [(Peer, String)]);

impl fmt::Display for Requests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (peer, request)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{peer} asked for {request}")?;
        }
        Ok(())
    }
}

pub(crate) struct List<'a, T>(pub(crate) &'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

/// One rank's reason why it could not do its part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("{peer} in {phase}{}: {reason}", TaskIndex(*.task))]
#[non_exhaustive]
pub struct Fault {
    /// Which rank.
    pub peer: Peer,
    /// Where it was.
    pub phase: Phase,
    /// Which task of the batch, where it is one.
    pub task: Option<u32>,
    /// What was wrong.
    pub reason: Reason,
}

/// Each fault once, in the order in which they came. There may be one for each of thousands of tasks.
pub(crate) fn each_once(faults: impl IntoIterator<Item = Fault>) -> Vec<Fault> {
    let mut seen = HashSet::new();
    faults.into_iter().filter(|fault| seen.insert(fault.clone())).collect()
}

struct TaskIndex(Option<u32>);

impl fmt::Display for TaskIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |task| write!(f, ", task {task}"))
    }
}

/// What was wrong in a [`Fault`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A device call failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Descriptors of peers did not fit in this process.
    #[error(
        "descriptors of peers did not fit: {need} were sent, {got} arrived, this process's limit is {limit}; \
         raise it (ulimit -n) or carve buffers from fewer allocations"
    )]
    Descriptors {
        /// This process's soft limit.
        limit: u64,
        /// How many were sent.
        need: u64,
        /// How many arrived.
        got: u64,
    },
    /// The request is not valid.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A window's start is not aligned.
    #[error(
        "the window starts {offset} bytes into its allocation at {base:#x}, which is no multiple of {align}: \
         register a range that starts at one"
    )]
    Misaligned {
        /// The allocation's base address.
        base: u64,
        /// The window's offset in it.
        offset: u64,
        /// What it must be a multiple of.
        align: u64,
    },
    /// The heads of a window differ between ranks by what cannot be mapped.
    #[error(
        "the window's offsets in the ranks' allocations ({}) differ by no multiple of the granularity, {granularity}",
        Offsets(.bases, .heads)
    )]
    Shift {
        /// The base address of the allocation under the window's start of each LSA rank, in order of LSA rank.
        bases: Vec<u64>,
        /// The offset of each LSA rank's window in its allocation, in order of LSA rank.
        heads: Vec<u64>,
        /// The granularity in bytes.
        granularity: u64,
    },
    /// The device or the agreed setting cannot do this.
    #[error("not supported: {what}: {why}")]
    Unsupported {
        /// What was asked.
        what: String,
        /// Why not.
        why: String,
    },
}

struct Offsets<'a>(&'a [u64], &'a [u64]);

impl fmt::Display for Offsets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (base, head)) in self.0.iter().zip(self.1).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}LSA rank {i}: {head} from {base:#x}")?;
        }
        Ok(())
    }
}

/// The phases of a batch, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Phase {
    /// Finding allocations, checking requests, taking references.
    Prepare,
    /// Exchanging offers.
    Offer,
    /// Deciding keys and offsets.
    Decide,
    /// Exchanging handles that came with no offer.
    Handles,
    /// Importing, mapping and writing device objects.
    Map,
    /// Agreeing that every device is in the multicast objects.
    Multicast,
    /// Binding memory to multicast objects.
    Bind,
    /// Exchanging verdicts.
    Vote,
    /// Publishing.
    Commit,
    /// Between batches.
    Idle,
    /// A host kernel's barrier.
    Barrier,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Prepare => "prepare",
            Self::Offer => "offer",
            Self::Decide => "decide",
            Self::Handles => "handles",
            Self::Map => "map",
            Self::Multicast => "multicast",
            Self::Bind => "bind",
            Self::Vote => "vote",
            Self::Commit => "commit",
            Self::Idle => "idle",
            Self::Barrier => "barrier",
        };
        f.write_str(name)
    }
}

/// Why a communicator failed for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("communicator `{comm}` failed on {me} in {operation}, {phase}: {cause}")]
#[non_exhaustive]
pub struct Failure {
    /// The communicator's name.
    pub comm: String,
    /// The rank on which this was seen.
    pub me: Peer,
    /// The operation that was under way: "batch 3 of group `layer 3`", "no operation".
    pub operation: String,
    /// Its phase.
    pub phase: Phase,
    /// What happened.
    pub cause: FailureCause,
}

/// What made a communicator fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// A rank called `abort`, or failed and told the others.
    #[error("{by} aborted: {reason}")]
    Aborted {
        /// Which rank.
        by: Peer,
        /// Its reason.
        reason: String,
    },
    /// The operation's deadline passed.
    #[error("{}{}", Silent(.missing, *.after), Blocked(.blocked))]
    Deadline {
        /// The deadline, counted from the start of the operation.
        after: Duration,
        /// The ranks that did not answer, with where they were last seen. None where this rank waited for nobody
        /// but its own device, or its own earlier collectives.
        missing: Vec<Missing>,
        /// Other communicators in which this rank blocks a peer.
        blocked: Vec<String>,
    },
    /// A rank dropped its communicator without finalizing.
    #[error("{by} dropped its communicator without finalizing it")]
    Dropped {
        /// Which rank.
        by: Peer,
    },
    /// Our own bug: an actor panicked.
    #[error("the actor of {by} panicked: {message}; this is a bug in symwin, please report it")]
    Panicked {
        /// On which rank.
        by: Peer,
        /// The panic's message.
        message: String,
    },
    /// The ranks' agreed states have parted. Our own bug, or memory corruption.
    #[error(
        "the agreed states of the ranks have parted: {detail}; this is a bug in symwin, please report it"
    )]
    Parted {
        /// Which digests.
        detail: String,
    },
    /// Processes died or their connections broke.
    #[error("lost {}: {detail}", List(.peers))]
    PeerLost {
        /// Their ranks.
        peers: Vec<Peer>,
        /// How this was seen.
        detail: String,
    },
    /// A peer broke the protocol.
    #[error("{peer} broke the protocol: {detail}")]
    Protocol {
        /// Which rank.
        peer: Peer,
        /// How.
        detail: String,
    },
    /// A committed batch could not be published on this rank.
    #[error("publishing a committed batch failed on {by}: {reason}")]
    Publish {
        /// On which rank.
        by: Peer,
        /// Why.
        reason: Reason,
    },
    /// The runtime that ran the communicator's actor has ended.
    #[error("the runtime of this communicator has ended")]
    RuntimeEnded,
}

struct Silent<'a>(&'a [Missing], Duration);

impl fmt::Display for Silent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(missing, after) = self;
        if missing.is_empty() {
            return write!(
                f,
                "not done within {after:?}, and no other rank was waited for: this rank's device is late, or what \
                 it had to do before"
            );
        }
        write!(f, "no answer within {after:?} from {}", List(missing))
    }
}

struct Blocked<'a>(&'a [String]);

impl fmt::Display for Blocked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; meanwhile {}", List(self.0)) }
    }
}

/// A rank that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Missing {
    /// Which rank.
    pub peer: Peer,
    /// Where it was last seen, in words: "last seen in communicator `b`, batch 0, offer, waiting for this rank".
    pub last_seen: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.peer, self.last_seen)
    }
}

/// Why no communicator could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The processes' configurations differ.
    #[error("the ranks' settings differ in {what}: {}", List(.settings))]
    Differ {
        /// In what.
        what: String,
        /// Each process's setting, in words.
        settings: Vec<String>,
    },
    /// The operating system refused.
    #[error("{what}: {}", rustix::io::Errno::from_raw_os_error(*errno))]
    Os {
        /// What was attempted.
        what: String,
        /// The error number.
        errno: i32,
    },
    /// A connecting process is not allowed in.
    #[error("{who} is not allowed in: {why}")]
    Stranger {
        /// Who it is, as far as known.
        who: String,
        /// Why not.
        why: String,
    },
    /// Processes did not come in time.
    #[error("no connection within {after:?} with {}", List(.missing))]
    Deadline {
        /// The deadline.
        after: Duration,
        /// The processes that did not come, in words.
        missing: Vec<String>,
    },
    /// A process broke the protocol, or ended.
    #[error("{who}: {detail}")]
    Protocol {
        /// Which process.
        who: String,
        /// What it did.
        detail: String,
    },
}
