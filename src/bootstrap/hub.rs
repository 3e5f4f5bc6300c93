//! One process's connections.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::{Endpoint, Inbox};
use crate::error::Result;
use crate::ids::{CommId, ProcessId, Rank};

/// One process's set of connections. Clones are handles of the same one.
#[derive(Clone, Debug)]
pub struct Hub {}

/// How processes of one host find each other.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a plain argument that launchers fill in")]
pub struct UnixOptions {
    /// The stem of the abstract socket names: at least 128 random bits, chosen by the launcher.
    pub rendezvous: String,
    /// How many ranks each process has.
    pub layout: Vec<u32>,
    /// Which process this is.
    pub process: ProcessId,
    /// How long all processes together may take to connect.
    pub deadline: Duration,
}

impl Hub {
    /// Hubs of several processes in one operating-system process.
    ///
    /// # Errors
    /// What the system says.
    pub fn in_process(_layout: &[u32]) -> Result<Vec<Self>> {
        todo!()
    }

    /// Connects the processes of one host.
    ///
    /// # Errors
    /// `Deadline`, `Differ`, `Stranger` or what the system says.
    pub fn unix(_options: &UnixOptions) -> Result<Self> {
        todo!()
    }

    /// Which process this is.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        todo!()
    }

    /// How many ranks each process has.
    #[must_use]
    pub fn layout(&self) -> &[u32] {
        todo!()
    }

    /// The indices of this process's ranks.
    #[must_use]
    pub fn ranks_here(&self) -> Range<u32> {
        todo!()
    }

    /// The process of a rank.
    #[must_use]
    pub fn process_of(&self, _rank: Rank) -> ProcessId {
        todo!()
    }

    /// The number of ranks of all processes.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        todo!()
    }

    /// This process's contribution to an all-gather over processes. Never blocks.
    ///
    /// # Errors
    /// `Misuse` where it is too long for a frame.
    pub fn publish(&self, _topic: &str, _bytes: &[u8]) -> Result<()> {
        todo!()
    }

    /// Waits for every process's contribution; index = process.
    ///
    /// # Errors
    /// `Deadline` names the missing processes, `Protocol` one that ended.
    pub fn collect(&self, _topic: &str, _deadline: Duration) -> Result<Vec<Vec<u8>>> {
        todo!()
    }

    /// Puts a rank of this process into a communicator.
    pub fn join(
        &self,
        _comm: CommId,
        _comm_name: &str,
        _rank: Rank,
        _members: &[Rank],
        _inbox: Arc<dyn Inbox>,
    ) -> Endpoint {
        todo!()
    }

    /// Waits until everything queued for other processes is in the kernel; false if the deadline came first.
    #[must_use]
    pub fn drain(&self, _deadline: Duration) -> bool {
        todo!()
    }
}
