//! How a collective of a communicator runs: on the collectives' own device communicator, when it is its turn.

use std::sync::Arc;

use crate::coll::dtype::DType;
use crate::coll::on_device;
use crate::coll::reduce::ReduceOp;
use crate::comm::Communicator;
use crate::device::{Kernel, KernelHandle};
use crate::devr::core::Core;
use crate::devr::dev_comm_handle::DevComm;
use crate::devr::flush::message::WindowFlags;
use crate::devr::window::WindowSlice;
use crate::driver::StreamRef;
use crate::error::{Error, FailureCause, Misuse, Phase, Result};
use crate::ids::{LsaRank, Rank};

/// What a collective does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    AllGather,
    AllReduce { dtype: DType, op: ReduceOp },
    AllToAll,
    Broadcast { root: Rank },
    ReduceScatter { dtype: DType, op: ReduceOp },
}

/// A collective of one rank that is about to run. It keeps its windows open.
pub(super) struct Call {
    core: Arc<Core>,
    dev_comm: DevComm,
    send: WindowSlice,
    recv: WindowSlice,
    job: Job,
    /// Its place among the rank's collectives.
    number: u64,
}

impl Call {
    /// A collective of slices that fit it, with a place in the order.
    pub(super) fn new(comm: &Communicator, send: &WindowSlice, recv: &WindowSlice, job: Job) -> Result<Self> {
        let dev_comm = job.admit(comm, send, recv)?;
        let core = Arc::clone(&comm.shared().core);
        let number = core.collective.take();
        Ok(Self { core, dev_comm, send: send.clone(), recv: recv.clone(), job, number })
    }

    /// What runs on devices whose kernels are not host code.
    fn on_device(&self) -> Option<on_device::Call<'_>> {
        let Self { core, dev_comm, send, recv, job, .. } = self;
        job.on_device(core, dev_comm, (send, recv))
    }

    /// Runs it in this thread.
    pub(super) fn run(self) -> Result<()> {
        if let Some(call) = self.on_device() {
            self.await_turn()?;
            return call.run();
        }
        self.dev_comm.run(|kernel| self.body(kernel))
    }

    /// Runs it on a thread of its own.
    pub(super) fn start(self) -> Result<KernelHandle<()>> {
        self.dev_comm.clone().launch(1, move |kernel| self.body(kernel))
    }

    fn body(&self, kernel: &Kernel<'_>) -> Result<()> {
        self.await_turn()?;
        let (input, output) = (self.send.window.in_kernel(kernel)?, self.recv.window.in_kernel(kernel)?);
        let from = (&input, self.send.range.start as u64);
        let to = (&output, self.recv.range.start as u64);
        let bytes = self.send.range.len().min(self.recv.range.len());
        match self.job {
            Job::AllGather => super::all_gather(kernel, from, to, bytes, BARRIER),
            Job::AllReduce { dtype, op } => {
                super::all_reduce(kernel, from, to, bytes / dtype.size_bytes(), dtype, op, BARRIER)
            }
            Job::AllToAll => super::all_to_all(kernel, from, to, bytes / kernel.lsa_size() as usize, BARRIER),
            Job::Broadcast { root } => {
                super::broadcast(kernel, from, to, bytes, lsa_rank(&self.core, root)?, BARRIER)
            }
            Job::ReduceScatter { dtype, op } => {
                super::reduce_scatter(kernel, from, to, bytes / dtype.size_bytes(), dtype, op, BARRIER)
            }
        }
    }

    fn await_turn(&self) -> Result<()> {
        let failed = || self.core.watch.error().is_some();
        if self.core.collective.wait(self.number, self.core.deadline, failed) {
            return Ok(());
        }
        // A collective that is skipped on one rank would pair the next one with another of its peers': the
        // communicator ends here, on all ranks.
        let cause =
            FailureCause::Deadline { after: self.core.deadline, missing: Vec::new(), blocked: Vec::new() };
        let operation = "a collective behind earlier ones of this rank";
        self.core.watch.fail(Error::Failed(self.core.failure(operation, Phase::Barrier, cause)));
        Err(self.core.watch.error().unwrap_or_else(|| self.core.closed()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.core.collective.end(self.number);
    }
}

/// Queues a collective on a stream of the device, behind those that were queued before.
pub(super) fn queue(
    comm: &Communicator,
    send: &WindowSlice,
    recv: &WindowSlice,
    job: Job,
    stream: StreamRef,
) -> Result<()> {
    let dev_comm = job.admit(comm, send, recv)?;
    let core = &comm.shared().core;
    let Some(call) = job.on_device(core, &dev_comm, (send, recv)) else {
        return Err(misuse(format!(
            "collectives of {} do not run on streams: use the calls that block, or start threads of their own",
            core.driver.info().name
        )));
    };
    stream.check(&*core.driver)?;
    on_device::check(core)?;
    call.start(stream)
}

impl Job {
    /// The collectives' device communicator, for slices that fit.
    fn admit(self, comm: &Communicator, send: &WindowSlice, recv: &WindowSlice) -> Result<DevComm> {
        let core = &comm.shared().core;
        for slice in [send, recv] {
            slice.window.check_open()?;
            if !slice.window.belongs_to(core) {
                return Err(misuse(format!(
                    "a window of another communicator or rank than {:?}",
                    comm.name()
                )));
            }
            if !slice.window.flags().contains(WindowFlags::COLL_SYMMETRIC) {
                return Err(misuse("a window without COLL_SYMMETRIC: register it with that flag".to_owned()));
            }
        }
        self.check(core, send, recv)?;
        comm.collectives().ok_or_else(|| core.watch.error().unwrap_or_else(|| core.closed()))
    }

    /// What runs on devices whose kernels are not host code.
    fn on_device<'a>(
        self,
        core: &'a Arc<Core>,
        dev_comm: &'a DevComm,
        (send, recv): (&'a WindowSlice, &'a WindowSlice),
    ) -> Option<on_device::Call<'a>> {
        match self {
            Self::AllReduce { dtype, op } if !core.driver.info().host_access => {
                Some(on_device::Call { core, dev_comm, send, recv, dtype, op })
            }
            _ => None,
        }
    }

    /// Whether slices of these lengths and places fit it.
    fn check(self, core: &Core, send: &WindowSlice, recv: &WindowSlice) -> Result<()> {
        let ranks = core.agreed.lsa_size as usize;
        let (sent, received) = (send.range.len(), recv.range.len());
        let (name, fits, rule) = match self {
            Self::AllGather => ("all-gather", sent.checked_mul(ranks) == Some(received), GATHERS),
            Self::AllReduce { .. } => ("all-reduce", sent == received, AS_MUCH),
            Self::AllToAll => ("all-to-all", sent == received && sent.is_multiple_of(ranks), BLOCKS),
            Self::Broadcast { .. } => ("broadcast", sent == received, AS_MUCH),
            Self::ReduceScatter { .. } => {
                ("reduce-scatter", received.checked_mul(ranks) == Some(sent), SCATTERS)
            }
        };
        let size = match self {
            Self::AllReduce { dtype, .. } | Self::ReduceScatter { dtype, .. } => dtype.size_bytes(),
            Self::AllGather | Self::AllToAll | Self::Broadcast { .. } => 1,
        };
        if !fits || !received.is_multiple_of(size) {
            return Err(misuse(format!(
                "{sent} bytes in, {received} bytes out, in elements of {size} bytes, {ranks} ranks: {name} takes \
                 {rule}, in whole elements"
            )));
        }
        if [send, recv].into_iter().any(|slice| !slice.range.start.is_multiple_of(size)) {
            return Err(misuse(format!(
                "slices that start at bytes {} and {} of their windows: elements of {size} bytes lie at multiples \
                 of that",
                send.range.start, recv.range.start
            )));
        }
        if let Self::Broadcast { root } = self {
            lsa_rank(core, root)?;
        }
        Ok(())
    }
}

fn lsa_rank(core: &Core, root: Rank) -> Result<LsaRank> {
    let team = || format!("the LSA team of {}", core.agreed.rank);
    Ok(core.agreed.lsa_rank_of(root).ok_or_else(|| Misuse::NotInTeam { rank: root, team: team() })?)
}

fn misuse(what: String) -> Error {
    Misuse::Other { what }.into()
}

const AS_MUCH: &str = "as much in as out";
const GATHERS: &str = "as much out as in of all ranks";
const SCATTERS: &str = "as much in as out of all ranks";
const BLOCKS: &str = "as much in as out, equal blocks for all ranks";

/// The barrier, and block of the LL all-to-all, of collectives: one runs at a time.
const BARRIER: u32 = 0;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::comm::Config;

    #[test]
    fn a_collective_whose_turn_never_comes_ends_the_communicator_and_is_not_skipped() {
        let config = Config::new().stride(1 << 32).workers(1).deadline(Duration::from_secs(2));
        let comm = Communicator::in_process_with(1, &config).unwrap().remove(0);
        let buffer = comm.alloc(4096).unwrap();
        let window = comm.register(&buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
        // An earlier collective that does not end.
        let earlier = comm.shared().core.collective.take();
        let failed = |result: Result<()>| match result {
            Err(Error::Failed(failure)) => matches!(failure.cause, FailureCause::Deadline { .. }),
            other => panic!("a failure was expected, not {other:?}"),
        };
        assert!(failed(comm.all_reduce(&window.whole(), &window.whole(), DType::F32, ReduceOp::Sum)));
        comm.shared().core.collective.end(earlier);
        assert!(failed(comm.all_reduce(&window.whole(), &window.whole(), DType::F32, ReduceOp::Sum)));
        assert!(failed(comm.register(&buffer, WindowFlags::empty()).map(drop)));
        comm.finalize().unwrap();
    }
}
