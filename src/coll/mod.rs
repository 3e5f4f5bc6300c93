//! Collectives on windows, for host kernels. They stand on `device`'s checked slices and barriers, with nothing
//! else between ranks and no unsafe code.
#![forbid(unsafe_code)]

pub mod all_reduce;
pub mod dtype;
pub mod number;
mod place;
pub mod reduce;
mod run;

#[cfg(test)]
mod tests;

pub use all_reduce::all_reduce;
pub use dtype::DType;
pub use reduce::ReduceOp;
