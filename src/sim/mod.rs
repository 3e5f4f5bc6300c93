//! The deterministic runtime: programs on symwin, run, explored, broken and replayed under a seed.
//!
//! [`check`] is the entry for tests; [the manual](crate::manual::sim) shows how to use it and where its limits are.
//!
//! ```
//! use symwin::WindowFlags;
//! use symwin::sim::{Policy, check};
//!
//! let report = check(&Policy::random(1).runs(20), |world| {
//!     for comm in world.communicator("world", 2)? {
//!         world.host(&comm.rank().to_string(), move || {
//!             let buffer = comm.alloc(4096)?;
//!             comm.register(&buffer, WindowFlags::empty())?; // an ordinary blocking call
//!             comm.finalize()
//!         })?;
//!     }
//!     Ok(())
//! });
//! assert_eq!(report.runs, 20);
//! ```
//!
//! # How it is built
//! ```text
//!   Policy -> Chooser     what runs next              policy, schedule
//!      Engine             one step at a time          engine: actors, host threads (a baton), scripts, links, timers
//!      Net                links between processes     net: carries encoded frames, holds, cuts, damages
//!      Plan               a run's faults              faults
//!      World              processes, communicators    world, process; Scenario is one of its own
//!      Sim                runs, oracles, the story    run, oracle, story
//! ```
//! Nothing of the library knows that it is simulated: the engine is a [`Scheduler`](crate::actors::Scheduler), the
//! network carries what hubs send, devices are [`Driver`](crate::driver::Driver)s like any other.
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
