//! What windows are filled with, and what their sum, mean, minimum or maximum must then be.
//!
//! Each window of each rank holds the same row of [`PERIOD`] numbers over and over, begun at another place. So no two
//! ranks, windows, pages or blocks hold the same bytes at the same place, while what must come out is known from one
//! row. The numbers are integers of at most 11 bits and a sign: f32 holds their sums over 8,192 ranks exactly, in
//! any order. The expected row is made in f64, by itself, not by the library.

use symwin::coll::ReduceOp;

/// How often the row comes back, in elements: a prime, so that it is in step with no page, chunk or block.
const PERIOD: usize = 4093;

/// Fills `part` with what window `window` of rank `rank` holds from element `first` on. `row` is [`row_of`] of that
/// rank and window.
pub(crate) fn fill(part: &mut [u8], first: usize, row: &[u8]) {
    let mut from = first % PERIOD * size_of::<f32>();
    let mut rest = part;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut(rest.len().min(row.len() - from));
        now.copy_from_slice(&row[from..from + now.len()]);
        (from, rest) = (0, later);
    }
}

/// The bytes of the row as a rank's window begins it.
pub(crate) fn row_of(rank: u32, window: u32) -> Vec<u8> {
    (0..PERIOD as u64).flat_map(|element| value(rank, window, element).to_ne_bytes()).collect()
}

/// The number that window `window` of rank `rank` holds at element `element`.
fn value(rank: u32, window: u32, element: u64) -> f32 {
    row(place(rank, window, element))
}

/// What element `i` of the reduction of window `window` over these ranks is, at `i % PERIOD`.
pub(crate) fn expected(ranks: impl Iterator<Item = u32> + Clone, window: u32, op: ReduceOp) -> Vec<f32> {
    let reduce = |element: u64| {
        let values = ranks.clone().map(|rank| f64::from(value(rank, window, element)));
        let reduced = match op {
            ReduceOp::Mean => values.clone().sum::<f64>() / values.count() as f64,
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            _ => values.sum(),
        };
        // One rounding: the sums are exact, and f64 has more than twice f32's digits.
        #[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what is meant")]
        let rounded = reduced as f32;
        rounded
    };
    (0..PERIOD as u64).map(reduce).collect()
}

/// Which number of the row stands there.
fn place(rank: u32, window: u32, element: u64) -> u64 {
    let shift = u64::from(rank) * 977 + u64::from(window) * 131;
    (element % PERIOD as u64 + shift) % PERIOD as u64
}

/// Number `index` of the row, from -2048 to 2047: the upper bits of a multiplicative hash.
fn row(index: u64) -> f32 {
    let hashed = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
    f32::from(u16::try_from(hashed).expect("12 bits are left")) - 2048.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_windows_and_places_differ() {
        let start =
            |rank, window, from: u64| (from..from + 16).map(|i| value(rank, window, i)).collect::<Vec<_>>();
        let mut starts = Vec::new();
        for rank in 0..8 {
            for window in 0..8 {
                for page in 0..8 {
                    starts.push(start(rank, window, page * 1024));
                }
            }
        }
        let count = starts.len();
        starts.sort_by(|a, b| a.partial_cmp(b).unwrap());
        starts.dedup();
        assert_eq!(starts.len(), count);
    }

    #[test]
    fn a_part_is_filled_with_its_values_wherever_it_starts() {
        let row = row_of(3, 4);
        for first in [0, 1, PERIOD - 1, PERIOD, 3 * PERIOD + 7] {
            let mut part = vec![0; 4 * (2 * PERIOD + 5)];
            fill(&mut part, first, &row);
            let (elements, _) = part.as_chunks();
            for (bytes, element) in elements.iter().zip(first as u64..) {
                assert_eq!(f32::from_ne_bytes(*bytes), value(3, 4, element));
            }
        }
    }

    #[test]
    fn the_expected_row_is_the_reduction_of_the_values() {
        for element in [0u64, 1, 4092, 4093, 10_000] {
            let at = usize::try_from(element).unwrap() % PERIOD;
            let values = [0, 1, 2].map(|rank| value(rank, 5, element));
            let [a, b, c] = values;
            assert_eq!(expected(0..3, 5, ReduceOp::Sum)[at], a + b + c);
            assert_eq!(expected(0..3, 5, ReduceOp::Mean)[at], (a + b + c) / 3.0);
            assert_eq!(expected(0..3, 5, ReduceOp::Min)[at], a.min(b).min(c));
            assert_eq!(expected(0..3, 5, ReduceOp::Max)[at], a.max(b).max(c));
        }
    }
}
