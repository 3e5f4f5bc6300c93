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
//! word from kernel to kernel. Host kernels meet by the unicast words only. Of the multicast words, which they
//! have no other use for, a rank's own inbox is the [`Bell`] on which it sleeps, and its own epoch carries the flags of
//! [`LsaBarrier::sync_any`].
//!
//! Differences from the reference: a wait spins only for moments and only if the threads fit the cores, or else gives
//! way a few times, then it sleeps, so that more ranks than cores do not collapse; the last to arrive wakes, and only
//! who sleeps, so an arrival makes no system call otherwise; it watches the communicator's failure and its deadline
//! two sessions of one kernel on the same barrier are an error.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::device::abi::LsaBarrierHandle;
use crate::device::bell::Bell;
use crate::device::claim::Claim;
use crate::device::kernel::Kernel;
use crate::device::shared::Shared;
use crate::device::watch::{Pace, WaitError};
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
    /// Where this rank sleeps.
    bell: Bell<'k>,
    /// This rank's flags: bit 0 of even rounds, bit 1 of odd ones.
    flags: &'k AtomicU32,
    /// Each other LSA rank's words.
    peers: Vec<PeerWords<'k>>,
    /// How many threads of this machine may wait with each other.
    threads: usize,
    pace: Pace,
}

struct PeerWords<'k> {
    rank: LsaRank,
    /// Its slot in this rank's inbox.
    inbox: &'k AtomicU32,
    /// This rank's slot in its inbox.
    outbox: &'k AtomicU32,
    /// All slots of its inbox.
    row: Shared<'k, u32>,
    bell: Bell<'k>,
    flags: &'k AtomicU32,
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
        let (bell, flags) = (Bell::new(own.word(layout.bell)?), own.word(layout.flags)?);
        let mut peers = Vec::with_capacity(env.dev_comm.lsa_size as usize);
        for rank in (0..env.dev_comm.lsa_size).map(LsaRank::new).filter(|rank| *rank != me) {
            let inbox = own.word(layout.inbox + rank.index())?;
            let its = words(rank)?;
            let outbox = its.word(layout.inbox + me.index())?;
            let row = its.part(layout.inbox, env.dev_comm.lsa_size as usize)?;
            let (bell, flags) = (Bell::new(its.word(layout.bell)?), its.word(layout.flags)?);
            peers.push(PeerWords { rank, inbox, outbox, row, bell, flags });
        }
        let claim = Claim::new(env, handle.buffer, index, "LSA barrier")?;
        let threads = (env.dev_comm.lsa_size as usize).saturating_mul(kernel.blocks() as usize);
        // The claim comes before the load: the epoch may be that of a session that ended a moment ago.
        let epoch = state.load(Ordering::Acquire);
        Ok(Self { claim, epoch, arrived: false, state, bell, flags, peers, threads, pace: Pace::Brisk })
    }

    /// Sets how waits of this session spin; brisk at first.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
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
        }
        for peer in &self.peers {
            peer.bell.ring(|_| peer.all_reached(next));
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
        let next = self.epoch.wrapping_add(1);
        let ready = || self.peers.iter().all(|peer| has_reached(peer.inbox.load(Ordering::Acquire), next));
        match watch.wait(self.bell, ASLEEP, self.threads, self.pace, ready) {
            Ok(()) => {}
            Err(WaitError::Failed(error)) => return Err(error),
            Err(WaitError::Deadline) => {
                let error = self.deadline_error(next, watch.deadline());
                watch.fail(error.clone());
                return Err(error);
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

    /// `sync`, and whether any rank came with a `flag` that is true.
    ///
    /// # Errors
    /// As [`LsaBarrier::wait`].
    pub fn sync_any(&mut self, flag: bool) -> Result<bool> {
        // A peer is at most one round ahead of one that has not left this round, so with a bit for even and one for odd
        // rounds it changes none that is still to be read. Released by the arrival.
        let bit = 1 << (self.epoch.wrapping_add(1) % 2);
        let flags = self.flags.load(Ordering::Relaxed);
        self.flags.store(if flag { flags | bit } else { flags & !bit }, Ordering::Relaxed);
        self.sync()?;
        Ok(flag || self.peers.iter().any(|peer| peer.flags.load(Ordering::Relaxed) & bit != 0))
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
            comm: env.who.comm_name.clone(),
            me: env.who.me.clone(),
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

impl PeerWords<'_> {
    /// Whether all but itself have arrived at this peer. It waits for the same round as who asks, who has just arrived
    /// there; its own slot is not used.
    fn all_reached(&self, next: u32) -> bool {
        let others = (0..self.row.len()).filter(|slot| *slot != self.rank.index());
        others.into_iter().all(|slot| self.row.load(slot).is_ok_and(|got| has_reached(got, next)))
    }
}

/// Where barrier `index`'s words are, counted in words.
struct Layout {
    /// All words of all barriers of the handle.
    words: usize,
    /// The unicast epoch.
    epoch: usize,
    /// The multicast epoch: flags.
    flags: usize,
    /// The multicast inbox: the bell.
    bell: usize,
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
        Ok(Self {
            words: 3 * n + n * ranks,
            epoch: n + index,
            flags: index,
            bell: 2 * n + index,
            inbox: 3 * n + index * ranks,
        })
    }
}

/// Whether epoch `got` is `awaited` or later, on a circle of 2^32.
fn has_reached(got: u32, awaited: u32) -> bool {
    got.wrapping_sub(awaited) <= u32::MAX / 2
}

/// What a sleeper's bell says: there is only one thing to wait for.
const ASLEEP: u32 = 1;
