//! Where collectives read and write, and how ranks share the work.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::coll::number::Number;
use crate::device::{DeviceWindow, Element, Kernel, Shared};
use crate::error::{Misuse, Result};
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

    /// The block of `bytes` of this number.
    pub(super) fn block(self, rank: LsaRank, bytes: u64) -> Self {
        self.plus(bytes.saturating_mul(rank.get().into()))
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

/// How this rank's output lies to its input of the same length. Two windows can reach the same memory through
/// different mappings, so only the owner's addresses tell; where one is not known, they may overlap in any way.
pub(super) fn overlap(kernel: &Kernel<'_>, input: Place<'_>, output: Place<'_>, len: u64) -> Result<Overlap> {
    if len == 0 {
        return Ok(Overlap::Apart);
    }
    if is_same(kernel, input, output)? {
        return Ok(Overlap::Same);
    }
    let is_known = input.window.base() != 0 && output.window.base() != 0;
    let is_apart = is_known && !meet(kernel, (input, len), (output, len))?;
    Ok(if is_apart { Overlap::Apart } else { Overlap::Shifted })
}

/// Refuses an input and an output of these lengths in bytes that are known to overlap on this rank, unless `in_place`,
/// where the output of that collective may be the input, says so.
pub(super) fn check_apart(
    kernel: &Kernel<'_>,
    input: (Place<'_>, u64),
    output: (Place<'_>, u64),
    in_place: Option<(Place<'_>, Place<'_>)>,
) -> Result<()> {
    if let Some((input, output)) = in_place
        && is_same(kernel, input, output)?
    {
        return Ok(());
    }
    if !meet(kernel, input, output)? {
        return Ok(());
    }
    let what = "a collective whose output overlaps its input, and not as its documentation allows".to_owned();
    Err(Misuse::Other { what }.into())
}

/// Whether two places of this rank are known to be the same.
pub(super) fn is_same(kernel: &Kernel<'_>, a: Place<'_>, b: Place<'_>) -> Result<bool> {
    let pairs = addresses(kernel, a)?.into_iter().zip(addresses(kernel, b)?);
    Ok(pairs.into_iter().any(|(a, b)| a.is_some() && a == b))
}

/// Whether two places are mapped at the same address, which is so on all ranks or on none.
pub(super) fn is_mapped_same(kernel: &Kernel<'_>, a: Place<'_>, b: Place<'_>) -> Result<bool> {
    Ok(addresses(kernel, a)?[0] == addresses(kernel, b)?[0])
}

/// Whether ranges of this rank, with their lengths in bytes, are known to have a byte in common.
fn meet(kernel: &Kernel<'_>, (a, a_len): (Place<'_>, u64), (b, b_len): (Place<'_>, u64)) -> Result<bool> {
    let pairs = addresses(kernel, a)?.into_iter().zip(addresses(kernel, b)?);
    Ok(pairs.into_iter().any(|(a, b)| a.zip(b).is_some_and(|(a, b)| ranges_meet((a, a_len), (b, b_len)))))
}

/// Where this rank's part of a place is mapped, and where its owner knows it, if that is known.
fn addresses(kernel: &Kernel<'_>, place: Place<'_>) -> Result<[Option<u64>; 2]> {
    let mapped = place.window.lsa_ptr(kernel.lsa_rank(), place.offset)?.addr() as u64;
    let base = place.window.base();
    Ok([Some(mapped), (base != 0).then(|| base.saturating_add(place.offset))])
}

fn ranges_meet((a, a_len): (u64, u64), (b, b_len): (u64, u64)) -> bool {
    a < b.saturating_add(b_len) && b < a.saturating_add(a_len)
}

/// Copies all of `from` to `to`, which is as long, through a buffer that stays in a core's first cache.
pub(super) fn copy(from: &Shared<'_, u8>, to: &Shared<'_, u8>) -> Result<()> {
    let mut buffer = vec![0; from.len().min(CHUNK_BYTES)];
    for at in (0..from.len()).step_by(CHUNK_BYTES) {
        let part = &mut buffer[..CHUNK_BYTES.min(from.len() - at)];
        from.read_into(at, part)?;
        to.write_from(at, part)?;
    }
    Ok(())
}

/// Runs `work` between two meetings of all ranks: the first, so that all inputs are there; the second, so that nobody
/// changes an input that is still read.
pub(super) fn between_barriers(
    kernel: &Kernel<'_>,
    barrier: u32,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut session = kernel.barrier(barrier)?;
    session.sync()?;
    work()?;
    session.sync()
}

/// A length in bytes as windows count them.
pub(super) fn len_of<T>(count: usize, ranks: u32) -> u64 {
    (count as u64).saturating_mul(size_of::<T>() as u64).saturating_mul(ranks.into())
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
                prop_assert!(share.start.is_multiple_of(16) || share.is_empty());
                prop_assert_eq!(chunks::<f32>(share.clone()).map(|part| part.len()).sum::<usize>(), share.len());
                end = share.end;
            }
            prop_assert_eq!(end, count);
        }
    }

    #[test]
    fn ranges_meet_where_they_have_a_byte_in_common() {
        assert!(ranges_meet((8, 4), (8, 4)) && ranges_meet((12, 4), (9, 4)) && ranges_meet((8, 9), (10, 1)));
        assert!(
            !ranges_meet((8, 4), (12, 4)) && !ranges_meet((12, 4), (8, 4)) && !ranges_meet((8, 0), (8, 4))
        );
    }
}
