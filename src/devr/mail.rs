//! What comes to the actor of one rank's communicator.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::flush::message::MemoryId;
use super::request::Batch;
use super::shadow::Slot;
use super::table::TableSlot;
use crate::actors::Reply;
use crate::bootstrap::Notice;
use crate::driver::DeviceError;
use crate::driver::passing::Passing;
use crate::error::{Failure, Result};

/// What comes to the actor.
#[derive(Debug)]
pub(crate) enum CommMsg {
    /// The caller ends the communicator on all ranks.
    Abort(String),
    /// The job may go on: all messages of the round are there that it waits for.
    Arrived,
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
    Finalize(CloseReply),
    /// A host kernel has ended.
    KernelEnded,
    /// From the bootstrap; no messages of rounds, which do not come by mail.
    Notice(Notice),
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
    /// No kernel that begins from here on can find it.
    pub(crate) hidden: bool,
    /// The kernels of this rank that ran when its table entry was withdrawn: what they may see is not reused before
    /// they end.
    pub(crate) running: BTreeSet<u64>,
    /// What streams must have passed: the one that the caller named, and collectives that were started before.
    pub(crate) after: Vec<Passing>,
    /// The buffer under it.
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// Who awaits the close: the undo calls that failed in it.
pub(crate) type CloseReply = Reply<Result<Vec<DeviceError>>>;
