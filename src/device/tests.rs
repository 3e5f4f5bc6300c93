//! Tests of what kernels see, by theme.

mod barrier;
mod kernel;
mod layout;
mod lookup;
mod watch;
