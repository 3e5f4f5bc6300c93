//! All that the library knows, behind one lock: order is what tests look at, and speed is not.

use std::sync::LazyLock;

use parking_lot::{Condvar, Mutex};

use crate::capture::Captures;
use crate::context::Contexts;
use crate::entry::Guard;
use crate::faults::Faults;
use crate::host::Host;
use crate::memory::Memory;
use crate::module::Modules;
use crate::stream::Streams;

/// What the library knows.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) initialized: bool,
    pub(crate) contexts: Contexts,
    pub(crate) memory: Memory,
    pub(crate) host: Host,
    pub(crate) streams: Streams,
    pub(crate) captures: Captures,
    pub(crate) modules: Modules,
    pub(crate) faults: Faults,
    next: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        initialized: false,
        contexts: Contexts::default(),
        memory: Memory::default(),
        host: Host::default(),
        streams: Streams::default(),
        captures: Captures::default(),
        modules: Modules::default(),
        faults: Faults::default(),
        next: 0x1000,
    })
});

/// Told whenever a stream gets on.
static CHANGED: Condvar = Condvar::new();

/// Takes the lock.
pub(crate) fn lock() -> Guard {
    STATE.lock()
}

/// Lets go of the lock until a stream has got on.
pub(crate) fn wait(state: &mut Guard) {
    CHANGED.wait(state);
}

pub(crate) fn changed() {
    CHANGED.notify_all();
}

impl State {
    /// A number that nothing had before; looks like a pointer, as the driver's handles do.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }
}
