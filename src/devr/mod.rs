//! The device runtime.
pub mod dev_comm;
pub mod index;
pub mod shadow;
pub mod space;
pub mod table;
pub mod team;
#[cfg(test)]
mod testing;
