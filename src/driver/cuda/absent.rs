//! Whether there is a CUDA driver that can be used, and what is missing where there is none.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::env;

use cudarc::driver::{result, sys};

/// Entry points that every part of this backend needs.
const REQUIRED: [&str; 36] = [
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuInit",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamCreateWithPriority",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// Those of multicast objects.
const MULTICAST: [&str; 5] = [
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastCreate",
    "cuMulticastGetGranularity",
    "cuMulticastUnbind",
];

/// Why there is no CUDA here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absent {
    /// The device lacks something that windows stand on.
    #[error("GPU {ordinal} ({name}) has no {what}; symwin needs a GPU and a driver that have it")]
    Capability {
        /// Which device.
        ordinal: usize,
        /// Its name.
        name: String,
        /// What it lacks.
        what: &'static str,
    },
    /// There are not as many devices.
    #[error(
        "there is no GPU {ordinal}: this process sees {count}; check CUDA_VISIBLE_DEVICES, or put more ranks on each"
    )]
    Device {
        /// Which one was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver is there but does not start.
    #[error("the CUDA driver does not start: {name} (CUDA error {code}); ask nvidia-smi what is wrong")]
    Init {
        /// The driver's error code: 100 is no device.
        code: u32,
        /// Its name.
        name: String,
    },
    /// There is no driver.
    #[error("libcuda was not found; install an NVIDIA driver or set LD_LIBRARY_PATH")]
    LibraryMissing,
    /// The driver is too old.
    #[error("the CUDA driver has no {name}; it is too old, install a newer one")]
    SymbolMissing {
        /// The missing entry point.
        name: &'static str,
    },
}

/// Whether CUDA can be used: looks for the driver's library, for the entry points, and starts it.
///
/// # Errors
/// What is missing. Never panics.
pub fn probe() -> Result<(), Absent> {
    // SAFETY: loads and unloads the library, calls nothing in it.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absent::LibraryMissing);
    }
    if let Some(name) = REQUIRED.into_iter().find(|name| !has(name)) {
        return Err(Absent::SymbolMissing { name });
    }
    // The error's own text would call into the driver: only its code is used.
    result::init().map_err(|error| {
        let code = error.0 as u32;
        Absent::Init { code, name: super::failures::name(code) }
    })?;
    super::ending::notice();
    Ok(())
}

/// Whether the driver has this entry point. Only after its library was found.
pub(super) fn has(name: &str) -> bool {
    symbol(name).is_some()
}

/// Whether multicast objects may be made: their entry points are there, and nobody has switched them off.
pub(super) fn multicast_is_allowed() -> bool {
    let off = |name| env::var_os(name).is_some_and(|value| value == "0");
    MULTICAST.into_iter().all(has) && !off("SYMWIN_MULTICAST") && !off("NCCL_NVLS_ENABLE")
}

/// Whether host code can touch the memory of the driver's devices at their own addresses. Only simulated drivers say
/// so, by an entry point that no real one has.
pub(super) fn host_has_access() -> bool {
    let Some(ask) = symbol("fakeCudaHostAccess") else { return false };
    // SAFETY: whoever exports this name gives it this type.
    let ask: extern "C" fn() -> i32 = unsafe { std::mem::transmute(ask) };
    ask() != 0
}

fn symbol(name: &str) -> Option<*const ()> {
    // SAFETY: the library was found, so loading it does not fail, and it stays loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is looked up, not called.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_driver_is_a_clean_absence() {
        // SAFETY: loads and unloads the library, calls nothing in it.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        assert_eq!(probe(), Err(Absent::LibraryMissing));
    }
}
