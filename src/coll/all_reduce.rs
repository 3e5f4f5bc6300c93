//! The one-shot all-reduce: every rank reads every rank's input and reduces it for itself.
//!
//! A barrier, so that all inputs are there; each rank reduces in order of LSA rank, so that all get the same bits;
//! a barrier, so that nobody still reads an input that its owner is about to change. Where the output may overlap
//! the input, results wait in a buffer of the rank's own until that second barrier.

use half::{bf16, f16};

use crate::coll::dtype::DType;
use crate::coll::reduce::{Number, ReduceOp, Reduction};
use crate::device::{DeviceWindow, Kernel, Shared};
use crate::error::{Misuse, Result};
use crate::ids::LsaRank;

/// Reduces `count` elements over the LSA team, from every rank's input to every rank's output.
///
/// Inputs and outputs are windows and byte offsets in them; the offsets need not be equal on all ranks' outputs, and
/// must be on their inputs. One block of each rank calls it, with a barrier that it has no session on. Blocks that
/// share the work call it on parts that do not overlap, each with its own barrier.
///
/// # Errors
/// `OutOfRange` or other `Misuse`, before this rank has arrived anywhere: its peers then wait until their
/// deadline, as for any rank that does not come. The barrier's errors; the output is then undefined.
pub fn all_reduce(
    kernel: &Kernel<'_>,
    input: (&DeviceWindow<'_>, u64),
    output: (&DeviceWindow<'_>, u64),
    count: usize,
    dtype: DType,
    op: ReduceOp,
    barrier: u32,
) -> Result<()> {
    let call = Call { input, output, count, op, barrier };
    match dtype {
        DType::F32 => run::<f32>(kernel, &call),
        DType::F64 => run::<f64>(kernel, &call),
        DType::I32 => run::<i32>(kernel, &call),
        DType::I64 => run::<i64>(kernel, &call),
        DType::U8 => run::<u8>(kernel, &call),
        DType::F16 => run::<f16>(kernel, &call),
        DType::Bf16 => run::<bf16>(kernel, &call),
    }
}

/// The arguments but for the type.
struct Call<'a> {
    input: (&'a DeviceWindow<'a>, u64),
    output: (&'a DeviceWindow<'a>, u64),
    count: usize,
    op: ReduceOp,
    barrier: u32,
}

fn run<T: Number>(kernel: &Kernel<'_>, call: &Call<'_>) -> Result<()> {
    // All that can go wrong on this rank alone comes before it arrives.
    let inputs = (0..kernel.lsa_size())
        .map(|rank| call.input.0.slice(LsaRank::new(rank), call.input.1, call.count))
        .collect::<Result<Vec<Shared<'_, T>>>>()?;
    let output: Shared<'_, T> = call.output.0.local_slice(call.output.1, call.count)?;
    let len = (call.count as u64) * size_of::<T>() as u64;
    let mut kept = if may_overlap(kernel, call, len)? { Some(zeros::<T>(call.count)?) } else { None };
    let chunk = (CHUNK_BYTES / size_of::<T>()).min(call.count).max(1);
    let mut buffer = zeros::<T>(chunk)?;
    let mut reduction = Reduction::new(call.op);
    let mut session = kernel.barrier(call.barrier)?;

    session.sync()?;
    for at in (0..call.count).step_by(chunk) {
        let part = &mut buffer[..chunk.min(call.count - at)];
        for input in &inputs {
            input.read_into(at, part)?;
            reduction.add(part)?;
        }
        if let Some(kept) = &mut kept {
            reduction.finish(&mut kept[at..at + part.len()])?;
        } else {
            reduction.finish(part)?;
            output.write_from(at, part)?;
        }
    }
    session.sync()?;
    kept.map_or(Ok(()), |kept| output.write_from(0, &kept))
}

/// Whether this rank's output may share a byte with its input. Two windows can reach the same memory through
/// different mappings, so only the owner's addresses tell; where one is not known, they may.
fn may_overlap(kernel: &Kernel<'_>, call: &Call<'_>, len: u64) -> Result<bool> {
    let ((input, input_at), (output, output_at)) = (call.input, call.output);
    let mapped =
        |window: &DeviceWindow<'_>, at| window.lsa_ptr(kernel.lsa_rank(), at).map(|p| p.addr() as u64);
    if ranges_meet(mapped(input, input_at)?, mapped(output, output_at)?, len) {
        return Ok(true);
    }
    if input.base() == 0 || output.base() == 0 {
        return Ok(true);
    }
    Ok(ranges_meet(input.base() + input_at, output.base() + output_at, len))
}

/// Whether `len` bytes from `a` and from `b` on have one in common.
fn ranges_meet(a: u64, b: u64, len: u64) -> bool {
    a.abs_diff(b) < len
}

fn zeros<T: Number>(count: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    if zeros.try_reserve_exact(count).is_err() {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        let what = format!(
            "an all-reduce in place needs {bytes} bytes of memory of its own, which are not to be had: reduce \
             less at a time, or into another window"
        );
        return Err(Misuse::Other { what }.into());
    }
    zeros.resize(count, T::new_zeroed());
    Ok(zeros)
}

/// How much of each input is read at a time: a part of a core's cache.
const CHUNK_BYTES: usize = 64 << 10;
