//! The verdict of a world of several LSA teams: their leaders merge, in `ceil(log2(teams))` steps, and tell their
//! members.
//!
//! Dissemination: in step k the leader of team t sends what it knows to that of team `t + 2^k` and hears from that
//! of `t - 2^k`, all modulo the number of teams. Merging is idempotent, so teams may be counted twice. Offsets may
//! differ between teams, so no digests are compared here; what must be equal are the requests, and who merges two
//! that differ keeps both, at the first task where they do.

use super::message::{Fingerprint, Merged, Offer, Request, round};
use super::{Flush, Stop};
use crate::bootstrap::Parcel;
use crate::error::{Cause, Fault, each_once};
use crate::ids::Rank;

/// What this rank's own team asks for.
#[derive(Debug)]
pub(crate) struct Own(Request);

impl Own {
    /// From this rank's offer; the other offers of the team are the same, or the team's cause says so.
    pub(crate) fn new(offer: &Offer) -> Self {
        let tasks = offer.tasks.iter().map(|task| task.print.clone()).collect();
        Self(Request { group: offer.group.clone(), tasks })
    }
}

/// The verdict of all teams, given that of this one.
pub(crate) async fn merge(flush: &Flush, own: Own, cause: Option<Cause>) -> Result<Option<Cause>, Stop> {
    let agreed = &flush.core.agreed;
    let members = agreed.lsa_ranks();
    let leader = members[0];
    if agreed.rank != leader {
        let told = flush.gather(round::VERDICT, vec![leader]).await?;
        let merged: Merged = flush.read(&told[0])?;
        return Ok(merged.cause);
    }
    let (teams, me) = (agreed.teams(), agreed.team());
    let leader_of = |team: u32| Rank::new(team % teams * agreed.lsa_size);
    let mut merged = Merged { cause, request: own.0, leader: agreed.me().clone() };
    let (mut step, mut distance) = (0u8, 1u32);
    while distance < teams {
        let tag = round::MERGE + step;
        flush.send(tag, &merged, &[Parcel::plain(vec![leader_of(me + distance)])]);
        let heard = flush.gather(tag, vec![leader_of(me + teams - distance)]).await?;
        let theirs: Merged = flush.read(&heard[0])?;
        merged = join(merged, theirs);
        step += 1;
        distance *= 2;
    }
    flush.send(round::VERDICT, &merged, &super::parcels_without(&flush.core));
    Ok(merged.cause)
}

/// What two sets of teams know together. The request of the lower leader stays.
fn join(a: Merged, b: Merged) -> Merged {
    let (a, b) = if a.leader.rank <= b.leader.rank { (a, b) } else { (b, a) };
    let mismatch = mismatch(&a, &b);
    let cause = [a.cause, b.cause, mismatch].into_iter().flatten().reduce(worse);
    Merged { cause, request: a.request, leader: a.leader }
}

/// In what two teams' requests differ, with both.
fn mismatch(a: &Merged, b: &Merged) -> Option<Cause> {
    let both = |text: &dyn Fn(&Request) -> String| {
        vec![(a.leader.clone(), text(&a.request)), (b.leader.clone(), text(&b.request))]
    };
    if a.request.group != b.request.group {
        let requests =
            both(&|r| r.group.as_ref().map_or("no group name".to_owned(), |g| format!("group `{g}`")));
        return Some(Cause::Mismatch { what: "the group's name".to_owned(), requests });
    }
    let longest = a.request.tasks.len().max(b.request.tasks.len());
    (0..longest).find_map(|task| {
        let difference = match (a.request.tasks.get(task), b.request.tasks.get(task)) {
            (Some(x), Some(y)) => x.difference(y),
            _ => Some("number"),
        }?;
        let requests = both(&|r| r.tasks.get(task).map_or("nothing".to_owned(), Fingerprint::describe));
        Some(Cause::Mismatch { what: format!("the {difference} of task {task}"), requests })
    })
}

/// Abandoned before mismatch before exhausted and refused; causes of one kind are joined.
fn worse(a: Cause, b: Cause) -> Cause {
    match (a, b) {
        (Cause::Abandoned { by: a }, Cause::Abandoned { by: b }) => Cause::Abandoned { by: union(a, b) },
        (abandoned @ Cause::Abandoned { .. }, _) | (_, abandoned @ Cause::Abandoned { .. }) => abandoned,
        (Cause::Mismatch { what, requests }, Cause::Mismatch { what: other, requests: more }) => {
            if what == other {
                Cause::Mismatch { what, requests: union(requests, more) }
            } else {
                // Both are true; every leader must name the same one.
                let (what, requests) = if what < other { (what, requests) } else { (other, more) };
                Cause::Mismatch { what, requests }
            }
        }
        (mismatch @ Cause::Mismatch { .. }, _) | (_, mismatch @ Cause::Mismatch { .. }) => mismatch,
        (Cause::Refused { faults: a }, Cause::Refused { faults: b }) => {
            let mut faults: Vec<Fault> = a;
            faults.extend(b);
            faults.sort_by(|x, y| x.peer.cmp(&y.peer));
            Cause::Refused { faults: each_once(faults) }
        }
        (refused @ Cause::Refused { .. }, _) | (_, refused @ Cause::Refused { .. }) => refused,
        (Cause::Exhausted { need, free }, Cause::Exhausted { need: n, free: f }) => {
            Cause::Exhausted { need: need.max(n), free: free.min(f) }
        }
    }
}

fn union<T: Ord>(mut a: Vec<T>, b: Vec<T>) -> Vec<T> {
    a.extend(b);
    a.sort();
    a.dedup();
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;
    use crate::ids::ProcessId;

    fn team(rank: u32, tasks: &[u64], cause: Option<Cause>) -> Merged {
        let leader = Peer::new(Rank::new(rank), ProcessId::new(0), "h", 1);
        let tasks =
            tasks.iter().map(|&s| Fingerprint::Window { size: Some(s), flags: 0, label: None }).collect();
        Merged { cause, request: Request { group: None, tasks }, leader }
    }

    #[test]
    fn equal_requests_merge_to_success_and_differing_ones_name_both() {
        assert_eq!(join(team(0, &[1, 2], None), team(4, &[1, 2], None)).cause, None);
        let Some(Cause::Mismatch { what, requests }) =
            join(team(4, &[1, 3], None), team(0, &[1, 2], None)).cause
        else {
            panic!("a mismatch was expected");
        };
        assert_eq!(what, "the size of task 1");
        assert_eq!(requests[0].1, "a window of 2 bytes");
        assert_eq!(requests[1].1, "a window of 3 bytes");
    }

    #[test]
    fn merging_is_idempotent_and_order_does_not_matter() {
        let abandoned =
            |rank| Cause::Abandoned { by: vec![Peer::new(Rank::new(rank), ProcessId::new(0), "h", 1)] };
        let (a, b) = (team(0, &[1], Some(abandoned(1))), team(2, &[9], Some(abandoned(3))));
        let ab = join(a.clone(), b.clone());
        assert_eq!(ab, join(b.clone(), a.clone()));
        assert_eq!(ab, join(ab.clone(), b));
        assert_eq!(ab, join(a, ab.clone()));
    }
}
