//! The LSA barrier: the reference's algorithm on the reference's memory layout, with a wait that sleeps.
//!
//! Each rank's resource buffer holds, for `n` barriers and `R` ranks, words of 32 bits:
//!
//! | words | what |
//! | --- | --- |
//! | `0..n` | multicast epoch of barrier i |
//! | `n..2n` | unicast epoch of barrier i |
//! | `2n..3n` | multicast inbox of barrier i |
//! | `3n + i*R + p` | unicast inbox of barrier i, written by peer p |
//!
//! To arrive is to store the next epoch into one's own slot of every peer's inbox; to wait is to wait until
//! every slot of the own inbox has it. Epochs wrap, are zero before the first use, and persist in the own epoch
//! word from kernel to kernel. Host kernels use the unicast words only.
//!
//! Differences from the reference: a wait spins only for moments and only with more cores than threads, then it
//! sleeps on a shared futex, so that more ranks than cores do not collapse; it watches the communicator's
//! failure and its deadline; two sessions of one kernel on the same barrier are an error.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::device::abi::LsaBarrierHandle;
use crate::device::kernel::{Kernel, KernelEnv};
use crate::device::shared::Shared;
use crate::device::watch::{self, WaitError};
use crate::error::{Error, Failure, FailureCause, Missing, Misuse, Phase, Result};
use crate::ids::LsaRank;

/// One block's session on one barrier. Its end writes the epoch back for the next session.
///
/// What a rank wrote before `arrive` is seen by a peer after its `wait` (release and acquire).
pub struct LsaBarrier<'k> {
    /// The claim on the barrier; gives the kernel's surroundings.
    claim: Claim<'k>,
    /// How many rounds all ranks have completed.
    epoch: u32,
    /// Whether this rank has arrived in the round after `epoch`.
    arrived: bool,
    /// This rank's unicast epoch word.
    state: &'k AtomicU32,
    /// Of each other LSA rank: who it is, its slot in this rank's inbox, this rank's slot in its inbox.
    peers: Vec<PeerWords<'k>>,
    /// How many threads of this machine may wait with each other.
    threads: usize,
}

struct PeerWords<'k> {
    rank: LsaRank,
    inbox: &'k AtomicU32,
    outbox: &'k AtomicU32,
}

impl<'k> LsaBarrier<'k> {
    /// Begins a session on barrier `index` of `handle`. See [`Kernel::barrier`].
    pub(super) fn begin(kernel: &Kernel<'k>, handle: LsaBarrierHandle, index: u32) -> Result<Self> {
        let env = kernel.env();
        let layout = Layout::new(handle, env.dev_comm.lsa_size, index)?;
        let me = LsaRank::new(env.dev_comm.lsa_rank);
        let words = |rank| kernel.resource::<u32>(handle.buffer, rank, layout.words);
        let own: Shared<'k, u32> = words(me)?;
        let state = own.word(layout.epoch)?;
        let mut peers = Vec::with_capacity(env.dev_comm.lsa_size as usize);
        for rank in (0..env.dev_comm.lsa_size).map(LsaRank::new).filter(|rank| *rank != me) {
            let inbox = own.word(layout.inbox + rank.index())?;
            let outbox = words(rank)?.word(layout.inbox + me.index())?;
            peers.push(PeerWords { rank, inbox, outbox });
        }
        let claim = Claim::new(env, handle.buffer, index)?;
        let threads = (env.dev_comm.lsa_size as usize).saturating_mul(kernel.blocks() as usize);
        // The claim comes before the load: the epoch may be that of a session that ended a moment ago.
        Ok(Self { claim, epoch: state.load(Ordering::Acquire), arrived: false, state, peers, threads })
    }

    /// How many rounds this barrier has completed since the device communicator was made, modulo 2^32.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Tells all peers that this rank has arrived. Never waits.
    ///
    /// # Errors
    /// The communicator's failure, if it has failed.
    pub fn arrive(&mut self) -> Result<()> {
        if let Some(error) = self.claim.env.watch.error() {
            return Err(error);
        }
        let next = self.epoch.wrapping_add(1);
        for peer in &self.peers {
            peer.outbox.store(next, Ordering::Release);
            watch::wake_all(peer.outbox);
        }
        self.arrived = true;
        Ok(())
    }

    /// Waits until all peers have arrived, at most the watch's deadline.
    ///
    /// # Errors
    /// The communicator's failure, at once when it fails. If the deadline passes, [`Error::Failed`] that names the
    /// ranks that have not arrived; the communicator's watch then fails with it. `Misuse` before `arrive`. After
    /// any error the epoch has not moved.
    pub fn wait(&mut self) -> Result<()> {
        if !self.arrived {
            let what = format!("LSA barrier {}: `wait` before `arrive`", self.claim.index);
            return Err(Misuse::Other { what }.into());
        }
        let watch = &self.claim.env.watch;
        let until = watch.until();
        let next = self.epoch.wrapping_add(1);
        if self.peers.is_empty()
            && let Some(error) = watch.error()
        {
            return Err(error);
        }
        for peer in &self.peers {
            match watch.wait_word(peer.inbox, until, self.threads, |got| has_reached(got, next)) {
                Ok(_) => {}
                Err(WaitError::Failed(error)) => return Err(error),
                Err(WaitError::Deadline { .. }) => {
                    let error = self.deadline_error(next, watch.deadline());
                    watch.fail(error.clone());
                    return Err(error);
                }
            }
        }
        self.epoch = next;
        self.arrived = false;
        Ok(())
    }

    /// `arrive` and `wait`.
    ///
    /// # Errors
    /// As [`LsaBarrier::wait`].
    pub fn sync(&mut self) -> Result<()> {
        self.arrive()?;
        self.wait()
    }

    fn deadline_error(&self, next: u32, after: Duration) -> Error {
        let env = self.claim.env;
        let mut missing = Vec::new();
        for peer in &self.peers {
            let got = peer.inbox.load(Ordering::Acquire);
            if !has_reached(got, next) {
                let last_seen = format!(
                    "last seen in round {got} of LSA barrier {}, awaited in round {next}",
                    self.claim.index
                );
                missing.push(Missing { peer: env.peer(peer.rank), last_seen });
            }
        }
        Error::Failed(Arc::new(Failure {
            comm: env.comm_name.clone(),
            me: env.me.clone(),
            operation: format!("LSA barrier {}", self.claim.index),
            phase: Phase::Barrier,
            cause: FailureCause::Deadline { after, missing, blocked: Vec::new() },
        }))
    }
}

impl Drop for LsaBarrier<'_> {
    fn drop(&mut self) {
        // Before the claim goes, so that the next session finds it.
        self.state.store(self.epoch, Ordering::Release);
    }
}

impl fmt::Debug for LsaBarrier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LsaBarrier")
            .field("index", &self.claim.index)
            .field("epoch", &self.epoch)
            .field("arrived", &self.arrived)
            .finish_non_exhaustive()
    }
}

/// Where barrier `index`'s words are, counted in words.
struct Layout {
    /// All words of all barriers of the handle.
    words: usize,
    /// The unicast epoch.
    epoch: usize,
    /// The inbox slot of LSA rank 0.
    inbox: usize,
}

impl Layout {
    fn new(handle: LsaBarrierHandle, ranks: u32, index: u32) -> Result<Self> {
        let n = u32::try_from(handle.n_barriers).unwrap_or(0);
        if index >= n {
            let what = format!("there is no LSA barrier {index}: the device communicator was made with {n}");
            return Err(Misuse::Other { what }.into());
        }
        let (n, ranks, index) = (n as usize, ranks as usize, index as usize);
        Ok(Self { words: 3 * n + n * ranks, epoch: n + index, inbox: 3 * n + index * ranks })
    }
}

/// The right to use a barrier, held by one session of a kernel at a time.
struct Claim<'k> {
    env: &'k KernelEnv,
    buffer: u32,
    index: u32,
}

impl<'k> Claim<'k> {
    fn new(env: &'k KernelEnv, buffer: u32, index: u32) -> Result<Self> {
        if env.claims.lock().insert((buffer, index)) {
            return Ok(Self { env, buffer, index });
        }
        let what = format!("LSA barrier {index} is in use by another session: give each block its own");
        Err(Misuse::Other { what }.into())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.env.claims.lock().remove(&(self.buffer, self.index));
    }
}

/// Whether epoch `got` is `awaited` or later, on a circle of 2^32.
fn has_reached(got: u32, awaited: u32) -> bool {
    got.wrapping_sub(awaited) <= u32::MAX / 2
}
