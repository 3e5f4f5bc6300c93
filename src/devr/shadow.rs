//! Device objects with a host shadow each.
//!
//! A kernel reads a `T` in device memory; the host keeps an equal one (the shadow), changes that, and uploads what
//! changed, neighbours in one copy. Objects live in pages of device memory that are kept until the pool closes,
//! so that a million cycles need no more memory than the most objects that were alive at once. The lowest free
//! slot is used first, so that tables of objects stay compact.
//!
//! Rules for the owner of a pool:
//! - SH-1 A freed slot is given out again at once. Free it only when every kernel and stream that may read the
//!   object has ended; the reference does not wait and lets a running kernel see another window's data.
//! - SH-2 Upload on one stream, or on streams that wait for each other. Close or drop the pool only when those
//!   streams and all kernels that know its addresses have ended.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::driver::page::Page;
use crate::driver::{DeviceError, Driver, Stream};

/// Names an object of one pool. Slots are used again; a name is not: an old one is known to be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    index: u32,
    generation: u64,
}

/// How much a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowCounts {
    /// Objects alive.
    pub slots: usize,
    /// Pages of device memory. Never fewer than before, until the pool closes.
    pub pages: usize,
    /// Objects that the next upload copies.
    pub dirty: usize,
}

/// The pool. See the module's text.
pub struct ShadowPool<T> {
    driver: Arc<dyn Driver>,
    granularity: usize,
    /// Every slot that was ever used. (`slab` would give out the slot freed last, and pages would stay sparse.)
    objects: Vec<Object<T>>,
    /// The unused ones below `objects.len()`, lowest first.
    free: BinaryHeap<Reverse<u32>>,
    /// The slots of all objects that are dirty, each at least once, and of some that no longer are.
    dirty: Vec<u32>,
    /// How many objects are dirty.
    n_dirty: usize,
    pages: Vec<Slots>,
    /// Page by its first device address.
    by_base: BTreeMap<usize, usize>,
    /// Undo calls that failed and were not yet asked for.
    undo_errors: Vec<DeviceError>,
}

struct Object<T> {
    /// How often the slot was freed.
    generation: u64,
    /// The shadow; `None` while the slot is free.
    shadow: Option<T>,
    /// Whether it is alive and differs from the device's.
    dirty: bool,
}

/// A page and the slots it holds, from `first` on.
struct Slots {
    page: Page,
    first: usize,
}

impl<T: IntoBytes + FromBytes + Immutable + KnownLayout + Copy> ShadowPool<T> {
    /// Bytes from one object to the next on the device: the size rounded up, so that objects start at sectors.
    pub const STRIDE: usize = {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 32);
        size_of::<T>().next_multiple_of(32)
    };

    /// An empty pool. Makes no device call.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let granularity = driver.info().granularity;
        Self {
            driver,
            granularity: usize::try_from(granularity).expect("a granularity fits the address space"),
            objects: Vec::new(),
            free: BinaryHeap::new(),
            dirty: Vec::new(),
            n_dirty: 0,
            pages: Vec::new(),
            by_base: BTreeMap::new(),
            undo_errors: Vec::new(),
        }
    }

    /// Makes an object at the lowest free slot. The device has it after the next upload.
    ///
    /// # Errors
    /// Of the device, where another page is needed; the pool is then as before.
    pub fn alloc(&mut self, value: T) -> Result<Slot, DeviceError> {
        if self.free.is_empty() && self.objects.len() == self.capacity() {
            self.add_page()?;
        }
        let index = self.free.pop().map_or_else(
            || {
                self.objects.push(Object { generation: 0, shadow: None, dirty: false });
                u32::try_from(self.objects.len() - 1).expect("fewer than 2^32 device objects")
            },
            |Reverse(index)| index,
        );
        let object = &mut self.objects[index as usize];
        object.shadow = Some(value);
        let slot = Slot { index, generation: object.generation };
        self.mark(index, true);
        Ok(slot)
    }

    /// The shadow. `None` if the slot is stale.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&T> {
        let object = self.objects.get(slot.index as usize)?;
        object.shadow.as_ref().filter(|_| object.generation == slot.generation)
    }

    /// Changes the shadow now and the device's object with the next upload. `false` if the slot is stale.
    pub fn set(&mut self, slot: Slot, value: T) -> bool {
        let Some(shadow) = self.shadow_mut(slot) else {
            return false;
        };
        *shadow = value;
        self.mark(slot.index, true);
        true
    }

    /// The object's device address. `None` if the slot is stale.
    #[must_use]
    pub fn address(&self, slot: Slot) -> Option<usize> {
        self.get(slot)?;
        let (page, offset) = self.place(slot.index);
        Some(page.base() + offset)
    }

    /// The object that has this device address within its bytes. `None` for any other address.
    #[must_use]
    pub fn slot_at(&self, address: usize) -> Option<Slot> {
        let (&base, &page) = self.by_base.range(..=address).next_back()?;
        let offset = address - base;
        let within = offset / Self::STRIDE;
        if within >= slots_of::<T>(&self.pages[page].page) || offset % Self::STRIDE >= size_of::<T>() {
            return None;
        }
        let index = self.pages[page].first + within;
        let object = self.objects.get(index).filter(|object| object.shadow.is_some())?;
        Some(Slot { index: u32::try_from(index).ok()?, generation: object.generation })
    }

    /// Queues the copies of all objects that changed, neighbours in one. Gives the number of copies.
    ///
    /// # Errors
    /// Of the device; what was not queued is still dirty and goes with the next upload.
    pub fn upload(&mut self, stream: Stream) -> Result<usize, DeviceError> {
        self.forget_stale();
        let dirty = std::mem::take(&mut self.dirty);
        let uploaded = self.upload_sorted(stream, &dirty);
        self.dirty = dirty;
        self.forget_stale();
        uploaded
    }

    fn upload_sorted(&mut self, stream: Stream, dirty: &[u32]) -> Result<usize, DeviceError> {
        let adjacent = |&a: &u32, &b: &u32| a + 1 == b && self.page_of(a) == self.page_of(b);
        let runs: Vec<&[u32]> = dirty.chunk_by(adjacent).collect();
        let copies = runs.len();
        for run in runs {
            let mut bytes = vec![0; run.len() * Self::STRIDE];
            for (to, &index) in bytes.chunks_exact_mut(Self::STRIDE).zip(run) {
                let shadow = self.objects[index as usize].shadow.as_ref().expect("dirty objects are alive");
                to[..size_of::<T>()].copy_from_slice(shadow.as_bytes());
            }
            let (page, offset) = self.place(run[0]);
            page.copy(stream, offset, &bytes)?;
            for &index in run {
                self.mark(index, false);
            }
        }
        Ok(copies)
    }

    /// Writes `bytes` at `offset` of the device's object in a copy of its own, and into the shadow: for updates
    /// whose order counts. The range must lie in `T`. `false`, and nothing done, if the slot is stale.
    ///
    /// # Errors
    /// Of the device; the shadow is then as before.
    pub fn patch(
        &mut self,
        stream: Stream,
        slot: Slot,
        offset: usize,
        bytes: &[u8],
    ) -> Result<bool, DeviceError> {
        let Some(mut value) = self.get(slot).copied() else {
            return Ok(false);
        };
        value.as_mut_bytes()[offset..offset + bytes.len()].copy_from_slice(bytes);
        let (page, start) = self.place(slot.index);
        page.copy(stream, start + offset, bytes)?;
        self.objects[slot.index as usize].shadow = Some(value);
        Ok(true)
    }

    /// Frees the slot for the next `alloc` (SH-1). `false` if it is stale.
    pub fn free(&mut self, slot: Slot) -> bool {
        if self.get(slot).is_none() {
            return false;
        }
        let object = &mut self.objects[slot.index as usize];
        object.shadow = None;
        object.generation += 1;
        self.mark(slot.index, false);
        self.free.push(Reverse(slot.index));
        true
    }

    /// Leaves the object out of the next upload: the device keeps what it has. `false` if the slot is stale.
    pub fn forget_dirty(&mut self, slot: Slot) -> bool {
        if self.get(slot).is_none() {
            return false;
        }
        self.mark(slot.index, false);
        true
    }

    /// How much the pool holds.
    #[must_use]
    pub fn counts(&self) -> ShadowCounts {
        ShadowCounts {
            slots: self.objects.len() - self.free.len(),
            pages: self.pages.len(),
            dirty: self.n_dirty,
        }
    }

    /// The errors of undo calls since the last time this was asked: of pages that could not be made and then not
    /// be undone either.
    pub fn take_undo_errors(&mut self) -> Vec<DeviceError> {
        std::mem::take(&mut self.undo_errors)
    }

    /// Gives all pages back (SH-2). What could not be is in the list, and given up.
    #[must_use]
    pub fn close(mut self) -> Vec<DeviceError> {
        let mut errors = self.take_undo_errors();
        for mut slots in self.pages.drain(..) {
            errors.extend(slots.page.give_back());
        }
        errors
    }

    /// Leaves in the list of dirty slots those that are, once each and in order.
    fn forget_stale(&mut self) {
        self.dirty.retain(|&index| self.objects[index as usize].dirty);
        self.dirty.sort_unstable();
        self.dirty.dedup();
    }

    fn mark(&mut self, index: u32, dirty: bool) {
        let was = std::mem::replace(&mut self.objects[index as usize].dirty, dirty);
        match (was, dirty) {
            (false, true) => {
                self.n_dirty += 1;
                self.dirty.push(index);
                if self.dirty.len() > 2 * self.n_dirty + STALE_ALWAYS_KEPT {
                    self.forget_stale();
                }
            }
            (true, false) => self.n_dirty -= 1,
            _ => {}
        }
    }

    fn shadow_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let object = self.objects.get_mut(slot.index as usize)?;
        object.shadow.as_mut().filter(|_| object.generation == slot.generation)
    }

    fn capacity(&self) -> usize {
        self.pages.last().map_or(0, |slots| slots.first + slots_of::<T>(&slots.page))
    }

    /// Each page is as large as all before it, within bounds: few pages for many objects, a granule for few.
    fn add_page(&mut self) -> Result<(), DeviceError> {
        let all: usize = self.pages.iter().map(|slots| slots.page.size()).sum();
        let size = all.min(PAGE_BYTES_MAX).max(Self::STRIDE).next_multiple_of(self.granularity);
        let first = self.capacity();
        let page = Page::new(&self.driver, size, self.granularity, &mut self.undo_errors)?;
        self.by_base.insert(page.base(), self.pages.len());
        self.pages.push(Slots { page, first });
        Ok(())
    }

    fn page_of(&self, index: u32) -> usize {
        self.pages.partition_point(|slots| slots.first <= index as usize) - 1
    }

    fn place(&self, index: u32) -> (&Page, usize) {
        let slots = &self.pages[self.page_of(index)];
        (&slots.page, (index as usize - slots.first) * Self::STRIDE)
    }
}

impl<T> fmt::Debug for ShadowPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShadowPool")
            .field("slots", &(self.objects.len() - self.free.len()))
            .field("pages", &self.pages.len())
            .field("dirty", &self.n_dirty)
            .finish_non_exhaustive()
    }
}

// No `Drop` here: each page gives itself back and traces what it cannot.

/// So many slots may stand in the list of dirty ones without being so, besides as many as are.
const STALE_ALWAYS_KEPT: usize = 64;

/// The largest page in bytes, unless the granularity or one object is larger.
const PAGE_BYTES_MAX: usize = 16 << 20;

fn slots_of<T: IntoBytes + FromBytes + Immutable + KnownLayout + Copy>(page: &Page) -> usize {
    page.size() / ShadowPool::<T>::STRIDE
}

#[cfg(test)]
mod tests;
