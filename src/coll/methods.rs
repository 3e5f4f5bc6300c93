//! Collectives as methods of a communicator, over its LSA team.
//!
//! What all have in common: every rank of the team calls them with the same arguments (windows, ranges, type,
//! operation, root) and calls its collectives in the same order; windows have [`WindowFlags::COLL_SYMMETRIC`]. Those
//! that block run in the caller's thread until this rank's result is there; each has a twin that starts it on a thread
//! of its own.

use crate::coll::dtype::DType;
use crate::coll::reduce::ReduceOp;
use crate::coll::run::{self, Call, Job};
use crate::comm::Communicator;
use crate::device::KernelHandle;
#[allow(unused_imports, reason = "the documentation names it")]
use crate::devr::flush::message::WindowFlags;
use crate::devr::window::WindowSlice;
use crate::driver::StreamRef;
use crate::error::Result;
use crate::ids::Rank;

impl Communicator {
    /// Reduces over the LSA team, element by element, from every rank's `send` to every rank's `recv`, which may be the
    /// same. Runs in this thread until this rank's result is there; every rank of the team calls it with the same
    /// ranges of the same windows, type and operation, and calls its collectives in the same order.
    ///
    /// Every rank's result is bitwise the same. What integers, means and halves do is said at [`ReduceOp`].
    ///
    /// # Errors
    /// [`Misuse`](crate::error::Misuse) for slices that are closed, of other communicators, of windows without
    /// [`WindowFlags::COLL_SYMMETRIC`], of lengths that do not fit the collective, or no multiple of the type's size,
    /// or not aligned to it; the peers then wait until their deadline. The communicator's failure.
    pub fn all_reduce(
        &self,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        Call::new(self, send, recv, Job::AllReduce { dtype, op })?.run()
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
        Call::new(self, send, recv, Job::AllReduce { dtype, op })?.start()
    }

    /// The same on a stream of the device, for devices whose kernels are not host code: returns when it is queued, and
    /// the result is there when the stream has passed. The stream may be capturing a graph; the graph's runs then count
    /// as this rank's collectives, in the order in which the program runs them, and must have ended before a window is
    /// closed or the communicator finalized.
    ///
    /// Collectives on several streams run in the order of their calls. The first one on a second stream waits for all
    /// that is queued on the first stream by then, which must not be capturing, and must not wait for the second.
    /// Closing a window or the communicator waits for all that is queued on the stream by then, until the deadline.
    ///
    /// An `Arc<CudaStream>` (feature `cuda`) is kept until that end of it is marked. Behind a stream that is given by
    /// number, a default stream, and each of several, an event is recorded each time; see [`StreamRef`].
    ///
    /// A wait in it that takes longer than the communicator's deadline ends, and its output is then undefined: the next
    /// call of this rank fails by name.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `Misuse` where kernels are host code, or the stream is of another context
    /// than the communicator's device; what the device says.
    pub fn all_reduce_on(
        &self,
        stream: impl Into<StreamRef>,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        run::queue(self, send, recv, Job::AllReduce { dtype, op }, stream.into())
    }

    /// Gathers every rank's `send` in every rank's `recv`, in order of LSA rank: `recv` is as long as `send` of all
    /// ranks together. `send` may be this rank's own block of `recv`; then it is at another place on each rank, and the
    /// peers find it there.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `Misuse` if `send` overlaps `recv` otherwise.
    pub fn all_gather(&self, send: &WindowSlice, recv: &WindowSlice) -> Result<()> {
        Call::new(self, send, recv, Job::AllGather)?.run()
    }

    /// [`Communicator::all_gather`] on a thread of its own; see [`Communicator::start_all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::all_gather`]; the kernel's own errors come from [`KernelHandle::join`].
    pub fn start_all_gather(&self, send: &WindowSlice, recv: &WindowSlice) -> Result<KernelHandle<()>> {
        Call::new(self, send, recv, Job::AllGather)?.start()
    }

    /// Reduces over the LSA team and leaves one block of the result in each rank's `recv`, in order of LSA rank: `send`
    /// is as long as `recv` of all ranks together. `recv` may be this rank's own block of `send`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `Misuse` if `recv` overlaps `send` otherwise.
    pub fn reduce_scatter(
        &self,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        Call::new(self, send, recv, Job::ReduceScatter { dtype, op })?.run()
    }

    /// [`Communicator::reduce_scatter`] on a thread of its own; see [`Communicator::start_all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`]; the kernel's own errors come from [`KernelHandle::join`].
    pub fn start_reduce_scatter(
        &self,
        send: &WindowSlice,
        recv: &WindowSlice,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<KernelHandle<()>> {
        Call::new(self, send, recv, Job::ReduceScatter { dtype, op })?.start()
    }

    /// Copies the `send` of rank `root`, one of the LSA team, to every rank's `recv`, which may be the same. Of the
    /// other ranks' `send` only the place is used: that of the root's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`Misuse::NotInTeam`](crate::error::Misuse::NotInTeam); `Misuse` if at the root
    /// `recv` overlaps `send` otherwise.
    pub fn broadcast(&self, send: &WindowSlice, recv: &WindowSlice, root: Rank) -> Result<()> {
        Call::new(self, send, recv, Job::Broadcast { root })?.run()
    }

    /// [`Communicator::broadcast`] on a thread of its own; see [`Communicator::start_all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; the kernel's own errors come from [`KernelHandle::join`].
    pub fn start_broadcast(
        &self,
        send: &WindowSlice,
        recv: &WindowSlice,
        root: Rank,
    ) -> Result<KernelHandle<()>> {
        Call::new(self, send, recv, Job::Broadcast { root })?.start()
    }

    /// Exchanges equal blocks in the LSA team: block q of rank r's `send` becomes block r of rank q's `recv`, in order
    /// of LSA rank. `send` and `recv` are equally long.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `Misuse` if `recv` overlaps `send`.
    pub fn all_to_all(&self, send: &WindowSlice, recv: &WindowSlice) -> Result<()> {
        Call::new(self, send, recv, Job::AllToAll)?.run()
    }

    /// [`Communicator::all_to_all`] on a thread of its own; see [`Communicator::start_all_reduce`].
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`]; the kernel's own errors come from [`KernelHandle::join`].
    pub fn start_all_to_all(&self, send: &WindowSlice, recv: &WindowSlice) -> Result<KernelHandle<()>> {
        Call::new(self, send, recv, Job::AllToAll)?.start()
    }
}
