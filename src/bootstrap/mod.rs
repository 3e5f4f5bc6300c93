//! How ranks find and talk to each other: in one process, as processes of one host, and mixed.
//!
//! A [`Hub`] is one process's set of connections. "Process" is a value that the bootstrap hands out, never the
//! operating system's: [`Hub::in_process`] makes several in one operating-system process, joined by socket
//! pairs, so that tests take the same wire path as [`Hub::unix`] does. The bootstrap knows nothing of windows:
//! it carries opaque bodies and attachments under a [`Tag`].
//!
//! # Within a process
//! A message is handed to the other rank's [`Inbox`] by value, in the sender's thread. Attachments are cloned
//! values: nothing is encoded and no descriptor is duplicated.
//!
//! # Between processes
//! One connected unix stream socket for each pair of processes, one thread for each hub that has any, whose work is
//! done by a thread that waits for its batch while there is one. Frames are
//! versioned, length-capped and checksummed. Descriptors go in batches of at most 253, a few unacknowledged at a time,
//! so that an unprivileged sender stays under the kernel's limit of descriptors in flight. Descriptors for
//! which the receiver has no room cost that message its handles ([`Incoming::lost`]) and nothing else.
//!
//! # What holds everywhere
//! - **B-1** No call that sends blocks or fails: a broken link comes back as [`Notice::Lost`] or [`Notice::Broken`].
//! - **B-2** Order is kept for each (sender, receiver) pair, joined late or not.
//! - **B-3** What a peer sent before it died is delivered before its loss is.
//! - **B-4** A rank's goodbye is reported once for each receiver; after it, that rank is never reported as lost
//!   in that communicator.
//! - **B-5** Frames for a (communicator, rank) that nobody joined yet are kept, bounded; frames for one that was left
//!   are dropped with their descriptors.
//! - **B-6** Nothing remains in the file system, and no thread or descriptor outlives the last handle for longer than
//!   the queues need to drain, at most [`SHUTDOWN_DEADLINE`].
//! - **B-7** Every wait has a deadline.
#![deny(unsafe_code)]

pub(crate) mod carrier;
mod connect;
mod duty;
mod endpoint;
mod exchange;
mod frame;
mod hello;
mod hub;
mod io;
pub(crate) mod layout;
mod link;
mod reader;
mod router;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use endpoint::Endpoint;
pub use hub::{Hub, UnixOptions};

use crate::actors::Due;
use crate::ids::{CommId, Rank};

/// How long a hub whose last handle is gone may still take to write out its queues.
pub const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// Where a message belongs in its communicator: which batch, which round of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a batch and a round are all there is to a tag")]
pub struct Tag {
    /// The batch's number on its communicator.
    pub seq: u64,
    /// The round within the batch.
    pub round: u8,
}

impl Tag {
    /// The tag of this round of this batch.
    #[must_use]
    pub const fn new(seq: u64, round: u8) -> Self {
        Self { seq, round }
    }
}

/// Something that travels with a message and is no bytes.
#[derive(Clone)]
#[non_exhaustive]
pub enum Attachment {
    /// A descriptor; duplicated by the kernel on its way to another process, shared within one.
    Descriptor(Arc<OwnedFd>),
    /// A fabric handle.
    Fabric([u8; 64]),
    /// Any value. It cannot leave its process.
    Value(Arc<dyn Any + Send + Sync>),
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(descriptor) => f.debug_tuple("Descriptor").field(descriptor).finish(),
            Self::Fabric(_) => f.write_str("Fabric(..)"),
            Self::Value(_) => f.write_str("Value(..)"),
        }
    }
}

/// The share of one process in a message that goes to several.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a plain argument: who and what")]
pub struct Parcel {
    /// The receiving ranks, all of one process.
    pub to: Vec<Rank>,
    /// What goes along. Delivered to the first of `to` only.
    pub handles: Vec<Attachment>,
}

impl Parcel {
    /// A parcel without attachments.
    #[must_use]
    pub const fn plain(to: Vec<Rank>) -> Self {
        Self { to, handles: Vec::new() }
    }
}

/// A message as it arrives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Incoming {
    /// Who sent it.
    pub from: Rank,
    /// Its place in the communicator's history.
    pub tag: Tag,
    /// Its bytes, one allocation for all ranks of this process that it went to.
    pub body: Arc<[u8]>,
    /// Its attachments, in the order in which they were sent. Empty where this rank is not the first
    /// receiver, and where they were lost.
    pub handles: Vec<Attachment>,
    /// Set, on the first receiver, where descriptors found no room in this process.
    pub lost: Option<LostHandles>,
}

/// Descriptors of a message found no room in this process. None of them is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "three plain figures")]
pub struct LostHandles {
    /// This process's soft limit of open descriptors.
    pub limit: u64,
    /// How many descriptors the message had.
    pub need: u64,
    /// How many had arrived when the first one found no room.
    pub got: u64,
}

/// What an [`Inbox`] hears.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A rank ended the communicator for everyone, with a reason.
    Abort {
        /// Who.
        from: Rank,
        /// Why, opaque here.
        body: Arc<[u8]>,
    },
    /// The connection to these ranks' process broke the protocol (bad checksum, version, length) and is closed.
    Broken {
        /// The members of this communicator behind that connection.
        ranks: Vec<Rank>,
        /// What was wrong.
        detail: String,
    },
    /// A rank has finished with the communicator.
    Goodbye {
        /// Who.
        from: Rank,
        /// With what, opaque here.
        body: Arc<[u8]>,
    },
    /// The process of these ranks died, or closed its connection without their goodbye.
    Lost {
        /// The members of this communicator that are gone.
        ranks: Vec<Rank>,
        /// How this was seen.
        detail: String,
    },
    /// A message.
    Message(Incoming),
}

/// Where a rank of a communicator hears what arrives for it.
pub trait Inbox: Send + Sync {
    /// Takes the notice. It must neither block nor call into the bootstrap (nor drop what does): it runs in the
    /// sender's thread or in that which does the I/O, under the hub's routing lock, which is what keeps the order.
    fn deliver(&self, notice: Notice);

    /// As [`Inbox::deliver`]; gives back the actor that must be run for it, if it is one, to a thread that may run it
    /// by itself, once the lock is given back.
    fn deliver_due(&self, notice: Notice) -> Option<Due> {
        self.deliver(notice);
        None
    }
}

/// So much later. A deadline may be longer than clocks count: then it is a century.
fn after(now: Instant, span: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
    now.checked_add(span).unwrap_or(now + CENTURY)
}

/// When and where a peer was last heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sighting {
    /// The communicator's name; its id in words where no rank of this process has joined it yet.
    pub comm_name: String,
    /// The communicator.
    pub comm: CommId,
    /// The tag of the message; the latest earlier one's for a goodbye or an abort.
    pub tag: Tag,
    /// How long ago.
    pub ago: Duration,
    /// What it was.
    pub kind: SightingKind,
    /// Whether this rank has sent a message of the same round or a later one there. If not, the peer may wait for it.
    pub answered: bool,
}

/// What a peer was last heard of by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SightingKind {
    /// An abort.
    Abort,
    /// A goodbye.
    Goodbye,
    /// A message.
    Message,
}
