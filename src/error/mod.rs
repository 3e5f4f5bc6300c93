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

mod bootstrap;
mod failure;
mod rolled_back;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::bootstrap::BootstrapError;
pub use self::failure::{Failure, FailureCause, Missing};
pub(crate) use self::rolled_back::each_once;
pub use self::rolled_back::{Cause, Fault, Phase, Reason, RolledBack};
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
    /// There is no GPU that can be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    NoCuda(#[from] crate::driver::cuda::Absent),
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
    /// An address is not aligned to the elements that are to lie there.
    #[error(
        "{what}: address {address:#x} is no multiple of {align}, to which its elements must be aligned; begin there"
    )]
    Misaligned {
        /// Of what.
        what: String,
        /// Where the elements would begin.
        address: u64,
        /// What that must be a multiple of.
        align: u64,
    },
    /// A length is not one of whole elements.
    #[error("{what}: {len} bytes are no whole number of elements of {size} bytes; take a slice that is one")]
    NotWhole {
        /// Of what.
        what: String,
        /// How many bytes.
        len: u64,
        /// The size of an element.
        size: u64,
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
    /// The stream's GPU, or its context, is not that of the memory.
    #[error(
        "{what} is memory of {memory}, and the stream is one of {stream}: take a stream of the memory's own context"
    )]
    WrongDevice {
        /// What cannot be used by the stream.
        what: String,
        /// Whose memory it is.
        memory: String,
        /// Whose stream it is.
        stream: String,
    },
    /// Anything else, in words.
    #[error("{what}")]
    Other {
        /// What is wrong and what to do.
        what: String,
    },
}

/// Several of a kind in one sentence.
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
