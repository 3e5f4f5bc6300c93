//! Arguments as C passes them: pointers that callers of the driver promise to be NULL or valid, and its structures.
//!
//! An entry point's arguments come from C, whose callers keep the driver's contract: an [`Out`] or [`In`] that is not
//! NULL points to as much as the driver's documentation says. All use of raw pointers to arguments is in this file.

use std::ffi::{CStr, c_char};

use crate::code::{Code, Done};

/// Where a result goes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// Where an argument comes from.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// A C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl<T> Out<T> {
    /// Writes the result. NULL is an invalid value.
    pub(crate) fn put(self, value: T) -> Done {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller of the entry point says that it may be written. Not all callers align it.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result if somebody wants it.
    pub(crate) fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            let _ = self.put(value);
        }
    }

    /// Refuses NULL before anything is done.
    pub(crate) fn check(self) -> Done {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// The same place, to hold something else.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The same place, to be read.
    pub(crate) fn input(self) -> In<T> {
        In(self.0)
    }

    /// Writes so many values, as many as fit.
    pub(crate) fn put_all(self, values: &[T], capacity: usize) -> Done
    where
        T: Copy,
    {
        self.check()?;
        for (index, value) in values.iter().take(capacity).enumerate() {
            // SAFETY: the caller of the entry point says that there is room for `capacity` values.
            let at = unsafe { self.0.add(index) };
            // SAFETY: as above.
            unsafe { at.write_unaligned(*value) };
        }
        Ok(())
    }

    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }
}

impl<T: Copy> In<T> {
    /// Reads the argument. NULL is an invalid value.
    pub(crate) fn get(self) -> Done<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller of the entry point says that it may be read. Not all callers align it.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads so many arguments.
    pub(crate) fn get_all(self, count: usize) -> Done<Vec<T>> {
        if count > 0 && self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let one = |index| {
            // SAFETY: the caller of the entry point says that there are `count` values.
            let at = unsafe { self.0.add(index) };
            // SAFETY: as above.
            unsafe { at.read_unaligned() }
        };
        Ok((0..count).map(one).collect())
    }

    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }
}

impl Text {
    /// A string at an address that an argument named.
    pub(crate) fn at(address: usize) -> Self {
        Self(std::ptr::with_exposed_provenance(address))
    }

    /// Reads the string. NULL is an invalid value.
    pub(crate) fn get(self) -> Done<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller of the entry point says that it is a C string.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Reads from an address that an argument named.
pub(crate) fn at<T>(address: usize) -> In<T> {
    In(std::ptr::with_exposed_provenance(address))
}

pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const TYPE_PINNED: u32 = 1;
pub(crate) const HANDLE_DESCRIPTOR: u32 = 1;
pub(crate) const HANDLE_FABRIC: u32 = 8;

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

impl Location {
    pub(crate) fn device(id: i32) -> Self {
        Self { kind: LOCATION_DEVICE, id }
    }
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) compression: u8,
    pub(crate) gpu_direct_rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmulticastObjectProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MulticastProp {
    pub(crate) devices: u32,
    pub(crate) size: usize,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: usize,
    pub(crate) attributes: usize,
    pub(crate) attribute_count: u32,
}

// The sizes in cuda.h.
const _: () = assert!(size_of::<Location>() == 8 && size_of::<AccessDesc>() == 12);
const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<MulticastProp>() == 32);
const _: () = assert!(size_of::<LaunchConfig>() == 56);
