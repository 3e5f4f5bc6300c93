//! What symwin asks of the library, by an entry point that no real one has.

use crate::config::CONFIG;

/// Whether symwin's host code may touch device memory at its own addresses.
// SAFETY: the name is this library's own.
#[unsafe(no_mangle)]
extern "C" fn fakeCudaHostAccess() -> i32 {
    i32::from(CONFIG.host_access)
}
