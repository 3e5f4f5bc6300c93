//! The flat range: one reserved range of addresses that the ranks of one process (and one LSA team, of one
//! communicator) share.
//!
//! It has a part of one stride for each LSA rank, in order; byte o of LSA rank r's memory is at
//! `base + r * stride + offset + o`. Every rank maps its own allocations here, the lowest rank of the process
//! those of other processes, so that a window costs R mappings in a process and not R x R. What belongs to a
//! memory is unmapped when the last rank of the process has retired it, and never on a failed communicator
//! before the last rank of the process has closed it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::flush::message::MemoryId;
use crate::driver::range::{Mapped, Reservation, unmap_all};
use crate::driver::{DeviceError, Driver};
use crate::ids::LsaRank;

/// What `reserve` aligns the range to: the largest page that a device may use.
const ALIGN: usize = 512 << 20;

/// What is kept until the last close of the process: nobody can use it any more by then.
pub(crate) trait Kept: fmt::Debug + Send {
    /// Gives it back, whatever fails on the way. The flat range and all that was mapped in it are gone.
    fn give_back(self: Box<Self>) -> Vec<DeviceError>;
}

/// A buffer under a window that was closed.
#[derive(Debug)]
pub(crate) struct KeptBuffer(pub(crate) Arc<dyn Any + Send + Sync>);

impl Kept for KeptBuffer {
    fn give_back(self: Box<Self>) -> Vec<DeviceError> {
        // Its allocator reports what it cannot give back.
        drop(self.0);
        Vec::new()
    }
}

/// The flat range of one process for one LSA team.
#[derive(Debug)]
pub(crate) struct FlatRange {
    stride: usize,
    lsa_size: usize,
    ranks_here: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where it is, once a rank has needed it.
    range: Option<Arc<Reservation>>,
    /// The device that reserved it.
    driver: Option<Arc<dyn Driver>>,
    /// Ranks of the process that have not closed the communicator.
    open: usize,
    /// What is mapped for each committed memory, and how many ranks of the process have not retired it.
    memories: BTreeMap<MemoryId, (Vec<Mapped>, usize)>,
    /// What dropped jobs had made, kept until the last close.
    attic: Vec<Box<dyn Kept>>,
    /// Something may still run on it: it stays mapped for ever.
    leaked: bool,
}

impl FlatRange {
    /// A range for `lsa_size` ranks, `ranks_here` of them in this process. Reserves nothing yet.
    pub(crate) fn new(stride: u64, lsa_size: u32, ranks_here: usize) -> Arc<Self> {
        let inner = Inner {
            range: None,
            driver: None,
            open: ranks_here,
            memories: BTreeMap::new(),
            attic: Vec::new(),
            leaked: false,
        };
        Arc::new(Self {
            stride: usize::try_from(stride).unwrap_or(usize::MAX),
            lsa_size: lsa_size as usize,
            ranks_here,
            inner: Mutex::new(inner),
        })
    }

    /// The range, reserving it on first use. Whoever calls this lets go of it before the communicator is closed.
    pub(crate) fn range(&self, driver: &Arc<dyn Driver>) -> Result<Arc<Reservation>, DeviceError> {
        let mut inner = self.inner.lock();
        if let Some(range) = &inner.range {
            return Ok(Arc::clone(range));
        }
        let range = Arc::new(Reservation::new(&**driver, self.len(), ALIGN)?);
        inner.driver = Some(Arc::clone(driver));
        inner.range = Some(Arc::clone(&range));
        Ok(range)
    }

    /// The address of `offset` in the part of `rank`.
    pub(crate) fn address(&self, range: &Reservation, rank: LsaRank, offset: u64) -> usize {
        // The offset is less than the stride, which fitted into an address.
        range.base() + rank.index() * self.stride + usize::try_from(offset).unwrap_or(usize::MAX)
    }

    /// Takes over what a rank has mapped for a committed memory.
    pub(crate) fn commit(&self, id: MemoryId, mapped: Vec<Mapped>) {
        let mut inner = self.inner.lock();
        let ranks = self.ranks_here;
        inner.memories.entry(id).or_insert_with(|| (Vec::new(), ranks)).0.extend(mapped);
    }

    /// A rank of the process has retired the memory; the last one unmaps it.
    pub(crate) fn retire(&self, id: MemoryId, driver: &dyn Driver) -> Vec<DeviceError> {
        let mapped = {
            let mut inner = self.inner.lock();
            let Some((_, left)) = inner.memories.get_mut(&id) else { return Vec::new() };
            *left -= 1;
            if *left > 0 {
                return Vec::new();
            }
            inner.memories.remove(&id).map(|(mapped, _)| mapped).unwrap_or_default()
        };
        unmap_all(driver, mapped)
    }

    /// [`Bug::UnmapsForAll`](super::zoo::Bug::UnmapsForAll): takes whoever retires the memory next for the last one.
    pub(crate) fn last_to_retire(&self, id: MemoryId) {
        if let Some((_, left)) = self.inner.lock().memories.get_mut(&id) {
            *left = 1;
        }
    }

    /// Keeps something until the last rank of the process has closed.
    pub(crate) fn keep(&self, what: Box<dyn Kept>) {
        self.inner.lock().attic.push(what);
    }

    /// Something may run on this range after the close: never unmap it.
    pub(crate) fn leak(&self) {
        self.inner.lock().leaked = true;
    }

    /// A rank of the process has closed the communicator; the last one gives the range back.
    pub(crate) fn close(&self, driver: &dyn Driver) -> Vec<DeviceError> {
        let (range, attic) = {
            let mut inner = self.inner.lock();
            inner.open = inner.open.saturating_sub(1);
            if inner.open > 0 || inner.leaked {
                return Vec::new();
            }
            inner.memories.clear();
            (inner.range.take(), std::mem::take(&mut inner.attic))
        };
        let mut errors = Vec::new();
        // Every rank of the process has closed and let go of the range; a batch holds it within one step only.
        if let Some(range) = range.and_then(Arc::into_inner) {
            errors.extend(range.free(driver).err());
        }
        errors.extend(attic.into_iter().flat_map(|kept| kept.give_back()));
        errors
    }

    fn len(&self) -> usize {
        self.stride.saturating_mul(self.lsa_size)
    }
}

impl Drop for FlatRange {
    /// Where some rank of the process has never been in this communicator (it did not duplicate its parent), no close
    /// is the last one. Nobody is left who could use the range here.
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let (range, driver) = (inner.range.take().and_then(Arc::into_inner), inner.driver.take());
        if let (Some(range), Some(driver), false) = (range, driver, inner.leaked)
            && let Err(error) = range.free(&*driver)
        {
            tracing::error!(%error, "close.undo_failed");
        }
    }
}
