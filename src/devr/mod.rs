//! The device runtime: windows, device communicators, and the collective that makes them real on all ranks.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `agreed` | what ranks agree on once, when a communicator is made |
//! | `actor` | the actor of one rank's communicator |
//! | `mail` | what comes to the actor |
//! | `core` | what the actor owns and shares with its handles |
//! | `flush` | the collective: how a batch becomes real on all ranks or on none |
//! | `replicated` | the state that all ranks hold alike |
//! | `flat` | the flat range that the ranks of a process share |
//! | [`space`] | offsets in one stride |
//! | [`index`] | windows by address |
//! | [`shadow`], [`table`] | device structs, and the table in which kernels look windows up |
//! | [`lookup`] | the tree in which kernels of a GPU look windows up |
//! | [`team`], [`dev_comm`] | teams; what a device communicator needs, and its plan |
//! | `turns` | the order of one rank's collectives |
//! | `window`, `dev_comm_handle` | the handles that users hold |
//! | `held` | parts of windows that stay mapped although the window is closed |
//! | `leftovers` | descriptors that a batch exported, closed when it has ended |
//! | `zoo` | bugs that tests plant; none in normal builds |

pub(crate) mod actor;
pub(crate) mod agreed;
pub(crate) mod close;
pub(crate) mod core;
pub mod dev_comm;
pub(crate) mod dev_comm_handle;
pub(crate) mod flat;
pub(crate) mod flush;
#[cfg(any(test, feature = "cuda"))]
pub(crate) mod held;
pub mod index;
pub(crate) mod leftovers;
pub mod lookup;
pub(crate) mod mail;
pub(crate) mod numbers;
pub(crate) mod objects;
pub(crate) mod owned;
pub(crate) mod replicated;
pub(crate) mod request;
pub(crate) mod rounds;
pub mod shadow;
pub mod space;
pub(crate) mod status;
pub mod table;
pub mod team;
pub(crate) mod turns;
pub(crate) mod window;
pub(crate) mod zoo;

#[cfg(test)]
mod testing;
