//! Reduce-scatter: every rank gets one block of the reduction.

use crate::coll::dtype::{DType, with_type};
use crate::coll::number::Number;
use crate::coll::place::{self, Place};
use crate::coll::reduce::{ReduceOp, Reduction};
use crate::device::{DeviceWindow, Kernel, Shared};
use crate::error::Result;

/// Reduces over the LSA team and leaves block r of the reduction, `count` elements, in the output of LSA rank r.
///
/// Inputs (`count` elements for each rank) and outputs (`count` elements) are windows and byte offsets in them, of
/// inputs equal on all ranks. In place: the output is this rank's own block of its input. Elements are reduced in order
/// of LSA rank. One block of each rank calls it, with a barrier that it has no session on.
///
/// # Errors
/// `OutOfRange` or other `Misuse`, an output that overlaps the input in another way included, before this rank has
/// arrived anywhere: its peers then wait until their deadline. The barrier's errors; the output is then undefined.
pub fn reduce_scatter(
    kernel: &Kernel<'_>,
    input: (&DeviceWindow<'_>, u64),
    output: (&DeviceWindow<'_>, u64),
    count: usize,
    dtype: DType,
    op: ReduceOp,
    barrier: u32,
) -> Result<()> {
    let places = (Place::new(input), Place::new(output));
    with_type!(dtype, T => run::<T>(kernel, places, count, op, barrier))
}

fn run<T: Number>(
    kernel: &Kernel<'_>,
    (input, output): (Place<'_>, Place<'_>),
    count: usize,
    op: ReduceOp,
    barrier: u32,
) -> Result<()> {
    let (len, me) = (place::len_of::<T>(count, 1), kernel.lsa_rank());
    let own = input.block(me, len);
    let inputs: Vec<Shared<'_, T>> = own.slices(kernel, count)?;
    let to: Shared<'_, T> = output.slice(me, count)?;
    let all = place::len_of::<T>(count, kernel.lsa_size());
    place::check_apart(kernel, (input, all), (output, len), Some((own, output)))?;
    let mut reduction = Reduction::new(op);
    let mut scratch = Vec::new();
    place::between_barriers(kernel, barrier, || {
        // Nobody else reads this rank's own block.
        place::chunks::<T>(0..count).try_for_each(|part| {
            reduction.take(&inputs, part.clone(), &mut scratch)?;
            to.write_from(part.start, reduction.result()?)
        })
    })
}
