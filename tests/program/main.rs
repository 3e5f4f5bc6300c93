//! The program `symwin` as its users see it: what it prints, what it writes, and how it ends.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod array_errors;
mod arrays;
mod bench;
mod children;
mod launch;
mod launch_ends;
mod npy;
mod program;
mod runs;
mod sim;
mod usage;
mod watch;
