//! Reserved ranges and what is mapped in them, as owned values.
//!
//! The unsafe calls of [`Driver`] ask for promises about addresses; these types make and keep them: a [`Mapped`] is
//! made by one [`Reservation::map`] and ends with one [`Mapped::unmap`] or with its reservation. That nobody still
//! reads or writes there is what the runtime sees to: pointers into windows are raw, their use is the caller's
//! promise, and safe copies hold their window open.
#![allow(unsafe_code, reason = "this is where the runtime keeps the driver's address contract (A-13)")]

use super::{Call, DeviceError, DeviceProblem, Driver, Handle, Stream};

/// A reserved range of addresses.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: usize,
    size: usize,
}

impl Reservation {
    /// Reserves `size` bytes at a multiple of `align`.
    pub(crate) fn new(driver: &dyn Driver, size: usize, align: usize) -> Result<Self, DeviceError> {
        Ok(Self { base: driver.reserve(size, align)?, size })
    }

    /// Its first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Its first address and its size in bytes.
    pub(crate) fn span(&self) -> (usize, usize) {
        (self.base, self.size)
    }

    /// Maps the first `size` bytes of `handle` at `address`, where the caller has mapped nothing else.
    pub(crate) fn map(
        &self,
        driver: &dyn Driver,
        address: usize,
        size: usize,
        handle: Handle,
    ) -> Result<Mapped, DeviceError> {
        self.check(Call::Map, address, size)?;
        // SAFETY: the range lies in this reservation, and offsets in it are handed out once at a time by the space.
        unsafe { driver.map(address, size, 0, handle) }?;
        Ok(Mapped { address, size })
    }

    /// Queues zeroing `size` bytes at `address`, which the caller has mapped with access.
    pub(crate) fn zero(
        &self,
        driver: &dyn Driver,
        stream: Stream,
        address: usize,
        size: usize,
    ) -> Result<(), DeviceError> {
        self.check(Call::Fill, address, size)?;
        // SAFETY: the range lies in this reservation; the caller has mapped it and awaits the stream before unmapping.
        unsafe { driver.fill(stream, address, 0, size) }
    }

    /// Gives the range back with whatever is mapped in it.
    pub(crate) fn free(self, driver: &dyn Driver) -> Result<(), DeviceError> {
        // SAFETY: base and size are those that `reserve` gave, and this value, which is gone now, was the only one.
        unsafe { driver.free(self.base, self.size) }
    }

    fn check(&self, call: Call, address: usize, size: usize) -> Result<(), DeviceError> {
        let end = address.checked_add(size);
        if address >= self.base && end.is_some_and(|end| end <= self.base + self.size) {
            return Ok(());
        }
        let what = format!(
            "{size} bytes at {address:#x} leave the range of {} bytes at {:#x}",
            self.size, self.base
        );
        Err(DeviceError::new(call, DeviceProblem::Argument { what }))
    }
}

/// Something that is mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    address: usize,
    size: usize,
}

impl Mapped {
    /// Its address and size in bytes.
    pub(crate) fn span(&self) -> (usize, usize) {
        (self.address, self.size)
    }

    /// Unmaps it.
    pub(crate) fn unmap(self, driver: &dyn Driver) -> Result<(), DeviceError> {
        // SAFETY: `map` mapped exactly this range, and this value, which is gone now, was its only owner.
        unsafe { driver.unmap(self.address, self.size) }
    }
}

/// Unmaps all, whatever happens to some; the failures come back.
pub(crate) fn unmap_all(driver: &dyn Driver, mapped: Vec<Mapped>) -> Vec<DeviceError> {
    let _batch = driver.batch();
    mapped.into_iter().filter_map(|one| one.unmap(driver).err()).collect()
}

/// Joins ranges that lie side by side, so that one call can span them.
pub(crate) fn runs(mut spans: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    spans.sort_unstable();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (address, size) in spans {
        match runs.last_mut() {
            Some((start, len)) if *start + *len == address => *len += size,
            _ => runs.push((address, size)),
        }
    }
    runs
}
