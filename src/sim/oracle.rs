//! Oracles: what must hold at the end of every run (the invariants P-1 to P-5 of the flush).

use std::collections::BTreeMap;

use super::world::{WatchedRank, World};

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
                    broken.push(format!("P-2: batch {seq} of {comm} is committed on rank {yes} and not on rank {no}"));
                }
                let (first, digest) = *team_ends.entry((rank.team, seq)).or_insert((rank.rank, ending.digest));
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
    let mut left: Vec<String> = world.actors().iter().map(|actor| format!("P-5: actor {actor} lives")).collect();
    let inner = world.inner.lock();
    for rank in inner.ranks.iter().filter(|rank| rank.core.strong_count() > 0) {
        left.push(format!("P-5: something keeps rank {} of {}", rank.rank, rank.comm));
    }
    drop(inner);
    if !undo_may_fail {
        left.extend(world.held().into_iter().map(|(process, held)| format!("P-5: the device of process {process} holds {held}")));
    }
    left
}
