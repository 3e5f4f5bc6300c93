//! Host kernels: closures that run on threads over the device structs that GPU kernels read.
//!
//! A kernel has blocks, each a thread. Blocks of equal number on all ranks meet in barriers, as on a GPU. While
//! any block runs, its [`KernelEnv`] lives; when it goes, its hook runs: that is when the communicator may
//! reuse what the kernel could see.
#![allow(unsafe_code, reason = "kernels attest what their communicator keeps mapped")]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::device::abi::{LlA2aHandle, LsaBarrierHandle, Window};
use crate::device::barrier::LsaBarrier;
use crate::device::claim::Claims;
use crate::device::dev_comm::DevComm;
use crate::device::ll_a2a::LlA2a;
use crate::device::pointer;
use crate::device::shared::{Element, Shared};
use crate::device::watch::Watch;
use crate::device::window::{self, DeviceWindow};
use crate::error::{Error, Misuse, Peer, Result};
use crate::ids::{LsaRank, ProcessId, Rank};

/// Each LSA rank's size in bytes of the window whose struct lies at this device address; None where all are equal.
pub type SizeLookup = Arc<dyn Fn(u64) -> Option<Arc<[u64]>> + Send + Sync>;

/// What a kernel runs in: one rank's device communicator, and what its errors need to name.
pub struct KernelEnv {
    pub(super) dev_comm: DevComm,
    pub(super) watch: Arc<Watch>,
    pub(super) who: Arc<Who>,
    pub(super) sizes: Option<SizeLookup>,
    /// Barriers in use by sessions of this rank's kernels of the device communicator: (resource buffer, index).
    pub(super) claims: Claims,
    /// Called when this goes, after the last block has ended.
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// Whom the errors of a kernel name. Made once for each device communicator.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) comm_name: String,
    pub(crate) me: Peer,
    /// By LSA rank.
    pub(crate) team: Vec<Peer>,
}

impl KernelEnv {
    /// The surroundings of one kernel of one rank. `team` is who the LSA ranks are, in their order.
    ///
    /// # Safety
    /// Until the value is dropped (its [`on_end`](Self::on_end) hook runs then):
    /// - `window_table` is 0 or leads to a chain of whole chunks, aligned to 8 bytes, that are written by atomic
    ///   stores only, an entry's pointer last and with Release; an entry that is withdrawn is not reused;
    /// - the struct of every entry that has been there meanwhile is whole and does not change, and the window's
    ///   `size` bytes on every LSA rank (as many as [`sizes`](Self::sizes) says) are mapped for reading and
    ///   writing where it says;
    /// - so are the `resource_bytes` of every LSA rank at `resource`;
    /// - whoever else touches that memory from this process does so by atomics or through raw pointers in the
    ///   manner of [`Shared`], never by references.
    #[must_use]
    pub unsafe fn new(
        dev_comm: DevComm,
        watch: Arc<Watch>,
        comm_name: &str,
        me: Peer,
        team: Vec<Peer>,
    ) -> Self {
        let who = Arc::new(Who { comm_name: comm_name.to_owned(), me, team });
        Self { dev_comm, watch, who, sizes: None, claims: Claims::default(), on_end: None }
    }

    /// Sets what is called when all blocks have ended, in whatever thread lets go last; before `join` returns.
    /// It must not panic or block.
    #[must_use]
    pub fn on_end(mut self, hook: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.on_end = Some(Box::new(hook));
        self
    }

    /// Shares the barriers' sessions with other kernels of the same device communicator on this rank: two of them on
    /// one barrier would take each other's arrivals for their peers'.
    #[must_use]
    pub fn claims(mut self, claims: &Claims) -> Self {
        self.claims = Arc::clone(claims);
        self
    }

    /// Sets how sizes that differ between ranks are found, where the communicator has such windows.
    #[must_use]
    pub fn sizes(mut self, lookup: SizeLookup) -> Self {
        self.sizes = Some(lookup);
        self
    }

    /// Who an LSA rank is, for messages.
    pub(super) fn peer(&self, rank: LsaRank) -> Peer {
        let first = self.dev_comm.rank.wrapping_sub(self.dev_comm.lsa_rank);
        self.who.team.get(rank.index()).cloned().unwrap_or_else(|| {
            Peer::new(Rank::new(first.wrapping_add(rank.get())), ProcessId::default(), "unknown", 0)
        })
    }

    /// The LSA rank of a world rank.
    pub(super) fn lsa_rank_of(&self, world: i64) -> Result<LsaRank> {
        let dev = &self.dev_comm;
        let first = i64::from(dev.rank) - i64::from(dev.lsa_rank);
        let lsa = u32::try_from(world.saturating_sub(first)).ok().filter(|lsa| *lsa < dev.lsa_size);
        lsa.map(LsaRank::new).ok_or_else(|| self.not_in_team(world))
    }

    pub(super) fn check_lsa(&self, rank: LsaRank) -> Result<()> {
        if rank.get() < self.dev_comm.lsa_size {
            return Ok(());
        }
        let first = i64::from(self.dev_comm.rank) - i64::from(self.dev_comm.lsa_rank);
        Err(self.not_in_team(first + i64::from(rank.get())))
    }

    fn not_in_team(&self, world: i64) -> Error {
        let first = i64::from(self.dev_comm.rank) - i64::from(self.dev_comm.lsa_rank);
        let last = first + i64::from(self.dev_comm.lsa_size) - 1;
        let team = format!("the LSA team of {} (ranks {first} to {last})", self.who.me.rank);
        match u32::try_from(world) {
            Ok(rank) => Misuse::NotInTeam { rank: Rank::new(rank), team }.into(),
            Err(_) => Misuse::Other { what: format!("rank {world} is not in {team}") }.into(),
        }
    }
}

impl Drop for KernelEnv {
    fn drop(&mut self) {
        if let Some(hook) = self.on_end.take() {
            hook();
        }
    }
}

impl fmt::Debug for KernelEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelEnv")
            .field("comm", &self.who.comm_name)
            .field("dev_comm", &self.dev_comm)
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

/// One block of a running kernel.
#[derive(Debug)]
pub struct Kernel<'k> {
    env: &'k KernelEnv,
    block: u32,
    blocks: u32,
}

impl<'k> Kernel<'k> {
    /// This rank in the world.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.env.dev_comm.rank
    }

    /// The size of the world.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        self.env.dev_comm.n_ranks
    }

    /// This rank in its LSA team.
    #[must_use]
    pub fn lsa_rank(&self) -> LsaRank {
        LsaRank::new(self.env.dev_comm.lsa_rank)
    }

    /// The size of the LSA team.
    #[must_use]
    pub fn lsa_size(&self) -> u32 {
        self.env.dev_comm.lsa_size
    }

    /// This block's number.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.block
    }

    /// How many blocks the kernel has on this rank.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The device communicator.
    #[must_use]
    pub fn dev_comm(&self) -> &'k DevComm {
        &self.env.dev_comm
    }

    /// The window whose struct lies at `device_address`, which is what the host calls the window's handle.
    ///
    /// # Errors
    /// `Closed` if the table has no such window: it was closed before this kernel began, or never was one.
    pub fn window(&self, device_address: u64) -> Result<DeviceWindow<'k>> {
        window::at(self.env, device_address)
            .ok_or_else(|| Misuse::Closed { what: format!("the window at {device_address:#x}") }.into())
    }

    /// A window of the communicator's own, without a search in the table.
    ///
    /// Crate-private and safe because of who calls it: the runtime, for a window that was open after this kernel had
    /// begun, with what its table entry says. A close after that waits for the kernel, so the contract of
    /// [`KernelEnv::new`] holds for the window.
    pub(crate) fn open_window(
        &self,
        device_address: u64,
        base: u64,
        size: u64,
        sizes: Option<Arc<[u64]>>,
    ) -> DeviceWindow<'k> {
        window::open_known(self.env, device_address, base, size, sizes)
    }

    /// A window of these bytes that need not be in the table; `base` is where its owner knows it, 0 if unknown.
    ///
    /// # Safety
    /// While the kernel runs, `size` bytes of every LSA rank are mapped for reading and writing where `bytes` puts
    /// them, and are touched as [`KernelEnv::new`] asks.
    #[must_use]
    pub unsafe fn window_of(&self, bytes: Window, base: u64, size: u64) -> DeviceWindow<'k> {
        // SAFETY: this function's own contract.
        unsafe { DeviceWindow::new(self.env, bytes, base, size, None) }
    }

    /// The innermost window that contains `address`, an address of this rank's own buffer as its owner knows it.
    /// None if there is none.
    #[must_use]
    pub fn find_window(&self, address: u64) -> Option<DeviceWindow<'k>> {
        window::find(self.env, address)
    }

    /// `count` elements of an LSA rank's part of a window, from byte `offset` on.
    ///
    /// # Errors
    /// As [`DeviceWindow::slice`].
    pub fn slice<T: Element>(
        &self,
        window: &DeviceWindow<'k>,
        peer: LsaRank,
        offset: u64,
        count: usize,
    ) -> Result<Shared<'k, T>> {
        window.slice(peer, offset, count)
    }

    /// `count` elements of an LSA rank's resource buffer. `buffer` is its handle, in units of 128 bytes.
    ///
    /// # Errors
    /// `OutOfRange` beyond the end of all resource buffers, `NotInTeam`.
    pub fn resource<T: Element>(&self, buffer: u32, peer: LsaRank, count: usize) -> Result<Shared<'k, T>> {
        self.env.check_lsa(peer)?;
        let dev = &self.env.dev_comm;
        let offset = pointer::resource_offset(buffer);
        let len = (count as u64).saturating_mul(size_of::<T>() as u64);
        if offset.checked_add(len).is_none_or(|end| end > dev.resource_bytes) {
            let what = "the resource buffers".to_owned();
            return Err(Misuse::OutOfRange { what, offset, len, size: dev.resource_bytes }.into());
        }
        let address = pointer::lsa(&dev.resource, offset, peer.get().cast_signed());
        // SAFETY: inside the peer's resource buffer, mapped while the kernel runs (contract of `KernelEnv::new`).
        unsafe { Shared::new(window::host_address(address), count) }
    }

    /// Begins a session on LSA barrier `index` of the device communicator.
    ///
    /// # Errors
    /// `Misuse` if there is no such barrier, or another session of this kernel is on it.
    pub fn barrier(&self, index: u32) -> Result<LsaBarrier<'k>> {
        self.barrier_of(self.env.dev_comm.lsa_barrier, index)
    }

    /// Begins a session on a barrier of a handle of the caller's own.
    ///
    /// # Errors
    /// As [`Kernel::barrier`], and `OutOfRange` if the handle's words are not in the resource buffers.
    pub fn barrier_of(&self, handle: LsaBarrierHandle, index: u32) -> Result<LsaBarrier<'k>> {
        LsaBarrier::begin(self, handle, index)
    }

    /// Begins a session on block `block` of the device communicator's LL all-to-all.
    ///
    /// # Errors
    /// `Misuse` if there is no such block, or another session of this rank is on it.
    pub fn ll_a2a(&self, block: u32) -> Result<LlA2a<'k>> {
        let dev = &self.env.dev_comm;
        if block < dev.ll_a2a_blocks {
            return self.ll_a2a_of(dev.ll_a2a, block);
        }
        let what = format!(
            "there is no LL all-to-all {block}: the device communicator was made with {} blocks",
            dev.ll_a2a_blocks
        );
        Err(Misuse::Other { what }.into())
    }

    /// Begins a session on a block of buffers of the caller's own.
    ///
    /// # Errors
    /// As [`Kernel::ll_a2a`], and `OutOfRange` if the block is not in the resource buffers.
    pub fn ll_a2a_of(&self, handle: LlA2aHandle, block: u32) -> Result<LlA2a<'k>> {
        LlA2a::begin(self, handle, block)
    }

    pub(super) fn env(&self) -> &'k KernelEnv {
        self.env
    }
}

/// The surroundings of a kernel of a communicator's rank.
///
/// Crate-private and safe because the runtime keeps the promises of [`KernelEnv::new`]: it makes `dev_comm` at the
/// commit of a batch, whose table is written by ordered atomic stores and whose structs, entries and mappings are
/// retired only when every kernel has ended that ran when their window was closed; the caller registers the kernel
/// as running before this call and ends it in the `on_end` hook.
pub(crate) fn of_communicator(
    dev_comm: DevComm,
    watch: Arc<Watch>,
    who: Arc<Who>,
    claims: &Claims,
    sizes: SizeLookup,
) -> KernelEnv {
    // The contract of `KernelEnv::new` is kept; see above.
    KernelEnv { dev_comm, watch, who, sizes: Some(sizes), claims: Arc::clone(claims), on_end: None }
}

/// Starts `blocks` blocks of a kernel, each on a thread of its own, and returns at once.
///
/// Either all blocks run or none: if a thread cannot be had, [`KernelHandle::join`] says so.
#[must_use = "a kernel's errors come from `join`"]
pub fn launch<T, F>(env: KernelEnv, blocks: u32, kernel: F) -> KernelHandle<T>
where
    T: Send + 'static,
    F: Fn(&Kernel<'_>) -> Result<T> + Send + Sync + 'static,
{
    if blocks == 0 {
        let why = "a kernel has at least one block".to_owned();
        return KernelHandle::refused(Misuse::BadSetting { name: "blocks".into(), value: "0".into(), why });
    }
    let env = Arc::new(env);
    let kernel = Arc::new(kernel);
    // One token a block, sent when all threads are there. No token and no sender: do not run.
    let (start, started): (Sender<()>, Receiver<()>) = unbounded();
    let mut threads = Vec::new();
    for block in 0..blocks {
        let name = format!("symwin-r{}-b{block}", env.dev_comm.rank);
        let (env, kernel, started) = (Arc::clone(&env), Arc::clone(&kernel), started.clone());
        let body = move || {
            // Ends with the loop below at the latest.
            let go = started.recv().is_ok();
            let outcome = go.then(|| run_block(&env, block, blocks, |k| kernel(k)));
            // Before the thread ends, so that whoever joined it finds the hook called.
            drop(env);
            outcome
        };
        match Builder::new().name(name).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                let what = format!(
                    "block {block} of {blocks} of a host kernel could not start: {error}; ask for fewer blocks \
                     or raise the limit of threads (ulimit -u)"
                );
                return KernelHandle { threads, refusal: Some(Misuse::Other { what }.into()) };
            }
        }
    }
    for _ in 0..blocks {
        // We hold a receiver, so this does not fail.
        let _ = start.send(());
    }
    KernelHandle { threads, refusal: None }
}

/// Runs a kernel of one block in this thread.
///
/// # Errors
/// What the kernel returns; `KernelPanicked` if it panics.
pub fn run_here<T>(env: KernelEnv, kernel: impl FnOnce(&Kernel<'_>) -> Result<T>) -> Result<T> {
    run_block(&env, 0, 1, kernel)
}

/// The blocks of a kernel that was launched. Dropped without [`join`](Self::join), they run on by themselves.
#[derive(Debug)]
pub struct KernelHandle<T> {
    /// By block. A block that was told not to run gives None.
    threads: Vec<JoinHandle<Option<Result<T>>>>,
    /// Why no block ran.
    refusal: Option<Error>,
}

impl<T> KernelHandle<T> {
    /// Waits for all blocks, whatever becomes of any, and gives their results by block. How long that takes is
    /// the kernel's own affair; barriers in it have their deadline.
    ///
    /// # Errors
    /// If no block ran, why; else the first panic, by block; else the first error, by block.
    pub fn join(self) -> Result<Vec<T>> {
        let mut results = Vec::with_capacity(self.threads.len());
        let mut panicked = None;
        let mut failed = self.refusal;
        for (block, thread) in self.threads.into_iter().enumerate() {
            let outcome = thread.join().unwrap_or_else(|payload| {
                let block = u32::try_from(block).unwrap_or(u32::MAX);
                Some(Err(panic_error(block, payload.as_ref())))
            });
            match outcome {
                Some(Ok(value)) => results.push(value),
                Some(Err(error @ Error::Misuse(Misuse::KernelPanicked { .. }))) => {
                    panicked.get_or_insert(error);
                }
                Some(Err(error)) => {
                    failed.get_or_insert(error);
                }
                None => {}
            }
        }
        panicked.or(failed).map_or(Ok(results), Err)
    }

    /// Whether all blocks have ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    fn refused(why: Misuse) -> Self {
        Self { threads: Vec::new(), refusal: Some(why.into()) }
    }
}

fn run_block<T>(
    env: &KernelEnv,
    block: u32,
    blocks: u32,
    kernel: impl FnOnce(&Kernel<'_>) -> Result<T>,
) -> Result<T> {
    // What a panic may leave half done is the kernel's own data, and peers' memory, which carries no invariant.
    catch_unwind(AssertUnwindSafe(|| kernel(&Kernel { env, block, blocks })))
        .unwrap_or_else(|payload| Err(panic_error(block, payload.as_ref())))
}

fn panic_error(block: u32, payload: &(dyn std::any::Any + Send)) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Misuse::KernelPanicked { block, message }.into()
}
