//! What ranks tell each other in the rounds of a batch.
//!
//! Messages are postcard-encoded; handles ride beside them, in the order in which the message names them.

use std::fmt::Write as _;

use bitflags::bitflags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::tasks::{Run, Tasks};
use crate::devr::dev_comm::DevCommRequirements;
use crate::error::{Cause, Fault, Peer};

bitflags! {
    /// What a window is for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct WindowFlags: u32 {
        /// The window may be used by symwin's collectives. The first one brings their own device communicator
        /// along in the same batch.
        const COLL_SYMMETRIC = 1;
        /// Kept for programs written for NCCL, whose flag it is. It changes nothing on one host.
        const STRICT_ORDERING = 2;
    }
}

/// An allocation by the name that its rank gave it. None is used twice on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Token(pub(crate) u64);

/// A memory of the replicated state, by its number in the agreed history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct MemoryId(pub(crate) u64);

/// The rounds of a batch, as they stand in a message's tag.
pub(crate) mod round {
    /// Every rank of the team to every other: [`super::Offer`].
    pub(crate) const OFFER: u8 = 0;
    /// The handles that came with no offer.
    pub(crate) const HANDLES: u8 = 1;
    /// Whether every device was added to the new multicast objects: [`super::Vote`].
    pub(crate) const MULTICAST: u8 = 2;
    /// Every rank of the team to every other: [`super::Vote`].
    pub(crate) const VOTE: u8 = 3;
    /// A team's leader to its members: why the batch must be rolled back, if it must.
    pub(crate) const VERDICT: u8 = 4;
    /// Between leaders, step k has tag `MERGE + k`: [`super::Merged`].
    pub(crate) const MERGE: u8 = 16;
}

/// The name of a round, for messages.
pub(crate) fn round_name(round: u8) -> &'static str {
    match round {
        round::OFFER => "offer",
        round::HANDLES => "handles",
        round::MULTICAST => "multicast",
        round::VOTE => "vote",
        round::VERDICT => "verdict",
        _ => "merge",
    }
}

/// What a rank wants of a batch, what it has, or why it cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The group's name, part of the fingerprint.
    pub(crate) group: Option<String>,
    /// The group was dropped before its end.
    pub(crate) abandoned: bool,
    /// The batch's tasks in order.
    pub(crate) tasks: Tasks,
    /// What tasks ask for. Neighbours that ask for the same share one: tasks are many and mostly alike.
    pub(crate) prints: Vec<Fingerprint>,
    /// What tasks lie in. Neighbours in the same allocations share one.
    pub(crate) ranges: Vec<RangeOffer>,
    /// Every allocation under the tasks, once.
    pub(crate) allocations: Vec<AllocationOffer>,
    /// Memories retired since this rank's last offer.
    pub(crate) retired: Vec<MemoryId>,
    /// Ranges (offset, span) quarantined since this rank's last offer.
    pub(crate) quarantined: Vec<(u64, u64)>,
    /// Why this rank cannot take part, if it cannot.
    pub(crate) refused: Vec<Fault>,
    /// Teams (by their LSA ranks) whose multicast object this rank made, being their first; their handles follow
    /// those of the allocations, each to the members of its team only.
    pub(crate) multicast: Vec<Vec<u32>>,
}

impl Offer {
    /// What a peer sends is checked before it is used as an index.
    ///
    /// # Errors
    /// In words, what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let allocations = self.allocations.len();
        if self.ranges.iter().flat_map(|range| &range.allocations).any(|&index| index as usize >= allocations)
        {
            return Err(format!("an offer that refers beyond its {allocations} allocations"));
        }
        let room_of = |range: &RangeOffer| self.sizes(range).try_fold(0u64, u64::checked_add);
        let rooms: Vec<Option<u64>> = self.ranges.iter().map(room_of).collect();
        if self.tasks.count().is_none() {
            return Err("an offer of more tasks than there are numbers".to_owned());
        }
        // Ranges are listed as tasks need them. So rows of several ranges have together no more tasks than there are
        // rows and ranges, and what a peer says is checked in the time that it took to say it.
        self.tasks.runs().try_fold(0, |before, (_, run)| self.check_run(run, &rooms, before)).map(drop)
    }

    /// After a run whose last task is in range `before`. Gives the same of this one.
    fn check_run(&self, run: &Run, rooms: &[Option<u64>], before: u32) -> Result<u32, String> {
        let known = |last: &TaskOffer| (last.range as usize) < self.ranges.len();
        let (Some(print), Some(last)) = (self.prints.get(run.first.print as usize), run.last().filter(known))
        else {
            return Err("an offer of a task that refers to what is not in it".to_owned());
        };
        if run.first.range < before {
            return Err("an offer of tasks that are not in the order of their ranges".to_owned());
        }
        // In one range, its last task ends last.
        let (mut first, mut others) = (None, None);
        if run.range_step == 0 {
            first = Some(last);
        } else {
            others = Some(run.tasks());
        }
        for task in first.into_iter().chain(others.iter_mut().flatten()) {
            let range = task.range as usize;
            let end = task.head.checked_add(task.size);
            if end.zip(rooms[range]).is_none_or(|(end, room)| end > room) {
                return Err("an offer of a task beyond its allocations".to_owned());
            }
            let said = match print {
                Fingerprint::Window { size, .. } => size.unwrap_or(task.size),
                Fingerprint::DevComm { .. } => task.size,
            };
            // A refused task has no allocations and no size, whatever was asked.
            if !self.ranges[range].allocations.is_empty() && said != task.size {
                return Err(format!("an offer of {} bytes for a window of {said}", task.size));
            }
        }
        Ok(last.range)
    }

    /// What a task asks for.
    pub(crate) fn print(&self, task: &TaskOffer) -> &Fingerprint {
        &self.prints[task.print as usize]
    }

    /// What a task lies in.
    pub(crate) fn range(&self, task: &TaskOffer) -> &RangeOffer {
        &self.ranges[task.range as usize]
    }

    /// The sizes of a range's allocations, in order.
    pub(crate) fn sizes(&self, range: &RangeOffer) -> impl Iterator<Item = u64> {
        range.allocations.iter().map(|&index| self.allocations[index as usize].size)
    }
}

/// One allocation of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AllocationOffer {
    /// Its name on its rank.
    pub(crate) token: Token,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// Whether its handle rides with the offer.
    pub(crate) handle: bool,
}

/// Allocations that lie one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RangeOffer {
    /// In order of address, as indices into [`Offer::allocations`]. None under a refused task.
    pub(crate) allocations: SmallVec<[u32; 2]>,
    /// The address of the first of them on its rank, for messages.
    pub(crate) base: u64,
}

/// One task of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskOffer {
    /// What must be equal on all ranks, as an index into [`Offer::prints`].
    pub(crate) print: u32,
    /// The allocations under it, as an index into [`Offer::ranges`].
    pub(crate) range: u32,
    /// Where it starts in the first of them, in bytes.
    pub(crate) head: u64,
    /// Its size in bytes.
    pub(crate) size: u64,
}

/// What must be equal on all ranks for a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fingerprint {
    /// A window.
    Window {
        /// Its size in bytes, unless sizes may differ between ranks.
        size: Option<u64>,
        /// Its flags' bits.
        flags: u32,
        /// Its label.
        label: Option<String>,
    },
    /// A device communicator.
    DevComm {
        /// What it needs. Boxed: windows are many, device communicators few.
        requirements: Box<DevCommRequirements>,
    },
}

impl Fingerprint {
    /// The request in words, for mismatch errors.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Window { size, flags, label } => {
                let mut text =
                    size.map_or("a window of any size".to_owned(), |s| format!("a window of {s} bytes"));
                if let Some(label) = label {
                    let _ = write!(text, " labelled `{label}`");
                }
                if *flags != 0 {
                    let _ = write!(text, " with flags {flags:#x}");
                }
                text
            }
            Self::DevComm { requirements } => requirements.describe(),
        }
    }

    /// The same with what rightly differs between ranks made equal.
    pub(crate) fn agreed(&self) -> Self {
        match self {
            Self::Window { .. } => self.clone(),
            Self::DevComm { requirements } => Self::DevComm { requirements: Box::new(requirements.agreed()) },
        }
    }

    /// A window's flags; 0 for a device communicator.
    pub(crate) fn flags(&self) -> u32 {
        match self {
            Self::Window { flags, .. } => *flags,
            Self::DevComm { .. } => 0,
        }
    }

    /// In what two requests differ, `None` if in nothing that must be equal.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        match (self, other) {
            (Self::Window { size, flags, label }, Self::Window { size: s, flags: f, label: l }) => {
                if label != l {
                    Some("label")
                } else if size != s {
                    Some("size")
                } else if flags != f {
                    Some("flags")
                } else {
                    None
                }
            }
            (Self::DevComm { requirements: a }, Self::DevComm { requirements: b }) => {
                if a.agreed() == b.agreed() { None } else { Some("requirements") }
            }
            _ => Some("kind"),
        }
    }
}

/// A rank's verdict on its own part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vote {
    /// The digest of the decision and of the state that it was made in.
    pub(crate) digest: u64,
    /// Why this rank's part failed; empty when it is well.
    pub(crate) faults: Vec<Fault>,
}

/// What LSA teams tell each other: the verdict of all teams heard of so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Merged {
    /// Why the batch must be rolled back, if some team says so.
    pub(crate) cause: Option<Cause>,
    /// Every request that differs from the others, by the lowest leader that made it.
    pub(crate) requests: Vec<(Peer, Request)>,
}

/// A batch as other teams see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The group's name.
    pub(crate) group: Option<String>,
    /// The fingerprints of its tasks.
    pub(crate) tasks: Vec<Fingerprint>,
}

/// Encodes a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> std::sync::Arc<[u8]> {
    // Only types of this module come here; they hold no map or sequence of unknown length, so it cannot fail.
    postcard::to_stdvec(message).expect("messages of the flush are always encodable").into()
}

/// Decodes a message whose frame's checksum was right.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("{} bytes too many in a message", rest.len())),
        Err(error) => Err(format!("a message that cannot be decoded: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(head: u64, size: u64, said: Option<u64>) -> Offer {
        let print = Fingerprint::Window { size: said, flags: 0, label: None };
        let task = TaskOffer { print: 0, range: 0, head, size };
        let allocation = |token| AllocationOffer { token: Token(token), size: 4096, handle: false };
        Offer {
            group: None,
            abandoned: false,
            tasks: [task].into_iter().collect(),
            prints: vec![print],
            ranges: vec![RangeOffer { allocations: smallvec::smallvec![0, 1], base: 0 }],
            allocations: vec![allocation(1), allocation(2)],
            retired: Vec::new(),
            quarantined: Vec::new(),
            refused: Vec::new(),
            multicast: Vec::new(),
        }
    }

    #[test]
    fn a_peers_sizes_are_held_against_its_allocations_and_its_words() {
        assert_eq!(offer(4096, 4096, Some(4096)).check(), Ok(()));
        assert_eq!(offer(0, 8192, None).check(), Ok(()));
        assert!(offer(4096, 4097, None).check().is_err(), "beyond its allocations");
        assert!(offer(u64::MAX, 2, None).check().is_err(), "beyond all numbers");
        assert!(offer(0, 1 << 40, Some(4096)).check().is_err());
        assert!(offer(0, 4096, Some(8192)).check().is_err(), "not the size that it asks for");
        let mut beyond = offer(0, 4096, None);
        beyond.ranges[0].allocations[1] = 2;
        assert!(beyond.check().is_err(), "no such allocation");
        for wrong in [|task: &mut TaskOffer| task.print = 1, |task: &mut TaskOffer| task.range = 1] {
            let mut beyond = offer(0, 4096, None);
            let mut task = beyond.tasks.iter().next().unwrap();
            wrong(&mut task);
            beyond.tasks = [task].into_iter().collect();
            assert!(beyond.check().is_err(), "no such print or range");
        }
    }

    #[test]
    fn every_task_of_a_row_is_checked() {
        let row = |heads: &[(u32, u64)]| {
            let mut offer = offer(0, 4096, Some(4096));
            offer.ranges.push(offer.ranges[0].clone());
            let task = |&(range, head)| TaskOffer { print: 0, range, head, size: 4096 };
            offer.tasks = heads.iter().map(task).collect();
            assert_eq!(offer.tasks.runs().count(), 1);
            offer.check()
        };
        assert_eq!(row(&[(0, 0), (0, 4096)]), Ok(()));
        assert!(row(&[(0, 0), (0, 4096), (0, 8192)]).is_err(), "the last is beyond its allocations");
        assert_eq!(row(&[(0, 0), (1, 4096)]), Ok(()));
        assert!(row(&[(0, 4096), (1, 8192)]).is_err(), "the last is beyond its allocations");
        assert!(row(&[(0, 0), (1, 0), (2, 0)]).is_err(), "no such range");
    }

    /// Some bytes could otherwise ask for as many checks as there are rows times ranges.
    #[test]
    fn rows_that_go_through_the_ranges_again_are_refused() {
        let mut twice = offer(0, 4096, Some(4096));
        twice.ranges.push(twice.ranges[0].clone());
        let task = |range| TaskOffer { print: 0, range, head: 0, size: 4096 };
        twice.tasks = [0, 1, 1, 1].map(task).into_iter().collect();
        assert_eq!(twice.check(), Ok(()));
        twice.tasks = [0, 1, 0, 1].map(task).into_iter().collect();
        assert!(twice.check().is_err());
    }
}
