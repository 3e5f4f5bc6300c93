//! The runtime of one simulated process: the engine, with a list of actors of its own.

use std::fmt;
use std::sync::Arc;

use super::engine::Engine;
use super::random::mix;
use crate::actors::{Gate, GateId, Registry, Runnable, Scheduler, Time, TimerId, Woken};
use crate::error::Result;

/// What actors and host threads of one process see of the engine.
pub(super) struct ProcessRuntime {
    engine: Arc<Engine>,
    registry: Registry,
}

impl ProcessRuntime {
    /// The runtime of process `number`. Its actors count from a number of its own, so that an actor has the same
    /// number in every run, whatever other processes do.
    pub(super) fn new(engine: &Arc<Engine>, number: usize) -> Arc<Self> {
        let registry = Registry::starting_at((number as u64) << ACTORS_SHIFT);
        Arc::new(Self { engine: Arc::clone(engine), registry })
    }

    /// The fingerprint of all actors; one that cannot tell its states apart counts as ever new.
    pub(super) fn print(&self, fresh: u64) -> u64 {
        let of = |actor: Arc<dyn Runnable>| mix(actor.id().get(), actor.fingerprint().unwrap_or(fresh));
        self.registry.actors().into_iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Every actor goes, as when the process ends.
    pub(super) fn shut_down(&self) {
        for actor in self.registry.actors() {
            actor.shutdown();
        }
    }
}

/// Room for a million million actors a process.
const ACTORS_SHIFT: u32 = 40;

impl Scheduler for ProcessRuntime {
    fn now(&self) -> Time {
        self.engine.now()
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn ready(&self, cell: Arc<dyn Runnable>) {
        self.engine.ready(cell);
    }

    fn timer(&self, at: Time, ring: Box<dyn FnOnce() + Send>) -> TimerId {
        self.engine.timer(at, ring)
    }

    fn cancel(&self, id: TimerId) {
        self.engine.cancel(id);
    }

    fn block(&self, gate: &Gate, until: Option<Time>) -> Woken {
        self.engine.block(gate, until)
    }

    fn opened(&self, gate: &Gate) {
        self.engine.opened(gate);
    }

    fn new_gate(&self) -> GateId {
        self.engine.new_gate()
    }

    fn pause(&self) {
        self.engine.pause();
    }

    fn host(&self, name: &str, program: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.engine.host(name, self.engine.now(), program)
    }
}

impl fmt::Debug for ProcessRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessRuntime").field("engine", &self.engine).finish_non_exhaustive()
    }
}
