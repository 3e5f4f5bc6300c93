//! Who is on what: a barrier, or a block of an LL all-to-all, has one session of a rank's kernels at a time.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::kernel::KernelEnv;
use crate::error::{Misuse, Result};

/// What sessions of one rank are on: (resource buffer, index).
pub type Claims = Arc<Mutex<Vec<(u32, u32)>>>;

/// The right to use one, held by one session at a time.
pub(super) struct Claim<'k> {
    pub(super) env: &'k KernelEnv,
    pub(super) index: u32,
    buffer: u32,
}

impl<'k> Claim<'k> {
    pub(super) fn new(env: &'k KernelEnv, buffer: u32, index: u32, kind: &str) -> Result<Self> {
        let mut claims = env.claims.lock();
        if !claims.contains(&(buffer, index)) {
            claims.push((buffer, index));
            return Ok(Self { env, index, buffer });
        }
        let what = format!("{kind} {index} is in use by another session: give each block its own");
        Err(Misuse::Other { what }.into())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.env.claims.lock().retain(|claim| *claim != (self.buffer, self.index));
    }
}
