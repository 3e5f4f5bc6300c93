//! Broadcast: every rank gets the root's input.

use crate::coll::place::{self, Place};
use crate::device::{DeviceWindow, Kernel, Shared};
use crate::error::Result;
use crate::ids::LsaRank;

/// Copies `bytes` of the input of LSA rank `root` to every rank's output.
///
/// Input and output are windows and byte offsets in them, of the input equal on all ranks though only the root's is
/// read. In place: the root's input is its output. One block of each rank calls it, with a barrier that it
/// has no session on.
///
/// # Errors
/// `NotInTeam`, `OutOfRange` or other `Misuse`, at the root an output that overlaps the input in another way included,
/// before this rank has arrived anywhere: its peers then wait until their deadline. The barrier's errors;
/// the output is then undefined.
pub fn broadcast(
    kernel: &Kernel<'_>,
    input: (&DeviceWindow<'_>, u64),
    output: (&DeviceWindow<'_>, u64),
    bytes: usize,
    root: LsaRank,
    barrier: u32,
) -> Result<()> {
    let (input, output, len, me) = (Place::new(input), Place::new(output), bytes as u64, kernel.lsa_rank());
    let from: Shared<'_, u8> = input.slice(root, bytes)?;
    let to: Shared<'_, u8> = output.slice(me, bytes)?;
    let mut is_there = false;
    if me == root {
        place::check_apart(kernel, (input, len), (output, len), Some((input, output)))?;
        is_there = place::is_same(kernel, input, output)?;
    }
    place::between_barriers(kernel, barrier, || if is_there { Ok(()) } else { place::copy(&from, &to) })
}
