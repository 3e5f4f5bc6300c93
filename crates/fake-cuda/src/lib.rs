//! A `libcuda.so` for machines without a GPU: the calls of the CUDA driver that symwin and cudarc make, over memfd and
//! mmap. A tool of tests only.
//!
//! Devices are portions of the host's memory. Allocations are memfds whose descriptors really cross processes, address
//! ranges are real ones that mappings go into, and a mapping can be touched only where access was set; so what
//! works here has made the right calls in the right order. Rules follow a real driver where one was seen to enforce
//! them: an allocation is mapped as a whole, an address range with mappings is not freed, calls that CUDA calls unsafe
//! end a capture unless the thread is in the relaxed mode, a copy to memory that is not mapped ends the context.
//!
//! What it is not: kernels do not run (a launch is refused as not supported), a store to a multicast mapping reaches
//! nobody, and no memory of other processes is counted. Multicast objects are books: who was added, what was bound,
//! in which order, across processes.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `FAKE_CUDA_DEVICES` | devices | 1 |
//! | `FAKE_CUDA_MEMORY` | bytes of each | 8 GiB |
//! | `FAKE_CUDA_GRANULARITY`, `.._RECOMMENDED` | of memory | 2 MiB |
//! | `FAKE_CUDA_MULTICAST_GRANULARITY`, `.._RECOMMENDED` | of multicast objects | as memory |
//! | `FAKE_CUDA_VERSION` | of the driver | 12040 |
//! | `FAKE_CUDA_NAME` | of the devices | Fake GPU |
//! | `FAKE_CUDA_HOST_ACCESS` | whether symwin's host code may touch device memory | 1 |
//! | `FAKE_CUDA_PEER_ACCESS` | whether devices reach each other | 1 |
//! | `FAKE_CUDA_FABRIC` | `none`, `works`, `only` (no descriptors are exported), `refused` (only the attribute says yes) | none |
//! | `FAKE_CUDA_ATTRIBUTE_n` | the value of device attribute n; 132 is multicast | a device that lacks that |
//! | `FAKE_CUDA_END_MS` | how long the driver takes itself apart when the process exits; a call meanwhile, or later, aborts by name | 0 |
//! | `FAKE_CUDA_LAUNCH` | `ignored`: kernels are taken and do nothing | they are refused: nothing here runs device code |
//! | `FAKE_CUDA_ALONE` | 1: calls about memory and addresses come one at a time in a process; a second one aborts by name | 0 |
//! | `FAKE_CUDA_FAIL` | `call:nth:code,...`: the process's n-th call gives the code and does nothing | |
//!
//! Entry points are taken away when the library is installed: `fake-cuda-install FOLDER --without cuMulticastCreate`.

#[macro_use]
mod entry;

mod abi;
mod ask;
mod capture;
mod code;
mod config;
mod context;
mod device;
mod exit;
mod faults;
mod file;
mod host;
mod memory;
mod module;
mod multicast;
mod range;
mod state;
mod stream;
mod turn;

// As symwin copies memory that host code may touch meanwhile: in the same words.
#[cfg(target_arch = "x86_64")]
#[path = "../../../src/driver/vectors.rs"]
mod vectors;
#[allow(dead_code, reason = "this library does not fill by it")]
#[path = "../../../src/driver/words.rs"]
mod words;
