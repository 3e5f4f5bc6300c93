//! What the benches of this repository measure and users never see: there only with the feature `bench-internals`,
//! without any promise.

use std::sync::Arc;

use smallvec::smallvec;

use crate::devr::flush::message::{
    AllocationOffer, Fingerprint, Offer as Message, RangeOffer, TaskOffer, Token, decode, encode,
};

/// The offer of one rank that registers windows, as it goes to the other ranks of its team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer(Message);

impl Offer {
    /// Of windows that lie one behind the other in one allocation.
    #[must_use]
    pub fn of_one_allocation(windows: u32) -> Self {
        let tasks = (0..windows).map(|i| task(0, u64::from(i) * WINDOW_BYTES)).collect();
        Self::of(tasks, vec![range(0)], vec![allocation(0, u64::from(windows) * WINDOW_BYTES)])
    }

    /// Of windows that have an allocation each.
    #[must_use]
    pub fn of_own_allocations(windows: u32) -> Self {
        Self::of(
            (0..windows).map(|i| task(i, 0)).collect(),
            (0..windows).map(range).collect(),
            (0..windows).map(|i| allocation(i, WINDOW_BYTES)).collect(),
        )
    }

    /// The bytes that are sent.
    #[must_use]
    pub fn encode(&self) -> Arc<[u8]> {
        encode(&self.0)
    }

    /// What a receiver makes of them: decoded, and checked before it is used.
    ///
    /// # Errors
    /// In words, what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let offer: Message = decode(bytes)?;
        offer.check()?;
        Ok(Self(offer))
    }

    /// As the first step of the flush makes it: all windows ask for the same.
    fn of(tasks: Vec<TaskOffer>, ranges: Vec<RangeOffer>, allocations: Vec<AllocationOffer>) -> Self {
        Self(Message {
            group: None,
            abandoned: false,
            tasks: tasks.into_iter().collect(),
            prints: vec![Fingerprint::Window { size: Some(WINDOW_BYTES), flags: 0, label: None }],
            ranges,
            allocations,
            retired: Vec::new(),
            quarantined: Vec::new(),
            refused: Vec::new(),
            multicast: Vec::new(),
        })
    }
}

fn task(range: u32, head: u64) -> TaskOffer {
    TaskOffer { print: 0, range, head, size: WINDOW_BYTES }
}

fn range(allocation: u32) -> RangeOffer {
    RangeOffer {
        allocations: smallvec![allocation],
        base: FIRST_ADDRESS + u64::from(allocation) * WINDOW_BYTES,
    }
}

fn allocation(number: u32, size: u64) -> AllocationOffer {
    AllocationOffer { token: Token(u64::from(number)), size, handle: true }
}

const WINDOW_BYTES: u64 = 2 << 20;
/// As long in its encoding as the addresses of real allocations.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
