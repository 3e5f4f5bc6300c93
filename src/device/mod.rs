//! What kernels see, and host kernels that see it.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`abi`] | the structs that kernels read, with NCCL's own layouts |
//! | [`dev_comm`] | the device communicator, free of any version, and its layouts |
//! | [`header`] | the same for kernels of a GPU: a header in CUDA C++ |
//! | [`mod@pointer`] | the pointer arithmetic over a window's bytes; no access |
//! | [`watch`] | how waits in kernels learn that their communicator has failed |
//! | [`kernel`] | host kernels: closures on threads over the very same structs |
//! | [`window`] | windows inside a host kernel, and the device-side lookup |
//! | [`shared`] | checked slices of a peer's memory: access by copy or by atomics |
//! | [`barrier`] | the LSA barrier |
//! | [`ll_a2a`] | the low-latency all-to-all: data and flag in one store |
//! | [`bell`] | how sleepers are woken, and only sleepers |
//!
//! Unsafe code lives here: one operation a block, each with its proof. What all proofs lean on is the
//! contract of [`kernel::KernelEnv::new`]: while a kernel runs, everything that its device communicator leads
//! to stays mapped.

pub mod abi;
pub mod barrier;
pub mod bell;
pub(crate) mod builtin;
mod claim;
pub mod dev_comm;
pub mod header;
#[cfg(any(feature = "cuda", test))]
pub(crate) mod images;
pub mod kernel;
pub mod ll_a2a;
pub(crate) mod peer;
pub mod pointer;
pub mod shared;
pub mod watch;
pub mod window;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use barrier::LsaBarrier;
pub use bell::Bell;
pub use claim::Claims;
pub use dev_comm::DevComm;
pub use kernel::{Kernel, KernelEnv, KernelHandle, launch, run_here};
pub use ll_a2a::LlA2a;
pub use shared::{Element, Shared};
pub(crate) use watch::cores;
pub use watch::{Pace, WaitError, Watch};
pub use window::DeviceWindow;
