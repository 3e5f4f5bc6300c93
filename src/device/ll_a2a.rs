//! The low-latency all-to-all: small messages between the ranks of the LSA team, on the reference's memory layout.
//!
//! A message is written once, straight into the receiver's buffer, and its arrival is seen in the very words that carry
//! it, so that it costs one trip of a cache line and no barrier. Each rank's resource buffer holds, for each block,
//! lines of 16 bytes: one for the block's state and two banks of `slots` lines each, used by even and by odd epochs.
//!
//! | 32-bit words of a line | state line | slot line |
//! | --- | --- | --- |
//! | 0 | epochs completed | low half of the value |
//! | 1 | the [`Bell`] of this block of this rank | epoch |
//! | 2 | unused | high half of the value |
//! | 3 | unused | epoch |
//!
//! Each half goes with its epoch in one atomic store of 8 bytes, so who finds the epoch of its own time in both has
//! the value whole. Epochs begin with 2 on zeroed memory, so that no slot looks filled before it is, and
//! skip 0 and 1 when they wrap; slots of the last two epochs before that are zeroed.
//!
//! Differences from the reference: waits sleep, have a deadline and watch the communicator's failure, as the barrier's
//! do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::device::abi::LlA2aHandle;
use crate::device::bell::Bell;
use crate::device::claim::Claim;
use crate::device::kernel::Kernel;
use crate::device::shared::Shared;
use crate::device::watch::{Pace, WaitError};
use crate::error::{Error, Failure, FailureCause, Missing, Misuse, Phase, Result};
use crate::ids::LsaRank;

/// One block's session on one block of an LL all-to-all. Its end writes the epoch back for the next session.
///
/// A session goes through epochs. In each, ranks send values of 8 bytes to slots of each other; each slot of a receiver
/// gets one value from one sender, and the receiver takes it out by its number. What a rank wrote before it sent is
/// seen by who has received (release and acquire).
///
/// **Every rank receives at least one value from every other rank in every epoch.** That is what tells it that they are
/// done with the epoch before, whose bank is the next one's: there is no barrier.
pub struct LlA2a<'k> {
    claim: Claim<'k>,
    handle: LlA2aHandle,
    /// The epoch under way.
    epoch: u32,
    /// Line of this block's state.
    state_line: usize,
    /// Epochs completed.
    state: &'k AtomicU32,
    bell: Bell<'k>,
    /// Each rank's buffer up to this block's end, in words of 8 bytes.
    ranks: Vec<Shared<'k, u64>>,
    /// Each rank's bell.
    bells: Vec<Bell<'k>>,
    me: LsaRank,
    threads: usize,
}

impl<'k> LlA2a<'k> {
    /// Begins a session on block `block` of `handle`. See [`Kernel::ll_a2a`].
    pub(super) fn begin(kernel: &Kernel<'k>, handle: LlA2aHandle, block: u32) -> Result<Self> {
        let env = kernel.env();
        let per_block = 1 + 2 * handle.n_slots as usize;
        let state_line = block as usize * per_block;
        let lines = state_line + per_block;
        let me = kernel.lsa_rank();
        let bell_of = |rank| -> Result<_> {
            kernel.resource::<u32>(handle.buffer, rank, lines * 4)?.word(state_line * 4 + 1).map(Bell::new)
        };
        let team = || (0..kernel.lsa_size()).map(LsaRank::new);
        let ranks = team()
            .map(|rank| kernel.resource::<u64>(handle.buffer, rank, lines * 2))
            .collect::<Result<Vec<_>>>()?;
        let bells = team().map(bell_of).collect::<Result<Vec<_>>>()?;
        let state = kernel.resource::<u32>(handle.buffer, me, lines * 4)?.word(state_line * 4)?;
        let bell = bell_of(me)?;
        let claim = Claim::new(env, handle.buffer, block, "LL all-to-all")?;
        let threads = (kernel.lsa_size() as usize).saturating_mul(kernel.blocks() as usize);
        // The claim comes before the load: the epoch may be that of a session that ended a moment ago.
        let epoch = state.load(Ordering::Acquire).wrapping_add(FIRST);
        Ok(Self { claim, handle, epoch, state_line, state, bell, ranks, bells, me, threads })
    }

    /// How many slots each rank has.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.handle.n_slots
    }

    /// The number of the epoch under way, from 2.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Sends a value to slot `slot` of `peer`, which may be this rank itself. Never waits.
    ///
    /// # Errors
    /// The communicator's failure, if it has failed; `Misuse` for a slot that is not there, `NotInTeam`.
    pub fn send(&mut self, peer: LsaRank, slot: u32, value: u64) -> Result<()> {
        self.send_all(peer, slot, &[value])
    }

    /// Sends values to the slots of `peer` from `first` on. Never waits.
    ///
    /// # Errors
    /// As [`LlA2a::send`]; nothing is sent then.
    pub fn send_all(&mut self, peer: LsaRank, first: u32, values: &[u64]) -> Result<()> {
        let Some((to, bell)) = self.ranks.get(peer.index()).zip(self.bells.get(peer.index())) else {
            return Err(self.claim.env.check_lsa(peer).err().unwrap_or_else(|| self.no_slot(first)));
        };
        let at = self.word_of(first, values.len())?;
        if let Some(error) = self.claim.env.watch.error() {
            return Err(error);
        }
        fence(Ordering::Release);
        let flag = u64::from(self.epoch) << 32;
        for (i, value) in values.iter().enumerate() {
            to.store(at + 2 * i, value & LOW | flag)?;
            to.store(at + 2 * i + 1, value >> 32 | flag)?;
        }
        // A sleeper's bell says its slot, counted from 1.
        bell.ring(|name| (name.wrapping_sub(1).wrapping_sub(first) as usize) < values.len());
        Ok(())
    }

    /// Sends a value to slot `slot` of every rank of the team, this one included.
    ///
    /// # Errors
    /// As [`LlA2a::send`].
    pub fn broadcast(&mut self, slot: u32, value: u64) -> Result<()> {
        (0..self.ranks()).try_for_each(|rank| self.send(LsaRank::new(rank), slot, value))
    }

    /// Waits for the value of this rank's slot `slot` in this epoch, at most the watch's deadline.
    ///
    /// # Errors
    /// The communicator's failure, at once when it fails. If the deadline passes, [`Error::Failed`] that names the
    /// slot; the communicator's watch then fails with it. `Misuse` for a slot that is not there.
    pub fn recv(&mut self, slot: u32) -> Result<u64> {
        let mut value = [0];
        self.receive(None, slot, &mut value)?;
        Ok(value[0])
    }

    /// The same for values of `from` in the slots from `first` on; the error of a deadline names `from`.
    ///
    /// # Errors
    /// As [`LlA2a::recv`].
    pub fn recv_all(&mut self, from: LsaRank, first: u32, values: &mut [u64]) -> Result<()> {
        self.receive(Some(from), first, values)
    }

    /// Ends the epoch and begins the next: all that this rank is sent in it has been received.
    ///
    /// # Errors
    /// Never for a session that has begun.
    pub fn end_epoch(&mut self) -> Result<()> {
        if self.epoch >= u32::MAX - 1 {
            // The next time that this bank is used epochs are small again: no flag of old may equal one to come. No
            // peer writes here before it has a value of the next epoch from this rank.
            let at = self.word_of(0, 0)?;
            let own = &self.ranks[self.me.index()];
            (at..at + 2 * self.handle.n_slots as usize).try_for_each(|word| own.store(word, 0))?;
        }
        self.epoch = if self.epoch == u32::MAX { FIRST } else { self.epoch + 1 };
        Ok(())
    }

    fn receive(&self, from: Option<LsaRank>, first: u32, values: &mut [u64]) -> Result<()> {
        let at = self.word_of(first, values.len())?;
        let own = &self.ranks[self.me.index()];
        let (watch, epoch) = (&self.claim.env.watch, self.epoch);
        for (i, value) in (0..).zip(values) {
            let word = |half: usize| own.load(at + 2 * i as usize + half);
            let is_there =
                || [0, 1].into_iter().all(|half| word(half).is_ok_and(|w| w >> 32 == u64::from(epoch)));
            match watch.wait(self.bell, (first + i).wrapping_add(1), self.threads, Pace::Brisk, is_there) {
                Ok(()) => {}
                Err(WaitError::Failed(error)) => return Err(error),
                Err(WaitError::Deadline) => {
                    let error = self.deadline_error(from, first + i);
                    watch.fail(error.clone());
                    return Err(error);
                }
            }
            *value = word(0)? & LOW | word(1)? << 32;
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    fn ranks(&self) -> u32 {
        self.claim.env.dev_comm.lsa_size
    }

    /// The 8-byte word at which slot `first` of this epoch begins, if `count` slots are there.
    fn word_of(&self, first: u32, count: usize) -> Result<usize> {
        let slots = self.handle.n_slots as usize;
        let first_index = first as usize;
        if first_index.checked_add(count).is_none_or(|end| end > slots) {
            return Err(
                self.no_slot(first.saturating_add(u32::try_from(count).unwrap_or(u32::MAX)).wrapping_sub(1))
            );
        }
        let bank = (self.epoch % 2) as usize * slots;
        Ok(2 * (self.state_line + 1 + bank + first_index))
    }

    fn no_slot(&self, slot: u32) -> Error {
        let (index, slots) = (self.claim.index, self.handle.n_slots);
        let what =
            format!("there is no slot {slot} in LL all-to-all {index}: it was made with {slots} slots");
        Misuse::Other { what }.into()
    }

    fn deadline_error(&self, from: Option<LsaRank>, slot: u32) -> Error {
        let env = self.claim.env;
        let last_seen = format!("slot {slot} not filled in epoch {}", self.epoch);
        let missing = from
            .map(|rank| Missing { peer: env.peer(rank), last_seen: last_seen.clone() })
            .into_iter()
            .collect();
        let after = env.watch.deadline();
        Error::Failed(Arc::new(Failure {
            comm: env.who.comm_name.clone(),
            me: env.who.me.clone(),
            operation: format!("LL all-to-all {}, {last_seen}", self.claim.index),
            phase: Phase::Barrier,
            cause: FailureCause::Deadline { after, missing, blocked: Vec::new() },
        }))
    }
}

impl Drop for LlA2a<'_> {
    fn drop(&mut self) {
        // Before the claim goes, so that the next session finds it.
        self.state.store(self.epoch.wrapping_sub(FIRST), Ordering::Release);
    }
}

impl fmt::Debug for LlA2a<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlA2a")
            .field("block", &self.claim.index)
            .field("slots", &self.handle.n_slots)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// The first epoch: none of the two before it that a zeroed or a wrapped bank could be taken for.
const FIRST: u32 = 2;

/// The half of a value that goes first.
const LOW: u64 = 0xffff_ffff;
