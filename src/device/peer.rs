//! Access to peers' memory from host code that is no kernel: by the device's copies.
#![allow(unsafe_code, reason = "memory of peers is known by its address only")]

use crate::driver::Driver;
use crate::driver::range::Reservation;
use crate::error::Result;

/// The addresses of a reserved range, in which windows are mapped. Who holds one sees to it that what it copies is
/// mapped meanwhile; an address outside of the range is refused here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    base: usize,
    size: usize,
}

impl View {
    /// The addresses of a reservation.
    pub(crate) fn of(range: &Reservation) -> Self {
        let (base, size) = range.span();
        Self { base, size }
    }

    /// The pointer at this address. Using it is the holder's promise that the window is open.
    pub(crate) fn pointer(address: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(address)
    }

    /// Copies from an address of an open window.
    pub(crate) fn read(&self, driver: &dyn Driver, address: usize, to: &mut [u8]) -> Result<()> {
        self.check(address, to.len())?;
        // SAFETY: inside a reserved range, at an open window's part, which stays mapped until the window is closed;
        // closing waits for copies. Others touch it by atomics, raw pointers or from elsewhere.
        Ok(unsafe { driver.load(address, to) }?)
    }

    /// Copies to an address of an open window.
    pub(crate) fn write(&self, driver: &dyn Driver, address: usize, from: &[u8]) -> Result<()> {
        self.check(address, from.len())?;
        // SAFETY: as for `read`.
        Ok(unsafe { driver.store(address, from) }?)
    }

    fn check(&self, address: usize, len: usize) -> Result<()> {
        let end = address.checked_add(len);
        if address >= self.base && end.is_some_and(|end| end <= self.base + self.size) {
            return Ok(());
        }
        let what = format!("{len} bytes at {address:#x} are not in the flat range");
        Err(crate::error::Misuse::Other { what }.into())
    }
}
