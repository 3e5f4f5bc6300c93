//! Newtypes for the numbers that must not be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rank's index in its communicator's world, `0..world_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(u32);

impl Rank {
    /// The rank with this index.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its index as an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its index as the 32-bit number that device structs hold.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// A rank's index in its LSA team (the ranks whose memory it can load and store), `0..lsa_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LsaRank(u32);

impl LsaRank {
    /// The LSA rank with this index.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its index as an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its index as the 32-bit number that device structs hold.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for LsaRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LSA rank {}", self.0)
    }
}

/// A process as the bootstrap counts them. It is a value that the bootstrap hands out, never the operating
/// system's: a test makes several in one operating-system process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId(u32);

impl ProcessId {
    /// The process with this index.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its index as an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its index as it goes over the wire.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

/// A communicator's identity, equal on all its ranks and in every frame: a hash of its name path, for a
/// duplicate of (parent id, name, how often this parent used the name).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CommId(u128);

impl CommId {
    /// The id of a communicator that was made from nothing, of this name.
    #[must_use]
    pub fn root(name: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(name.as_bytes()))
    }

    /// The id of the `count`-th duplicate of this communicator under `name`.
    #[must_use]
    pub fn duplicate(self, name: &str, count: u32) -> Self {
        let mut bytes = self.0.to_le_bytes().to_vec();
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        Self(xxhash_rust::xxh3::xxh3_128(&bytes))
    }

    /// The id as it goes over the wire.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }

    /// The id that came over the wire.
    #[must_use]
    pub const fn from_wire(id: u128) -> Self {
        Self(id)
    }
}

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({:032x})", self.0)
    }
}
