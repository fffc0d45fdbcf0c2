//! What we hold ourselves to: the ratio of Viaduct to another system, and its bound.

use crate::row::{Better, Row, system};
use crate::statistics::{Summary, ratios};

/// A bound on the median of the ratios of Viaduct to `other`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// The row's subject, with its point.
    pub(crate) subject: &'static str,
    /// The system compared with.
    pub(crate) other: &'static str,
    /// At most this where lower is better, at least this where higher is.
    pub(crate) bound: f64,
}

/// What came of a promise.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The promise.
    pub(crate) promise: Promise,
    /// The ratios, one for each round.
    pub(crate) ratio: Summary,
    /// The ratios of the [plain](system::PLAIN) kernel in Viaduct's place, if that was measured.
    pub(crate) plain: Option<Summary>,
    /// The direction of its bound.
    pub(crate) better: Better,
}

impl Promise {
    /// Judges the rows; `None` if what it speaks of was not measured.
    pub(crate) fn judge(self, rows: &[Row]) -> Option<Kept> {
        let of = |system: &str| {
            rows.iter()
                .find(|row| row.system == system && row.subject() == self.subject)
        };
        let (ours, theirs) = (of(system::VIADUCT)?, of(self.other)?);
        // What publishes nothing has no size at which it does.
        let plain = rows.iter().find(|row| {
            let axis = |row: &Row| row.point.map(|point| point.axis);
            let same = row.name == ours.name && axis(row) == axis(ours);
            same && system::PLAIN.contains(&row.system.as_str())
        });
        Some(Kept {
            promise: self,
            ratio: Summary::of(&ratios(ours, theirs))?,
            plain: plain.and_then(|plain| Summary::of(&ratios(plain, theirs))),
            better: ours.better,
        })
    }
}

impl Kept {
    /// Whether the median is on the right side of the bound.
    pub(crate) fn is_kept(&self) -> bool {
        match self.better {
            Better::Lower => self.ratio.median <= self.promise.bound,
            Better::Higher => self.ratio.median >= self.promise.bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, samples: &[f64]) -> Row {
        Row {
            samples: samples.to_vec(),
            ..Row::new("cost", system, "ns")
        }
    }

    #[test]
    fn a_promise_is_about_the_ratio_of_each_round() {
        // The machine is ten times slower in the last round; the ratio is not.
        let rows = [
            row(system::VIADUCT, &[1.0, 1.0, 10.0]),
            row(system::NFT, &[4.0, 4.0, 40.0]),
        ];
        let promise = |bound| Promise {
            subject: "cost",
            other: system::NFT,
            bound,
        };
        assert!(
            promise(0.25)
                .judge(&rows)
                .is_some_and(|kept| kept.is_kept())
        );
        assert!(
            promise(0.24)
                .judge(&rows)
                .is_some_and(|kept| !kept.is_kept())
        );
        assert!(promise(0.25).judge(&rows[..1]).is_none());
    }

    #[test]
    fn the_plain_kernel_stands_beside_it_at_any_size() {
        let sized = |system, sample| row(system, &[sample]).at("hostports", 1000);
        let rows = [
            sized(system::VIADUCT, 1.0),
            sized(system::NFT, 4.0),
            row(system::FORWARDING, &[3.0]).at("hostports", 0),
        ];
        let promise = Promise {
            subject: "cost, 1000 hostports",
            other: system::NFT,
            bound: 0.5,
        };
        let plain = |rows: &[Row]| promise.judge(rows).map(|kept| kept.plain);
        let others = row(system::FORWARDING, &[2.0]).at("pods", 0);
        let along_another_axis = [rows[0].clone(), rows[1].clone(), others];
        assert_eq!(plain(&rows).flatten().map(|it| it.median), Some(0.75));
        assert_eq!(plain(&rows[..2]), Some(None));
        assert_eq!(plain(&along_another_axis), Some(None));
    }
}
