//! Oracles: what must hold at the end of every run (the invariants P-1 to P-5 of the flush), and what programs ask for
//! on the way: [`World::placed`], [`World::check_reach`] and [`World::check_stamps`].

use std::collections::BTreeMap;

use super::random::mix;
use super::run::UNDO;
use super::world::{WatchedRank, World};
use crate::devr::status::{Counts, Ending};
use crate::driver::buffers::BufferSlice;
use crate::error::Result;
use crate::ids::Rank;
use crate::{Communicator, Window};

/// P-1 and P-2: ranks of an LSA team that ended the same batch ended it alike, with the same agreed state; ranks of
/// all teams committed it or did not; a rank that ended fewer batches has failed or is closed.
pub(super) fn agreement(world: &World) -> Vec<String> {
    let inner = world.inner.lock();
    let mut comms: BTreeMap<&str, Vec<&WatchedRank>> = BTreeMap::new();
    for rank in &inner.ranks {
        comms.entry(rank.comm.as_str()).or_default().push(rank);
    }
    let mut broken = Vec::new();
    for (comm, ranks) in comms {
        // For each batch the first rank that ended it, and the first one of each team.
        let mut world_ends = BTreeMap::new();
        let mut team_ends = BTreeMap::new();
        for rank in &ranks {
            let (history, _) = rank.board.history();
            for (seq, ending) in history {
                let (first, committed) = *world_ends.entry(seq).or_insert((rank.rank, ending.committed));
                if committed != ending.committed {
                    let (yes, no) = if committed { (first, rank.rank) } else { (rank.rank, first) };
                    broken.push(format!(
                        "P-2: batch {seq} of {comm} is committed on rank {yes} and not on rank {no}"
                    ));
                }
                let (first, digest) =
                    *team_ends.entry((rank.team, seq)).or_insert((rank.rank, ending.digest));
                if digest != ending.digest {
                    broken.push(format!(
                        "P-1: after batch {seq} of {comm} rank {first} has state {digest:016x}, rank {} has {:016x}",
                        rank.rank, ending.digest
                    ));
                }
            }
        }
        let most = world_ends.keys().next_back().map_or(0, |last| last + 1);
        for rank in &ranks {
            let (history, over) = rank.board.history();
            let ended = history.last().map_or(0, |(seq, _)| seq + 1);
            if ended < most && !over {
                broken.push(format!(
                    "P-2: rank {} of {comm} ended {ended} batches of {most}, and has neither failed nor closed",
                    rank.rank
                ));
            }
        }
    }
    broken
}

/// P-5 after each batch: every window's struct lies on a memory that counts the window, and a batch that was rolled
/// back leaves a rank with no more than it had before (what was closed meanwhile is less).
pub(super) fn books(world: &World) -> Vec<String> {
    let inner = world.inner.lock();
    let mut left = Vec::new();
    for rank in &inner.ranks {
        let (history, _) = rank.board.history();
        // Of the first one that is known it is not known what was before.
        let mut before = history.first().is_some_and(|&(seq, _)| seq == 0).then(Counts::default);
        for (seq, ending) in history {
            let counts = ending.counts;
            if counts.windows != counts.shadow_slots {
                left.push(format!(
                    "P-5: after batch {seq} the memories of rank {} of {} count {} windows, which have {} structs",
                    rank.rank, rank.comm, counts.windows, counts.shadow_slots
                ));
            }
            if let Some(before) = before.filter(|before| !ending.committed && !counts.within(before)) {
                left.push(format!(
                    "P-5: rank {} of {} held {before:?}, and after batch {seq} was rolled back {counts:?}",
                    rank.rank, rank.comm
                ));
            }
            before = Some(counts);
        }
    }
    left
}

/// One number of what every rank's batches came to.
pub(super) fn ends(world: &World) -> u64 {
    let inner = world.inner.lock();
    let histories = inner.ranks.iter().map(|rank| rank.board.history());
    histories.fold(0, |ends, (history, over)| {
        let of = |ends, &(seq, ref ending): &(_, Ending)| {
            [seq, u64::from(ending.committed), ending.digest].into_iter().fold(ends, mix)
        };
        mix(history.iter().fold(ends, of), u64::from(over))
    })
}

/// Who is stuck, and what each actor waits for.
pub(super) fn stuck(world: &World) -> Option<String> {
    let unfinished = world.engine.unfinished();
    if unfinished.is_empty() {
        return None;
    }
    let mut text = format!("stuck: {} cannot go on, and nothing else can run", unfinished.join(", "));
    for report in world.actors() {
        if report.waits_for.is_some() || report.running {
            text.push_str(&format!("\n  {report}"));
        }
    }
    Some(text)
}

/// P-5: nothing is left once every program has ended and everything is closed or dropped.
pub(super) fn leaks(world: &World, undo_may_fail: bool) -> Vec<String> {
    let mut left: Vec<String> =
        world.actors().iter().map(|actor| format!("P-5: actor {actor} lives")).collect();
    let inner = world.inner.lock();
    for rank in inner.ranks.iter().filter(|rank| rank.core.strong_count() > 0) {
        left.push(format!("P-5: something keeps rank {} of {}", rank.rank, rank.comm));
    }
    drop(inner);
    // P-6, whatever else happened.
    left.extend(world.bound_early());
    if !undo_may_fail {
        // Nothing is given back twice, or that was never there.
        let refused = world.refused().into_iter().filter(|(_, error)| UNDO.contains(&error.call));
        left.extend(
            refused.map(|(process, error)| format!("P-5: the device of process {process} refused: {error}")),
        );
        left.extend(
            world
                .held()
                .into_iter()
                .map(|(process, held)| format!("P-5: the device of process {process} holds {held}")),
        );
    }
    left
}

/// Where a rank saw the window of a task: rank, offset, and the size of each rank's part.
pub(super) type Seen = (u32, u64, Vec<usize>);

impl World {
    /// P-3: tells of a committed window by a name of the program's for its task. All ranks of an LSA team that tell of
    /// the same task must have it at the same offset, with the same sizes of each rank's part; the run fails if not.
    pub fn placed(&self, comm: &Communicator, task: &str, window: &Window) {
        let core = &comm.shared().core;
        let agreed = &core.agreed;
        let team = agreed.lsa_ranks();
        let sizes = team.iter().map(|&rank| window.size_of(rank).unwrap_or(0)).collect();
        let here: Seen = (agreed.rank.get(), window.offset(), sizes);
        let key = (format!("{} ({:?})", agreed.name, core.id), agreed.team(), task.to_owned());
        let mut inner = self.inner.lock();
        let first = inner.placed.entry(key).or_insert_with(|| here.clone());
        if (first.1, &first.2) != (here.1, &here.2) {
            let what = format!(
                "P-3: the window of `{task}` of {} is at offset {:#x} with sizes {:?} on rank {}, at {:#x} with {:?} on \
                 rank {}",
                agreed.name, first.1, first.2, first.0, here.1, here.2, here.0
            );
            inner.failures.push(what);
        }
    }

    /// P-3 without a look at the memory: something is mapped where each part of an open window begins; the run fails if
    /// not. For devices whose calls do not fail in this run.
    pub fn check_reach(&self, comm: &Communicator, window: &Window) {
        let core = &comm.shared().core;
        for rank in core.agreed.lsa_ranks() {
            let Ok(pointer) = window.peer_ptr(rank, 0) else { continue };
            if let Err(error) = core.driver.address_range(pointer.addr()) {
                self.fail(format!(
                    "P-3: {} has a window at offset {:#x} whose part of {rank} is gone: {error}",
                    comm.rank(),
                    window.offset()
                ));
            }
        }
    }

    /// Stamps a buffer of this rank's, before it is registered, with the rank and a number: its first 16 bytes.
    ///
    /// # Errors
    /// On a device whose memory the host cannot touch; for a buffer of fewer bytes.
    pub fn stamp(comm: &Communicator, buffer: &BufferSlice, number: u64) -> Result<()> {
        Ok(buffer.write(0, &stamp_of(comm.rank(), number))?)
    }

    /// P-3: the window reaches what every rank of the LSA team has stamped with this number, as long as those leave
    /// their buffers as they are; the run fails if not.
    ///
    /// # Errors
    /// As [`Window::read`].
    pub fn check_stamps(&self, comm: &Communicator, window: &Window, number: u64) -> Result<()> {
        for rank in comm.shared().core.agreed.lsa_ranks() {
            let mut found = [0; STAMP];
            window.read(rank, 0, &mut found)?;
            if found != stamp_of(rank, number) {
                self.fail(format!(
                    "P-3: where {} has byte 0 of the part of {rank} in window {number} there is not what {rank} \
                     wrote, but {found:?}",
                    comm.rank()
                ));
            }
        }
        Ok(())
    }
}

/// Bytes of a stamp.
const STAMP: usize = 16;

fn stamp_of(rank: Rank, number: u64) -> [u8; STAMP] {
    let mut bytes = [0; STAMP];
    bytes[..8].copy_from_slice(&(u64::from(rank.get()) + 1).to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}
