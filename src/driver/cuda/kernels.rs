//! The library's own kernels, as the device runs them.
//!
//! Loaded when the driver is made, and each of them at once: loading waits for every kernel on the device (seen: as long
//! as a spinning kernel spins), so none is loaded when ranks already wait for each other.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::failures::check;
use crate::device::images::{self, Image};
use crate::driver::{Call, DeviceError, DeviceProblem, Launch};

/// The loaded kernels by name.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    functions: HashMap<&'static str, sys::CUfunction>,
}

// SAFETY: functions are the driver's, which any thread may call.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads all for a device of this compute capability. The caller has entered the context, which keeps them.
    pub(super) fn load(capability: (u32, u32)) -> Result<Self, DeviceError> {
        let mut functions = HashMap::new();
        for Image { bytes, kernels } in images::for_capability(capability) {
            let mut module = ptr::null_mut();
            // SAFETY: the image is a whole one, which the driver copies.
            check(Call::Launch, unsafe { sys::cuModuleLoadData(&raw mut module, bytes.as_ptr().cast()) })?;
            for name in kernels {
                functions.insert(name, function(module, name)?);
            }
        }
        Ok(Self { functions })
    }

    /// Queues one.
    ///
    /// # Safety
    /// As [`Driver::launch`](crate::driver::Driver::launch).
    pub(super) unsafe fn launch(
        &self,
        stream: sys::CUstream,
        launch: &Launch<'_>,
    ) -> Result<(), DeviceError> {
        let Launch { kernel, blocks, threads, parameter } = *launch;
        let Some(&function) = self.functions.get(kernel) else {
            let why = format!("there is no kernel `{kernel}` for this device in this build");
            return Err(DeviceError::new(Call::Launch, DeviceProblem::Unsupported { why }));
        };
        let mut parameters = [parameter.as_ptr().cast_mut().cast::<c_void>()];
        let none = ptr::null_mut();
        let parameters = parameters.as_mut_ptr();
        // SAFETY: the caller says that the bytes are the kernel's parameter and what it leads to stays; the driver
        // copies them before it returns.
        let queued = unsafe {
            sys::cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, none)
        };
        check(Call::Launch, queued)
    }
}

fn function(module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, DeviceError> {
    let c_name = CString::new(name).expect("names of kernels have no zero");
    let mut function = ptr::null_mut();
    // SAFETY: the module was loaded and the name ends with a zero.
    check(Call::Launch, unsafe { sys::cuModuleGetFunction(&raw mut function, module, c_name.as_ptr()) })?;
    // Where the driver loads lazily it would do so at the first launch.
    if super::absent::has("cuFuncLoad") {
        // SAFETY: the function is of a loaded module.
        check(Call::Launch, unsafe { sys::cuFuncLoad(function) })?;
    }
    Ok(function)
}
