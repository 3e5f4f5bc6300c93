//! Why a batch was rolled back on all ranks: who could not do what, and where.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{List, Misuse, Peer};
use crate::driver::DeviceError;

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
