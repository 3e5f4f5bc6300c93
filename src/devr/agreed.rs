//! What the ranks of a communicator agree on once, when it is made.
//!
//! A batch never negotiates any of this: what does not fit is refused. Every process sends its [`Introduction`]
//! to every other one, and all compute the same [`Agreed`] from the same introductions.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::team::Team;
use super::zoo::{Bug, Bugs};
use crate::driver::{DeviceInfo, HandleKind};
use crate::error::{BootstrapError, Error, Misuse, Peer, Result};
use crate::ids::{LsaRank, ProcessId, Rank};

/// The version of the messages between ranks. Ranks of different versions do not form a communicator.
pub(crate) const PROTOCOL: u32 = 4;

/// The stride is a multiple of this, so that device code adds to the high 32 bits of an address only.
pub(crate) const STRIDE_UNIT: u64 = 1 << 32;

/// What one process tells the others before there is a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// [`PROTOCOL`] of the sender.
    pub(crate) protocol: u32,
    /// The communicator's name.
    pub(crate) name: String,
    /// The stride that was asked for, in bytes.
    pub(crate) stride: Option<u64>,
    /// The LSA team size that was asked for.
    pub(crate) lsa_team_size: Option<u32>,
    /// The host's name, for messages.
    pub(crate) host: String,
    /// What tells hosts apart: the boot id.
    pub(crate) boot_id: String,
    /// The operating-system process.
    pub(crate) pid: u32,
    /// The device of each rank of the process, in order of rank.
    pub(crate) devices: Vec<DeviceInfo>,
    /// A fabric handle for the others to import, to see whether they can, if all devices have such handles.
    pub(crate) fabric: Option<Vec<u8>>,
}

/// What all ranks of a communicator agree on. Equal on every rank but for [`Agreed::rank`].
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    /// The communicator's name, for messages.
    pub(crate) name: String,
    /// This rank.
    pub(crate) rank: Rank,
    /// Every rank, by rank.
    pub(crate) world: Arc<[Peer]>,
    /// Ranks in an LSA team. Teams are consecutive ranks, all of this size.
    pub(crate) lsa_size: u32,
    /// Bytes from one LSA rank's part of the flat range to the next.
    pub(crate) stride: u64,
    /// What mappings are aligned to on every rank.
    pub(crate) granularity: u64,
    /// Whether every device has multicast.
    pub(crate) multicast: bool,
    /// How handles cross processes.
    pub(crate) handle_kind: HandleKind,
    /// How many blocks every rank's kernel may have so that those of all ranks on a device run at once, as they wait for
    /// each other. Processes take turns on a device, so that each has all of it.
    pub(crate) blocks: u32,
    /// The number that each rank's device has in its process, by rank.
    ordinals: Arc<[i32]>,
    /// What a simulation has planted: nothing in normal builds.
    pub(crate) bugs: Bugs,
}

impl Agreed {
    /// Computes the agreement from every process's introduction, `layout[p]` ranks being in process p. `fabric`: every
    /// process has imported every other one's fabric handle.
    pub(crate) fn new(rank: Rank, introductions: &[Introduction], fabric: bool) -> Result<Self> {
        same("the protocol version", introductions, |i| i.protocol.to_string())?;
        same("the communicator's name", introductions, |i| format!("`{}`", i.name))?;
        same("the stride (SYMWIN_STRIDE)", introductions, |i| format!("{:?}", i.stride))?;
        same("the LSA team size (SYMWIN_LSA_TEAM_SIZE)", introductions, |i| {
            format!("{:?}", i.lsa_team_size)
        })?;
        same("the host", introductions, |i| i.boot_id.clone())?;
        same("the device's backend", introductions, |i| backends(&i.devices))?;

        let world: Arc<[Peer]> = peers(introductions).into();
        let devices = || introductions.iter().flat_map(|i| &i.devices);
        let first = &introductions[0];
        let size = u32::try_from(world.len()).unwrap_or(u32::MAX);
        let lsa_size = first.lsa_team_size.unwrap_or(size);
        if lsa_size == 0 || !size.is_multiple_of(lsa_size) {
            let why = format!("it must divide the {size} ranks");
            return Err(bad("LSA team size (SYMWIN_LSA_TEAM_SIZE)", lsa_size.to_string(), why));
        }
        let memory = devices().map(|d| d.memory_bytes).max().unwrap_or(0);
        let asked = first.stride.filter(|&bytes| bytes > 0).unwrap_or(memory).max(1);
        let Some(stride) = asked.checked_next_multiple_of(STRIDE_UNIT) else {
            let why = "a number of bytes that can be rounded up to 4 GiB".to_owned();
            return Err(bad("stride (SYMWIN_STRIDE)", asked.to_string(), why));
        };
        Ok(Self {
            name: first.name.clone(),
            rank,
            world,
            lsa_size,
            stride,
            granularity: devices().map(|d| d.granularity).max().unwrap_or(4096),
            multicast: devices().all(|d| d.multicast),
            handle_kind: if fabric { HandleKind::Fabric } else { HandleKind::Descriptor },
            blocks: introductions.iter().filter_map(|i| blocks_of_each(&i.devices)).min().unwrap_or(u32::MAX),
            ordinals: devices().map(|d| d.ordinal).collect(),
            bugs: Bugs::default(),
        })
    }

    /// The same agreement, as another rank has it.
    pub(crate) fn of(&self, rank: Rank) -> Self {
        Self { rank, ..self.clone() }
    }

    /// The same agreement for a duplicate of another name.
    pub(crate) fn renamed(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// Whether this bug was planted on this rank: never in normal builds.
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.bugs.has(bug, self.rank)
    }

    /// This rank's identity.
    pub(crate) fn me(&self) -> &Peer {
        &self.world[self.rank.index()]
    }

    /// The stride as a length of addresses.
    pub(crate) fn stride_bytes(&self) -> usize {
        usize::try_from(self.stride).unwrap_or(usize::MAX)
    }

    /// The members of a team of a rank of this LSA team, as LSA ranks; those outside of it are left out.
    pub(crate) fn lsa_members(&self, team: Team, rank: Rank) -> Vec<u32> {
        team.members(rank).filter_map(|member| self.lsa_rank_of(member)).map(LsaRank::get).collect()
    }

    /// Number of ranks.
    pub(crate) fn world_size(&self) -> u32 {
        u32::try_from(self.world.len()).unwrap_or(u32::MAX)
    }

    /// The world ranks of this rank's LSA team.
    pub(crate) fn lsa_range(&self) -> Range<u32> {
        let first = self.rank.get() / self.lsa_size * self.lsa_size;
        first..first + self.lsa_size
    }

    /// The ranks of this rank's LSA team, by LSA rank.
    pub(crate) fn lsa_ranks(&self) -> Vec<Rank> {
        self.lsa_range().map(Rank::new).collect()
    }

    /// The members of this rank's LSA team, by LSA rank.
    pub(crate) fn lsa_peers(&self) -> Vec<Peer> {
        self.lsa_range().map(|r| self.world[r as usize].clone()).collect()
    }

    /// This rank's index in its LSA team.
    pub(crate) fn lsa_rank(&self) -> LsaRank {
        LsaRank::new(self.rank.get() % self.lsa_size)
    }

    /// The LSA rank of a world rank, if it is in this rank's team.
    pub(crate) fn lsa_rank_of(&self, rank: Rank) -> Option<LsaRank> {
        self.lsa_range().contains(&rank.get()).then(|| LsaRank::new(rank.get() % self.lsa_size))
    }

    /// The world rank of an LSA rank of this rank's team.
    pub(crate) fn world_rank(&self, lsa: LsaRank) -> Rank {
        Rank::new(self.lsa_range().start + lsa.get())
    }

    /// Number of LSA teams.
    pub(crate) fn teams(&self) -> u32 {
        self.world_size() / self.lsa_size
    }

    /// The index of this rank's LSA team.
    pub(crate) fn team(&self) -> u32 {
        self.rank.get() / self.lsa_size
    }

    /// The process of a rank.
    pub(crate) fn process(&self, rank: Rank) -> ProcessId {
        self.world[rank.index()].process
    }

    /// Ranks of this rank's LSA team by process, each list ascending.
    pub(crate) fn team_processes(&self) -> Vec<(ProcessId, Vec<Rank>)> {
        let mut by_process: Vec<(ProcessId, Vec<Rank>)> = Vec::new();
        for rank in self.lsa_ranks() {
            let process = self.process(rank);
            match by_process.last_mut() {
                Some((last, ranks)) if *last == process => ranks.push(rank),
                _ => by_process.push((process, vec![rank])),
            }
        }
        by_process
    }

    /// Ranks of this process in this rank's LSA team, ascending.
    pub(crate) fn team_here(&self) -> Vec<Rank> {
        let here = self.process(self.rank);
        self.lsa_ranks().into_iter().filter(|&r| self.process(r) == here).collect()
    }

    /// The devices of these ranks, each once.
    pub(crate) fn ordinals_here(&self) -> Vec<i32> {
        let mut ordinals: Vec<i32> =
            self.team_here().iter().map(|rank| self.ordinals[rank.index()]).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        ordinals
    }

    /// Whether this rank imports for its process: it is the lowest of the team there.
    pub(crate) fn imports(&self) -> bool {
        self.team_here().first() == Some(&self.rank)
    }
}

fn peers(introductions: &[Introduction]) -> Vec<Peer> {
    let mut world = Vec::new();
    for (process, introduction) in (0u32..).zip(introductions) {
        for _ in &introduction.devices {
            let rank = Rank::new(u32::try_from(world.len()).unwrap_or(u32::MAX));
            world.push(Peer::new(rank, ProcessId::new(process), &introduction.host, introduction.pid));
        }
    }
    world
}

fn backends(devices: &[DeviceInfo]) -> String {
    let mut names: Vec<&str> = devices.iter().map(|d| d.backend.as_str()).collect();
    names.dedup();
    names.join(", ")
}

/// Every process must say the same.
fn same(what: &str, introductions: &[Introduction], setting: impl Fn(&Introduction) -> String) -> Result<()> {
    let settings: Vec<String> = introductions.iter().map(setting).collect();
    if settings.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let settings = (0u32..)
        .zip(introductions)
        .zip(settings)
        .map(|((p, i), s)| format!("{} (host {}, pid {}): {s}", ProcessId::new(p), i.host, i.pid))
        .collect();
    Err(Error::Bootstrap(Arc::new(BootstrapError::Differ { what: what.to_owned(), settings })))
}

/// A setting on which all agree and that cannot be: by the variable's name, as its builder method has it too.
fn bad(name: &str, value: String, why: String) -> Error {
    Misuse::BadSetting { name: name.to_owned(), value, why }.into()
}

/// How many blocks each of a process's ranks may run at once; `None` where kernels are host code.
fn blocks_of_each(devices: &[DeviceInfo]) -> Option<u32> {
    let on_same =
        |device: &DeviceInfo| devices.iter().filter(|other| other.ordinal == device.ordinal).count();
    let share = |device: &DeviceInfo| {
        let ranks = u32::try_from(on_same(device)).unwrap_or(u32::MAX);
        (device.multiprocessors > 0).then(|| (device.multiprocessors / ranks).max(1))
    };
    devices.iter().filter_map(share).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(ordinal: i32, multiprocessors: u32) -> DeviceInfo {
        let mut device = DeviceInfo::new("a device", "cuda", 1 << 30, 4096);
        (device.ordinal, device.multiprocessors) = (ordinal, multiprocessors);
        device
    }

    #[test]
    fn ranks_of_a_process_share_the_multiprocessors_of_their_device() {
        assert_eq!(blocks_of_each(&[on(0, 132)]), Some(132));
        assert_eq!(blocks_of_each(&vec![on(0, 132); 8]), Some(16));
        assert_eq!(blocks_of_each(&vec![on(0, 58); 8]), Some(7));
        assert_eq!(blocks_of_each(&[on(0, 58), on(1, 132), on(0, 58), on(0, 58)]), Some(19), "the least");
        assert_eq!(blocks_of_each(&vec![on(0, 2); 8]), Some(1));
        assert_eq!(blocks_of_each(&vec![on(0, 0); 8]), None, "kernels are host code");
    }
}
