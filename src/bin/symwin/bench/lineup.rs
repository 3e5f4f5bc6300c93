//! Lines ranks up before and after each sample, without a sleep.

use anyhow::ensure;
use symwin::{Communicator, DevComm, DevCommRequirements};

use super::mesh::Mesh;

/// A barrier of all ranks beside what is measured.
#[derive(Debug)]
pub(crate) enum LineUp {
    /// By host code in memory that ranks share, on a communicator of its own.
    Kernels { control: Communicator, dev_comm: DevComm },
    /// By messages, where host code does not reach the device's memory.
    Messages(Mesh),
}

impl LineUp {
    pub(crate) fn new(comm: &Communicator) -> anyhow::Result<Self> {
        check(comm)?;
        let control = comm.duplicate("bench control")?;
        let dev_comm = control.create_dev_comm(DevCommRequirements::new().lsa_barriers(1))?;
        Ok(Self::Kernels { control, dev_comm })
    }

    /// By messages over sockets of its own. `name` is one that nobody else knows.
    pub(crate) fn by_messages(comm: &Communicator, name: &str) -> anyhow::Result<Self> {
        check(comm)?;
        let name = format!("{name}-lineup");
        // A batch is complete on no rank before all ranks have begun it.
        let meet = || {
            comm.create_dev_comm(DevCommRequirements::new())?;
            Ok(())
        };
        Ok(Self::Messages(Mesh::connect(&name, comm.rank().get(), comm.world_size(), meet)?))
    }

    /// Waits until all ranks are here.
    pub(crate) fn wait(&self) -> anyhow::Result<()> {
        match self {
            Self::Kernels { dev_comm, .. } => Ok(dev_comm.run(|kernel| kernel.barrier(0)?.sync())?),
            Self::Messages(mesh) => Ok(mesh.barrier()?),
        }
    }

    pub(crate) fn end(self) -> symwin::Result<()> {
        match self {
            Self::Kernels { control, dev_comm } => {
                drop(dev_comm);
                control.finalize()
            }
            Self::Messages(_) => Ok(()),
        }
    }
}

fn check(comm: &Communicator) -> anyhow::Result<()> {
    ensure!(
        comm.lsa_size() == comm.world_size(),
        "a benchmark is of one LSA team, and each has {} of {} ranks: unset SYMWIN_LSA_TEAM_SIZE",
        comm.lsa_size(),
        comm.world_size()
    );
    Ok(())
}
