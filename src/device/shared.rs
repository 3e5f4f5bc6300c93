//! Checked slices of memory that other ranks may write at the same time.
//!
//! No Rust reference to such memory is ever made. An access is a relaxed atomic load or store of one element, or
//! a copy by `driver::words`, which tears no element, so that a race with a peer gives old or new elements
//! and no undefined behaviour, as far as the language can say for memory that other processes write. What
//! orders accesses between ranks is the barrier.
#![allow(unsafe_code, reason = "memory that peers write is accessed by atomics")]

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::driver::words;
use crate::error::{Misuse, Result};

/// What a slice can hold: numbers of 1, 2, 4 or 8 bytes, of which every bit pattern is one.
pub trait Element: sealed::Atomic + FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}

/// `len` elements of one rank's memory. Copies of it refer to the same memory.
pub struct Shared<'k, T> {
    /// Where element 0 lies: aligned to the size of `T`, mapped with all others for `'k`.
    address: usize,
    /// How many elements.
    len: usize,
    kernel: PhantomData<&'k T>,
}

impl<T: Element> Shared<'_, T> {
    /// A slice of `len` elements at `address`.
    ///
    /// # Safety
    /// For `'k` the bytes are mapped for reading and writing, and others access them only as this module does, or
    /// from other processes and devices.
    ///
    /// # Errors
    /// `Misuse` if the address is no multiple of the element's size.
    pub(crate) unsafe fn new(address: usize, len: usize) -> Result<Self> {
        if !address.is_multiple_of(size_of::<T>()) {
            let what = format!(
                "a slice of elements of {} bytes cannot start at address {address:#x}: align its offset",
                size_of::<T>()
            );
            return Err(Misuse::Other { what }.into());
        }
        Ok(Self { address, len, kernel: PhantomData })
    }

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of element 0.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// Elements `at..at + len`.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn part(&self, at: usize, len: usize) -> Result<Self> {
        Ok(Self { address: self.range(at, len)?, len, kernel: PhantomData })
    }

    /// Loads one element, relaxed.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn load(&self, index: usize) -> Result<T> {
        let address = self.element(index)?;
        // SAFETY: in range by the check above, aligned and mapped by the contract of `new`.
        Ok(unsafe { T::load(address) })
    }

    /// Stores one element, relaxed.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn store(&self, index: usize, value: T) -> Result<()> {
        let address = self.element(index)?;
        // SAFETY: in range by the check above, aligned and mapped by the contract of `new`.
        unsafe { T::store(address, value) };
        Ok(())
    }

    /// Copies elements `at..at + to.len()` into `to`.
    ///
    /// # Errors
    /// `OutOfRange`; nothing is copied then.
    pub fn read_into(&self, at: usize, to: &mut [T]) -> Result<()> {
        let address = self.range(at, to.len())?;
        // SAFETY: the range was checked and is mapped by the contract of `new`.
        unsafe { words::load(address, to.as_mut_bytes()) };
        Ok(())
    }

    /// Copies `from` over elements `at..at + from.len()`.
    ///
    /// # Errors
    /// `OutOfRange`; nothing is copied then.
    pub fn write_from(&self, at: usize, from: &[T]) -> Result<()> {
        let address = self.range(at, from.len())?;
        // SAFETY: the range was checked and is mapped by the contract of `new`.
        unsafe { words::store(address, from.as_bytes()) };
        Ok(())
    }

    fn element(&self, index: usize) -> Result<usize> {
        self.range(index, 1)
    }

    /// The address of element `at`, if all `count` from there on are in the slice.
    fn range(&self, at: usize, count: usize) -> Result<usize> {
        let in_range = at.checked_add(count).is_some_and(|end| end <= self.len);
        if in_range {
            return Ok(self.address + at * size_of::<T>());
        }
        let bytes = |elements: usize| (elements as u64).saturating_mul(size_of::<T>() as u64);
        Err(Misuse::OutOfRange {
            what: "slice of shared memory".to_owned(),
            offset: bytes(at),
            len: bytes(count),
            size: bytes(self.len),
        }
        .into())
    }
}

impl<'k> Shared<'k, u32> {
    /// One element as an atomic, for waits and orderings that `load` and `store` do not have.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn word(&self, index: usize) -> Result<&'k AtomicU32> {
        let address = self.element(index)?;
        // SAFETY: in range by the check above, aligned and mapped for `'k` by the contract of `new`.
        Ok(unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(address)) })
    }
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

impl<T> fmt::Debug for Shared<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:#x}, {} elements)", self.address, self.len)
    }
}

mod sealed {
    /// Relaxed atomic access to one element.
    #[allow(unnameable_types, reason = "only this module says what an element is")]
    pub trait Atomic: Sized {
        /// # Safety
        /// The address is aligned to the size and mapped.
        unsafe fn load(address: usize) -> Self;

        /// # Safety
        /// The address is aligned to the size and mapped.
        unsafe fn store(address: usize, value: Self);
    }
}

macro_rules! element {
    ($($type:ty: $atomic:ident, $from_bits:expr, $to_bits:expr;)*) => {$(
        impl sealed::Atomic for $type {
            unsafe fn load(address: usize) -> Self {
                // SAFETY: aligned and mapped by this function's contract.
                let atomic = unsafe { $atomic::from_ptr(ptr::with_exposed_provenance_mut(address)) };
                $from_bits(atomic.load(Ordering::Relaxed))
            }

            unsafe fn store(address: usize, value: Self) {
                // SAFETY: aligned and mapped by this function's contract.
                let atomic = unsafe { $atomic::from_ptr(ptr::with_exposed_provenance_mut(address)) };
                atomic.store($to_bits(value), Ordering::Relaxed);
            }
        }

        impl Element for $type {}
    )*};
}

element! {
    u8: AtomicU8, std::convert::identity, std::convert::identity;
    i8: AtomicU8, u8::cast_signed, i8::cast_unsigned;
    u16: AtomicU16, std::convert::identity, std::convert::identity;
    i16: AtomicU16, u16::cast_signed, i16::cast_unsigned;
    f16: AtomicU16, f16::from_bits, f16::to_bits;
    bf16: AtomicU16, bf16::from_bits, bf16::to_bits;
    u32: AtomicU32, std::convert::identity, std::convert::identity;
    i32: AtomicU32, u32::cast_signed, i32::cast_unsigned;
    f32: AtomicU32, f32::from_bits, f32::to_bits;
    u64: AtomicU64, std::convert::identity, std::convert::identity;
    i64: AtomicU64, u64::cast_signed, i64::cast_unsigned;
    f64: AtomicU64, f64::from_bits, f64::to_bits;
}
