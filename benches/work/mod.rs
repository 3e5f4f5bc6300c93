//! The work that both benches do, the one that takes times and the one that counts instructions.

pub mod index;
pub mod space;
