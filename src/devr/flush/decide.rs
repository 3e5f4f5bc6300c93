//! Step 3 of the flush: from the offers of all ranks of the LSA team to a decision, equal on every rank.
//!
//! Pure: no device, no clock, no network. The same offers and the same replicated state give the same decision
//! on every rank, and its digest goes along with the vote to prove it.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::message::{Fingerprint, MemoryId, Offer, TaskOffer, Token};
use super::tasks::Run;
use crate::devr::agreed::Agreed;
use crate::devr::numbers::NumberMap;
use crate::devr::replicated::{Key, KeyPart, Replicated};
use crate::devr::space::Space;
use crate::devr::zoo::Bug;
use crate::error::{Cause, Fault, Phase, Reason};
use crate::ids::LsaRank;

/// Where a task's range goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Its memory, one of the state's or one of [`Decision::new`].
    pub(crate) memory: MemoryId,
    /// Bytes from the memory's offset to byte 0 of the window, equal on all ranks.
    pub(crate) head: u64,
    /// The memory's offset plus `head`: the window's place in every stride.
    pub(crate) offset: u64,
}

/// A memory that the batch makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewMemory {
    /// Its number.
    pub(crate) id: MemoryId,
    /// What it consists of.
    pub(crate) key: Arc<Key>,
    /// Its place in every stride.
    pub(crate) offset: u64,
    /// How much of every stride it takes.
    pub(crate) span: u64,
    /// Bytes that each LSA rank maps.
    pub(crate) sizes: Arc<[u64]>,
}

/// What the batch does if every rank can do its part.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// The space with the new memories in it.
    pub(crate) space: Space,
    /// For each task its place; `None` for a device communicator without a resource buffer.
    pub(crate) placements: Vec<Option<Placement>>,
    /// For each task the window's size on each LSA rank, where they differ.
    pub(crate) sizes: Vec<Option<Arc<[u64]>>>,
    /// The memories to map.
    pub(crate) new: Vec<NewMemory>,
    /// For each LSA rank the allocations whose handles came with no offer but are needed by other processes.
    pub(crate) missing: Vec<Vec<Token>>,
    /// Teams, by LSA rank, that get a multicast object.
    pub(crate) new_teams: Vec<Vec<u32>>,
    /// A digest of all this and of the state that it was decided in.
    pub(crate) digest: u64,
}

impl Decision {
    /// Whether a round for handles is needed.
    pub(crate) fn needs_handles(&self) -> bool {
        self.missing.iter().any(|tokens| !tokens.is_empty())
    }
}

/// Decides the batch. `offers` are by LSA rank; the state has taken in what they carry
/// ([`Replicated::open`]).
///
/// # Errors
/// The cause for which every rank of the team rolls back.
pub(crate) fn decide(
    state: &Replicated,
    agreed: &Agreed,
    seq: u64,
    offers: &[Arc<Offer>],
) -> Result<Decision, Cause> {
    refusals(agreed, offers)?;
    let new_teams = multicast_teams(state, agreed, offers)?;
    let mut draft = Draft::new(state, agreed, offers);
    let mut all: Vec<_> = offers.iter().map(|o| o.tasks.iter()).collect();
    for task in 0..offers[0].tasks.len() {
        // One of each rank: there are equally many.
        let tasks: Row = all.iter_mut().filter_map(Iterator::next).collect();
        draft.place(task, &tasks)?;
        draft.before = tasks;
    }
    let missing = draft.missing();
    let digest = digest(state, seq, &draft, &missing, &new_teams);
    let Draft { space, placements, sizes, new, .. } = draft;
    Ok(Decision { space, placements, sizes, new, missing, new_teams, digest })
}

/// Abandoned, then mismatch, then refused: the order in which they are reported.
fn refusals(agreed: &Agreed, offers: &[Arc<Offer>]) -> Result<(), Cause> {
    let peer = |lsa: u32| agreed.world[agreed.world_rank(LsaRank::new(lsa)).index()].clone();
    let by: Vec<_> = (0u32..).zip(offers).filter(|(_, o)| o.abandoned).map(|(lsa, _)| peer(lsa)).collect();
    if !by.is_empty() {
        return Err(Cause::Abandoned { by });
    }
    let requests =
        |text: &dyn Fn(&Offer) -> String| (0u32..).zip(offers).map(|(lsa, o)| (peer(lsa), text(o))).collect();
    if offers.iter().any(|o| o.group != offers[0].group) && !agreed.has_bug(Bug::GroupNameIgnored) {
        let requests =
            requests(&|o| o.group.as_ref().map_or("no group name".to_owned(), |g| format!("group `{g}`")));
        return Err(Cause::Mismatch { what: "the group's name".to_owned(), requests });
    }
    if let Some((difference, task)) = first_difference(offers)
        && !agreed.has_bug(Bug::PrintsIgnored)
    {
        let requests =
            requests(&|o| o.tasks.get(task).map_or("nothing".to_owned(), |t| o.print(&t).describe()));
        return Err(Cause::Mismatch { what: differing(difference, task), requests });
    }
    let faults: Vec<Fault> = offers.iter().flat_map(|o| o.refused.iter().cloned()).collect();
    if faults.is_empty() { Ok(()) } else { Err(Cause::Refused { faults }) }
}

/// In what the offers' tasks differ first, and which task that is.
fn first_difference(offers: &[Arc<Offer>]) -> Option<(&'static str, usize)> {
    let shortest = offers.iter().map(|o| o.tasks.len()).min().unwrap_or(0);
    let longest = offers.iter().map(|o| o.tasks.len()).max().unwrap_or(0);
    let mut runs: Vec<_> = offers.iter().map(|o| o.tasks.runs().peekable()).collect();
    let mut task = 0;
    // From one task to the next at which some rank asks for something else: the rows between need no look. Beyond the
    // shortest they differ in number, so a peer that says it has a great many makes nobody look at them.
    while task < shortest {
        for of_rank in &mut runs {
            while of_rank.next_if(|(start, run)| start + run.count as usize <= task).is_some() {}
        }
        let prints: Vec<_> =
            runs.iter_mut().zip(offers).map(|(r, o)| r.peek().map(|(_, run)| o.print(&run.first))).collect();
        if let Some(difference) = difference(prints.into_iter()) {
            return Some((difference, task));
        }
        let end = |(start, run): &(usize, &Run)| start + run.count as usize;
        task = runs.iter_mut().filter_map(|r| r.peek().map(end)).min().unwrap_or(shortest);
    }
    (shortest < longest).then_some((NUMBER, shortest))
}

/// What ranks differ in, for the error.
pub(super) fn differing(difference: &str, task: usize) -> String {
    if difference == NUMBER {
        "the number of tasks".to_owned()
    } else {
        format!("the {difference} of task {task}")
    }
}

/// The difference where only some ranks have a task.
pub(super) const NUMBER: &str = "number";

#[allow(single_use_lifetimes, reason = "stable Rust cannot leave it out in `impl Trait`")]
fn difference<'a>(mut prints: impl Iterator<Item = Option<&'a Fingerprint>>) -> Option<&'static str> {
    let first = prints.next().flatten();
    prints.find_map(|print| match (first, print) {
        (Some(a), Some(b)) => a.difference(b),
        (None, None) => None,
        _ => Some(NUMBER),
    })
}

/// One task of each rank, by LSA rank.
type Row = SmallVec<[TaskOffer; 8]>;

/// The placements made so far.
struct Draft<'a> {
    state: &'a Replicated,
    agreed: &'a Agreed,
    offers: &'a [Arc<Offer>],
    space: Space,
    placements: Vec<Option<Placement>>,
    sizes: Vec<Option<Arc<[u64]>>>,
    new: Vec<NewMemory>,
    /// The task before the present one on each rank.
    before: Row,
    by_key: NumberMap<Arc<Key>, usize>,
    next: u64,
}

impl<'a> Draft<'a> {
    fn new(state: &'a Replicated, agreed: &'a Agreed, offers: &'a [Arc<Offer>]) -> Self {
        Self {
            state,
            agreed,
            offers,
            space: state.space.clone(),
            placements: Vec::with_capacity(offers[0].tasks.len()),
            sizes: Vec::with_capacity(offers[0].tasks.len()),
            new: Vec::new(),
            before: Row::new(),
            by_key: NumberMap::default(),
            next: state.next_memory,
        }
    }

    fn place(&mut self, task: usize, tasks: &[TaskOffer]) -> Result<(), Cause> {
        let differ = tasks.iter().any(|t| t.size != tasks[0].size);
        self.sizes.push(differ.then(|| tasks.iter().map(|t| t.size).collect()));
        if tasks.iter().zip(self.offers).all(|(t, o)| o.range(t).allocations.is_empty()) {
            self.placements.push(None);
            return Ok(());
        }
        let head = tasks.iter().map(|t| t.head).max().unwrap_or(0);
        if let Some(Placement { memory, head: before, offset }) = self.same_memory(tasks, head) {
            self.placements.push(Some(Placement { memory, head, offset: offset - before + head }));
            return Ok(());
        }
        self.check_shifts(task, tasks, head)?;
        let key = Key(tasks
            .iter()
            .zip(self.offers)
            .map(|(t, o)| KeyPart {
                tokens: o.range(t).allocations.iter().map(|&a| o.allocations[a as usize].token).collect(),
                shift: head - t.head,
            })
            .collect());
        let (memory, offset) = if let Some(id) = self.state.shared(&key) {
            (id, self.state.memories[&id].offset)
        } else if let Some(&index) = self.by_key.get(&key) {
            (self.new[index].id, self.new[index].offset)
        } else {
            self.add(key, tasks)?
        };
        self.placements.push(Some(Placement { memory, head, offset: offset + head }));
        Ok(())
    }

    /// The place of the task before, if this one has the same allocations at the same shifts, and so the same memory:
    /// windows come mostly in rows from one allocation, and need no key of their own then.
    fn same_memory(&self, tasks: &[TaskOffer], head: u64) -> Option<Placement> {
        let before = (*self.placements.last()?)?;
        let same = tasks
            .iter()
            .zip(&self.before)
            .all(|(now, then)| now.range == then.range && head - now.head == before.head - then.head);
        same.then_some(before)
    }

    /// Every rank's allocations must be mappable at their shift.
    fn check_shifts(&self, task: usize, tasks: &[TaskOffer], head: u64) -> Result<(), Cause> {
        let granularity = self.agreed.granularity;
        if tasks.iter().all(|t| (head - t.head).is_multiple_of(granularity)) {
            return Ok(());
        }
        let bases: Vec<u64> = tasks.iter().zip(self.offers).map(|(t, o)| o.range(t).base).collect();
        let heads: Vec<u64> = tasks.iter().map(|t| t.head).collect();
        let faults = (0u32..)
            .zip(tasks)
            .filter(|(_, t)| !(head - t.head).is_multiple_of(granularity))
            .map(|(lsa, _)| Fault {
                peer: self.agreed.world[self.agreed.world_rank(LsaRank::new(lsa)).index()].clone(),
                phase: Phase::Decide,
                task: u32::try_from(task).ok(),
                reason: Reason::Shift { bases: bases.clone(), heads: heads.clone(), granularity },
            })
            .collect();
        Err(Cause::Refused { faults })
    }

    fn add(&mut self, key: Key, tasks: &[TaskOffer]) -> Result<(MemoryId, u64), Cause> {
        let sizes: Arc<[u64]> =
            tasks.iter().zip(self.offers).map(|(t, o)| o.sizes(o.range(t)).sum()).collect();
        let span = key.0.iter().zip(sizes.iter()).map(|(part, size)| part.shift.saturating_add(*size)).max();
        let own = sizes[self.agreed.lsa_rank().index()];
        let span = if self.agreed.has_bug(Bug::OwnSizes) { Some(own) } else { span };
        let need = span.unwrap_or(0).checked_next_multiple_of(self.agreed.granularity).unwrap_or(u64::MAX);
        let Some(offset) = self.space.alloc(need, self.agreed.granularity) else {
            return Err(Cause::Exhausted { need, free: self.space.largest_free() });
        };
        let (id, key) = (MemoryId(self.next), Arc::new(key));
        self.next += 1;
        self.by_key.insert(Arc::clone(&key), self.new.len());
        self.new.push(NewMemory { id, key, offset, span: need, sizes });
        Ok((id, offset))
    }

    /// Handles that other processes need and that came with no offer.
    fn missing(&self) -> Vec<Vec<Token>> {
        let processes: BTreeSet<_> =
            self.agreed.lsa_ranks().into_iter().map(|r| self.agreed.process(r)).collect();
        if processes.len() == 1 {
            return vec![Vec::new(); self.offers.len()];
        }
        self.offers
            .iter()
            .enumerate()
            .map(|(lsa, offer)| {
                let came: BTreeSet<Token> =
                    offer.allocations.iter().filter(|a| a.handle).map(|a| a.token).collect();
                let needed: BTreeSet<Token> =
                    self.new.iter().flat_map(|m| m.key.0[lsa].tokens.iter().copied()).collect();
                needed.difference(&came).copied().collect()
            })
            .collect()
    }
}

/// The teams that get a multicast object, in the order in which ranks ask for them. All teams that are asked for must
/// be the same on all their members.
fn multicast_teams(
    state: &Replicated,
    agreed: &Agreed,
    offers: &[Arc<Offer>],
) -> Result<Vec<Vec<u32>>, Cause> {
    let mut new: Vec<Vec<u32>> = Vec::new();
    let is_dev_comm = |run: &Run| matches!(offers[0].print(&run.first), Fingerprint::DevComm { .. });
    let rows = offers[0].tasks.runs().filter(|(_, run)| is_dev_comm(run));
    for task in rows.flat_map(|(start, run)| start..start + run.count as usize) {
        let print = |offer: &Offer| Some(offer.print(&offer.tasks.get(task)?).clone());
        let wanted: Vec<Vec<(Vec<u32>, bool)>> = (0u32..)
            .zip(offers)
            .map(|(lsa, o)| print(o).map_or_else(Vec::new, |print| wanted_teams(agreed, lsa, &print)))
            .collect();
        for index in 0..wanted[0].len() {
            for teams in &wanted {
                let (team, multimem) = &teams[index];
                if team.iter().any(|&member| wanted[member as usize][index].0 != *team) {
                    let requests = (0u32..)
                        .zip(&wanted)
                        .map(|(lsa, teams)| {
                            let peer = agreed.world[agreed.world_rank(LsaRank::new(lsa)).index()].clone();
                            (peer, format!("a team of LSA ranks {:?}", teams[index].0))
                        })
                        .collect();
                    return Err(Cause::Mismatch { what: format!("the teams of task {task}"), requests });
                }
                if *multimem && !state.multicast.contains(team) && !new.contains(team) {
                    new.push(team.clone());
                }
            }
        }
    }
    Ok(new)
}

/// The teams of LSA rank `lsa` that a task asks for, as LSA ranks, and whether it wants a multicast object. Prepare has
/// refused teams that leave the LSA team.
pub(crate) fn wanted_teams(agreed: &Agreed, lsa: u32, print: &Fingerprint) -> Vec<(Vec<u32>, bool)> {
    let Fingerprint::DevComm { requirements } = print else { return Vec::new() };
    let rank = agreed.world_rank(LsaRank::new(lsa));
    let whole = requirements.wants_lsa_multimem().then(|| ((0..agreed.lsa_size).collect(), true));
    let teams = requirements.teams().map(|(team, multimem)| (agreed.lsa_members(team, rank), multimem));
    whole.into_iter().chain(teams).collect()
}

fn digest(
    state: &Replicated,
    seq: u64,
    draft: &Draft<'_>,
    missing: &[Vec<Token>],
    teams: &[Vec<u32>],
) -> u64 {
    let mut bytes = Vec::with_capacity(8 * (1 + 3 * draft.new.len() + 2 * draft.placements.len()));
    let mut number = |n: u64| bytes.extend_from_slice(&n.to_le_bytes());
    number(state.digest(seq));
    for memory in &draft.new {
        number(memory.id.0);
        number(memory.offset);
        number(memory.span);
    }
    for placement in draft.placements.iter().flatten() {
        number(placement.memory.0);
        number(placement.offset);
    }
    missing.iter().flatten().for_each(|token| number(token.0));
    teams.iter().flatten().for_each(|&lsa| number(u64::from(lsa)));
    xxh3_64(&bytes)
}
