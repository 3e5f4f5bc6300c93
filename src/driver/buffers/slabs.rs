//! The slabs of an allocator: large blocks from which buffers are carved.
#![allow(unsafe_code, reason = "used space is zeroed by a fill")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::block::{Block, Source};
use super::free_list::FreeList;
use crate::driver::passing::Passing;
use crate::driver::{AddressRange, Call, DeviceError, Stream};

/// How long zeroing of used space may take.
const ZEROING_LIMIT: Duration = Duration::from_secs(10);

/// All slabs, in order. No lock is held while the driver is called, but `growing`, which only growth takes.
#[derive(Debug)]
pub(super) struct Slabs {
    source: Arc<Source>,
    slab_bytes: usize,
    /// A slab that was given back leaves a gap, which the next new slab fills.
    slabs: Mutex<Vec<Option<Slab>>>,
    /// One new slab at a time: of two requests that found no room, the second mostly fits in the first's slab.
    growing: Mutex<()>,
    /// For zeroing; made when it is needed first.
    stream: Mutex<Option<Stream>>,
}

#[derive(Debug)]
struct Slab {
    block: Block,
    free: FreeList,
}

/// A range in a slab.
#[derive(Debug)]
pub(super) struct Place {
    /// Which slab. It stays as long as the place is taken.
    index: usize,
    offset: usize,
    pub(super) size: usize,
    pub(super) address: usize,
    pub(super) slab: AddressRange,
    /// How many of its first bytes were used before.
    used: usize,
}

impl Slabs {
    pub(super) fn new(source: Arc<Source>, slab_bytes: usize) -> Self {
        Self {
            source,
            slab_bytes,
            slabs: Mutex::default(),
            growing: Mutex::default(),
            stream: Mutex::default(),
        }
    }

    pub(super) fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    /// Takes `size` zeroed bytes, a multiple of the granularity that is no larger than a slab.
    pub(super) fn take(&self, size: usize) -> Result<Place, DeviceError> {
        let place = match self.find(size) {
            Some(place) => place,
            None => self.grow(size)?,
        };
        if place.used > 0 {
            let queued = self.zero(&place).inspect_err(|_| self.give(&place))?;
            // Where this fails the place stays taken: the fill may still come.
            self.wait(queued)?;
        }
        Ok(place)
    }

    /// Gives a range back, and its slab if that is the second empty one.
    pub(super) fn give(&self, place: &Place) {
        let mut slabs = self.slabs.lock();
        let slab = slabs[place.index].as_mut().expect("a slab with a taken place stays");
        slab.free.give(place.offset..place.offset + place.size);
        let is_empty = |slab: &&mut Option<Slab>| slab.as_ref().is_some_and(|slab| slab.free.is_empty());
        // The lowest empty one is kept: it is the first to be carved again.
        let surplus: Vec<_> = slabs.iter_mut().filter(is_empty).skip(1).filter_map(Option::take).collect();
        drop(slabs);
        drop(surplus);
    }

    /// Room in a slab that is there.
    fn find(&self, size: usize) -> Option<Place> {
        let mut slabs = self.slabs.lock();
        let mut present = slabs.iter_mut().enumerate();
        present.find_map(|(index, slab)| self.carve(index, slab.as_mut()?, size))
    }

    fn grow(&self, size: usize) -> Result<Place, DeviceError> {
        let _growing = self.growing.lock();
        if let Some(place) = self.find(size) {
            return Ok(place);
        }
        let block = Block::new(&self.source, &[self.slab_bytes])?;
        let mut slab = Slab { block, free: FreeList::new(self.slab_bytes) };
        let mut slabs = self.slabs.lock();
        let index = slabs.iter().position(Option::is_none).unwrap_or(slabs.len());
        let place = self.carve(index, &mut slab, size).expect("an empty slab has room");
        if index == slabs.len() {
            slabs.push(Some(slab));
        } else {
            slabs[index] = Some(slab);
        }
        Ok(place)
    }

    fn carve(&self, index: usize, slab: &mut Slab, size: usize) -> Option<Place> {
        let (offset, used) = slab.free.take(size)?;
        let base = slab.block.base();
        let slab = AddressRange { base, size: self.slab_bytes };
        Some(Place { index, offset, size, address: base + offset, slab, used })
    }

    /// Queues zeroing by the device itself: the host may have no access.
    fn zero(&self, place: &Place) -> Result<Stream, DeviceError> {
        let stream = self.stream()?;
        // SAFETY: the range is in a slab, mapped with access, and taken until the stream has passed.
        unsafe { self.source.driver.fill(stream, place.address, 0, place.used) }?;
        Ok(stream)
    }

    fn wait(&self, stream: Stream) -> Result<(), DeviceError> {
        let point = Passing::of(&self.source.driver, stream)?;
        let deadline = Instant::now() + ZEROING_LIMIT;
        while !point.has_passed()? {
            if Instant::now() > deadline {
                return Err(DeviceError::os(Call::Done, rustix::io::Errno::TIMEDOUT));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        if let Some(stream) = *self.stream.lock() {
            return Ok(stream);
        }
        let made = self.source.driver.stream_create()?;
        let mut stream = self.stream.lock();
        match *stream {
            // Another thread was faster.
            Some(present) => {
                drop(stream);
                self.source.undone(self.source.driver.stream_destroy(made));
                Ok(present)
            }
            None => Ok(*stream.insert(made)),
        }
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.get_mut().take() {
            self.source.undone(self.source.driver.stream_destroy(stream));
        }
    }
}
