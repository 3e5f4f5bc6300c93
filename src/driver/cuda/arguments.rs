//! What cudarc's launch builder takes as arguments of kernels.
//!
//! | argument | parameter of the kernel |
//! | --- | --- |
//! | `&KernelComm` | `symwin::DevComm` |
//! | `&DevComm248` | the device communicator of NCCL's headers 2.31 and 2.32 |
//! | `&Window` | `symwin::Window const*` |
//! | `&DeviceView<T>` | `T const*` or `T*` |
//! | the handles and teams of [`abi`] | those of the same names |
#![allow(unsafe_code, reason = "cudarc's traits say what is a kernel's argument")]

use cudarc::driver::{DeviceRepr, LaunchArgs, PushKernelArg};

use super::DeviceView;
use crate::Window;
use crate::device::abi;

/// Structs that are plain bytes of a layout that `abi` fixes at compile time and device code has too.
macro_rules! plain {
    ($($type:ident),*) => {
        $(
            // SAFETY: `repr(C)` without padding, of integers alone, with the layout of its twin in device code.
            unsafe impl DeviceRepr for abi::$type {}
        )*
    };
}

plain!(KernelComm, DevComm248, ResourceWindow, TeamStruct, MultimemHandle, LsaBarrierHandle, LlA2aHandle);

// SAFETY: what is pushed is the window's device address, eight bytes that lie in the window's own allocation, which the
// borrow keeps until the launch.
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b Window> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, window: &'b Window) -> &mut Self {
        self.arg(window.struct_address())
    }
}

// SAFETY: what is pushed is the address of the view's memory, eight bytes that lie in the view, which the borrow keeps
// until the launch.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b DeviceView<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b DeviceView<T>) -> &mut Self {
        self.arg(view.address_ref())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut DeviceView<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b mut DeviceView<T>) -> &mut Self {
        self.arg(view.address_ref())
    }
}
