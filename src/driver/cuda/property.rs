//! What memory is asked to be: where, and by which kinds of handle it can leave the process.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::c_void;

use cudarc::driver::sys;

use super::failures::check;
use crate::driver::{Call, DeviceError};

/// Whether a fabric handle can be exported and imported: that the device has the attribute says little, as a daemon must
/// run and permit it. The caller has entered the context.
pub(super) fn fabric_works(ordinal: i32, gpu_direct: bool) -> bool {
    let _turn = super::turn::take();
    let property = property(ordinal, DESCRIPTORS | FABRIC, gpu_direct);
    let Ok(size) = granularity(&property) else { return false };
    let mut memory = 0;
    // SAFETY: reads the property and writes the handle, both this function's.
    let made = unsafe { sys::cuMemCreate(&raw mut memory, size, &raw const property, 0) };
    if made != sys::CUresult::CUDA_SUCCESS {
        return false;
    }
    let mut bytes = [0_u8; 64];
    let handle = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: of this kind of handle the CUDA driver writes 64 bytes, which there is place for.
    let exported = unsafe { sys::cuMemExportToShareableHandle(handle, memory, fabric_type(), 0) };
    let mut works = exported == sys::CUresult::CUDA_SUCCESS;
    if works {
        let mut imported = 0;
        // SAFETY: reads those 64 bytes and writes the handle.
        let result = unsafe { sys::cuMemImportFromShareableHandle(&raw mut imported, handle, fabric_type()) };
        works = result == sys::CUresult::CUDA_SUCCESS;
        if works {
            // SAFETY: it was imported just now.
            works = unsafe { sys::cuMemRelease(imported) } == sys::CUresult::CUDA_SUCCESS;
        }
    }
    // SAFETY: it was made above.
    works & (unsafe { sys::cuMemRelease(memory) } == sys::CUresult::CUDA_SUCCESS)
}

pub(super) fn granularity(property: &sys::CUmemAllocationProp) -> Result<usize, DeviceError> {
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut bytes = 0;
    // SAFETY: reads the property and writes the number, both the callers'.
    check(Call::Create, unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, property, option) })?;
    Ok(bytes.max(4096))
}

/// What memory is asked to be.
pub(super) fn property(ordinal: i32, handle_types: u32, gpu_direct: bool) -> sys::CUmemAllocationProp {
    // SAFETY: all-zero is a value of this plain C struct: no type, no handles, no location.
    let mut property: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    property.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    property.requestedHandleTypes = sys::CUmemAllocationHandleType(handle_types);
    property.location = device_location(ordinal);
    property.allocFlags.gpuDirectRDMACapable = u8::from(gpu_direct);
    property
}

/// The place of a device's memory, whichever version of the bindings the program chose: later ones have a union for the
/// number.
pub(super) fn device_location(ordinal: i32) -> sys::CUmemLocation {
    const {
        assert!(size_of::<sys::CUmemLocation>() == 8 && align_of::<sys::CUmemLocation>() == 4);
    }
    // SAFETY: all-zero is a value of this plain C struct.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let tag = (&raw mut location).cast::<i32>();
    // SAFETY: the struct is two words, by the assertion.
    let number = unsafe { tag.add(1) };
    // SAFETY: the second word is the number in every version.
    unsafe { number.write(ordinal) };
    location
}

pub(super) fn fabric_type() -> sys::CUmemAllocationHandleType {
    sys::CUmemAllocationHandleType(FABRIC)
}

pub(super) const DESCRIPTORS: u32 = 1;
pub(super) const FABRIC: u32 = 8;
