//! Medians, quartiles, and the ratios of two systems in each round.

use crate::row::Row;

/// Median and quartiles of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// First quartile.
    pub(crate) low: f64,
    /// Second quartile.
    pub(crate) median: f64,
    /// Third quartile.
    pub(crate) high: f64,
}

impl Summary {
    /// Summarises samples. Returns `None` without any.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            low: quantile(&sorted, 0.25)?,
            median: quantile(&sorted, 0.5)?,
            high: quantile(&sorted, 0.75)?,
        })
    }
}

/// Returns a quantile of sorted samples, with linear interpolation; `part` is from 0 to 1.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a list of samples are small"
)]
pub(crate) fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let position = part * sorted.len().checked_sub(1)? as f64;
    let below = sorted[position.floor() as usize];
    let above = sorted[position.ceil() as usize];
    Some(below + (above - below) * position.fract())
}

/// Returns the ratio of `ours` to `theirs` for each round that both have.
pub(crate) fn ratios(ours: &Row, theirs: &Row) -> Vec<f64> {
    ours.samples
        .iter()
        .zip(&theirs.samples)
        .map(|(ours, theirs)| ours / theirs)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated_between_samples() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0, 5.0]);
        let expected = Summary {
            low: 2.0,
            median: 3.0,
            high: 4.0,
        };
        assert_eq!(summary, Some(expected));
        assert_eq!(Summary::of(&[1.0, 2.0]).map(|it| it.median), Some(1.5));
        assert_eq!(Summary::of(&[]), None);
    }
}
