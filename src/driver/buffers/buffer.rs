//! What the allocator hands out.
#![allow(unsafe_code, reason = "bytes are copied between slices and mapped memory")]

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::Shared;
use super::block::Block;
use super::slabs::Place;
use crate::driver::{AddressRange, DeviceError, Driver};
use crate::error::Misuse;

/// Device memory. Clones are the same memory, which is given back when the last clone and slice are gone.
///
/// [`write`](Self::write) and [`read`](Self::read) copy, and never give out a reference into the memory: peers,
/// kernels and other processes may touch it at any time. On the host device all accesses are atomic, words of eight bytes where
/// aligned and single bytes elsewhere, so that such a race gives old or new words, and is not undefined as far
/// as Rust can say of memory which others share.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    place: Where,
    address: usize,
    len: usize,
}

enum Where {
    Own(Block),
    Slab(Place),
}

/// A part of a [`Buffer`], which it keeps alive.
#[derive(Clone)]
pub struct BufferSlice {
    buffer: Buffer,
    offset: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn in_slab(shared: Arc<Shared>, place: Place, len: usize) -> Self {
        let address = place.address;
        Self { inner: Arc::new(Inner { shared, place: Where::Slab(place), address, len }) }
    }

    pub(super) fn own(shared: Arc<Shared>, block: Block, len: usize) -> Self {
        let address = block.base();
        Self { inner: Arc::new(Inner { shared, place: Where::Own(block), address, len }) }
    }

    /// Bytes that were asked for.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no buffer is empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// The device's address of the first byte, a multiple of the granularity.
    #[must_use]
    pub fn address(&self) -> usize {
        self.inner.address
    }

    /// The first byte, for kernels and raw access; valid while a clone of this buffer lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.inner.address)
    }

    /// The physical allocations that hold the buffer, whole, in order of address.
    #[must_use]
    pub fn allocations(&self) -> Vec<AddressRange> {
        match &self.inner.place {
            Where::Own(block) => block.allocations(self.inner.address, self.inner.len),
            Where::Slab(place) => vec![place.slab],
        }
    }

    /// The driver whose memory this is.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.inner.shared.source.driver
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// `OutOfRange`, or `Other` where the device cannot copy.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Misuse> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range is in the buffer, which is mapped with access as long as `self` lives.
        unsafe { self.driver().store(self.inner.address + offset, bytes) }.map_err(failed)
    }

    /// Copies from `offset` to `bytes`.
    ///
    /// # Errors
    /// `OutOfRange`, or `Other` where the device cannot copy.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Misuse> {
        self.check(offset, bytes.len())?;
        // SAFETY: as for `write`.
        unsafe { self.driver().load(self.inner.address + offset, bytes) }.map_err(failed)
    }

    /// The part of the buffer at `range`, in bytes.
    ///
    /// # Errors
    /// `OutOfRange` if it passes the buffer's end, `Other` if its end is before its start.
    pub fn slice(&self, range: Range<usize>) -> Result<BufferSlice, Misuse> {
        let Some(len) = range.end.checked_sub(range.start) else {
            return Err(Misuse::Other { what: format!("the slice {range:?} ends before it starts") });
        };
        self.check(range.start, len)?;
        Ok(BufferSlice { buffer: self.clone(), offset: range.start, len })
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Misuse> {
        check("buffer", offset, len, self.inner.len)
    }
}

impl BufferSlice {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device's address of its first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.buffer.address() + self.offset
    }

    /// Its first byte's offset in the buffer.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The buffer that it is a part of.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Copies `bytes` to `offset` in the slice.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Misuse> {
        check("slice", offset, bytes.len(), self.len)?;
        self.buffer.write(self.offset + offset, bytes)
    }

    /// Copies from `offset` in the slice to `bytes`.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Misuse> {
        check("slice", offset, bytes.len(), self.len)?;
        self.buffer.read(self.offset + offset, bytes)
    }
}

impl From<&Buffer> for BufferSlice {
    /// All of the buffer.
    fn from(buffer: &Buffer) -> Self {
        Self { buffer: buffer.clone(), offset: 0, len: buffer.len() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Where::Slab(place) = &self.place {
            self.shared.slabs.give(place);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x} + {})", self.inner.address, self.inner.len)
    }
}

impl fmt::Debug for BufferSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferSlice({:#x} + {})", self.address(), self.len)
    }
}

fn check(what: &str, offset: usize, len: usize, size: usize) -> Result<(), Misuse> {
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let (offset, len, size) = (offset as u64, len as u64, size as u64);
    Err(Misuse::OutOfRange { what: what.to_owned(), offset, len, size })
}

fn failed(error: DeviceError) -> Misuse {
    Misuse::Other { what: error.to_string() }
}
