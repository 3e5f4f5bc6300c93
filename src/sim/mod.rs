//! The deterministic runtime: programs on symwin, run, explored, broken and replayed under a seed.
#![forbid(unsafe_code)]

mod engine;
mod faults;
mod net;
mod oracle;
mod policy;
mod prints;
mod process;
mod random;
mod run;
mod scenario;
mod schedule;
mod story;
mod task;
mod world;

#[cfg(feature = "bug-zoo")]
#[doc(hidden)]
pub use crate::devr::zoo::Bug;
pub use faults::Faults;
pub use net::NetCounts;
pub use policy::Policy;
pub use run::{Failure, Report, Sim, Traffic, check};
pub use scenario::Scenario;
pub use schedule::Schedule;
pub use task::TaskId;
pub use world::{Device, Shape, World};
