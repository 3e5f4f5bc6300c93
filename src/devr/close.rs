//! Giving back what one rank has of a communicator.

use std::sync::Arc;

use super::core::{Core, Tokens};
use super::flush::message::MemoryId;
use super::owned::{Binding, Held, release_all};
use crate::driver::DeviceError;

/// Gives everything back, this rank's host kernels having ended. `clean` says that the communicator had not failed:
/// then this rank's references go at once and its part of every memory is retired in the process's range; on a
/// failed one they stay until the last rank of the process has closed. Returns the calls that failed; all others
/// were made.
pub(crate) fn close(core: &Core, clean: bool) -> Vec<DeviceError> {
    // Copies that began before the close are short; nothing is unmapped under them.
    drop(core.copies.write());
    let mut state = core.state();
    let driver = &*core.driver;
    let mut errors = Vec::new();
    for local in std::mem::take(&mut state.multicast).into_values() {
        errors.extend(local.bound.into_values().flatten().flat_map(Binding::unbind_or_leave));
        errors.extend(local.place.close());
        errors.extend(release_all([local.object]));
    }
    core.multicast_bases.lock().clear();
    core.launches.clear();
    let memories: Vec<(MemoryId, Vec<Arc<Held>>)> =
        std::mem::take(&mut state.memories).into_iter().map(|(id, memory)| (id, memory.held)).collect();
    for (id, held) in memories {
        if clean {
            errors.extend(core.flat.retire(id, driver));
            errors.extend(release_all(held));
        } else {
            core.flat.keep(Box::new(held));
        }
    }
    errors.extend(core.flat.close(driver));
    if let Some(objects) = state.objects.take() {
        errors.extend(objects.close());
    }
    state.tokens = Tokens::default();
    core.sizes.write().clear();
    core.board.undo_failures(&errors);
    core.board.committed(&state);
    for error in &errors {
        tracing::error!(comm = %core.agreed.name, rank = core.agreed.rank.get(), %error, "close.undo_failed");
    }
    errors
}
