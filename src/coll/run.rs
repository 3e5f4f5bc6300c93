//! Collectives as methods of a communicator, on the collectives' own device communicator.

use std::sync::Arc;

use crate::coll::dtype::DType;
use crate::coll::reduce::ReduceOp;
use crate::comm::Communicator;
use crate::device::{Kernel, KernelHandle};
use crate::devr::core::Core;
use crate::devr::dev_comm_handle::DevComm;
use crate::devr::flush::message::WindowFlags;
use crate::devr::window::WindowSlice;
use crate::error::{Error, FailureCause, Misuse, Phase, Result};

impl Communicator {
    /// Reduces over the LSA team, element by element, from every rank's `send` to every rank's `recv`, which may be the
    /// same. Runs in this thread until this rank's result is there; every rank of the team calls it with slices of
    /// the same windows, type and operation, and calls its collectives in the same order.
    ///
    /// Every rank's result is bitwise the same. What integers, means and halves do is said at [`ReduceOp`].
    ///
    /// # Errors
    /// [`Misuse`] for slices that are closed, of other communicators, of windows without
    /// [`WindowFlags::COLL_SYMMETRIC`], of different lengths, or no multiple of the type's size, or not aligned to it; the peers then wait
    /// until their deadline. The communicator's failure.
    pub fn all_reduce(
        &self,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let call = Call::new(self, send, recv, dtype, op)?;
        call.dev_comm.clone().run(move |kernel| call.run(kernel))
    }

    /// The same on a thread of its own: returns at once, so that one thread can start it on several ranks before it
    /// joins any. Collectives of one rank run in the order in which they were started.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; the kernel's own errors come from [`KernelHandle::join`].
    pub fn start_all_reduce(
        &self,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<KernelHandle<()>> {
        let call = Call::new(self, send, recv, dtype, op)?;
        call.dev_comm.clone().launch(1, move |kernel| call.run(kernel))
    }
}

/// An all-reduce of one rank that is about to run. It keeps its windows open.
struct Call {
    core: Arc<Core>,
    dev_comm: DevComm,
    send: WindowSlice,
    recv: WindowSlice,
    dtype: DType,
    op: ReduceOp,
    number: u64,
}

impl Call {
    fn new(
        comm: &Communicator,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Self> {
        let core = Arc::clone(&comm.shared().core);
        for slice in [send, recv] {
            slice.window.check_open()?;
            if !slice.window.belongs_to(&core) {
                return Err(misuse(format!(
                    "a window of another communicator or rank than {:?}",
                    comm.name()
                )));
            }
            if !slice.window.flags().contains(WindowFlags::COLL_SYMMETRIC) {
                return Err(misuse("a window without COLL_SYMMETRIC: register it with that flag".to_owned()));
            }
        }
        if send.range.len() != recv.range.len() || !send.range.len().is_multiple_of(dtype.size_bytes()) {
            return Err(misuse(format!(
                "{} bytes in, {} bytes out, in elements of {} bytes: all-reduce takes as much in as out, in whole elements",
                send.range.len(),
                recv.range.len(),
                dtype.size_bytes()
            )));
        }
        if [send, recv].into_iter().any(|slice| !slice.range.start.is_multiple_of(dtype.size_bytes())) {
            return Err(misuse(format!(
                "slices that start at bytes {} and {} of their windows: elements of {} bytes lie at multiples of that",
                send.range.start,
                recv.range.start,
                dtype.size_bytes()
            )));
        }
        let Some(dev_comm) = comm.collectives() else {
            return Err(core.watch.error().unwrap_or_else(|| core.closed()));
        };
        let number = core.collective.take();
        Ok(Self { core, dev_comm, send: send.clone(), recv: recv.clone(), dtype, op, number })
    }

    fn run(&self, kernel: &Kernel<'_>) -> Result<()> {
        let failed = || self.core.watch.error().is_some();
        if !self.core.collective.wait(self.number, self.core.deadline, failed) {
            // A collective that is skipped on one rank would pair the next one with another of its peers': the
            // communicator ends here, on all ranks.
            let cause = FailureCause::Deadline {
                after: self.core.deadline,
                missing: Vec::new(),
                blocked: Vec::new(),
            };
            let operation = "an all-reduce behind earlier ones of this rank";
            self.core.watch.fail(Error::Failed(self.core.failure(operation, Phase::Barrier, cause)));
            return Err(self.core.watch.error().unwrap_or_else(|| self.core.closed()));
        }
        let input = kernel.window(self.send.window.device_address())?;
        let output = kernel.window(self.recv.window.device_address())?;
        let count = self.send.range.len() / self.dtype.size_bytes();
        super::all_reduce(
            kernel,
            (&input, self.send.range.start as u64),
            (&output, self.recv.range.start as u64),
            count,
            self.dtype,
            self.op,
            0,
        )
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.core.collective.end(self.number);
    }
}

fn misuse(what: String) -> Error {
    Misuse::Other { what }.into()
}

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
