//! Copies and fills of memory that others may touch at the same time.
//!
//! Every access is atomic: whole words of eight bytes at aligned addresses, single bytes before the first and
//! after the last of them. Stores release and loads acquire, in ascending order of address, so a reader that
//! loads a word with Acquire sees it whole, and everything stored before it. Peers of other processes and
//! kernels that use words likewise race without tearing; Rust's memory model says no more than that about
//! memory which other processes share.
#![allow(unsafe_code, reason = "device memory is known by its address only")]

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};

const WORD: usize = size_of::<u64>();

/// Stores `bytes` at `to`.
///
/// # Safety
/// `to..to + bytes.len()` is mapped, writable and not accessed other than atomically meanwhile.
pub(super) unsafe fn store(to: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(head_len(to, bytes.len()));
    let (words, tail) = rest.as_chunks::<WORD>();
    let mut at = to;
    for &value in head {
        // SAFETY: `at` is in the caller's range.
        unsafe { byte_at(at) }.store(value, Release);
        at += 1;
    }
    for &word in words {
        // SAFETY: eight bytes of the caller's range start at `at`, which the head has brought to a multiple of 8.
        unsafe { word_at(at) }.store(u64::from_ne_bytes(word), Release);
        at += WORD;
    }
    for &value in tail {
        // SAFETY: `at` is in the caller's range.
        unsafe { byte_at(at) }.store(value, Release);
        at += 1;
    }
}

/// Sets `size` bytes at `to` to `byte`.
///
/// # Safety
/// `to..to + size` is mapped, writable and not accessed other than atomically meanwhile.
pub(super) unsafe fn fill(to: usize, byte: u8, size: usize) {
    let end = to + size;
    let words_start = to + head_len(to, size);
    let words_end = words_start + (end - words_start) / WORD * WORD;
    for at in (to..words_start).chain(words_end..end) {
        // SAFETY: `at` is in the caller's range.
        unsafe { byte_at(at) }.store(byte, Release);
    }
    for at in (words_start..words_end).step_by(WORD) {
        // SAFETY: eight bytes of the caller's range start at `at`, a multiple of 8.
        unsafe { word_at(at) }.store(u64::from_ne_bytes([byte; WORD]), Release);
    }
}

/// Loads `bytes` from `from`.
///
/// # Safety
/// `from..from + bytes.len()` is mapped, readable and not written other than atomically meanwhile.
pub(super) unsafe fn load(from: usize, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(head_len(from, bytes.len()));
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let mut at = from;
    for value in head {
        // SAFETY: `at` is in the caller's range.
        *value = unsafe { byte_at(at) }.load(Acquire);
        at += 1;
    }
    for word in words {
        // SAFETY: eight bytes of the caller's range start at `at`, which the head has brought to a multiple of 8.
        *word = unsafe { word_at(at) }.load(Acquire).to_ne_bytes();
        at += WORD;
    }
    for value in tail {
        // SAFETY: `at` is in the caller's range.
        *value = unsafe { byte_at(at) }.load(Acquire);
        at += 1;
    }
}

/// Bytes before the first aligned word.
fn head_len(address: usize, len: usize) -> usize {
    (address.wrapping_neg() % WORD).min(len)
}

/// # Safety
/// The byte is mapped for `'a` and only accessed atomically.
unsafe fn byte_at<'a>(address: usize) -> &'a AtomicU8 {
    // SAFETY: the caller's promise; a byte has no alignment.
    unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(address)) }
}

/// # Safety
/// The word is mapped for `'a`, only accessed atomically, and its address a multiple of 8.
unsafe fn word_at<'a>(address: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every head, tail and length up to four words, against a plain copy.
    #[test]
    fn every_alignment_copies_exactly_its_bytes() {
        let source: Vec<u8> = (1..=32).collect();
        for start in 0..8 {
            for len in 0..=24 {
                let mut memory = [0_u64; 5];
                let base = memory.as_mut_ptr().expose_provenance();
                // SAFETY: `start + len <= 32 < 40` bytes of `memory`, which nobody else touches.
                unsafe { store(base + start, &source[..len]) };
                let mut want = [0_u8; 40];
                want[start..start + len].copy_from_slice(&source[..len]);
                let mut got = [0_u8; 40];
                // SAFETY: the 40 bytes of `memory`.
                unsafe { load(base, &mut got) };
                assert_eq!(got, want, "store at {start} of {len}");

                let mut part = vec![0_u8; len];
                // SAFETY: as for the store.
                unsafe { load(base + start, &mut part) };
                assert_eq!(part, source[..len], "load at {start} of {len}");

                // SAFETY: as for the store.
                unsafe { fill(base + start, 0xa5, len) };
                want[start..start + len].fill(0xa5);
                // SAFETY: the 40 bytes of `memory`.
                unsafe { load(base, &mut got) };
                assert_eq!(got, want, "fill at {start} of {len}");
            }
        }
    }
}
