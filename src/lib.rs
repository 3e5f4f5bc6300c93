//! symwin: one range of every rank's memory, side by side.
//!
//! symwin does the job of NCCL's device runtime: it maps a buffer of every rank into one flat range of addresses, so
//! that code on any rank loads and stores any peer's memory. Registrations and requests for device communicators are
//! queued in a [`Group`], go as one batch to their communicator's own actor, and become real on all ranks or on none:
//! two rounds between the ranks of a host, whatever the number of requests. It needs no GPU: the [host
//! device](driver::host) does everything for real with shared memory, between threads, between processes, and mixed.
//!
//! Start with [`Communicator`]. [`manual`] says how it works inside.
//!
//! | to | see |
//! | --- | --- |
//! | make ranks | [`Communicator::in_process`], [`Communicator::from_env`], [`Communicator::duplicate`] |
//! | allocate memory that can be registered | [`Communicator::alloc`] |
//! | register windows and make device communicators | [`Group`], or [`Communicator::register`] for one |
//! | reach a peer's memory | [`Window::peer_ptr`], [`Window::read`], [`Window::write`] |
//! | run code on the device structs | [`DevComm::launch`], [`device::Kernel`] |
//! | reduce, gather, scatter, exchange | [`Communicator::all_reduce`], [`coll`] |
//! | write kernels for GPUs | [`device::header`], `nvrtc` (a feature) |
//! | use cudarc's copies, libraries and launches | `driver::cuda::DeviceView` (feature `cuda`) |
//! | send small messages between kernels | [`device::LlA2a`] |
//! | see what it does | [`Communicator::status`]; [tracing](manual::tracing) |
//! | test against failing devices | [`driver::faulty`] |

pub mod actors;
#[cfg(feature = "bench-internals")]
#[doc(hidden)]
pub mod bench_internals;
pub mod bootstrap;
pub mod coll;
mod comm;
pub mod device;
pub mod devr;
pub mod driver;
pub mod error;
pub mod group;
pub mod ids;
#[cfg(feature = "nvrtc")]
pub mod nvrtc;
pub mod sim;

pub use comm::{Communicator, Config};
pub use devr::dev_comm::DevCommRequirements;
pub use devr::dev_comm_handle::DevComm;
pub use devr::flush::message::WindowFlags;
pub use devr::status::{Activity, Status};
pub use devr::team::Team;
pub use devr::window::{Window, WindowSlice};
pub use driver::buffers::{Buffer, BufferSlice};
pub use error::{Error, Result};
pub use group::{CommResult, Group, GroupError, Pending, Region, Registration, Submitted};
pub use ids::{CommId, LsaRank, ProcessId, Rank};

/// How symwin works inside.
pub mod manual {
    #[doc = include_str!("../docs/design.md")]
    pub mod design {}

    #[doc = include_str!("../docs/protocol.md")]
    pub mod protocol {}

    #[doc = include_str!("../docs/nccl-bugs.md")]
    pub mod nccl_bugs {}

    #[doc = include_str!("../docs/sim.md")]
    pub mod sim {}

    #[doc = include_str!("../docs/tracing.md")]
    pub mod tracing {}
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
