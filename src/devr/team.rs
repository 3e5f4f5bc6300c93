//! Teams: ranks at equal distances in the world, as NCCL's device API describes them.
//!
//! A [`Team`] says how many members there are, which of them this rank is, and how far apart in the world they
//! are; like NCCL's struct it does not hold the rank itself, so conversions take it. Teams are valid by
//! construction; whether one lies in a world of some size is [`Team::validate`]'s to say.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Misuse;
use crate::ids::Rank;

/// A team with this rank as a member. See the module's text.
///
/// TM-1: `rank < n_ranks`, `stride >= 1`, and `n_ranks * stride` fits NCCL's 32-bit signed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Team {
    n_ranks: u32,
    rank: u32,
    stride: u32,
}

impl Team {
    /// The team of all `size` ranks.
    ///
    /// # Errors
    /// `BadSetting` if `rank` is not among them, or they are too many for NCCL's fields.
    pub fn world(rank: Rank, size: u32) -> Result<Self, Misuse> {
        Self::strided(size, rank.get(), 1)
    }

    /// The LSA team of `rank`: the world cut into pieces of `lsa_size` ranks.
    ///
    /// # Errors
    /// As [`Team::world`], and `BadSetting` if `lsa_size` does not divide `size`.
    pub fn lsa(rank: Rank, size: u32, lsa_size: u32) -> Result<Self, Misuse> {
        Self::world(rank, size)?.inner_factor(lsa_size)
    }

    /// The ranks with this rank's place in each LSA team (NCCL's rail team).
    ///
    /// # Errors
    /// As [`Team::lsa`].
    pub fn rail(rank: Rank, size: u32, lsa_size: u32) -> Result<Self, Misuse> {
        Self::world(rank, size)?.outer_factor(lsa_size)
    }

    /// `n_ranks` members at a distance of `stride` world ranks, this rank being number `rank` of them.
    ///
    /// # Errors
    /// `BadSetting` if TM-1 would not hold.
    pub fn strided(n_ranks: u32, rank: u32, stride: u32) -> Result<Self, Misuse> {
        if rank >= n_ranks {
            return Err(bad("team rank", rank, format!("a team of {n_ranks} has ranks below that")));
        }
        let span = n_ranks.checked_mul(stride).filter(|&span| i32::try_from(span).is_ok());
        if stride == 0 || span.is_none() {
            return Err(bad("team stride", stride, format!("at least 1, and times {n_ranks} below 2^31")));
        }
        Ok(Self { n_ranks, rank, stride })
    }

    /// This rank's piece of `inner` neighbouring members. Crossed with [`Team::outer_factor`] of the same
    /// `inner` it gives each member of this team once.
    ///
    /// # Errors
    /// `BadSetting` if `inner` does not divide the number of members.
    pub fn inner_factor(self, inner: u32) -> Result<Self, Misuse> {
        self.check_factor(inner)?;
        Self::strided(inner, self.rank % inner, self.stride)
    }

    /// The members that have this rank's place in their piece of `inner`.
    ///
    /// # Errors
    /// `BadSetting` if `inner` does not divide the number of members.
    pub fn outer_factor(self, inner: u32) -> Result<Self, Misuse> {
        self.check_factor(inner)?;
        // Divides `n_ranks`, so the new stride is within the old span (TM-1).
        Self::strided(self.n_ranks / inner, self.rank / inner, self.stride * inner)
    }

    /// How many members there are.
    #[must_use]
    pub const fn n_ranks(self) -> u32 {
        self.n_ranks
    }

    /// Which member this rank is.
    #[must_use]
    pub const fn rank(self) -> u32 {
        self.rank
    }

    /// How many world ranks lie from one member to the next.
    #[must_use]
    pub const fn stride(self) -> u32 {
        self.stride
    }

    /// The world rank of member `team_rank`, on the rank `world_rank`. `None` if there is no such member, or the
    /// team begins before world rank 0.
    #[must_use]
    pub fn rank_to_world(self, world_rank: Rank, team_rank: u32) -> Option<Rank> {
        if team_rank >= self.n_ranks {
            return None;
        }
        let distance = (i64::from(team_rank) - i64::from(self.rank)) * i64::from(self.stride);
        u32::try_from(i64::from(world_rank.get()) + distance).ok().map(Rank::new)
    }

    /// Which member the world rank `other` is, on the rank `world_rank`. `None` if it is none.
    #[must_use]
    pub fn rank_to_team(self, world_rank: Rank, other: Rank) -> Option<u32> {
        let distance = i64::from(other.get()) - i64::from(world_rank.get());
        let stride = i64::from(self.stride);
        let member = i64::from(self.rank) + distance / stride;
        u32::try_from(member).ok().filter(|&member| distance % stride == 0 && member < self.n_ranks)
    }

    /// Whether the world rank `other` is a member, on the rank `world_rank`.
    #[must_use]
    pub fn contains(self, world_rank: Rank, other: Rank) -> bool {
        self.rank_to_team(world_rank, other).is_some()
    }

    /// Member number `index`, from 0, of this team without `subset`, as a member of this team. `None` if there are not
    /// so many, or `subset` is no subset of this team (both are seen from the same rank).
    #[must_use]
    pub fn rank_in_difference(self, subset: Self, index: u32) -> Option<u32> {
        let step = subset.stride / self.stride;
        if subset.n_ranks > 1 && !subset.stride.is_multiple_of(self.stride) {
            return None;
        }
        // Where the subset begins and ends, in members of this team.
        let first = self.rank.checked_sub(subset.rank.checked_mul(step)?)?;
        if first + (subset.n_ranks - 1) * step >= self.n_ranks {
            return None;
        }
        let skipped = match index.checked_sub(first) {
            None => 0,
            // After each of the subset's members but the last, `step - 1` others come.
            Some(behind) => {
                let gaps = behind.checked_div(step.saturating_sub(1)).unwrap_or(u32::MAX);
                gaps.saturating_add(1).min(subset.n_ranks)
            }
        };
        index.checked_add(skipped).filter(|&member| member < self.n_ranks)
    }

    /// The members' world ranks in order, on the rank `world_rank`.
    pub fn members(self, world_rank: Rank) -> impl Iterator<Item = Rank> {
        (0..self.n_ranks).filter_map(move |member| self.rank_to_world(world_rank, member))
    }

    /// Whether all members exist where this rank is `world_rank` of `world_size`.
    ///
    /// # Errors
    /// `BadSetting` with the team if not.
    pub fn validate(self, world_rank: Rank, world_size: u32) -> Result<(), Misuse> {
        let first = self.rank_to_world(world_rank, 0);
        let last = self.rank_to_world(world_rank, self.n_ranks - 1);
        if world_rank.get() < world_size
            && first.is_some()
            && last.is_some_and(|last| last.get() < world_size)
        {
            return Ok(());
        }
        let why = format!("seen from {world_rank}, not all members are in a world of {world_size} ranks");
        Err(bad("team", self, why))
    }

    fn check_factor(self, inner: u32) -> Result<(), Misuse> {
        if inner != 0 && self.n_ranks.is_multiple_of(inner) {
            return Ok(());
        }
        Err(bad("inner size", inner, format!("it must divide the team's {} ranks", self.n_ranks)))
    }
}

impl fmt::Display for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_ranks, rank, stride } = self;
        write!(f, "member {rank} of a team of {n_ranks} with stride {stride}")
    }
}

/// A team as it comes over the wire.
#[derive(Deserialize)]
struct Raw {
    n_ranks: u32,
    rank: u32,
    stride: u32,
}

impl TryFrom<Raw> for Team {
    type Error = Misuse;

    fn try_from(raw: Raw) -> Result<Self, Misuse> {
        Self::strided(raw.n_ranks, raw.rank, raw.stride)
    }
}

fn bad(name: &str, value: impl fmt::Display, why: String) -> Misuse {
    Misuse::BadSetting { name: name.to_owned(), value: value.to_string(), why }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ranks(numbers: impl IntoIterator<Item = u32>) -> Vec<Rank> {
        numbers.into_iter().map(Rank::new).collect()
    }

    #[test]
    fn teams_of_a_world_of_eight_in_two_pieces() {
        let me = Rank::new(5);
        let lsa = Team::lsa(me, 8, 4).unwrap();
        let rail = Team::rail(me, 8, 4).unwrap();
        assert_eq!((lsa.n_ranks(), lsa.rank(), lsa.stride()), (4, 1, 1));
        assert_eq!((rail.n_ranks(), rail.rank(), rail.stride()), (2, 1, 4));
        assert!(lsa.members(me).eq(ranks(4..8)));
        assert!(rail.members(me).eq(ranks([1, 5])));
        assert!(Team::world(me, 8).unwrap().members(me).eq(ranks(0..8)));
        assert_eq!(rail.to_string(), "member 1 of a team of 2 with stride 4");
    }

    #[test]
    fn impossible_teams_are_refused() {
        let me = Rank::new(3);
        assert!(Team::world(me, 3).is_err());
        assert!(Team::world(Rank::new(0), 0).is_err());
        assert!(Team::lsa(me, 8, 3).is_err() && Team::lsa(me, 8, 0).is_err());
        assert!(Team::strided(2, 2, 1).is_err() && Team::strided(2, 0, 0).is_err());
        assert!(Team::strided(1 << 16, 0, 1 << 15).is_err(), "2^31 is no i32");
        assert!(Team::strided(1 << 16, 0, 1 << 16).is_err(), "2^32 is no u32");
        assert!(Team::strided((1 << 31) - 1, 0, 1).is_ok());
    }

    #[test]
    fn a_team_that_leaves_the_world_is_seen() {
        let team = Team::strided(4, 1, 2).unwrap(); // members at -2, 0, +2, +4
        assert!(team.validate(Rank::new(2), 7).is_ok());
        assert!(team.validate(Rank::new(2), 6).is_err());
        assert!(team.validate(Rank::new(1), 9).is_err());
        assert!(Team::strided(1, 0, 1).unwrap().validate(Rank::new(4), 4).is_err());
    }

    #[test]
    fn a_team_from_the_wire_is_checked() {
        let team = Team::strided(4, 1, 2).unwrap();
        let json = serde_json::to_string(&team).unwrap();
        assert_eq!(serde_json::from_str::<Team>(&json).unwrap(), team);
        assert!(serde_json::from_str::<Team>(r#"{"n_ranks":4,"rank":4,"stride":2}"#).is_err());
    }

    #[test]
    fn a_difference_with_what_is_no_subset_is_none() {
        let all = Team::strided(4, 1, 2).unwrap();
        let elsewhere = Team::strided(2, 0, 3).unwrap();
        let larger = Team::strided(5, 1, 2).unwrap();
        let earlier = Team::strided(4, 3, 2).unwrap();
        assert_eq!([elsewhere, larger, earlier].map(|team| all.rank_in_difference(team, 0)), [None; 3]);
    }

    /// A team, where this rank is in the world, and the world's size.
    fn placed() -> impl Strategy<Value = (Team, Rank, u32)> {
        (1..20u32, 1..5u32, 0..5u32, 0..5u32, any::<prop::sample::Index>()).prop_map(
            |(n_ranks, stride, before, after, which)| {
                let rank = u32::try_from(which.index(n_ranks as usize)).unwrap();
                let team = Team::strided(n_ranks, rank, stride).unwrap();
                let size = before + (n_ranks - 1) * stride + 1 + after;
                (team, Rank::new(before + rank * stride), size)
            },
        )
    }

    fn divisors(n: u32) -> impl Iterator<Item = u32> {
        (1..=n).filter(move |&divisor| n.is_multiple_of(divisor))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn conversions_invert_each_other((team, me, size) in placed()) {
            team.validate(me, size).unwrap();
            prop_assert_eq!(team.rank_to_world(me, team.rank()), Some(me));
            prop_assert_eq!(team.rank_to_world(me, team.n_ranks()), None);
            let members: Vec<Rank> = team.members(me).collect();
            prop_assert_eq!(members.len(), team.n_ranks() as usize);
            for other in (0..size).map(Rank::new) {
                let position = members.iter().position(|&member| member == other);
                let member = team.rank_to_team(me, other);
                prop_assert_eq!(member.map(|member| member as usize), position);
                prop_assert_eq!(team.contains(me, other), position.is_some());
                if let Some(member) = member {
                    prop_assert_eq!(team.rank_to_world(me, member), Some(other));
                }
            }
        }

        #[test]
        fn inner_times_outer_covers_the_parent_exactly_once((team, me, _) in placed()) {
            for inner in divisors(team.n_ranks()) {
                let mut covered = Vec::new();
                let outer_team = team.outer_factor(inner).unwrap();
                for row in outer_team.members(me) {
                    // The same place in the parent, as that rank sees it.
                    let member = team.rank_to_team(me, row).unwrap();
                    let seen = Team::strided(team.n_ranks(), member, team.stride()).unwrap();
                    covered.extend(seen.inner_factor(inner).unwrap().members(row));
                }
                covered.sort();
                prop_assert!(team.members(me).eq(covered));
            }
        }

        #[test]
        fn a_difference_is_the_members_left_in_order((team, me, _) in placed()) {
            for inner in divisors(team.n_ranks()) {
                for subset in [team.inner_factor(inner).unwrap(), team.outer_factor(inner).unwrap()] {
                    let taken: BTreeSet<Rank> = subset.members(me).collect();
                    let left = (0..team.n_ranks())
                        .filter(|&member| !taken.contains(&team.rank_to_world(me, member).unwrap()));
                    let difference = (0..).map_while(|index| team.rank_in_difference(subset, index));
                    prop_assert!(left.eq(difference));
                }
            }
        }
    }
}
