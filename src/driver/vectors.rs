//! Copies by the widest vectors that the processor has, for x86-64.
//!
//! Why this is sound though peers may touch the memory meanwhile: the accesses are those of an assembly block. To
//! the language such a block is a call of unknown code that may do whatever machine code does to memory that
//! its pointers reach, an atomic access included, so a race with a peer is no data race of Rust's; the
//! compiler assumes nothing of the bytes but that the block has written them.
//!
//! Why aligned elements of up to 8 bytes do not tear: one side is aligned to a cache line, so that no vector of that
//! side crosses one, and processors carry out an access of more than 8 bytes inside a line in pieces of at least 8
//! aligned bytes. Intel and AMD promise it in writing for vectors of 16 bytes where there is AVX; for longer ones, and
//! for SSE alone, it is what all of their processors do, and what nobody promises.
//!
//! Why what was stored before is seen before: x86-64 keeps stores in order, and loads too, so that each is a release
//! or an acquire. The bytes of one vector have no order among themselves.
#![allow(unsafe_code, reason = "vector instructions on memory that peers write")]

use std::arch::{asm, is_x86_feature_detected};

/// What the shared side, and the length, are multiples of: a cache line.
pub(super) const ALIGN: usize = 64;

/// The shortest copy that is worth it.
pub(super) const BYTES_MIN: usize = 128;

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, which do not overlap; `len` is a multiple of [`ALIGN`], and so
/// is the address of the side that peers touch.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the caller's promises, and there is AVX-512.
        unsafe { copy_avx512(to, from, len) }
    } else if is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promises, and there is AVX.
        unsafe { copy_avx(to, from, len) }
    } else {
        // SAFETY: the caller's promises.
        unsafe { copy_sse(to, from, len) }
    }
}

/// # Safety
/// As [`copy`], `len` is not 0, and the processor has AVX-512.
unsafe fn copy_avx512(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as in `copy_avx`.
    unsafe {
        asm!(
            "2:",
            "vmovups zmm0, [{from} + rax]",
            "vmovups [{to} + rax], zmm0",
            "add rax, 64",
            "jnz 2b",
            "vzeroupper",
            from = in(reg) from.wrapping_add(len),
            to = in(reg) to.wrapping_add(len),
            inout("rax") len.wrapping_neg() => _,
            clobber_abi("C"),
            options(nostack),
        );
    }
}

/// # Safety
/// As [`copy`], `len` is not 0, and the processor has AVX.
unsafe fn copy_avx(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: reads and writes the `len` bytes and nothing else, and ends with them, as the offset starts at `-len`
    // and grows by 64; all vector registers are given up.
    unsafe {
        asm!(
            "2:",
            "vmovups ymm0, [{from} + rax]",
            "vmovups ymm1, [{from} + rax + 32]",
            "vmovups [{to} + rax], ymm0",
            "vmovups [{to} + rax + 32], ymm1",
            "add rax, 64",
            "jnz 2b",
            "vzeroupper",
            from = in(reg) from.wrapping_add(len),
            to = in(reg) to.wrapping_add(len),
            inout("rax") len.wrapping_neg() => _,
            clobber_abi("C"),
            options(nostack),
        );
    }
}

/// # Safety
/// As [`copy`], and `len` is not 0.
unsafe fn copy_sse(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as in `copy_avx`.
    unsafe {
        asm!(
            "2:",
            "movups xmm0, [{from} + {at}]",
            "movups xmm1, [{from} + {at} + 16]",
            "movups xmm2, [{from} + {at} + 32]",
            "movups xmm3, [{from} + {at} + 48]",
            "movups [{to} + {at}], xmm0",
            "movups [{to} + {at} + 16], xmm1",
            "movups [{to} + {at} + 32], xmm2",
            "movups [{to} + {at} + 48], xmm3",
            "add {at}, 64",
            "jnz 2b",
            from = in(reg) from.wrapping_add(len),
            to = in(reg) to.wrapping_add(len),
            at = inout(reg) len.wrapping_neg() => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What processors with less than this one has would do.
    #[test]
    fn all_widths_copy_the_same() {
        let mut widths: Vec<unsafe fn(*mut u8, *const u8, usize)> = vec![copy, copy_sse];
        if is_x86_feature_detected!("avx") {
            widths.push(copy_avx);
        }
        let from: Vec<u8> = (0..640_u32).map(|i| (i % 251) as u8).collect();
        for (len, copy) in
            [64, 128, 576].into_iter().flat_map(|len| widths.iter().map(move |copy| (len, copy)))
        {
            let mut to = vec![0; 641];
            // SAFETY: `len` bytes of either, not 0; nobody else touches them.
            unsafe { copy(to.as_mut_ptr().wrapping_add(1), from.as_ptr(), len) };
            assert_eq!(to[1..=len], from[..len]);
            assert!(to[len + 1..].iter().all(|byte| *byte == 0));
        }
    }
}
