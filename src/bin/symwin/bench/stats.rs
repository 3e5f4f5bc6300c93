//! Samples, and what is said of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One rank's part of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// When it began, in nanoseconds of the clock that all processes share.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// What this rank's process took of the processors meanwhile, said by one rank of each process.
    pub(crate) cpu: u64,
}

/// One rank's samples by what was measured.
pub(crate) type Series = BTreeMap<String, Vec<Sample>>;

/// What many samples say: nanoseconds, or whatever they were divided to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Quartiles.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) samples: usize,
}

impl Figure {
    /// `None` without samples.
    pub(crate) fn new(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarters: usize| {
            let last = sorted.len().checked_sub(1)?;
            let (below, part) = (last * quarters / 4, (last * quarters % 4) as f64 / 4.0);
            Some(sorted[below] + part * (sorted[(below + 1).min(last)] - sorted[below]))
        };
        let [min, low, median, high, max] = [at(0)?, at(1)?, at(2)?, at(3)?, at(4)?];
        Some(Self { median, min, max, low, high, samples: sorted.len() })
    }

    /// All of it by a factor.
    pub(crate) fn scaled(self, by: f64) -> Self {
        let Self { median, min, max, low, high, samples } = self;
        let [median, min, max, low, high] = [median, min, max, low, high].map(|value| value * by);
        Self { median, min, max, low, high, samples }
    }

    pub(crate) fn to_json(self) -> Value {
        let Self { median, min, max, low, high, samples } = self;
        json!({ "median": median, "min": min, "quartile_1": low, "quartile_3": high, "max": max, "samples": samples })
    }
}

/// What all ranks say of a series of samples: wall times from the first rank's begin to the last rank's end, and
/// processor times of all processes, in nanoseconds.
pub(crate) fn merge(ranks: &[Series], name: &str) -> (Vec<f64>, Vec<f64>) {
    let series: Vec<&[Sample]> =
        ranks.iter().map(|series| series.get(name).map_or(&[][..], Vec::as_slice)).collect();
    let count = series.iter().map(|samples| samples.len()).min().unwrap_or(0);
    let of = |index: usize| series.iter().map(move |samples| samples[index]);
    let wall = |index| {
        let begin = of(index).map(|sample| sample.begin).min().unwrap_or(0);
        of(index).map(|sample| sample.end).max().unwrap_or(0).saturating_sub(begin) as f64
    };
    let cpu = |index| of(index).map(|sample| sample.cpu as f64).sum();
    ((0..count).map(wall).collect(), (0..count).map(cpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_and_quartiles_whatever_the_order() {
        let figure = Figure::new([5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        let expected = Figure { median: 3.0, min: 1.0, max: 5.0, low: 2.0, high: 4.0, samples: 5 };
        assert_eq!(figure, expected);
        assert_eq!(Figure::new([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Figure::new([7.0]).unwrap().scaled(2.0).high, 14.0);
        assert_eq!(Figure::new([]), None);
    }

    #[test]
    fn a_sample_lasts_from_the_first_begin_to_the_last_end() {
        let rank = |begin, end, cpu| Series::from([("a".to_owned(), vec![Sample { begin, end, cpu }])]);
        let ranks = [rank(10, 20, 3), rank(5, 15, 0), rank(12, 30, 4)];
        assert_eq!(merge(&ranks, "a"), (vec![25.0], vec![7.0]));
        assert_eq!(merge(&ranks, "b"), (vec![], vec![]));
    }
}
