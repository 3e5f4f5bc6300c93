//! All-reduce: by one shot for small sizes, by two shots for all others.
//!
//! One shot: every rank sends its input to every rank by the low-latency all-to-all, and reduces for itself. Two shots:
//! a barrier, so that all inputs are there; each rank reduces its share of the elements, reading it from everyone, and
//! writes the results to everyone; a barrier, so that all outputs are there. Either way elements are
//! reduced in order of LSA rank, so that all ranks get the same bits.
//!
//! An element is read from all inputs before it is written to any output, by one rank, so outputs may be the inputs.
//! Where on any rank they overlap otherwise, which that rank says in the first barrier, all ranks keep their
//! results until another barrier says that all inputs have been read.

use std::ops::Range;

use crate::coll::dtype::{DType, with_type};
use crate::coll::number::Number;
use crate::coll::place::{self, Overlap, Place};
use crate::coll::reduce::{ReduceOp, Reduction};
use crate::device::{DeviceWindow, Kernel, LsaBarrier, Pace, Shared};
use crate::devr::dev_comm::DevCommRequirements;
use crate::error::{Misuse, Result};
use crate::ids::LsaRank;

/// Reduces `count` elements over the LSA team, from every rank's input to every rank's output.
///
/// Inputs and outputs are windows and byte offsets in them, equal on all ranks, as `count` and all else is: ranks write
/// into each other's outputs. One block of each rank calls it, with a barrier that it has no session on, and with the
/// LL all-to-all of the same number, where the device communicator has one. Blocks that share the
/// work call it on parts that do not overlap, each with its own barrier.
///
/// # Errors
/// `OutOfRange` or other `Misuse`, before this rank has arrived anywhere: its peers then wait until their
/// deadline, as for any rank that does not come. `Misuse` on all ranks if one has too little memory for results that
/// must be kept. The barrier's errors; the output is then undefined.
pub fn all_reduce(
    kernel: &Kernel<'_>,
    input: (&DeviceWindow<'_>, u64),
    output: (&DeviceWindow<'_>, u64),
    count: usize,
    dtype: DType,
    op: ReduceOp,
    barrier: u32,
) -> Result<()> {
    let call = Call { input: Place::new(input), output: Place::new(output), count, op, barrier };
    with_type!(dtype, T => run::<T>(kernel, &call))
}

/// The arguments but for the type.
struct Call<'a> {
    input: Place<'a>,
    output: Place<'a>,
    count: usize,
    op: ReduceOp,
    barrier: u32,
}

/// All that can go wrong on this rank alone comes before it arrives. Which way is taken follows from what is equal on
/// all ranks.
fn run<T: Number>(kernel: &Kernel<'_>, call: &Call<'_>) -> Result<()> {
    let words = (call.count * size_of::<T>()).div_ceil(size_of::<u64>()).max(1);
    let dev = kernel.dev_comm();
    let slots = words as u64 * u64::from(kernel.lsa_size());
    if words <= ONE_SHOT_WORDS && call.barrier < dev.ll_a2a_blocks && slots <= u64::from(dev.ll_a2a.n_slots) {
        one_shot::<T>(kernel, call, words)
    } else {
        two_shot::<T>(kernel, call)
    }
}

fn one_shot<T: Number>(kernel: &Kernel<'_>, call: &Call<'_>, words: usize) -> Result<()> {
    for rank in (0..kernel.lsa_size()).map(LsaRank::new) {
        call.input.slice::<T>(rank, call.count)?;
        call.output.slice::<T>(rank, call.count)?;
    }
    let me = kernel.lsa_rank();
    let mut message = [0; ONE_SHOT_WORDS];
    let message = &mut message[..words];
    let mut part = vec![T::new_zeroed(); call.count];
    call.input.slice(me, call.count)?.read_into(0, &mut part)?;
    place::pack(&part, message);
    let mut session = kernel.ll_a2a(call.barrier)?;

    // Every rank's message lies in slots of its own.
    let first = |rank: LsaRank| rank.get() * u32::try_from(words).unwrap_or(u32::MAX);
    for peer in (0..kernel.lsa_size()).map(LsaRank::new) {
        session.send_all(peer, first(me), message)?;
    }
    let mut reduction = Reduction::new(call.op);
    for rank in (0..kernel.lsa_size()).map(LsaRank::new) {
        session.recv_all(rank, first(rank), message)?;
        place::unpack(message, &mut part);
        reduction.add(&part)?;
    }
    session.end_epoch()?;
    call.output.slice(me, call.count)?.write_from(0, reduction.result()?)
}

fn two_shot<T: Number>(kernel: &Kernel<'_>, call: &Call<'_>) -> Result<()> {
    let inputs = call.input.slices(kernel, call.count)?;
    let outputs = call.output.slices(kernel, call.count)?;
    let len = place::len_of::<T>(call.count, 1);
    let overlap = place::overlap(kernel, call.input, call.output, len)?;
    let mut work = Work::<T>::new(call.op, inputs, outputs, kernel);
    let share = place::share::<T>(call.count, kernel.lsa_size(), kernel.lsa_rank());
    let pace = if len >= place::MUCH_BYTES { Pace::Steady } else { Pace::Brisk };
    let mut session = kernel.barrier(call.barrier)?.pace(pace);

    if session.sync_any(overlap == Overlap::Shifted)? {
        work.kept(share, &mut session)?;
    } else {
        for part in place::chunks::<T>(share) {
            work.reduce(part.clone())?;
            work.write(part.start)?;
        }
    }
    session.sync()
}

/// One rank's part of the work.
struct Work<'k, T: Number> {
    inputs: Vec<Shared<'k, T>>,
    outputs: Vec<Shared<'k, T>>,
    /// In whose output it writes first, so that not all write into the same.
    first: usize,
    reduction: Reduction<T>,
    scratch: Vec<T>,
}

impl<'k, T: Number> Work<'k, T> {
    fn new(
        op: ReduceOp,
        inputs: Vec<Shared<'k, T>>,
        outputs: Vec<Shared<'k, T>>,
        kernel: &Kernel<'_>,
    ) -> Self {
        let first = kernel.lsa_rank().index();
        Self { inputs, outputs, first, reduction: Reduction::new(op), scratch: Vec::new() }
    }

    /// Takes these elements of all inputs in.
    fn reduce(&mut self, part: Range<usize>) -> Result<()> {
        self.reduction.take(&self.inputs, part, &mut self.scratch)
    }

    /// Writes their reduction to all outputs.
    fn write(&mut self, at: usize) -> Result<()> {
        let result = self.reduction.result()?;
        let (before, from) = self.outputs.split_at(self.first);
        from.iter().chain(before).try_for_each(|output| output.write_from(at, result))
    }

    /// Reduces this rank's share and writes it once everyone has read all inputs.
    fn kept(&mut self, share: Range<usize>, session: &mut LsaBarrier<'_>) -> Result<()> {
        let mut kept = Vec::new();
        let is_short = kept.try_reserve_exact(share.len()).is_err();
        if !is_short {
            for part in place::chunks::<T>(share.clone()) {
                self.reduce(part)?;
                kept.extend_from_slice(self.reduction.result()?);
            }
        }
        if session.sync_any(is_short)? {
            let bytes = share.len() * size_of::<T>();
            let what = format!(
                "an all-reduce whose output overlaps its input needs {bytes} bytes of memory of its own on each rank, \
                 which are not to be had on one: reduce less at a time, or into another window"
            );
            return Err(Misuse::Other { what }.into());
        }
        self.outputs.iter().try_for_each(|output| output.write_from(share.start, &kept))
    }
}

/// The longest message that is sent by one shot, in words of 8 bytes: what the device communicator has slots for.
pub(super) const ONE_SHOT_WORDS: usize = DevCommRequirements::MESSAGE_SLOTS as usize;
