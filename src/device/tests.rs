//! Tests of what kernels see, by theme.

mod barrier;
mod kernel;
mod layout;
mod ll_a2a;
mod lookup;
mod watch;
