//! The verdict of a world of several LSA teams: their leaders merge, in `ceil(log2(teams))` steps, and tell their
//! members.
//!
//! Dissemination: in step k the leader of team t sends what it knows to that of team `t + 2^k` and hears from that
//! of `t - 2^k`, all modulo the number of teams. What it knows is the causes so far and every request that differs
//! from the others, with the lowest leader that made it. Joining two such is associative, commutative and idempotent,
//! so teams may be counted twice, and all leaders end with the same and say the same. Offsets may differ between
//! teams, so no digests are compared here; what must be equal are the requests.

use std::sync::Arc;

use super::decide::{NUMBER, differing};
use super::message::{Fingerprint, Merged, Offer, Request, round};
use super::{Flush, Stop};
use crate::bootstrap::Parcel;
use crate::devr::zoo::Bug;
use crate::error::{Cause, Fault, Peer, each_once};
use crate::ids::Rank;

/// What this rank's own team asks for.
#[derive(Debug)]
pub(crate) struct Own(Arc<Offer>);

impl Own {
    /// From this rank's offer; the other offers of the team are the same, or the team's cause says so.
    pub(crate) fn new(offer: &Arc<Offer>) -> Self {
        Self(Arc::clone(offer))
    }

    fn request(&self) -> Request {
        let tasks = self.0.tasks.iter().map(|task| self.0.print(&task).agreed()).collect();
        Request { group: self.0.group.clone(), tasks }
    }
}

/// The verdict of all teams, given that of this one.
pub(crate) async fn merge(flush: &Flush, own: Own, cause: Option<Cause>) -> Result<Option<Cause>, Stop> {
    let agreed = &flush.core.agreed;
    let members = agreed.lsa_ranks();
    let leader = members[0];
    if agreed.rank != leader {
        let told = flush.gather(round::VERDICT, vec![leader]).await?;
        return flush.read(&told[0]);
    }
    let (teams, me) = (agreed.teams(), agreed.team());
    let leader_of = |team: u32| Rank::new(team % teams * agreed.lsa_size);
    let mut merged = Merged { cause, requests: vec![(agreed.me().clone(), own.request())] };
    let (mut step, mut distance) = (0u8, 1u32);
    while distance < teams {
        let tag = round::MERGE + step;
        flush.send(tag, &merged, &[Parcel::plain(vec![leader_of(me + distance)])]);
        let heard = flush.gather(tag, vec![leader_of(me + teams - distance)]).await?;
        let mut heard: Merged = flush.read(&heard[0])?;
        if flush.core.has_bug(Bug::TeamUnheard) {
            heard.cause = None;
        }
        merged = join(merged, heard);
        step += 1;
        distance *= 2;
    }
    let cause = verdict(merged);
    if members.len() > 1 {
        flush.send(round::VERDICT, &cause, &super::parcels_without(&flush.core));
    }
    Ok(cause)
}

/// What two sets of teams know together.
fn join(a: Merged, b: Merged) -> Merged {
    let cause = [a.cause, b.cause].into_iter().flatten().reduce(worse);
    let mut all = a.requests;
    all.extend(b.requests);
    all.sort_by_key(|(leader, _)| leader.rank);
    let mut requests: Vec<(Peer, Request)> = Vec::new();
    for (leader, request) in all {
        if requests.iter().all(|(_, other)| *other != request) {
            requests.push((leader, request));
        }
    }
    Merged { cause, requests }
}

/// What becomes of the batch, once all teams are known.
fn verdict(all: Merged) -> Option<Cause> {
    let mismatch = mismatch(&all.requests);
    [all.cause, mismatch].into_iter().flatten().reduce(worse)
}

/// In what teams' requests differ first, with all of them.
fn mismatch(requests: &[(Peer, Request)]) -> Option<Cause> {
    let (_, first) = requests.first()?;
    let words = |text: &dyn Fn(&Request) -> String| {
        requests.iter().map(|(leader, request)| (leader.clone(), text(request))).collect()
    };
    if requests.iter().any(|(_, request)| request.group != first.group) {
        let requests =
            words(&|r| r.group.as_ref().map_or("no group name".to_owned(), |g| format!("group `{g}`")));
        return Some(Cause::Mismatch { what: "the group's name".to_owned(), requests });
    }
    let longest = requests.iter().map(|(_, request)| request.tasks.len()).max()?;
    (0..longest).find_map(|task| {
        let difference =
            requests.iter().find_map(|(_, other)| match (first.tasks.get(task), other.tasks.get(task)) {
                (Some(x), Some(y)) => x.difference(y),
                (None, None) => None,
                _ => Some(NUMBER),
            })?;
        let requests = words(&|r| r.tasks.get(task).map_or("nothing".to_owned(), Fingerprint::describe));
        Some(Cause::Mismatch { what: differing(difference, task), requests })
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

    fn leader(rank: u32) -> Peer {
        Peer::new(Rank::new(rank), ProcessId::new(0), "h", 1)
    }

    fn team(rank: u32, tasks: &[u64], cause: Option<Cause>) -> Merged {
        let tasks =
            tasks.iter().map(|&s| Fingerprint::Window { size: Some(s), flags: 0, label: None }).collect();
        Merged { cause, requests: vec![(leader(rank), Request { group: None, tasks })] }
    }

    /// What each leader ends with.
    fn disseminate(teams: &[Merged]) -> Vec<Option<Cause>> {
        let n = teams.len();
        let mut known = teams.to_vec();
        let mut distance = 1;
        while distance < n {
            known = (0..n).map(|t| join(known[t].clone(), known[(t + n - distance) % n].clone())).collect();
            distance *= 2;
        }
        known.into_iter().map(verdict).collect()
    }

    #[test]
    fn equal_requests_merge_to_success_and_differing_ones_name_both() {
        assert_eq!(verdict(join(team(0, &[1, 2], None), team(4, &[1, 2], None))), None);
        let Some(Cause::Mismatch { what, requests }) =
            verdict(join(team(4, &[1, 3], None), team(0, &[1, 2], None)))
        else {
            panic!("a mismatch was expected");
        };
        assert_eq!(what, "the size of task 1");
        assert_eq!(requests[0], (leader(0), "a window of 2 bytes".to_owned()));
        assert_eq!(requests[1], (leader(4), "a window of 3 bytes".to_owned()));
    }

    #[test]
    fn every_leader_ends_with_the_same_verdict_whatever_differs() {
        let refused = Cause::Abandoned { by: vec![leader(9)] };
        let requests: [&[u64]; 4] = [&[1, 2], &[1, 2], &[1, 3], &[1]];
        for n in 1..=7u32 {
            for pick in 0..4usize.pow(n) {
                let teams: Vec<_> = (0..n)
                    .map(|t| {
                        let kind = pick / 4usize.pow(t) % 4;
                        team(t, requests[kind], (kind == 1).then(|| refused.clone()))
                    })
                    .collect();
                let ends = disseminate(&teams);
                assert!(ends.iter().all(|end| *end == ends[0]), "{n} teams, {pick}: {ends:?}");
                assert_eq!(ends[0].is_none(), pick == 0 || equal(&teams), "{n} teams, {pick}");
            }
        }
    }

    fn equal(teams: &[Merged]) -> bool {
        teams.iter().all(|t| t.cause.is_none() && t.requests[0].1 == teams[0].requests[0].1)
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
