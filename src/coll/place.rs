//! Where collectives read and write, and how ranks share the work.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::coll::number::Number;
use crate::device::{DeviceWindow, Element, Kernel, Shared};
use crate::error::{Error, Misuse, Result};
use crate::ids::LsaRank;

/// A place in a window, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    window: &'a DeviceWindow<'a>,
    offset: u64,
}

/// How an output lies to an input of the same length on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// They share no byte.
    Apart,
    /// They are the same bytes.
    Same,
    /// Some bytes of one are other bytes of the other, or that cannot be ruled out.
    Shifted,
}

impl<'a> Place<'a> {
    pub(super) const fn new((window, offset): (&'a DeviceWindow<'a>, u64)) -> Self {
        Self { window, offset }
    }

    /// The place `bytes` further on.
    pub(super) const fn plus(self, bytes: u64) -> Self {
        Self { window: self.window, offset: self.offset.saturating_add(bytes) }
    }

    /// `count` elements of a rank from here on.
    pub(super) fn slice<T: Element>(self, rank: LsaRank, count: usize) -> Result<Shared<'a, T>> {
        self.window.slice(rank, self.offset, count)
    }

    /// `count` elements of every rank from here on.
    pub(super) fn slices<T: Element>(self, kernel: &Kernel<'_>, count: usize) -> Result<Vec<Shared<'a, T>>> {
        (0..kernel.lsa_size()).map(|rank| self.slice(LsaRank::new(rank), count)).collect()
    }
}

/// How this rank's output lies to its input. Two windows can reach the same memory through different mappings, so
/// only the owner's addresses tell; where one is not known, they may overlap in any way.
pub(super) fn overlap(kernel: &Kernel<'_>, input: Place<'_>, output: Place<'_>, len: u64) -> Result<Overlap> {
    let mapped = |place: Place<'_>| {
        place.window.lsa_ptr(kernel.lsa_rank(), place.offset).map(|pointer| pointer.addr() as u64)
    };
    let mapped = ranges(mapped(input)?, mapped(output)?, len);
    if mapped != Overlap::Apart {
        return Ok(mapped);
    }
    if input.window.base() == 0 || output.window.base() == 0 {
        return Ok(Overlap::Shifted);
    }
    Ok(ranges(input.window.base() + input.offset, output.window.base() + output.offset, len))
}

/// How `len` bytes from `a` on lie to those from `b` on.
fn ranges(a: u64, b: u64, len: u64) -> Overlap {
    match a.abs_diff(b) {
        distance if distance >= len => Overlap::Apart,
        0 => Overlap::Same,
        _ => Overlap::Shifted,
    }
}

/// The elements of `count` that a rank works on: whole cache lines where that goes.
pub(super) fn share<T>(count: usize, ranks: u32, rank: LsaRank) -> Range<usize> {
    let line = (LINE_BYTES / size_of::<T>()).max(1);
    let each = count.div_ceil(ranks.max(1) as usize).next_multiple_of(line);
    let start = each.saturating_mul(rank.index()).min(count);
    start..start.saturating_add(each).min(count)
}

/// A range of elements in parts that stay in a core's first cache, with what is made of them.
pub(super) fn chunks<T: Number>(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let chunk = CHUNK_BYTES / size_of::<T>().max(size_of::<T::Wide>());
    let end = range.end;
    range.step_by(chunk).map(move |at| at..end.min(at + chunk))
}

/// Elements as words of 8 bytes, the last one filled up.
pub(super) fn pack<T: Element>(from: &[T], to: &mut [u64]) {
    to.as_mut_bytes()[..size_of_val(from)].copy_from_slice(from.as_bytes());
}

/// The elements of such words.
pub(super) fn unpack<T: Element>(from: &[u64], to: &mut [T]) {
    let len = size_of_val(to);
    to.as_mut_bytes().copy_from_slice(&from.as_bytes()[..len]);
}

/// A team without ranks, which is none.
pub(super) fn no_ranks() -> Error {
    Misuse::Other { what: "a device communicator of an LSA team without ranks".to_owned() }.into()
}

const LINE_BYTES: usize = 64;

/// How much of each input is read at a time: two such buffers fit a core's first cache.
const CHUNK_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn shares_are_all_elements_once(count in 0..100_000_usize, ranks in 1..40_u32) {
            let mut end = 0;
            for rank in 0..ranks {
                let share = share::<f32>(count, ranks, LsaRank::new(rank));
                prop_assert_eq!(share.start, end);
                prop_assert!(share.start % 16 == 0 || share.is_empty());
                prop_assert_eq!(chunks::<f32>(share.clone()).map(|part| part.len()).sum::<usize>(), share.len());
                end = share.end;
            }
            prop_assert_eq!(end, count);
        }
    }

    #[test]
    fn ranges_are_apart_the_same_or_shifted() {
        assert_eq!(ranges(8, 8, 4), Overlap::Same);
        assert_eq!(ranges(8, 12, 4), Overlap::Apart);
        assert_eq!(ranges(12, 9, 4), Overlap::Shifted);
        assert_eq!(ranges(8, 8, 0), Overlap::Apart);
    }
}
