//! symwin: symmetric memory windows over all ranks.
#![warn(missing_docs)]

pub mod actors;
pub mod bootstrap;
pub mod coll;
mod comm;
pub mod device;
pub mod devr;
pub mod driver;
pub mod error;
pub mod group;
pub mod ids;

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
