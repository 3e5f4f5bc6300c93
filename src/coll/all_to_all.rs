//! All-to-all: every rank gets one block from every rank.

use crate::coll::place::{self, Place};
use crate::device::{DeviceWindow, Kernel, Shared};
use crate::error::Result;
use crate::ids::LsaRank;

/// Exchanges blocks of `bytes` in the LSA team: block r of rank q's output becomes block q of rank r's input.
///
/// Inputs and outputs (`bytes` for each rank) are windows and byte offsets in them, of inputs equal on all ranks. It
/// does not work in place. One block of each rank calls it, with a barrier that it has no session on.
///
/// # Errors
/// `OutOfRange` or other `Misuse`, an output that overlaps the input included, before this rank has arrived anywhere:
/// its peers then wait until their deadline. The barrier's errors; the output is then undefined.
pub fn all_to_all(
    kernel: &Kernel<'_>,
    input: (&DeviceWindow<'_>, u64),
    output: (&DeviceWindow<'_>, u64),
    bytes: usize,
    barrier: u32,
) -> Result<()> {
    let (input, output, len, me) = (Place::new(input), Place::new(output), bytes as u64, kernel.lsa_rank());
    let pairs = (0..kernel.lsa_size())
        .map(LsaRank::new)
        .map(|rank| Ok((input.block(me, len).slice(rank, bytes)?, output.block(rank, len).slice(me, bytes)?)))
        .collect::<Result<Vec<(Shared<'_, u8>, Shared<'_, u8>)>>>()?;
    let all = place::len_of::<u8>(bytes, kernel.lsa_size());
    place::check_apart(kernel, (input, all), (output, all), None)?;
    place::between_barriers(kernel, barrier, || {
        // Each begins with its own block, so that not all read from the same rank at a time.
        let (before, from_me) = pairs.split_at(me.index());
        from_me.iter().chain(before).try_for_each(|(from, to)| place::copy(from, to))
    })
}
