//! What a device communicator is asked to have, and where in its resource buffer that lies.
//!
//! [`DevCommRequirements`] is what a program asks for; ranks compare it before anything is made.
//! [`Plan`] lays it out in one resource buffer in units of 128 bytes: first the LSA barriers, so that they have
//! handle 0, then the LL all-to-all, then the caller's own buffers in their order.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::devr::team::Team;
use crate::error::Misuse;

/// What a device communicator is to have. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[must_use]
pub struct DevCommRequirements {
    lsa_barriers: u32,
    lsa_multimem: bool,
    /// Blocks and slots.
    ll_a2a: (u32, u32),
    /// Bytes and alignment.
    buffers: Vec<(u64, u64)>,
    /// Each with whether it needs multicast.
    teams: Vec<(Team, bool)>,
}

impl DevCommRequirements {
    /// Nothing: ranks, sizes and the window table only.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many barriers over the LSA team. Each is used by one block of a kernel at a time.
    pub fn lsa_barriers(mut self, n: u32) -> Self {
        self.lsa_barriers = n;
        self
    }

    /// Whether the LSA team gets a multicast object.
    pub fn lsa_multimem(mut self, wanted: bool) -> Self {
        self.lsa_multimem = wanted;
        self
    }

    /// Buffers for the low-latency all-to-all of so many blocks with so many slots each; see [`ll_a2a_slots`].
    pub fn ll_a2a(mut self, blocks: u32, slots: u32) -> Self {
        self.ll_a2a = (blocks, slots);
        self
    }

    /// One more buffer of the caller's own in each rank's resource buffer: `bytes` long, zeroed, at a multiple of
    /// `align` bytes, a power of two. Its handle has the index of this call among those of `buffer`.
    pub fn buffer(mut self, bytes: u64, align: u64) -> Self {
        self.buffers.push((bytes, align));
        self
    }

    /// One more team, with a multicast object if asked.
    pub fn team(mut self, team: Team, multimem: bool) -> Self {
        self.teams.push((team, multimem));
        self
    }

    /// The slots of the longest message of an all-reduce by one shot: 512 bytes. Beyond it barriers cost less than
    /// writing every word with its flag to everyone.
    pub(crate) const MESSAGE_SLOTS: u32 = 64;

    /// What the collectives' own device communicator needs: a barrier for each block that may take part, and for the
    /// first one slots for a small message from each of `lsa_size` ranks, if those are not too many for one shot.
    pub(crate) fn of_collectives(lsa_size: u32) -> Self {
        Self::new().lsa_barriers(16).ll_a2a(1, lsa_size.min(ONE_SHOT_RANKS) * Self::MESSAGE_SLOTS)
    }

    /// Whether the LSA team is to have a multicast object.
    #[must_use]
    pub const fn wants_lsa_multimem(&self) -> bool {
        self.lsa_multimem
    }

    /// The teams in call order, each with whether it is to have a multicast object.
    pub fn teams(&self) -> impl ExactSizeIterator<Item = (Team, bool)> {
        self.teams.iter().copied()
    }

    /// The same with what rightly differs between ranks made equal: which member of a team a rank is. The
    /// fingerprint is of this.
    pub fn agreed(&self) -> Self {
        let shape = |&(team, multimem): &(Team, bool)| {
            let first = Team::strided(team.n_ranks(), 0, team.stride());
            (first.expect("valid for one member, so for the first"), multimem)
        };
        Self { teams: self.teams.iter().map(shape).collect(), ..self.clone() }
    }

    /// In words, for messages about ranks that differ. Equal for requirements that agree.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        if self.lsa_barriers > 0 {
            parts.push(format!("{} LSA barriers", self.lsa_barriers));
        }
        if self.lsa_multimem {
            parts.push("LSA multicast".to_owned());
        }
        if self.ll_a2a != (0, 0) {
            let (blocks, slots) = self.ll_a2a;
            parts.push(format!("LL all-to-all of {blocks} blocks with {slots} slots"));
        }
        parts.extend(self.buffers.iter().map(|(bytes, align)| format!("buffer of {bytes} bytes at {align}")));
        parts.extend(self.teams.iter().map(|(team, multimem)| {
            let multicast = if *multimem { " and multicast" } else { "" };
            format!("team of {} with stride {}{multicast}", team.n_ranks(), team.stride())
        }));
        if parts.is_empty() {
            return "a device communicator with no resources".to_owned();
        }
        format!("a device communicator with {}", parts.join(", "))
    }
}

/// Where something lies in each rank's resource buffer, in units of 128 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "NCCL's ncclDevResourceHandle is this number")]
pub struct ResourceHandle(pub u32);

impl ResourceHandle {
    /// The size of its unit in bytes.
    pub const UNIT_BYTES: u64 = 128;

    /// The offset in bytes in the resource buffer.
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        self.0 as u64 * Self::UNIT_BYTES
    }
}

impl fmt::Display for ResourceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource {}", self.0)
    }
}

/// Where the LSA barriers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BarrierHandle {
    /// Their words.
    pub handle: ResourceHandle,
    /// How many barriers there are.
    pub count: u32,
}

/// Where the LL all-to-all's buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LlA2aHandle {
    /// The first block's buffer.
    pub handle: ResourceHandle,
    /// How many blocks there are.
    pub blocks: u32,
    /// Slots of each block.
    pub slots: u32,
}

/// The layout of a device communicator's resource buffer, equal on all ranks of an LSA team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The LSA barriers, if any were asked for. Always at handle 0.
    pub lsa_barrier: Option<BarrierHandle>,
    /// The LL all-to-all's buffers, if any were asked for.
    pub ll_a2a: Option<LlA2aHandle>,
    /// The caller's own buffers in call order. One of no bytes has a handle that leads nowhere.
    pub buffers: Vec<ResourceHandle>,
    /// The size of the resource buffer in bytes, a multiple of the granularity. Zero: there is none.
    pub total_bytes: u64,
}

impl Plan {
    /// Lays the requirements out for an LSA team of `lsa_size` ranks on devices of this granularity, in bytes and a
    /// power of two.
    ///
    /// # Errors
    /// `BadSetting` that names the requirement: an alignment that is no power of two or above the granularity,
    /// a count above what NCCL's fields hold, or more than 2^32 units of 128 bytes in all.
    pub fn new(requirements: &DevCommRequirements, lsa_size: u32, granularity: u64) -> Result<Self, Misuse> {
        if lsa_size == 0 {
            return Err(bad("LSA team size", lsa_size, "at least 1"));
        }
        if !granularity.is_power_of_two() || granularity < ResourceHandle::UNIT_BYTES {
            return Err(bad("granularity", granularity, "a power of two, at least 128"));
        }
        let mut layout = Layout { end: 0 };
        let lsa_barrier = layout.barriers(requirements.lsa_barriers, lsa_size)?;
        let ll_a2a = layout.ll_a2a(requirements.ll_a2a)?;
        let mut buffers = Vec::with_capacity(requirements.buffers.len());
        for (i, &(bytes, align)) in requirements.buffers.iter().enumerate() {
            let what = format!("buffer {i}");
            if !align.is_power_of_two() || align > granularity {
                let why = format!("a power of two, at most the granularity of {granularity} bytes");
                return Err(bad(&format!("alignment of {what}"), align, &why));
            }
            buffers.push(layout.place(&what, Some(bytes), align)?);
        }
        // No overflow: `place` keeps the end within 2^39, and the granularity is a power of two.
        let total_bytes =
            layout.end.checked_next_multiple_of(granularity).filter(|&total| total <= LIMIT_BYTES);
        let total_bytes = total_bytes.ok_or_else(|| too_large("the resource buffer", layout.end))?;
        Ok(Self { lsa_barrier, ll_a2a, buffers, total_bytes })
    }
}

/// How many slots an LL all-to-all needs where a block gets at most so many elements of at most so many bytes from
/// all peers together: eight bytes of payload a slot.
///
/// # Errors
/// `BadSetting` if they are more than 32 bits hold.
pub fn ll_a2a_slots(max_elements: u32, max_element_bytes: u32) -> Result<u32, Misuse> {
    max_elements.checked_mul(max_element_bytes.div_ceil(8)).ok_or_else(|| {
        let asked = format!("{max_elements} elements of {max_element_bytes} bytes");
        bad("LL all-to-all", asked, "at most 2^32 - 1 slots of 8 bytes")
    })
}

/// Larger teams have no slots for all, and so use barriers.
const ONE_SHOT_RANKS: u32 = 64;

/// What a handle of 32 bits can address.
const LIMIT_BYTES: u64 = ResourceHandle::UNIT_BYTES << 32;

/// The buffer as laid out so far.
struct Layout {
    end: u64,
}

impl Layout {
    fn barriers(&mut self, count: u32, lsa_size: u32) -> Result<Option<BarrierHandle>, Misuse> {
        if count == 0 {
            return Ok(None);
        }
        if i32::try_from(count).is_err() {
            return Err(bad("LSA barriers", count, "below 2^31"));
        }
        // Of each barrier: two epochs, an inbox for multicast, and an inbox from each rank.
        let words = u64::from(count) * (3 + u64::from(lsa_size));
        let handle = self.place("LSA barriers", words.checked_mul(4), 4)?;
        Ok(Some(BarrierHandle { handle, count }))
    }

    fn ll_a2a(&mut self, (blocks, slots): (u32, u32)) -> Result<Option<LlA2aHandle>, Misuse> {
        if blocks == 0 {
            return Ok(None);
        }
        // Of each block: one line for its epoch, and two banks of lines.
        let lines = u64::from(blocks).checked_mul(1 + 2 * u64::from(slots));
        let bytes = lines.and_then(|lines| lines.checked_mul(16));
        let handle = self.place("LL all-to-all", bytes, 16)?;
        Ok(Some(LlA2aHandle { handle, blocks, slots }))
    }

    /// Appends `bytes`, `None` if they are more than 64 bits hold.
    fn place(&mut self, what: &str, bytes: Option<u64>, align: u64) -> Result<ResourceHandle, Misuse> {
        let start = self.end.checked_next_multiple_of(align.max(ResourceHandle::UNIT_BYTES));
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        let (Some(start), Some(end)) = (start, end.filter(|&end| end <= LIMIT_BYTES)) else {
            return Err(too_large(what, bytes.unwrap_or(u64::MAX)));
        };
        // Nothing of no bytes may lie at the very end of the largest buffer: the handle would not fit.
        let unit = u32::try_from(start / ResourceHandle::UNIT_BYTES);
        let unit = unit.map_err(|_| too_large(what, bytes.unwrap_or(u64::MAX)))?;
        self.end = end;
        Ok(ResourceHandle(unit))
    }
}

fn too_large(what: &str, bytes: u64) -> Misuse {
    bad(what, format!("{bytes} bytes"), "a resource buffer has at most 2^32 units of 128 bytes")
}

fn bad(name: &str, value: impl fmt::Display, why: &str) -> Misuse {
    Misuse::BadSetting { name: name.to_owned(), value: value.to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRANULARITY: u64 = 2 << 20;

    fn plan(requirements: &DevCommRequirements, lsa_size: u32) -> Plan {
        Plan::new(requirements, lsa_size, GRANULARITY).unwrap()
    }

    fn refused(requirements: &DevCommRequirements) -> String {
        let Err(Misuse::BadSetting { name, .. }) = Plan::new(requirements, 8, GRANULARITY) else {
            panic!("{requirements:?} was not refused");
        };
        name
    }

    #[test]
    fn nothing_asked_needs_no_resource_buffer() {
        assert_eq!(plan(&DevCommRequirements::new(), 8), Plan::default());
        let nothing =
            DevCommRequirements::new().lsa_multimem(true).lsa_barriers(0).ll_a2a(0, 9).buffer(0, 128);
        let plan = plan(&nothing, 8);
        assert_eq!((plan.total_bytes, plan.buffers.len(), plan.ll_a2a), (0, 1, None));
    }

    #[test]
    fn the_collectives_own_requirements_give_the_references_layout() {
        // 64 barriers and an all-to-all of 64 blocks with lsa_size x 512 slots: 10 MiB at 8 ranks.
        let requirements = DevCommRequirements::new().lsa_barriers(64).ll_a2a(64, 8 * 512);
        let plan = plan(&requirements, 8);
        assert_eq!(plan.lsa_barrier, Some(BarrierHandle { handle: ResourceHandle(0), count: 64 }));
        // 4 * (3 * 64 + 64 * 8) = 2,816 bytes are 22 units.
        assert_eq!(plan.ll_a2a, Some(LlA2aHandle { handle: ResourceHandle(22), blocks: 64, slots: 4096 }));
        let bytes: u64 = 2816 + 64 * (1 + 2 * 4096) * 16;
        assert_eq!(plan.total_bytes, bytes.next_multiple_of(GRANULARITY));
        assert_eq!(plan.total_bytes, 10 << 20);
    }

    #[test]
    fn buffers_follow_in_order_each_at_its_alignment() {
        let requirements =
            DevCommRequirements::new().buffer(1, 1).buffer(200, 4096).buffer(128, 16).lsa_barriers(1);
        let plan = plan(&requirements, 2);
        let offsets: Vec<u64> = plan.buffers.iter().map(|handle| handle.offset_bytes()).collect();
        assert_eq!(offsets, [128, 4096, 4096 + 256]);
        assert_eq!(plan.lsa_barrier.unwrap().handle, ResourceHandle(0), "first, though asked for last");
        assert_eq!(plan.total_bytes, GRANULARITY);
    }

    #[test]
    fn bug_29_alignments_are_powers_of_two_up_to_the_granularity() {
        for align in [0, 3, 96, GRANULARITY * 2, u64::MAX] {
            let requirements = DevCommRequirements::new().buffer(8, 1).buffer(8, align);
            assert_eq!(refused(&requirements), "alignment of buffer 1");
        }
        plan(&DevCommRequirements::new().buffer(8, GRANULARITY), 8);
    }

    #[test]
    fn bug_29_counts_that_overflow_are_refused_by_name() {
        assert_eq!(refused(&DevCommRequirements::new().lsa_barriers(1 << 31)), "LSA barriers");
        assert_eq!(
            refused(&DevCommRequirements::new().lsa_barriers((1 << 31) - 1).buffer(LIMIT_BYTES, 1)),
            "buffer 0"
        );
        assert_eq!(refused(&DevCommRequirements::new().ll_a2a(u32::MAX, u32::MAX)), "LL all-to-all");
        assert_eq!(refused(&DevCommRequirements::new().buffer(u64::MAX, 1)), "buffer 0");
        assert_eq!(refused(&DevCommRequirements::new().buffer(LIMIT_BYTES + 1, 1)), "buffer 0");
        assert_eq!(refused(&DevCommRequirements::new().buffer(LIMIT_BYTES, 1).buffer(0, 1)), "buffer 1");
        assert_eq!(plan(&DevCommRequirements::new().buffer(LIMIT_BYTES, 1), 8).total_bytes, LIMIT_BYTES);
        let barriers = DevCommRequirements::new().lsa_barriers((1 << 31) - 1);
        assert!(Plan::new(&barriers, u32::MAX, GRANULARITY).is_err());
    }

    #[test]
    fn impossible_surroundings_are_refused() {
        let requirements = DevCommRequirements::new().lsa_barriers(1);
        assert!(Plan::new(&requirements, 0, GRANULARITY).is_err());
        for granularity in [0, 64, 4097] {
            assert!(Plan::new(&requirements, 8, granularity).is_err());
        }
    }

    #[test]
    fn slots_are_elements_times_eight_byte_words() {
        assert_eq!(ll_a2a_slots(10, 8), Ok(10));
        assert_eq!(ll_a2a_slots(10, 9), Ok(20));
        assert_eq!(ll_a2a_slots(10, 0), Ok(0));
        assert_eq!(ll_a2a_slots(1 << 31, 8), Ok(1 << 31));
        assert!(ll_a2a_slots(1 << 31, 9).is_err());
    }

    #[test]
    fn members_of_a_team_agree_though_each_is_another_member() {
        let asked = |rank, stride| {
            DevCommRequirements::new().lsa_barriers(2).team(Team::strided(4, rank, stride).unwrap(), true)
        };
        assert_ne!(asked(0, 2), asked(3, 2));
        assert_eq!(asked(0, 2).agreed(), asked(3, 2).agreed());
        assert_eq!(asked(0, 2).describe(), asked(3, 2).describe());
        assert_ne!(asked(0, 1).agreed(), asked(0, 2).agreed());
        assert!(asked(3, 2).teams().eq([(Team::strided(4, 3, 2).unwrap(), true)]));
    }

    #[test]
    fn requirements_are_told_in_words() {
        let team = Team::strided(4, 1, 2).unwrap();
        let all = DevCommRequirements::new()
            .lsa_barriers(16)
            .lsa_multimem(true)
            .ll_a2a(4, 32)
            .buffer(4096, 128)
            .team(team, true);
        assert_eq!(
            all.describe(),
            "a device communicator with 16 LSA barriers, LSA multicast, LL all-to-all of 4 blocks with 32 slots, \
             buffer of 4096 bytes at 128, team of 4 with stride 2 and multicast"
        );
        assert_eq!(DevCommRequirements::new().describe(), "a device communicator with no resources");
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<DevCommRequirements>(&json).unwrap(), all);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn parts_never_overlap_and_lie_in_the_buffer(
            barriers in 0..100u32,
            blocks in 0..9u32,
            slots in 0..100u32,
            lsa_size in 1..17u32,
            buffers in prop::collection::vec((0..10_000u64, 0..13u32), 0..6),
        ) {
            let mut requirements = DevCommRequirements::new().lsa_barriers(barriers).ll_a2a(blocks, slots);
            for &(bytes, bits) in &buffers {
                requirements = requirements.buffer(bytes, 1 << bits);
            }
            let plan = Plan::new(&requirements, lsa_size, 4096).unwrap();
            let (n, r) = (u64::from(barriers), u64::from(lsa_size));
            let mut parts = Vec::new();
            parts.extend(plan.lsa_barrier.map(|barrier| (barrier.handle, 4 * (3 * n + n * r), 4)));
            let lines = u64::from(blocks) * (1 + 2 * u64::from(slots));
            parts.extend(plan.ll_a2a.map(|ll| (ll.handle, lines * 16, 16)));
            parts.extend(plan.buffers.iter().zip(&buffers).map(|(&h, &(bytes, bits))| (h, bytes, 1 << bits)));
            prop_assert_eq!(plan.lsa_barrier.is_some(), barriers > 0);
            prop_assert_eq!(plan.ll_a2a.is_some(), blocks > 0);
            let mut end = 0;
            for (handle, bytes, align) in parts {
                let start = handle.offset_bytes();
                prop_assert!(start >= end && start - end < 4096 && start.is_multiple_of(align));
                end = start + bytes;
            }
            prop_assert_eq!(plan.total_bytes, end.next_multiple_of(4096));
        }
    }
}
