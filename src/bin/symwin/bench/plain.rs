//! What an all-reduce by sum costs at least: loops with its reads and writes over ordinary memory of one thread, which
//! waits for nobody.

use std::hint::black_box;

use half::{bf16, f16};
use symwin::coll::DType;

/// Memory of one rank for both loops.
pub(crate) trait Plain {
    /// As the one-shot algorithm: reads all of every rank's input, writes one output.
    fn one_shot(&mut self);
    /// As the two-shot algorithm: reads a part of every rank's input, writes that part of every rank's output.
    fn two_shot(&mut self);
}

/// Memory for `bytes` bytes of elements of each of `ranks` ranks. `whole` says whether there is enough of it for the
/// one-shot loop too.
pub(crate) fn plain(dtype: DType, bytes: usize, ranks: usize, whole: bool) -> Option<Box<dyn Plain>> {
    Some(match dtype {
        DType::F32 => Memory::<f32>::new(bytes, ranks, whole),
        DType::F64 => Memory::<f64>::new(bytes, ranks, whole),
        DType::I32 => Memory::<i32>::new(bytes, ranks, whole),
        DType::I64 => Memory::<i64>::new(bytes, ranks, whole),
        DType::U8 => Memory::<u8>::new(bytes, ranks, whole),
        DType::F16 => Memory::<f16>::new(bytes, ranks, whole),
        DType::Bf16 => Memory::<bf16>::new(bytes, ranks, whole),
        // A type that this program does not know yet.
        _ => return None,
    })
}

/// The bytes of `count` elements of a small number.
pub(crate) fn filled(dtype: DType, number: u8, count: usize) -> Option<Vec<u8>> {
    let element = match dtype {
        DType::F32 => f32::from(number).to_ne_bytes().to_vec(),
        DType::F64 => f64::from(number).to_ne_bytes().to_vec(),
        DType::I32 => i32::from(number).to_ne_bytes().to_vec(),
        DType::I64 => i64::from(number).to_ne_bytes().to_vec(),
        DType::U8 => vec![number],
        DType::F16 => f16::from(number).to_ne_bytes().to_vec(),
        DType::Bf16 => bf16::from(number).to_ne_bytes().to_vec(),
        _ => return None,
    };
    Some(element.repeat(count))
}

struct Memory<T> {
    /// One of each rank, whole or a part.
    inputs: Vec<Vec<T>>,
    /// One of each rank, of a part; the first may be whole.
    outputs: Vec<Vec<T>>,
    /// Elements of a part.
    part: usize,
}

impl<T: Sum + 'static> Memory<T> {
    #[allow(clippy::new_ret_no_self, reason = "types differ, and are told apart once")]
    fn new(bytes: usize, ranks: usize, whole: bool) -> Box<dyn Plain> {
        let count = bytes / size_of::<T>();
        let part = count.div_ceil(ranks);
        let len = if whole { count } else { part };
        let inputs = (0..ranks).map(|_| vec![T::ONE; len]).collect();
        let outputs = (0..ranks).map(|rank| vec![T::ONE; if rank == 0 { len } else { part }]).collect();
        Box::new(Self { inputs, outputs, part })
    }
}

impl<T: Sum> Plain for Memory<T> {
    fn one_shot(&mut self) {
        let inputs: Vec<&[T]> = self.inputs.iter().map(Vec::as_slice).collect();
        let output = self.outputs[0].as_mut_slice();
        let block = BLOCK_BYTES / size_of::<T>();
        for (index, output) in output.chunks_mut(block).enumerate() {
            sum(black_box(&inputs), index * block, output);
        }
        black_box(output);
    }

    fn two_shot(&mut self) {
        let inputs: Vec<&[T]> = self.inputs.iter().map(|input| &input[..self.part]).collect();
        let block = BLOCK_BYTES / size_of::<T>();
        let (first, others) = self.outputs.split_at_mut(1);
        for (index, output) in first[0][..self.part].chunks_mut(block).enumerate() {
            let at = index * block;
            sum(black_box(&inputs), at, output);
            for other in others.iter_mut() {
                other[at..at + output.len()].copy_from_slice(output);
            }
        }
        black_box(&mut self.outputs);
    }
}

/// Sums the inputs from element `at` on.
fn sum<T: Sum>(inputs: &[&[T]], at: usize, output: &mut [T]) {
    let part = |input: &&[T]| -> std::ops::Range<usize> { at..(at + output.len()).min(input.len()) };
    let ranges: Vec<_> = inputs.iter().map(part).collect();
    let mut parts = inputs.iter().zip(ranges).map(|(input, range)| &input[range]);
    match (parts.next(), parts.next()) {
        (Some(a), Some(b)) => {
            output.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum = a.plus(*b));
        }
        (Some(a), None) => output.copy_from_slice(a),
        (None, _) => {}
    }
    for part in parts {
        output.iter_mut().zip(part).for_each(|(sum, x)| *sum = sum.plus(*x));
    }
}

trait Sum: Copy {
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
}

macro_rules! sums {
    ($($type:ty: $one:expr, $plus:expr;)*) => {
        $(impl Sum for $type {
            const ONE: Self = $one;
            #[inline]
            fn plus(self, other: Self) -> Self {
                ($plus)(self, other)
            }
        })*
    };
}

sums! {
    f32: 1.0, |a, b| a + b;
    f64: 1.0, |a, b| a + b;
    i32: 1, Self::wrapping_add;
    i64: 1, Self::wrapping_add;
    u8: 1, Self::wrapping_add;
    f16: Self::ONE, |a, b| a + b;
    bf16: Self::ONE, |a, b| a + b;
}

/// How much of the output is worked on at a time: a part of a core's cache.
const BLOCK_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_loops_write_the_sum_of_all_ranks() {
        for (count, ranks) in [(1, 1), (10, 3), (70_000, 2), (9_000, 4)] {
            let inputs = (0..ranks).map(|_| vec![1.0f32; count]).collect();
            let part = count.div_ceil(ranks);
            let outputs = (0..ranks).map(|rank| vec![0.0; if rank == 0 { count } else { part }]).collect();
            let mut memory = Memory { inputs, outputs, part };
            memory.two_shot();
            assert!(memory.outputs.iter().all(|output| output[..part].iter().all(|x| *x == ranks as f32)));
            memory.one_shot();
            assert!(memory.outputs[0].iter().all(|x| *x == ranks as f32));
        }
    }

    #[test]
    fn every_type_has_its_memory_and_its_numbers() {
        for dtype in DType::ALL {
            let mut plain = plain(dtype, 64, 2, true).unwrap();
            plain.one_shot();
            plain.two_shot();
            assert_eq!(filled(dtype, 3, 8).unwrap().len(), 8 * dtype.size_bytes());
        }
    }
}
