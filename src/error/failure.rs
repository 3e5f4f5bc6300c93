//! Why a communicator has failed for good.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{List, Peer, Phase, Reason};

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
