//! Real GPUs. For now only the question whether there are any.
#![allow(unsafe_code, reason = "the CUDA driver is a C library")]

use cudarc::driver::{result, sys};

/// Entry points that every part of this backend needs.
const REQUIRED: [&str; 3] = ["cuInit", "cuMemCreate", "cuMemMap"];

/// Why there is no CUDA here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absent {
    /// The driver is there but does not start.
    #[error("the CUDA driver does not start: cuInit returned {code}; ask nvidia-smi what is wrong")]
    Init {
        /// The driver's error code: 100 is no device.
        code: u32,
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
    // SAFETY: the library was just found, so loading it does not fail, and it stays loaded.
    let library = unsafe { sys::culib() };
    for name in REQUIRED {
        // SAFETY: the symbol is looked up, never called.
        if unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err() {
            return Err(Absent::SymbolMissing { name });
        }
    }
    // The error's own text would call into the driver: only its code is used.
    result::init().map_err(|error| Absent::Init { code: error.0 as u32 })
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
