//! Lines ranks up before and after each sample, without a sleep and without a message.

use anyhow::ensure;
use symwin::{Communicator, DevComm, DevCommRequirements};

/// A barrier of all ranks, on a communicator of its own.
#[derive(Debug)]
pub(crate) struct LineUp {
    control: Communicator,
    dev_comm: DevComm,
}

impl LineUp {
    pub(crate) fn new(comm: &Communicator) -> anyhow::Result<Self> {
        ensure!(
            comm.lsa_size() == comm.world_size(),
            "a benchmark is of one LSA team, and each has {} of {} ranks: unset SYMWIN_LSA_TEAM_SIZE",
            comm.lsa_size(),
            comm.world_size()
        );
        let control = comm.duplicate("bench control")?;
        let dev_comm = control.create_dev_comm(DevCommRequirements::new().lsa_barriers(1))?;
        Ok(Self { control, dev_comm })
    }

    /// Waits until all ranks are here.
    pub(crate) fn wait(&self) -> symwin::Result<()> {
        self.dev_comm.run(|kernel| kernel.barrier(0)?.sync())
    }

    pub(crate) fn end(self) -> symwin::Result<()> {
        drop(self.dev_comm);
        self.control.finalize()
    }
}
