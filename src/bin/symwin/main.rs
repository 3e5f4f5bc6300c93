//! The `symwin` program.
fn main() {}
