//! The program `symwin` as its users see it: what it prints, what it writes, and how it ends.
#![cfg(feature = "cli")]
#![allow(missing_docs, reason = "tests name what they show")]

mod array_errors;
mod arrays;
mod children;
mod npy;
mod program;
mod runs;
mod usage;
