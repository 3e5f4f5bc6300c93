//! What callers ask of a communicator, on its way from a group to the actor.

use std::any::Any;
use std::sync::Arc;

use super::dev_comm::DevCommRequirements;
use super::dev_comm_handle::DevComm;
use super::flush::message::{Fingerprint, WindowFlags};
use super::window::Window;
use crate::actors::{Reply, Time};
use crate::error::Result;

/// A batch as it comes to the actor.
#[derive(Debug)]
pub(crate) struct Batch {
    /// What is asked, without who asked.
    pub(crate) work: Work,
    /// Who awaits each task, in the order of the tasks.
    pub(crate) answers: Vec<Answer>,
    /// Who awaits the whole batch.
    pub(crate) done: Option<Reply<Result<()>>>,
    /// When it must have ended.
    pub(crate) deadline: Time,
}

/// What one group asks of one rank's communicator.
#[derive(Debug)]
pub(crate) struct Work {
    /// The group's name.
    pub(crate) group: Option<String>,
    /// The group was dropped before its end.
    pub(crate) abandoned: bool,
    /// Registrations, then device communicators, each in call order.
    pub(crate) requests: Vec<Request>,
}

/// One task.
#[derive(Debug)]
pub(crate) enum Request {
    /// A window over a range of addresses.
    Window(WindowRequest),
    /// A device communicator.
    DevComm(DevCommRequirements),
}

/// A window over a range of addresses.
#[derive(Debug)]
pub(crate) struct WindowRequest {
    /// Its first address on this rank.
    pub(crate) address: usize,
    /// Its size in bytes on this rank.
    pub(crate) size: usize,
    /// Its flags.
    pub(crate) flags: WindowFlags,
    /// Its label, part of the fingerprint.
    pub(crate) label: Option<String>,
    /// Sizes may differ between ranks.
    pub(crate) asymmetric: bool,
    /// What the window keeps alive: the buffer under it.
    pub(crate) keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Request {
    /// What must be equal on all ranks.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Window(window) => Fingerprint::Window {
                size: (!window.asymmetric).then_some(window.size as u64),
                flags: window.flags.bits(),
                label: window.label.clone(),
            },
            Self::DevComm(requirements) => {
                Fingerprint::DevComm { requirements: Box::new(requirements.clone()) }
            }
        }
    }
}

/// Who awaits a task.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A window.
    Window(Reply<Result<Window>>),
    /// A device communicator.
    DevComm(Reply<Result<DevComm>>),
}
