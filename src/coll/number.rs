//! Numbers that can be reduced, and the loops that reduce them.
//!
//! Each loop is compiled for several generations of processors and chosen at run time; the compiler makes vectors of
//! it. None reorders or fuses operations, so all give the same bits.

use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use multiversion::multiversion;

use crate::coll::reduce::ReduceOp;
use crate::device::Element;

/// An element that can be reduced.
pub trait Number: Element + PartialOrd {
    /// What a reduction is made in where it is not made in the type itself; it holds every value of the type exactly.
    type Wide: Copy + Default + fmt::Debug;

    /// Whether the operation is done in the type itself.
    fn in_itself(op: ReduceOp) -> bool;

    /// Combines each element with an input's. Sums of integers wrap.
    fn combine(op: ReduceOp, partial: &mut [Self], input: &[Self]);

    /// Divides each element by a number of inputs.
    fn divide(partial: &mut [Self], inputs: u32);

    /// Each value, exactly.
    fn widen(from: &[Self], to: &mut [Self::Wide]);

    /// Combines each wide element with an input's.
    fn combine_wide(op: ReduceOp, partial: &mut [Self::Wide], input: &[Self]);

    /// Each value divided by a number of inputs, in this type: rounded or truncated.
    fn narrow(from: &mut [Self::Wide], inputs: u32, to: &mut [Self]);
}

/// `to[i] = op(to[i], from[i])`.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+f16c+fma+lzcnt", "x86_64+avx"))]
fn zip<A: Copy, B: Copy>(to: &mut [A], from: &[B], op: impl Fn(A, B) -> A) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = op(*to, *from);
    }
}

/// `to[i] = op(to[i])`.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+f16c+fma+lzcnt", "x86_64+avx"))]
fn map<A: Copy>(to: &mut [A], op: impl Fn(A) -> A) {
    for to in to {
        *to = op(*to);
    }
}

/// The earlier one where they are in order or it is a NaN, which is what differs from itself.
#[inline(always)]
#[allow(clippy::eq_op, reason = "the test for a NaN that generic numbers have")]
fn keep<T: PartialOrd + Copy>(earlier: T, later: T, in_order: bool) -> T {
    if in_order || earlier != earlier { earlier } else { later }
}

fn extreme<T: PartialOrd + Copy>(op: ReduceOp, partial: &mut [T], input: &[T]) {
    if op == ReduceOp::Min {
        zip(partial, input, |a, b| keep(a, b, a <= b));
    } else {
        zip(partial, input, |a, b| keep(a, b, a >= b));
    }
}

macro_rules! float {
    ($($type:ident),*) => {$(
        impl Number for $type {
            type Wide = ();

            fn in_itself(_: ReduceOp) -> bool {
                true
            }

            fn combine(op: ReduceOp, partial: &mut [Self], input: &[Self]) {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => zip(partial, input, |a, b| a + b),
                    ReduceOp::Min | ReduceOp::Max => extreme(op, partial, input),
                }
            }

            #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "f32 holds 2^21 inputs")]
            fn divide(partial: &mut [Self], inputs: u32) {
                let divisor = inputs as $type;
                map(partial, |a| a / divisor);
            }

            fn widen(_: &[Self], _: &mut [()]) {}

            fn combine_wide(_: ReduceOp, _: &mut [()], _: &[Self]) {}

            fn narrow(_: &mut [()], _: u32, _: &mut [Self]) {}
        }
    )*};
}

float!(f32, f64);

macro_rules! integer {
    ($($type:ident, $wide:ident: $add:expr, $quotient:expr;)*) => {$(
        impl Number for $type {
            type Wide = $wide;

            fn in_itself(op: ReduceOp) -> bool {
                op != ReduceOp::Mean
            }

            fn combine(op: ReduceOp, partial: &mut [Self], input: &[Self]) {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => zip(partial, input, $type::wrapping_add),
                    ReduceOp::Min | ReduceOp::Max => extreme(op, partial, input),
                }
            }

            fn divide(_: &mut [Self], _: u32) {}

            fn widen(from: &[Self], to: &mut [$wide]) {
                zip(to, from, |_, x| $wide::from(x));
            }

            fn combine_wide(_: ReduceOp, partial: &mut [$wide], input: &[Self]) {
                zip(partial, input, $add);
            }

            fn narrow(from: &mut [$wide], inputs: u32, to: &mut [Self]) {
                zip(to, from, |_, sum| $quotient(sum, inputs));
            }
        }
    )*};
}

integer! {
    u8, u32: |sum, x| sum + u32::from(x), quotient::u8;
    i32, f64: |sum, x| sum + f64::from(x), quotient::i32;
    i64, i128: |sum, x| sum + i128::from(x), quotient::i64;
}

/// Exact sums of integers divided by a number of inputs, truncated toward zero.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean is in the type's range")]
mod quotient {
    // A quotient of whole numbers below 2^52 by one of at most 2^21, rounded to f64, is never rounded up to a whole
    // number: the distance to that is at least 1 / divisor. So truncating it gives the exact result, by
    // instructions that vectors have.

    #[inline(always)]
    pub(super) fn u8(sum: u32, inputs: u32) -> u8 {
        (f64::from(sum) / f64::from(inputs)) as u8
    }

    #[inline(always)]
    pub(super) fn i32(sum: f64, inputs: u32) -> i32 {
        (sum / f64::from(inputs)) as i32
    }

    #[inline(always)]
    pub(super) fn i64(sum: i128, inputs: u32) -> i64 {
        // Most sums fit; a division of 128 bits takes long.
        i64::try_from(sum).map_or_else(|_| (sum / i128::from(inputs)) as i64, |sum| sum / i64::from(inputs))
    }
}

macro_rules! half {
    ($($type:ident: $widen:expr, $narrow:expr;)*) => {$(
        impl Number for $type {
            type Wide = f32;

            fn in_itself(_: ReduceOp) -> bool {
                false
            }

            fn combine(_: ReduceOp, _: &mut [Self], _: &[Self]) {}

            fn divide(_: &mut [Self], _: u32) {}

            fn widen(from: &[Self], to: &mut [f32]) {
                $widen(from, to);
            }

            fn combine_wide(op: ReduceOp, partial: &mut [f32], input: &[Self]) {
                let mut wide = [0.0; BLOCK];
                for (partial, input) in partial.chunks_mut(BLOCK).zip(input.chunks(BLOCK)) {
                    let wide = &mut wide[..input.len()];
                    $widen(input, wide);
                    f32::combine(op, partial, wide);
                }
            }

            fn narrow(from: &mut [f32], inputs: u32, to: &mut [Self]) {
                if inputs > 1 {
                    f32::divide(from, inputs);
                }
                $narrow(from, to);
            }
        }
    )*};
}

half! {
    f16: f16_to_f32, f32_to_f16;
    bf16: |from: &[bf16], to: &mut [f32]| zip(to, from, |_, x| x.to_f32()),
        |from: &[f32], to: &mut [bf16]| zip(to, from, |_, x| bf16::from_f32(x));
}

fn f16_to_f32(from: &[f16], to: &mut [f32]) {
    from.convert_to_f32_slice(to);
}

fn f32_to_f16(from: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(from);
}

/// How many halves are widened at a time, on the stack.
const BLOCK: usize = 512;
