//! Errors of calls, and names of the driver's error codes, for messages that are made where the driver cannot be asked.

use cudarc::driver::sys;

use crate::driver::{Call, DeviceError, DeviceProblem};

pub(super) fn unknown(call: Call, handle: u64) -> DeviceError {
    DeviceError::new(call, DeviceProblem::InvalidHandle { handle })
}

/// The error of a call, if it has one.
pub(super) fn check(call: Call, result: sys::CUresult) -> Result<(), DeviceError> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(call, result)) }
}

pub(super) fn failed(call: Call, result: sys::CUresult) -> DeviceError {
    let code = result as u32;
    let mut name = name(code);
    if is_sticky(code) {
        name.push_str(": a kernel that ran before has ended the context; nothing works in it any more");
    }
    DeviceError::new(call, DeviceProblem::Cuda { code, name })
}

/// The name of a `CUresult`.
pub(super) fn name(code: u32) -> String {
    let known = CODES.iter().find(|(known, _)| *known == code);
    known.map_or_else(
        || "an error that this version does not know".to_owned(),
        |(_, name)| format!("CUDA_ERROR_{name}"),
    )
}

/// Whether an earlier kernel has ended the context: every later call says so.
fn is_sticky(code: u32) -> bool {
    matches!(code, 214 | 700 | 702 | 710 | 714..=719 | 721)
}

const CODES: [(u32, &str); 44] = [
    (1, "INVALID_VALUE"),
    (2, "OUT_OF_MEMORY"),
    (3, "NOT_INITIALIZED"),
    (4, "DEINITIALIZED"),
    (34, "STUB_LIBRARY"),
    (46, "DEVICE_UNAVAILABLE"),
    (100, "NO_DEVICE"),
    (101, "INVALID_DEVICE"),
    (200, "INVALID_IMAGE"),
    (201, "INVALID_CONTEXT"),
    (205, "MAP_FAILED"),
    (206, "UNMAP_FAILED"),
    (208, "ALREADY_MAPPED"),
    (209, "NO_BINARY_FOR_GPU"),
    (211, "NOT_MAPPED"),
    (214, "ECC_UNCORRECTABLE"),
    (217, "PEER_ACCESS_UNSUPPORTED"),
    (218, "INVALID_PTX"),
    (222, "UNSUPPORTED_PTX_VERSION"),
    (304, "OPERATING_SYSTEM"),
    (400, "INVALID_HANDLE"),
    (401, "ILLEGAL_STATE"),
    (500, "NOT_FOUND"),
    (600, "NOT_READY"),
    (700, "ILLEGAL_ADDRESS"),
    (701, "LAUNCH_OUT_OF_RESOURCES"),
    (702, "LAUNCH_TIMEOUT"),
    (709, "CONTEXT_IS_DESTROYED"),
    (710, "ASSERT"),
    (714, "HARDWARE_STACK_ERROR"),
    (715, "ILLEGAL_INSTRUCTION"),
    (716, "MISALIGNED_ADDRESS"),
    (717, "INVALID_ADDRESS_SPACE"),
    (718, "INVALID_PC"),
    (719, "LAUNCH_FAILED"),
    (721, "TENSOR_MEMORY_LEAK"),
    (800, "NOT_PERMITTED"),
    (801, "NOT_SUPPORTED"),
    (802, "SYSTEM_NOT_READY"),
    (803, "SYSTEM_DRIVER_MISMATCH"),
    (900, "STREAM_CAPTURE_UNSUPPORTED"),
    (901, "STREAM_CAPTURE_INVALIDATED"),
    (907, "CAPTURED_EVENT"),
    (999, "UNKNOWN"),
];
