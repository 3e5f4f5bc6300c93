//! Copies of memory that threads of the host may read and write at the same time: atomics of 1, 2, 4 and 8 bytes, each
//! at a multiple of its size, in ascending order; stores release and loads acquire. A host kernel that loads an aligned
//! word with Acquire sees it whole, and everything stored before it.
//!
//! As symwin's own `driver::words`, without its vectors.

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Stores `bytes` at `to`.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable.
pub(crate) unsafe fn store(to: usize, bytes: &[u8]) {
    let (mut at, mut rest) = (to, bytes);
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(piece_len(at, rest.len()));
        // SAFETY: the piece is in the caller's range, at a multiple of its length, which is a power of two up to 8.
        unsafe { store_piece(at, piece) };
        (at, rest) = (at + piece.len(), others);
    }
}

/// Loads `bytes` from `from`.
///
/// # Safety
/// `from..from + bytes.len()` is mapped and readable.
pub(crate) unsafe fn load(from: usize, bytes: &mut [u8]) {
    let (mut at, mut rest) = (from, bytes);
    while !rest.is_empty() {
        let (piece, others) = rest.split_at_mut(piece_len(at, rest.len()));
        // SAFETY: as for `store`.
        unsafe { load_piece(at, piece) };
        (at, rest) = (at + piece.len(), others);
    }
}

/// The largest power of two up to 8 that divides the address and is no more than `len`, which is not 0.
fn piece_len(address: usize, len: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(3);
    aligned.min(1 << len.ilog2())
}

/// # Safety
/// As [`store`]; `at` is a multiple of the length, which is 1, 2, 4 or 8.
unsafe fn store_piece(at: usize, bytes: &[u8]) {
    match *bytes {
        [a, b, c, d, e, f, g, h] => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(at)) };
            word.store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Release);
        }
        [a, b, c, d] => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU32::from_ptr(with_exposed_provenance_mut(at)) };
            word.store(u32::from_ne_bytes([a, b, c, d]), Release);
        }
        [a, b] => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU16::from_ptr(with_exposed_provenance_mut(at)) };
            word.store(u16::from_ne_bytes([a, b]), Release);
        }
        _ => {
            // SAFETY: the caller's promise.
            let byte = unsafe { AtomicU8::from_ptr(with_exposed_provenance_mut(at)) };
            byte.store(bytes[0], Release);
        }
    }
}

/// # Safety
/// As [`load`]; `at` is a multiple of the length, which is 1, 2, 4 or 8.
unsafe fn load_piece(at: usize, bytes: &mut [u8]) {
    match bytes.len() {
        8 => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU64::from_ptr(with_exposed_provenance_mut(at)) };
            bytes.copy_from_slice(&word.load(Acquire).to_ne_bytes());
        }
        4 => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU32::from_ptr(with_exposed_provenance_mut(at)) };
            bytes.copy_from_slice(&word.load(Acquire).to_ne_bytes());
        }
        2 => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU16::from_ptr(with_exposed_provenance_mut(at)) };
            bytes.copy_from_slice(&word.load(Acquire).to_ne_bytes());
        }
        _ => {
            // SAFETY: the caller's promise.
            let byte = unsafe { AtomicU8::from_ptr(with_exposed_provenance_mut(at)) };
            bytes[0] = byte.load(Acquire);
        }
    }
}
