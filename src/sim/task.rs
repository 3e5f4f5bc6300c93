//! The numbers of what a simulation can run.

use std::fmt;

use crate::actors::ActorId;

/// Something that can take a step: an actor, a host thread, a link between two processes, a script. Equal in every
/// run of the same world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u64);

const SHIFT: u32 = 60;
const ACTOR: u64 = 0;
const HOST: u64 = 1;
const LINK: u64 = 2;
const SCRIPT: u64 = 3;

impl TaskId {
    pub(super) const fn actor(id: ActorId) -> Self {
        Self::new(ACTOR, id.get())
    }

    pub(super) const fn host(number: u64) -> Self {
        Self::new(HOST, number)
    }

    pub(super) const fn link(number: u64) -> Self {
        Self::new(LINK, number)
    }

    pub(super) const fn script(number: u64) -> Self {
        Self::new(SCRIPT, number)
    }

    const fn new(kind: u64, number: u64) -> Self {
        Self(kind << SHIFT | number)
    }

    /// Its number among its kind.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << SHIFT) - 1)
    }

    /// Whether it is a host thread or a script.
    pub(super) const fn is_program(self) -> bool {
        matches!(self.0 >> SHIFT, HOST | SCRIPT)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 >> SHIFT {
            ACTOR => "actor",
            HOST => "host",
            LINK => "link",
            _ => "script",
        };
        write!(f, "{kind} {}", self.number())
    }
}
