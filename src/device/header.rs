//! What kernels of a GPU include: one self-contained header of CUDA C++.
//!
//! It is a file of this crate, `include/symwin.cuh`, for those who compile with nvcc or clang; NVRTC takes [`HEADER`]
//! from memory. Its structs are those of [`abi`](crate::device::abi), and a kernel takes what
//! [`DevComm::to_kernel`](crate::device::DevComm::to_kernel) gives, by value.

/// The text of the header.
pub const HEADER: &str = include_str!("../../include/symwin.cuh");

/// The name by which kernels include it: `#include <symwin.cuh>`.
pub const HEADER_NAME: &str = "symwin.cuh";
