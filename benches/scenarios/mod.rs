//! The work that both benches do, the one that takes times and the one that counts instructions.

pub(crate) mod index;
pub(crate) mod space;
