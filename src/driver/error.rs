//! Device calls that fail.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kinds of call that can fail, as they are named in errors and counted by [`faulty`](super::faulty).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of the same name")]
pub enum Call {
    AddressRange,
    Copy,
    Create,
    Done,
    EventDestroy,
    Export,
    Fill,
    Flag,
    Free,
    Import,
    Launch,
    Load,
    Map,
    MulticastAddDevice,
    MulticastBind,
    MulticastCreate,
    MulticastUnbind,
    Record,
    Release,
    Reserve,
    Retain,
    SetAccess,
    Store,
    StreamCreate,
    StreamDestroy,
    StreamWait,
    Unmap,
}

impl Call {
    /// Every kind, for sweeps.
    pub const ALL: [Self; 27] = [
        Self::AddressRange,
        Self::Copy,
        Self::Create,
        Self::Done,
        Self::EventDestroy,
        Self::Export,
        Self::Fill,
        Self::Flag,
        Self::Free,
        Self::Import,
        Self::Launch,
        Self::Load,
        Self::Map,
        Self::MulticastAddDevice,
        Self::MulticastBind,
        Self::MulticastCreate,
        Self::MulticastUnbind,
        Self::Record,
        Self::Release,
        Self::Reserve,
        Self::Retain,
        Self::SetAccess,
        Self::Store,
        Self::StreamCreate,
        Self::StreamDestroy,
        Self::StreamWait,
        Self::Unmap,
    ];
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a device call failed. It travels to every rank inside votes, so it is a plain value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("device call {call} failed: {problem}")]
#[non_exhaustive]
pub struct DeviceError {
    /// The call that failed.
    pub call: Call,
    /// What was wrong.
    pub problem: DeviceProblem,
}

impl DeviceError {
    /// An error of this call.
    #[must_use]
    pub const fn new(call: Call, problem: DeviceProblem) -> Self {
        Self { call, problem }
    }

    /// An error of this call with the operating system's error number.
    #[must_use]
    pub fn os(call: Call, errno: rustix::io::Errno) -> Self {
        Self::new(call, DeviceProblem::Os { errno: errno.raw_os_error() })
    }
}

/// What was wrong in a device call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceProblem {
    /// The arguments break the contract.
    #[error("{what}")]
    Argument {
        /// Which argument, and how.
        what: String,
    },
    /// A stream that is being captured has no present end.
    #[error("the stream is being captured: it has no present end that could pass; end the capture first")]
    Capturing,
    /// The CUDA driver refused.
    #[error("{name} (CUDA error {code})")]
    Cuda {
        /// The driver's error code.
        code: u32,
        /// Its name, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
    },
    /// The address is in no allocation of this device.
    #[error("address {address:#x} is in no allocation of this device; allocate with `Communicator::alloc`")]
    ForeignAddress {
        /// The address that was asked about.
        address: u64,
    },
    /// A failure that a test asked for.
    #[error("failure number {nth} injected by a test")]
    Injected {
        /// Which call of its kind it was, from 1.
        nth: u64,
    },
    /// The handle is not one of this device, or has been released.
    #[error("handle {handle} is not known to this device")]
    InvalidHandle {
        /// The handle's number.
        handle: u64,
    },
    /// The memory was not made for sharing.
    #[error(
        "address {address:#x} lies in an allocation of {size} bytes at {base:#x} that cannot be shared: {why}; allocate \
         with `Communicator::alloc`, or by cuMemCreate with POSIX descriptors as handle type"
    )]
    NotShareable {
        /// The address that was asked about.
        address: u64,
        /// Where its allocation starts.
        base: u64,
        /// The allocation's size in bytes.
        size: u64,
        /// What it lacks.
        why: String,
    },
    /// The operating system refused.
    #[error("{}", rustix::io::Errno::from_raw_os_error(*errno))]
    Os {
        /// The error number.
        errno: i32,
    },
    /// The device has not done in time what waits for no kernel.
    #[error("not done after {seconds} s; the device hangs, or its kernels leave no room for copies")]
    Late {
        /// How long it was waited for.
        seconds: u64,
    },
    /// Not enough memory.
    #[error("out of memory: {need} bytes asked, {available} bytes available")]
    OutOfMemory {
        /// Bytes asked for.
        need: u64,
        /// Bytes that could be had.
        available: u64,
    },
    /// No descriptor is left.
    #[error(
        "out of descriptors: the limit is {limit}, {need} more are needed; raise it (ulimit -n) or carve \
         buffers from fewer allocations"
    )]
    TooManyDescriptors {
        /// The process's soft limit.
        limit: u64,
        /// How many were needed at least.
        need: u64,
    },
    /// The device cannot do this.
    #[error("not supported: {why}")]
    Unsupported {
        /// What is missing.
        why: String,
    },
}
