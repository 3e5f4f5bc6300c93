//! Collectives on windows, for host kernels. They stand on `device`'s checked slices and barriers, with nothing
//! else between ranks and no unsafe code.
//!
//! | collective | in a kernel | of a communicator |
//! | --- | --- | --- |
//! | all-reduce | [`all_reduce()`] | [`Communicator::all_reduce`](crate::Communicator::all_reduce) |
//! | all-gather | [`all_gather()`] | [`Communicator::all_gather`](crate::Communicator::all_gather) |
//! | reduce-scatter | [`reduce_scatter()`] | [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter) |
//! | broadcast | [`broadcast()`] | [`Communicator::broadcast`](crate::Communicator::broadcast) |
//! | all-to-all | [`all_to_all()`] | [`Communicator::all_to_all`](crate::Communicator::all_to_all) |
#![forbid(unsafe_code)]

pub mod all_gather;
pub mod all_reduce;
pub mod all_to_all;
pub mod broadcast;
pub mod dtype;
mod methods;
pub mod number;
mod on_device;
mod place;
pub mod reduce;
pub mod reduce_scatter;
mod run;

#[cfg(test)]
mod tests;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub use all_to_all::all_to_all;
pub use broadcast::broadcast;
pub use dtype::DType;
pub use reduce::ReduceOp;
pub use reduce_scatter::reduce_scatter;
