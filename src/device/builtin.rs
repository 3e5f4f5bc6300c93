//! The library's own kernels of devices whose kernels are not host code, and what they take.
//!
//! Sources are in `kernels/`; [`Driver::launch`] finds them by name.
#![allow(unsafe_code, reason = "a kernel follows the addresses that it is given")]

use std::sync::Arc;

use zerocopy::{Immutable, IntoBytes};

use crate::device::abi;
use crate::driver::launches::Launches;
use crate::driver::{DeviceError, Driver, Launch, StreamRef};

/// The parameter of the all-reduce kernels: `AllReduce` in `kernels/all_reduce.cu`.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct AllReduce {
    /// The collectives' device communicator.
    pub(crate) comm: abi::KernelComm,
    /// Addresses of LSA rank 0's parts, and not of the windows' structs: to read these first would take a kernel time.
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// Addresses of all ranks' parts at once; for nothing where the device communicator has no multicast object.
    pub(crate) input_multimem: u64,
    pub(crate) output_multimem: u64,
    /// In elements.
    pub(crate) count: u64,
    /// As the kernels number them: sum, mean, min, max.
    pub(crate) op: u32,
    /// The barrier of block 0.
    pub(crate) barrier: u32,
    /// 1 if the output is the input, 0 if they are apart.
    pub(crate) is_in_place: u32,
    /// Padding.
    pub(crate) reserved: u32,
}

/// Queues an all-reduce behind what was queued before.
///
/// Crate-private and safe because the runtime keeps the promises of [`Driver::launch`]: whoever calls this holds the
/// windows open, which were checked against the ranges; a window that is closed afterwards, and the communicator, keep
/// everything mapped until the point behind the last launch has passed. Of a graph that runs later this is the caller's
/// promise.
pub(crate) fn all_reduce(
    launches: &Launches,
    driver: &Arc<dyn Driver>,
    stream: StreamRef,
    kernel: &str,
    (blocks, threads): (u32, u32),
    parameter: &AllReduce,
) -> Result<(), DeviceError> {
    let launch = Launch { kernel, blocks, threads, parameter: parameter.as_bytes() };
    // SAFETY: the promises above; the parameter has the kernel's layout, which `tests/device_code.rs` compares.
    unsafe { launches.launch(driver, stream, &launch) }
}
