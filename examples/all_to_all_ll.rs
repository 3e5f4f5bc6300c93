//! An all-to-all of small messages over LL buffers: no barrier, and one trip for each message.
//!
//! ```console
//! cargo run --release --example all_to_all_ll
//! ```
//!
//! LL stands for low latency. A device communicator can have buffers of slots for small messages; a message carries the
//! number of its epoch in the same words as its bytes, so that its receiver sees both that it is there and what it
//! is. Kernels open a session on such buffers, send to slots of their peers, receive from slots of their own, and go on
//! to the next epoch. Here every rank sends a message of 32 bytes to every rank, itself included, in every epoch.
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use symwin::device::Kernel;
use symwin::devr::dev_comm::ll_a2a_slots;
use symwin::{Communicator, DevCommRequirements, Group, LsaRank, Result};

fn main() -> Result<()> {
    let ranks = Communicator::in_process(RANKS)?;

    // Each rank gets one message from each in an epoch: that many slots, in one block.
    let slots = ll_a2a_slots(RANKS, 8 * SLOTS)?;
    let group = Group::named("mailboxes");
    let pending: Vec<_> = ranks
        .iter()
        .map(|comm| group.create_dev_comm(comm, DevCommRequirements::new().ll_a2a(1, slots)))
        .collect();
    group.end()?;

    // One thread starts the kernels of all ranks before it waits for any.
    let mut kernels = Vec::new();
    for dev_comm in pending {
        kernels.push(dev_comm.wait()?.launch(1, exchange)?);
    }
    for kernel in kernels {
        assert_eq!(kernel.join()?, [RANKS * EPOCHS], "every message of every epoch, and as it was sent");
    }
    println!("{RANKS} ranks, {EPOCHS} times {RANKS} x {RANKS} messages of {} bytes: all right", 8 * WORDS);
    ranks.into_iter().try_for_each(Communicator::finalize)
}

/// Each rank's kernel. Says how many messages were right.
fn exchange(kernel: &Kernel<'_>) -> Result<u32> {
    let mut session = kernel.ll_a2a(kernel.block())?;
    let me = kernel.lsa_rank();
    // Of every rank's slots, the first ones are for rank 0's message, the next ones for rank 1's, and so on.
    let slots_of = |sender: LsaRank| sender.get() * SLOTS;
    let mut right = 0;
    for epoch in 0..EPOCHS {
        for to in (0..kernel.lsa_size()).map(LsaRank::new) {
            session.send_all(to, slots_of(me), &message(epoch, me, to))?;
        }
        for from in (0..kernel.lsa_size()).map(LsaRank::new) {
            let mut received = [0; WORDS];
            session.recv_all(from, slots_of(from), &mut received)?;
            right += u32::from(received == message(epoch, from, me));
        }
        // Who has received from every peer may reuse the slots.
        session.end_epoch()?;
    }
    Ok(right)
}

/// The words of a message: others for each sender, receiver and epoch.
fn message(epoch: u32, from: LsaRank, to: LsaRank) -> [u64; WORDS] {
    let name = (u64::from(epoch) << 32) + u64::from(from.get() << 16) + u64::from(to.get());
    std::array::from_fn(|word| (name + 1).wrapping_mul(word as u64 + 1))
}

const RANKS: u32 = 4;
/// A slot holds 8 bytes, so that a message takes as many slots as it has words.
const SLOTS: u32 = 4;
const WORDS: usize = SLOTS as usize;
const EPOCHS: u32 = 1000;
