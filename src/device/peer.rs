//! Access to peers' memory from host code that is no kernel: by copy.
#![allow(unsafe_code, reason = "memory of peers is known by its address only")]

use crate::device::shared::Shared;
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
    pub(crate) fn read(&self, address: usize, to: &mut [u8]) -> Result<()> {
        self.bytes(address, to.len())?.read_into(0, to)
    }

    /// Copies to an address of an open window.
    pub(crate) fn write(&self, address: usize, from: &[u8]) -> Result<()> {
        self.bytes(address, from.len())?.write_from(0, from)
    }

    fn bytes(&self, address: usize, len: usize) -> Result<Shared<'_, u8>> {
        let end = address.checked_add(len);
        if address < self.base || end.is_none_or(|end| end > self.base + self.size) {
            let what = format!("{len} bytes at {address:#x} are not in the flat range");
            return Err(crate::error::Misuse::Other { what }.into());
        }
        // SAFETY: inside a reserved range, at an open window's part, which stays mapped until the window is closed;
        // closing waits for copies. Others touch it by atomics, raw pointers or from elsewhere.
        unsafe { Shared::new(address, len) }
    }
}
