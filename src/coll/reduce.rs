//! Reductions of several inputs, element by element, in the order in which they are given.
//!
//! | type | sums are made in | then |
//! | --- | --- | --- |
//! | f64, f32 | the type itself | |
//! | f16, bf16 | f32 | rounded once, to nearest, ties to even |
//! | i64, i32, u8 | i128, i64, i64: exact | wrapped to the type |
//!
//! So an integer sum wraps, while an integer mean is the mean of the exact sum, truncated toward zero. Minimum and
//! maximum pass a NaN on: the first one, if there are several. Of values that compare equal (the two zeros) the
//! first one wins. The same inputs in the same order give the same bits.

use std::fmt;
use std::ops::{Add, Div};
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::device::Element;
use crate::error::{Misuse, Result};

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their sum divided by their number.
    Mean,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Min, Self::Max];

    /// Its name: `sum`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        Self::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| Misuse::BadSetting {
            name: "op".to_owned(),
            value: name.to_owned(),
            why: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// An element that can be reduced.
pub trait Number: Element {
    /// What sums are made in; it holds every value of the type exactly.
    type Wide: Copy + Add<Output = Self::Wide> + Div<Output = Self::Wide> + fmt::Debug + PartialOrd;

    /// The value, exactly.
    fn widen(self) -> Self::Wide;

    /// The value in this type: rounded or wrapped.
    fn narrow(wide: Self::Wide) -> Self;

    /// A number of inputs.
    fn count(inputs: u32) -> Self::Wide;
}

/// A reduction under way: inputs of equal length go in one after the other, their reduction comes out. It keeps
/// its buffer, so that a loop over chunks allocates once.
#[derive(Debug)]
pub struct Reduction<T: Number> {
    op: ReduceOp,
    /// Of the inputs so far, not yet divided.
    partial: Vec<T::Wide>,
    /// How many inputs there were.
    inputs: u32,
}

impl<T: Number> Reduction<T> {
    /// A reduction without inputs yet.
    #[must_use]
    pub const fn new(op: ReduceOp) -> Self {
        Self { op, partial: Vec::new(), inputs: 0 }
    }

    /// Takes one more input in.
    ///
    /// # Errors
    /// `Misuse` if it is not as long as the first.
    pub fn add(&mut self, input: &[T]) -> Result<()> {
        if self.inputs == 0 {
            self.partial.clear();
            self.partial.extend(input.iter().map(|x| x.widen()));
            self.inputs = 1;
            return Ok(());
        }
        self.check_len(input.len())?;
        match self.op {
            ReduceOp::Sum | ReduceOp::Mean => combine(&mut self.partial, input, |a, b| a + b),
            ReduceOp::Min => combine(&mut self.partial, input, |a, b| if keeps(a, a <= b) { a } else { b }),
            ReduceOp::Max => combine(&mut self.partial, input, |a, b| if keeps(a, a >= b) { a } else { b }),
        }
        self.inputs += 1;
        Ok(())
    }

    /// Writes the reduction of all inputs out and begins anew.
    ///
    /// # Errors
    /// `Misuse` if the output is not as long as the inputs, or there were none.
    pub fn finish(&mut self, output: &mut [T]) -> Result<()> {
        self.check_len(output.len())?;
        let divisor = T::count(self.inputs);
        let results = output.iter_mut().zip(&self.partial);
        match self.op {
            ReduceOp::Mean => results.for_each(|(to, sum)| *to = T::narrow(*sum / divisor)),
            ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max => {
                results.for_each(|(to, value)| *to = T::narrow(*value));
            }
        }
        self.inputs = 0;
        Ok(())
    }

    fn check_len(&self, len: usize) -> Result<()> {
        if self.inputs > 0 && len == self.partial.len() {
            return Ok(());
        }
        let (inputs, had) = (self.inputs, self.partial.len());
        let what = format!("a reduction of {inputs} inputs of {had} elements cannot take {len} elements");
        Err(Misuse::Other { what }.into())
    }
}

fn combine<T: Number>(partial: &mut [T::Wide], input: &[T], op: impl Fn(T::Wide, T::Wide) -> T::Wide) {
    for (partial, x) in partial.iter_mut().zip(input) {
        *partial = op(*partial, x.widen());
    }
}

/// Whether the earlier value stays: it is in order, or it is a NaN, which is what differs from itself.
#[allow(clippy::eq_op, reason = "the test for a NaN that generic numbers have")]
fn keeps<W: PartialOrd + Copy>(earlier: W, in_order: bool) -> bool {
    in_order || earlier != earlier
}

macro_rules! number {
    ($($type:ty, $wide:ty: $widen:expr, $narrow:expr, $count:expr;)*) => {$(
        impl Number for $type {
            type Wide = $wide;

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }

            fn count(inputs: u32) -> $wide {
                $count(inputs)
            }
        }
    )*};
}

number! {
    f32, f32: std::convert::identity, std::convert::identity, |n| n as f32;
    f64, f64: std::convert::identity, std::convert::identity, f64::from;
    f16, f32: f16::to_f32, f16::from_f32, |n| n as f32;
    bf16, f32: bf16::to_f32, bf16::from_f32, |n| n as f32;
    i32, i64: i64::from, wrap::i32, i64::from;
    i64, i128: i128::from, wrap::i64, i128::from;
    u8, i64: i64::from, wrap::u8, i64::from;
}

/// Wrapping a wide integer into a type: its low bits.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the low bits are what wrapping means"
)]
mod wrap {
    pub(super) const fn i32(wide: i64) -> i32 {
        wide as i32
    }

    pub(super) const fn i64(wide: i128) -> i64 {
        wide as i64
    }

    pub(super) const fn u8(wide: i64) -> u8 {
        wide as u8
    }
}
