//! The types of elements that collectives work on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Misuse;

/// A type of element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the Rust type of the same name")]
pub enum DType {
    F32,
    F64,
    I32,
    I64,
    U8,
    F16,
    Bf16,
}

impl DType {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::F32, Self::F64, Self::I32, Self::I64, Self::U8, Self::F16, Self::Bf16];

    /// The size of one element in bytes, which is its alignment too.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Its name: `f32`, `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| Misuse::BadSetting {
            name: "dtype".to_owned(),
            value: name.to_owned(),
            why: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// Evaluates an expression with `$T` naming the Rust type of a [`DType`]: the one place where they are paired.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $with:expr) => {
        with_type!(@match $dtype, $T => $with;
            F32: f32, F64: f64, I32: i32, I64: i64, U8: u8, F16: half::f16, Bf16: half::bf16)
    };
    (@match $dtype:expr, $T:ident => $with:expr; $($variant:ident: $type:ty),+) => {
        match $dtype {
            $($crate::coll::dtype::DType::$variant => {
                type $T = $type;
                $with
            })+
        }
    };
}
pub(super) use with_type;
