//! Calls about memory and addresses by several threads at once. A real driver takes them, one after another at a price;
//! where FAKE_CUDA_ALONE says that the program under test makes them one at a time, the process ends when it does not.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::CONFIG;

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// While it lives, a call is under way.
pub(crate) struct Turn;

/// `None` for calls about other things.
#[allow(clippy::print_stderr, reason = "nobody else could tell")]
pub(crate) fn begin(call: &'static str) -> Option<Turn> {
    if !CONFIG.alone || !NAMES.contains(&call) {
        return None;
    }
    if CALLS.fetch_add(1, Ordering::SeqCst) > 0 {
        eprintln!(
            "fake-cuda: `{}` calls {call} beside another thread's call about memory",
            crate::exit::thread()
        );
        std::process::abort();
    }
    Some(Turn)
}

impl Drop for Turn {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

const NAMES: [&str; 16] = [
    "cuMemCreate",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemGetAddressRange_v2",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastUnbind",
];
