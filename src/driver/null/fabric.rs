//! The allocations of several null devices, and who holds them.

use std::sync::Arc;

use parking_lot::Mutex;
use slab::Slab;
use xxhash_rust::xxh3::xxh3_64;

use crate::driver::{DeviceProblem, Handle};

/// What exported allocations begin with.
const MAGIC: u64 = u64::from_le_bytes(*b"symwinND");

/// The memory of the null devices that may import from each other: the processes of one simulated world. It is all
/// that they have in common.
///
/// Devices are numbered in the order in which they were made, and their addresses follow from the number: equal
/// histories give equal numbers, handles, addresses and exported bytes.
#[derive(Debug, Default)]
pub struct NullFabric {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// Bytes that each device has created and that live.
    bytes: Vec<u64>,
    allocations: Slab<Allocation>,
    holds: Slab<Hold>,
}

/// Physical memory, as long as any device holds it.
#[derive(Debug)]
struct Allocation {
    size: usize,
    /// Whose memory it is.
    creator: usize,
    holds: usize,
}

/// One device's hold on an allocation, by handles or mappings.
#[derive(Debug)]
struct Hold {
    allocation: usize,
    device: usize,
    /// By which the device knows it. A device gives no handle twice, so that this says whether an exporter's hold is
    /// still the one that was exported.
    handle: Handle,
}

/// What exported bytes say: the exporter's hold.
#[derive(Debug)]
pub(super) struct Name {
    device: u64,
    handle: Handle,
    hold: usize,
}

impl NullFabric {
    /// A fabric without devices.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Physical allocations that some device holds by handles or mappings. Zero when everything was given back.
    #[must_use]
    pub fn allocations(&self) -> usize {
        self.books.lock().allocations.len()
    }

    /// The next device's number.
    pub(super) fn join(&self) -> usize {
        let mut books = self.books.lock();
        books.bytes.push(0);
        books.bytes.len() - 1
    }

    /// Bytes that the device has created and that live.
    pub(super) fn bytes(&self, device: usize) -> u64 {
        self.books.lock().bytes[device]
    }

    /// A new allocation, if the device's `total` bytes have room for it. Returns the device's hold.
    pub(super) fn create(
        &self,
        device: usize,
        handle: Handle,
        size: usize,
        total: u64,
    ) -> Result<usize, DeviceProblem> {
        let books = &mut *self.books.lock();
        let (need, used) = (size as u64, &mut books.bytes[device]);
        let available = total.saturating_sub(*used);
        if need > available {
            return Err(DeviceProblem::OutOfMemory { need, available });
        }
        *used += need;
        let allocation = books.allocations.insert(Allocation { size, creator: device, holds: 1 });
        Ok(books.holds.insert(Hold { allocation, device, handle }))
    }

    /// A hold of `device` on what was exported, and the size of that.
    pub(super) fn import(
        &self,
        name: &Name,
        device: usize,
        handle: Handle,
    ) -> Result<(usize, usize), DeviceProblem> {
        let books = &mut *self.books.lock();
        let exporter = books.holds.get(name.hold);
        let exporter =
            exporter.filter(|hold| hold.device as u64 == name.device && hold.handle == name.handle);
        let Some(&Hold { allocation, .. }) = exporter else {
            return Err(DeviceProblem::InvalidHandle { handle: name.handle.0 });
        };
        let held = &mut books.allocations[allocation];
        held.holds += 1;
        let size = held.size;
        Ok((books.holds.insert(Hold { allocation, device, handle }), size))
    }

    /// A device has neither handles nor mappings any more.
    pub(super) fn let_go(&self, hold: usize) {
        let books = &mut *self.books.lock();
        let Hold { allocation, .. } = books.holds.remove(hold);
        let held = &mut books.allocations[allocation];
        held.holds -= 1;
        if held.holds == 0 {
            books.bytes[held.creator] -= held.size as u64;
            books.allocations.remove(allocation);
        }
    }
}

/// The bytes that name a hold on a fabric.
pub(super) fn encode(device: usize, shares: bool, handle: Handle, hold: usize, size: usize) -> [u8; 64] {
    let words = [MAGIC, u64::from(shares), device as u64, handle.0, hold as u64, size as u64, 0];
    let mut bytes = [0; 64];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    let check = xxh3_64(&bytes[..56]);
    bytes[56..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// What the bytes name, if they are whole and of `size` bytes at least.
pub(super) fn decode(bytes: &[u8; 64], size: usize) -> Result<Name, DeviceProblem> {
    let refuse = |what: String| Err(DeviceProblem::Argument { what });
    let mut words = [0; 8];
    for (word, from) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*from);
    }
    let [magic, shares, device, handle, hold, held, _, check] = words;
    let hold = usize::try_from(hold).ok();
    let (MAGIC, true, Some(hold)) = (magic, check == xxh3_64(&bytes[..56]), hold) else {
        return refuse("these bytes are no export of a null device".to_owned());
    };
    if shares == 0 {
        // On a fabric of its own it may have the number of any device here.
        return refuse("the exporter is on no fabric: see `NullOptions::fabric`".to_owned());
    }
    if held < size as u64 {
        return refuse(format!("the memory holds {held} bytes, {size} were announced"));
    }
    Ok(Name { device, handle: Handle(handle), hold })
}
