//! The state that all ranks of an LSA team hold alike, a pure function of the agreed rounds (A-5, P-1).
//!
//! It changes at two places only: [`Replicated::open`] applies what offers carry (quarantines, then
//! retirements), and [`Replicated::commit`] takes in a decision that every rank voted for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::flush::decide::{Decision, NewMemory};
use super::flush::message::{MemoryId, Offer, Token};
use super::numbers::NumberMap;
use super::space::Space;

/// A memory's identity: for each LSA rank, its allocations in order of address and the shift at which they are
/// mapped. Tasks with equal keys share one memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(pub(crate) Vec<KeyPart>);

/// One LSA rank's part of a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyPart {
    /// Its allocations.
    pub(crate) tokens: SmallVec<[Token; 2]>,
    /// Bytes from the memory's offset to the first of them.
    pub(crate) shift: u64,
}

/// A memory that all ranks of the team have mapped.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// What it consists of.
    pub(crate) key: Arc<Key>,
    /// Its place in every rank's stride.
    pub(crate) offset: u64,
    /// How much of every stride it takes, a multiple of the granularity.
    pub(crate) span: u64,
    /// The LSA ranks that have retired it.
    pub(crate) retired: BTreeSet<u32>,
}

/// The replicated state of one LSA team.
#[derive(Clone, Debug)]
pub(crate) struct Replicated {
    /// The offsets of one stride.
    pub(crate) space: Space,
    /// The number of the next memory.
    pub(crate) next_memory: u64,
    /// Every memory that some rank has not retired.
    pub(crate) memories: BTreeMap<MemoryId, Memory>,
    /// Memories that no rank has retired, by key.
    shared: NumberMap<Arc<Key>, MemoryId>,
    /// In how many memories each token of LSA rank `me` is.
    known: NumberMap<Token, u32>,
    /// Teams with a multicast object, by their LSA ranks.
    pub(crate) multicast: BTreeSet<Vec<u32>>,
    me: u32,
}

impl Replicated {
    /// The state before the first batch, as LSA rank `me` holds it.
    pub(crate) fn new(stride: u64, me: u32) -> Self {
        Self {
            space: Space::new(stride),
            next_memory: 0,
            memories: BTreeMap::new(),
            shared: NumberMap::default(),
            known: NumberMap::default(),
            multicast: BTreeSet::new(),
            me,
        }
    }

    /// Whether the peers can have mapped this allocation of this rank: no handle needs to ride with the offer.
    pub(crate) fn knows(&self, token: Token) -> bool {
        self.known.contains_key(&token)
    }

    /// The memory that tasks of this key share, if there is one.
    pub(crate) fn shared(&self, key: &Key) -> Option<MemoryId> {
        self.shared.get(key).copied()
    }

    /// Takes in what the offers of a batch carry, by LSA rank: first the quarantined ranges, then the
    /// retirements. Returns the memories that are gone, every rank having retired them.
    ///
    /// # Errors
    /// In words, when a rank retires what is not there: the states have parted.
    pub(crate) fn open(&mut self, offers: &[Arc<Offer>]) -> Result<Vec<(MemoryId, Memory)>, String> {
        for &(offset, span) in offers.iter().flat_map(|offer| &offer.quarantined) {
            self.space
                .quarantine(offset, span)
                .map_err(|error| format!("a range that cannot be quarantined: {error:?}"))?;
        }
        let mut gone = Vec::new();
        for (lsa, offer) in (0u32..).zip(offers) {
            for &id in &offer.retired {
                let Some(memory) = self.memories.get_mut(&id) else {
                    return Err(format!("LSA rank {lsa} retired memory {}, which is not there", id.0));
                };
                if !memory.retired.insert(lsa) {
                    return Err(format!("LSA rank {lsa} retired memory {} twice", id.0));
                }
                if self.shared.get(&memory.key) == Some(&id) {
                    self.shared.remove(&memory.key);
                }
                if memory.retired.len() == offers.len() {
                    gone.push(id);
                }
            }
        }
        gone.into_iter().map(|id| self.forget(id)).collect()
    }

    /// [`Bug::RetiresAtOnce`](super::zoo::Bug::RetiresAtOnce): what one rank must never do.
    pub(crate) fn forget_alone(&mut self, id: MemoryId) {
        if let Ok((_, memory)) = self.forget(id) {
            self.shared.remove(&memory.key);
        }
    }

    /// Takes in a decision that every rank voted for.
    pub(crate) fn commit(&mut self, decision: &Decision) {
        self.space = decision.space.clone();
        for new in &decision.new {
            self.insert(new);
        }
        self.multicast.extend(decision.new_teams.iter().cloned());
    }

    /// A digest that is equal on all ranks of the team after every batch (P-1).
    pub(crate) fn digest(&self, seq: u64) -> u64 {
        // Hashed in one piece: a call for each number would take longer than the hashing.
        let mut bytes = Vec::with_capacity(64 * (self.memories.len() + 2));
        self.space.digest(&mut |piece| bytes.extend_from_slice(piece));
        let mut number = |n: u64| bytes.extend_from_slice(&n.to_le_bytes());
        number(seq);
        number(self.next_memory);
        for (id, memory) in &self.memories {
            number(id.0);
            number(memory.offset);
            number(memory.span);
            memory.retired.iter().for_each(|&lsa| number(u64::from(lsa)));
            number(u64::MAX);
        }
        for team in &self.multicast {
            team.iter().for_each(|&lsa| number(u64::from(lsa)));
            number(u64::MAX);
        }
        xxh3_64(&bytes)
    }

    fn insert(&mut self, new: &NewMemory) {
        for &token in &new.key.0[self.me as usize].tokens {
            *self.known.entry(token).or_default() += 1;
        }
        self.shared.insert(Arc::clone(&new.key), new.id);
        self.memories.insert(
            new.id,
            Memory {
                key: Arc::clone(&new.key),
                offset: new.offset,
                span: new.span,
                retired: BTreeSet::new(),
            },
        );
        self.next_memory = self.next_memory.max(new.id.0 + 1);
    }

    fn forget(&mut self, id: MemoryId) -> Result<(MemoryId, Memory), String> {
        let memory = self.memories.remove(&id).ok_or_else(|| format!("memory {} is gone twice", id.0))?;
        for token in &memory.key.0[self.me as usize].tokens {
            if let Some(count) = self.known.get_mut(token) {
                *count -= 1;
                if *count == 0 {
                    self.known.remove(token);
                }
            }
        }
        self.space
            .free(memory.offset, memory.span)
            .map_err(|error| format!("memory {} cannot leave the space: {error:?}", id.0))?;
        Ok((id, memory))
    }
}
