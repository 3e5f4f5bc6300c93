//! All-gather: every rank gets the inputs of all, side by side.

use crate::coll::place::{self, Place};
use crate::device::{DeviceWindow, Kernel, Shared};
use crate::error::Result;
use crate::ids::LsaRank;

/// Gathers `bytes` from every rank of the LSA team: block r of everyone's output becomes the input of LSA rank r.
///
/// Inputs (`bytes`) and outputs (`bytes` for each rank) are windows and byte offsets in them, of inputs equal on all
/// ranks. Or it is in place on all ranks: the input is this rank's own block of its output, in the same window. One
/// block of each rank calls it, with a barrier that it has no session on.
///
/// # Errors
/// `OutOfRange` or other `Misuse`, an output that overlaps the input in another way included, before this rank has
/// arrived anywhere: its peers then wait until their deadline. The barrier's errors; the output is then undefined.
pub fn all_gather(
    kernel: &Kernel<'_>,
    input: (&DeviceWindow<'_>, u64),
    output: (&DeviceWindow<'_>, u64),
    bytes: usize,
    barrier: u32,
) -> Result<()> {
    let (input, output, len, me) = (Place::new(input), Place::new(output), bytes as u64, kernel.lsa_rank());
    let own = output.block(me, len);
    // The same windows lie alike on all ranks, so all of them find this, or none.
    let in_place = place::is_mapped_same(kernel, input, own)?;
    let mut pairs: Vec<(Shared<'_, u8>, Shared<'_, u8>)> = Vec::new();
    for rank in (0..kernel.lsa_size()).map(LsaRank::new) {
        let block = output.block(rank, len);
        let from = if in_place { block } else { input };
        pairs.push((from.slice(rank, bytes)?, block.slice(me, bytes)?));
    }
    let all = place::len_of::<u8>(bytes, kernel.lsa_size());
    place::check_apart(kernel, (input, len), (output, all), Some((input, own)))?;
    place::between_barriers(kernel, barrier, || {
        // Each begins with its own block, so that not all read from the same rank at a time.
        let (before, from_me) = pairs.split_at(me.index());
        let from_me = if in_place { from_me.get(1..).unwrap_or_default() } else { from_me };
        from_me.iter().chain(before).try_for_each(|(from, to)| place::copy(from, to))
    })
}
