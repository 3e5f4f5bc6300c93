//! Collectives on windows, for host kernels. They stand on `device`'s checked slices and barriers, with nothing
//! else between ranks and no unsafe code.
#![forbid(unsafe_code)]

pub mod all_reduce;
pub mod dtype;
pub mod reduce;
mod run;
pub(crate) mod turns;

#[cfg(test)]
mod tests;

use crate::devr::dev_comm::DevCommRequirements;

/// What the collectives' own device communicator needs.
pub(crate) fn requirements() -> DevCommRequirements {
    DevCommRequirements::new().lsa_barriers(BARRIERS)
}

/// LSA barriers of the collectives, one for each block that takes part.
pub(crate) const BARRIERS: u32 = 16;

pub use all_reduce::all_reduce;
pub use dtype::DType;
pub use reduce::ReduceOp;
