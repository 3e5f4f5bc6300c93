//! Reductions of several inputs, element by element, in the order in which they are given.
//!
//! | type | sums are made in | then |
//! | --- | --- | --- |
//! | f64, f32 | the type itself | |
//! | f16, bf16 | f32 | rounded once, to nearest, ties to even |
//! | i64, i32, u8 | the type itself; means in one that holds the sum exactly | sums wrapped, means truncated |
//!
//! So an integer sum wraps, while an integer mean is the mean of the exact sum, truncated toward zero. Minimum and
//! maximum pass a NaN on: the first one, if there are several. Of values that compare equal (the two zeros) the
//! first one wins. The same inputs in the same order give the same bits.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::coll::number::Number;
use crate::device::Shared;
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

/// A reduction under way: inputs of equal length go in one after the other, their reduction comes out. It keeps
/// its buffers, so that a loop over chunks allocates once.
#[derive(Debug)]
pub struct Reduction<T: Number> {
    op: ReduceOp,
    /// Of the inputs so far, where the operation is done in the type itself.
    partial: Vec<T>,
    /// The same where it is done in a wider one. Not yet divided.
    wide: Vec<T::Wide>,
    /// How many inputs there were.
    inputs: u32,
}

impl<T: Number> Reduction<T> {
    /// A reduction without inputs yet.
    #[must_use]
    pub const fn new(op: ReduceOp) -> Self {
        Self { op, partial: Vec::new(), wide: Vec::new(), inputs: 0 }
    }

    /// Takes one more input in.
    ///
    /// # Errors
    /// `Misuse` if it is not as long as the first, or one of more than 2^21.
    pub fn add(&mut self, input: &[T]) -> Result<()> {
        if self.inputs == 0 {
            return self.first(input.len(), |to| {
                to.copy_from_slice(input);
                Ok(())
            });
        }
        self.check_len(input.len())?;
        if self.inputs == INPUTS_MAX {
            let what = format!("a reduction of more than {INPUTS_MAX} inputs");
            return Err(Misuse::Other { what }.into());
        }
        if T::in_itself(self.op) {
            T::combine(self.op, &mut self.partial, input);
        } else {
            T::combine_wide(self.op, &mut self.wide, input);
        }
        self.inputs += 1;
        Ok(())
    }

    /// Takes the first input in, `len` elements that `read` writes where they are wanted: one copy less. What
    /// was there before is dropped.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn first(&mut self, len: usize, read: impl FnOnce(&mut [T]) -> Result<()>) -> Result<()> {
        self.inputs = 0;
        self.partial.resize(len, T::new_zeroed());
        read(&mut self.partial)?;
        if !T::in_itself(self.op) {
            self.wide.resize(len, T::Wide::default());
            T::widen(&self.partial, &mut self.wide);
        }
        self.inputs = 1;
        Ok(())
    }

    /// Takes the elements `part` of all inputs in, which must be the first. `scratch` is anything that is kept.
    pub(super) fn take(
        &mut self,
        inputs: &[Shared<'_, T>],
        part: Range<usize>,
        scratch: &mut Vec<T>,
    ) -> Result<()> {
        let Some((first, others)) = inputs.split_first() else {
            let what = "a reduction over an LSA team without ranks".to_owned();
            return Err(Misuse::Other { what }.into());
        };
        self.first(part.len(), |to| first.read_into(part.start, to))?;
        scratch.resize(part.len(), T::new_zeroed());
        for input in others {
            input.read_into(part.start, scratch)?;
            self.add(scratch)?;
        }
        Ok(())
    }

    /// The reduction of all inputs. The next input begins anew.
    ///
    /// # Errors
    /// `Misuse` if there were none.
    pub fn result(&mut self) -> Result<&[T]> {
        self.check_len(self.partial.len())?;
        if T::in_itself(self.op) {
            if self.op == ReduceOp::Mean {
                T::divide(&mut self.partial, self.inputs);
            }
        } else {
            let divisor = if self.op == ReduceOp::Mean { self.inputs } else { 1 };
            T::narrow(&mut self.wide, divisor, &mut self.partial);
        }
        self.inputs = 0;
        Ok(&self.partial)
    }

    /// Writes the reduction of all inputs out and begins anew.
    ///
    /// # Errors
    /// `Misuse` if the output is not as long as the inputs, or there were none.
    pub fn finish(&mut self, output: &mut [T]) -> Result<()> {
        self.check_len(output.len())?;
        output.copy_from_slice(self.result()?);
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

/// As many inputs have exact sums in the types of [`Number::Wide`], and f32 holds their number.
const INPUTS_MAX: u32 = 1 << 21;
