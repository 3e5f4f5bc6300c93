//! Copies and fills of memory that others may touch at the same time: the one way in which this library copies
//! between private and shared memory.
//!
//! Small copies, and all copies on processors without vectors here, are made of atomics of 1, 2, 4 and 8 bytes, each
//! at a multiple of its size, as large as address and length allow. So an element of up to 8 bytes that lies at a
//! multiple of its size never tears. Stores release and loads acquire, in ascending order of address, so a
//! reader that loads a word with Acquire sees it whole, and everything stored before it.
//!
//! Long copies on x86-64 go through [`vectors`], which keeps all of that but for the order of the words of one
//! vector. Peers of other processes and kernels that use words likewise race without tearing; Rust's memory
//! model says no more than that about memory which other processes share.
#![allow(unsafe_code, reason = "device memory is known by its address only")]

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

#[cfg(target_arch = "x86_64")]
use super::vectors;

const WORD: usize = size_of::<u64>();

/// Stores `bytes` at `to`.
///
/// # Safety
/// `to..to + bytes.len()` is mapped, writable and not accessed other than atomically meanwhile.
pub(crate) unsafe fn store(to: usize, bytes: &[u8]) {
    let mut rest = bytes;
    let mut at = to;
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= vectors::BYTES_MIN {
        let head = (at.wrapping_neg() % vectors::ALIGN).min(bytes.len());
        let body = (bytes.len() - head) / vectors::ALIGN * vectors::ALIGN;
        // SAFETY: the first part of the caller's range.
        unsafe { store_words(at, &rest[..head]) };
        let from = rest[head..head + body].as_ptr();
        // SAFETY: `body` bytes of the caller's range and of `bytes`; the head has brought the former to a multiple of
        // the alignment, and `body` is one.
        unsafe { vectors::copy(ptr::with_exposed_provenance_mut(at + head), from, body) };
        (at, rest) = (at + head + body, &rest[head + body..]);
    }
    // SAFETY: what is left of the caller's range.
    unsafe { store_words(at, rest) };
}

/// Loads `bytes` from `from`.
///
/// # Safety
/// `from..from + bytes.len()` is mapped, readable and not written other than atomically meanwhile.
pub(crate) unsafe fn load(from: usize, bytes: &mut [u8]) {
    let mut rest = bytes;
    let mut at = from;
    #[cfg(target_arch = "x86_64")]
    if rest.len() >= vectors::BYTES_MIN {
        let head = (at.wrapping_neg() % vectors::ALIGN).min(rest.len());
        let body = (rest.len() - head) / vectors::ALIGN * vectors::ALIGN;
        let (first, others) = rest.split_at_mut(head);
        let (vectors, tail) = others.split_at_mut(body);
        // SAFETY: the first part of the caller's range.
        unsafe { load_words(at, first) };
        // SAFETY: `body` bytes of the caller's range and of `bytes`; the head has brought the former to a multiple of
        // the alignment, and `body` is one.
        unsafe { vectors::copy(vectors.as_mut_ptr(), ptr::with_exposed_provenance(at + head), body) };
        (at, rest) = (at + head + body, tail);
    }
    // SAFETY: what is left of the caller's range.
    unsafe { load_words(at, rest) };
}

/// Sets `size` bytes at `to` to `byte`.
///
/// # Safety
/// `to..to + size` is mapped, writable and not accessed other than atomically meanwhile.
pub(crate) unsafe fn fill(to: usize, byte: u8, size: usize) {
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

/// # Safety
/// As [`store`].
unsafe fn store_words(to: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(head_len(to, bytes.len()));
    let (words, tail) = rest.as_chunks::<WORD>();
    // SAFETY: the first part of the caller's range.
    unsafe { store_part(to, head) };
    let mut at = to + head.len();
    for &word in words {
        // SAFETY: eight bytes of the caller's range start at `at`, which the head has brought to a multiple of 8.
        unsafe { word_at(at) }.store(u64::from_ne_bytes(word), Release);
        at += WORD;
    }
    // SAFETY: the last part of the caller's range.
    unsafe { store_part(at, tail) };
}

/// # Safety
/// As [`load`].
unsafe fn load_words(from: usize, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(head_len(from, bytes.len()));
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    // SAFETY: the first part of the caller's range.
    unsafe { load_part(from, head) };
    let mut at = from + head.len();
    for word in words {
        // SAFETY: eight bytes of the caller's range start at `at`, which the head has brought to a multiple of 8.
        *word = unsafe { word_at(at) }.load(Acquire).to_ne_bytes();
        at += WORD;
    }
    // SAFETY: the last part of the caller's range.
    unsafe { load_part(at, tail) };
}

/// Stores less than a word, in pieces of 4, 2 and 1 bytes.
///
/// # Safety
/// As [`store`].
unsafe fn store_part(to: usize, mut bytes: &[u8]) {
    let mut at = to;
    while let [first, others @ ..] = bytes {
        let len = piece(at, bytes.len());
        match (len, others) {
            (4, [b, c, d, ..]) => {
                let value = u32::from_ne_bytes([*first, *b, *c, *d]);
                // SAFETY: four bytes of the caller's range at a multiple of 4, by `piece`.
                unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(at)) }.store(value, Release);
            }
            (2, [b, ..]) => {
                let value = u16::from_ne_bytes([*first, *b]);
                // SAFETY: two bytes of the caller's range at a multiple of 2, by `piece`.
                unsafe { AtomicU16::from_ptr(ptr::with_exposed_provenance_mut(at)) }.store(value, Release);
            }
            // SAFETY: `at` is in the caller's range.
            _ => unsafe { byte_at(at) }.store(*first, Release),
        }
        (at, bytes) = (at + len, &bytes[len..]);
    }
}

/// Loads less than a word, in the same pieces.
///
/// # Safety
/// As [`load`].
unsafe fn load_part(from: usize, bytes: &mut [u8]) {
    let (mut at, mut rest) = (from, bytes);
    while !rest.is_empty() {
        let (to, others) = rest.split_at_mut(piece(at, rest.len()));
        match to.len() {
            4 => {
                // SAFETY: four bytes of the caller's range at a multiple of 4, by `piece`.
                let atomic = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(at)) };
                to.copy_from_slice(&atomic.load(Acquire).to_ne_bytes());
            }
            2 => {
                // SAFETY: two bytes of the caller's range at a multiple of 2, by `piece`.
                let atomic = unsafe { AtomicU16::from_ptr(ptr::with_exposed_provenance_mut(at)) };
                to.copy_from_slice(&atomic.load(Acquire).to_ne_bytes());
            }
            // SAFETY: `at` is in the caller's range.
            _ => to[0] = unsafe { byte_at(at) }.load(Acquire),
        }
        (at, rest) = (at + to.len(), others);
    }
}

/// The largest power of two up to 4 that divides the address and is no more than `len`, which is not 0.
fn piece(address: usize, len: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(2);
    aligned.min(1 << len.ilog2())
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

    /// Long copies at every alignment of both sides, and not a byte beside them.
    #[test]
    fn long_copies_copy_exactly_their_bytes() {
        let source: Vec<u8> = (0..4_096_u32).map(|i| (i % 251) as u8 + 1).collect();
        let mut memory = vec![0_u64; 600];
        let base = memory.as_mut_ptr().expose_provenance();
        for start in (0..130).step_by(3) {
            for len in [127, 128, 129, 255, 256, 300, 511, 1_024, 1_500, 4_000] {
                let from = &source[start % 7..start % 7 + len];
                // SAFETY: the 4,800 bytes of `memory`, which nobody else touches.
                unsafe { fill(base, 0, 4_800) };
                // SAFETY: `start + len <= 4,130` of them.
                unsafe { store(base + start, from) };
                let mut all = vec![0xff_u8; 4_800 + start % 5];
                // SAFETY: the 4,800 bytes of `memory`.
                unsafe { load(base, &mut all[start % 5..]) };
                let all = &all[start % 5..];
                assert_eq!(&all[start..start + len], from, "{len} bytes at {start}");
                assert!(all[..start].iter().chain(&all[start + len..]).all(|byte| *byte == 0));
                let mut part = vec![0_u8; len + 1];
                // SAFETY: as for the store.
                unsafe { load(base + start, &mut part[1..]) };
                assert_eq!(&part[1..], from, "{len} bytes at {start}, to an odd address");
            }
        }
    }

    #[test]
    fn pieces_are_as_large_as_address_and_length_allow() {
        assert_eq!([1, 2, 4, 6, 8].map(|at| piece(at, 7)), [1, 2, 4, 2, 4]);
        assert_eq!([1, 2, 3, 4, 7].map(|len| piece(8, len)), [1, 2, 2, 4, 4]);
    }

    /// Elements of 4 bytes that start in the middle of a word and end in another: each comes old or new.
    #[test]
    fn aligned_elements_do_not_tear() {
        for count in [3_usize, 129] {
            let mut memory = vec![0_u64; 70];
            let at = memory.as_mut_ptr().expose_provenance() + 4;
            std::thread::scope(|scope| {
                let writer = scope.spawn(move || {
                    for round in 0..20_000_u32 {
                        let bytes: Vec<u8> =
                            (0..count).flat_map(|_| (round * 0x1_0001).to_ne_bytes()).collect();
                        // SAFETY: `4 + 4 * count` bytes are in `memory`; both threads copy by this module.
                        unsafe { store(at, &bytes) };
                    }
                });
                let mut bytes = vec![0; 4 * count];
                while !writer.is_finished() {
                    // SAFETY: as for the writer.
                    unsafe { load(at, &mut bytes) };
                    for element in bytes.as_chunks::<4>().0 {
                        let value = u32::from_ne_bytes(*element);
                        assert_eq!((value >> 16) & 0xffff, value & 0xffff, "an element of two rounds");
                    }
                }
            });
        }
    }
}
