//! symwin: symmetric memory windows over all ranks.
#![warn(missing_docs)]

pub mod actors;
pub mod bootstrap;
pub mod coll;
pub mod device;
pub mod devr;
pub mod driver;
pub mod error;
pub mod group;
pub mod ids;

pub use error::{Error, Result};
pub use ids::{CommId, LsaRank, ProcessId, Rank};
