//! The bug zoo: bugs that this design could have had, put back at the place where each would be.
//!
//! A simulation plants some of them in a communicator and must find them (`tests/zoo.rs`): an oracle that finds no
//! planted bug is no oracle. **Normal builds do not contain them**: without the feature `bug-zoo` there is no way to
//! plant one, and [`Bugs::has`] is a constant false, with which the places of all bugs are compiled away. Nothing is
//! global: what is planted belongs to one communicator and is agreed data of it like its stride.
//!
//! Numbers are those of the reference's bugs in `docs/nccl-bugs.md`.

use crate::ids::Rank;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[cfg_attr(not(feature = "bug-zoo"), allow(unreachable_pub, reason = "it is `sim::Bug` with the feature"))]
pub enum Bug {
    /// The tasks of a group that was dropped before its end run all the same (9). For: the program, whose abandoned
    /// windows come true.
    AbandonedRuns,
    /// A rank that aborts tells nobody: its peers wait for their deadlines. For: the program, which was promised the
    /// aborting rank's name.
    AbortUntold,
    /// Memory is bound to a new multicast object without a round after the devices were added (32). For: P-6.
    BindsEarly,
    /// A window is closed once by name and once more by its last handle (28). For: P-5, windows against structs.
    ClosesTwice,
    /// A rank takes its own vote for everybody's and commits (8). For: the protocol, to which the others' votes come
    /// too late.
    CommitsEarly,
    /// A damaged frame is thrown away and that is all. For: the program, which was promised an error before any
    /// deadline.
    DamageUnheard,
    /// Ranks do not compare what they have decided, so parted states go unnoticed. A bug of a safety net: it comes
    /// together with another one. For: P-1.
    DigestUnchecked,
    /// What a batch had made is lost when its job is dropped: on an abort, a death, a panic (22). For: P-5.
    DropLeaks,
    /// What a batch had made is undone when its job is dropped, though a rank of the same process may have committed it.
    /// For: P-3, windows that reach nothing.
    DropUndoes,
    /// A rank decides by itself whether handles are still to come, from what it has to send (7). For: the deadline.
    ExtraRoundAlone,
    /// Goodbye is said when finalize is called, before what is queued has ended. For: the program, whose batch must
    /// complete.
    GoodbyeEarly,
    /// A goodbye is not heard: batches without that rank wait for their deadlines. For: the program, which was promised
    /// its name at once.
    GoodbyeUnheard,
    /// Names of groups are not compared: requests of two threads are paired as they come (31). For: P-3.
    GroupNameIgnored,
    /// Handles that came in one message are told apart by their order and not by their names. For: P-3, the stamps in
    /// peers' memory.
    HandlesByOrder,
    /// A rank's own fault does not go with its vote: it alone rolls back (8). For: P-2.
    HidesFault,
    /// The end of a peer's connection is not heard. For: the program, which was promised the lost rank's name before
    /// any deadline.
    LossUnheard,
    /// What a failed batch had mapped stays mapped, while its offset is free (16). For: the program, whose next try
    /// must succeed.
    MappingsLeft,
    /// No deadline is set: a rank that does not come is waited for for ever. For: nobody may be stuck.
    NoDeadline,
    /// Each rank takes as much of its stride as its own part is large: offsets part where sizes differ (6). For: the
    /// digests of the votes, and P-1 without them.
    OwnSizes,
    /// What is asked for is not compared: swapped registrations are paired (29). For: P-3.
    PrintsIgnored,
    /// A range that could not be unmapped is used again (16). For: the program, whose next try must succeed.
    QuarantineUntold,
    /// A failure ends the batch that runs and forgets those that are queued (P-4). For: nobody may be stuck.
    QueueAsleep,
    /// A roll-back keeps its references to the memory under its windows (13, 15). For: P-5, the device's books.
    ReferenceLeft,
    /// A rank that cannot do its part returns an error and tells nobody (8). For: the protocol, to which its next offer
    /// comes too early, or the deadline.
    RefusesAlone,
    /// A roll-back releases its references twice (14). For: P-5, undo calls that fail.
    ReleasesTwice,
    /// A closed window's offset is free at once on its rank, and not when all ranks know (6, 34). For: the digests of
    /// the votes, and P-1.
    RetiresAtOnce,
    /// A memory is given up while a batch that may share it is in flight (7). For: the commit, which does not find it.
    RetiresInFlight,
    /// Messages are told apart by their round and not by their batch: those of a peer that is one ahead are lost (31).
    /// For: the deadline.
    RoundsMixed,
    /// Memory is mapped at its window's offset whatever the offset of the window in it (6). For: P-3, the stamps in
    /// peers' memory.
    ShiftForgotten,
    /// A roll-back keeps the device structs of its windows (15). For: P-5, windows against structs.
    SlotLeft,
    /// Leaders do not take over the causes of other teams (8). For: P-2.
    TeamUnheard,
    /// A roll-back keeps its references to the names of allocations (15). For: P-5, a rank's counts after a roll-back.
    TokenLeft,
    /// The first rank of a process that closes a window unmaps it for the others too. For: P-3, windows that reach
    /// nothing.
    UnmapsForAll,
}

/// What is planted in a communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bugs(imp::Planted);

impl Bugs {
    /// Whether this bug is planted on this rank.
    pub(crate) fn has(&self, bug: Bug, rank: Rank) -> bool {
        self.0.has(bug, rank)
    }
}

#[cfg(not(feature = "bug-zoo"))]
mod imp {
    use super::{Bug, Rank};

    #[derive(Clone, Debug, Default)]
    pub(crate) struct Planted;

    #[allow(clippy::unused_self, reason = "as with the feature")]
    impl Planted {
        #[inline]
        pub(super) const fn has(&self, _: Bug, _: Rank) -> bool {
            false
        }
    }
}

#[cfg(feature = "bug-zoo")]
mod imp {
    use super::{Bug, Rank};
    use crate::sim::World;

    /// Each with the rank that has it, if it is not all.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Planted(Vec<(Bug, Option<Rank>)>);

    impl Planted {
        pub(super) fn has(&self, bug: Bug, rank: Rank) -> bool {
            self.0.iter().any(|&(planted, on)| planted == bug && on.is_none_or(|on| on == rank))
        }
    }

    impl World {
        /// Plants a bug on all ranks of the communicators that are made from here on.
        pub fn plant(&self, bug: Bug) {
            self.bugs.lock().0.0.push((bug, None));
        }

        /// Plants a bug on one rank.
        pub fn plant_on(&self, rank: Rank, bug: Bug) {
            self.bugs.lock().0.0.push((bug, Some(rank)));
        }
    }
}
