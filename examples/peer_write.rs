//! A host kernel that writes into a peer's memory.
//!
//! ```console
//! cargo run --example peer_write
//! ```
//!
//! Kernels are closures that run on threads, one for each block, over the same structs that GPU kernels would read.
//! Here every rank's kernel stores a message into its right neighbour's window, meets the others in a barrier, and
//! reads what its left neighbour has stored. No message is sent: the store goes straight to the neighbour's memory.
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use symwin::{Communicator, DevCommRequirements, Group, LsaRank, Result, WindowFlags};

fn main() -> Result<()> {
    let ranks = Communicator::in_process(RANKS)?;
    let buffers = ranks.iter().map(|comm| comm.alloc(8 * ELEMENTS)).collect::<Result<Vec<_>>>()?;

    // A window on every rank, and a device communicator with a barrier for each block.
    let group = Group::named("peer write");
    let mut pending = Vec::new();
    for (comm, buffer) in ranks.iter().zip(&buffers) {
        let window = group.register(comm, buffer, WindowFlags::empty());
        let requirements = DevCommRequirements::new().lsa_barriers(BLOCKS);
        pending.push((window, group.create_dev_comm(comm, requirements)));
    }
    group.end()?;

    let mut kernels = Vec::new();
    for (window, dev_comm) in pending {
        // What a kernel takes of a window is the address of its struct; the kernel opens it by that.
        let window = window.wait()?;
        let handle = window.device_address();
        let dev_comm = dev_comm.wait()?;
        let kernel = dev_comm.launch(BLOCKS, move |kernel| {
            let window = kernel.window(handle)?;
            let mut barrier = kernel.barrier(kernel.block())?;

            // Each block has its part of the elements.
            let part = ELEMENTS / kernel.blocks() as usize;
            let first = part * kernel.block() as usize;
            let right = LsaRank::new((kernel.lsa_rank().get() + 1) % kernel.lsa_size());
            let theirs = window.slice::<u64>(right, 8 * first as u64, part)?;
            for index in 0..part {
                theirs.store(index, message(kernel.rank(), first + index))?;
            }

            // What was stored before the barrier is seen by the peers after it.
            barrier.sync()?;

            let left = (kernel.rank() + kernel.n_ranks() - 1) % kernel.n_ranks();
            let mine = window.local_slice::<u64>(8 * first as u64, part)?;
            let mut right_ones = 0;
            for index in 0..part {
                right_ones += usize::from(mine.load(index)? == message(left, first + index));
            }
            Ok(right_ones)
        })?;
        // The kernel keeps its device communicator open, but not the window: that goes when it is dropped.
        kernels.push((window, kernel));
    }
    for (window, kernel) in kernels {
        let right_ones: usize = kernel.join()?.into_iter().sum();
        assert_eq!(right_ones, ELEMENTS, "every element is from the left neighbour");
        drop(window);
    }
    println!("{RANKS} ranks have written {ELEMENTS} elements each into their right neighbour's memory");
    ranks.into_iter().try_for_each(Communicator::finalize)
}

/// What a rank writes at an index.
fn message(rank: u32, index: usize) -> u64 {
    (u64::from(rank) << 32) + index as u64
}

const RANKS: u32 = 4;
const BLOCKS: u32 = 2;
const ELEMENTS: usize = 4096;
