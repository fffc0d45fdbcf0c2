//! Performance goals: bounds on the ratio of Viaduct to another system.

use crate::row::{Better, Row, subject_beside, system};
use crate::statistics::{Summary, ratios};

/// A bound on the median of the ratios of Viaduct to `other`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The subject of the row, including its size ([`Row::subject`]).
    pub(crate) subject: &'static str,
    /// The system that Viaduct is compared with.
    pub(crate) other: &'static str,
    /// Upper bound where lower is better, lower bound where higher is better.
    pub(crate) bound: f64,
}

/// The measured result for a goal.
#[derive(Clone, Debug)]
pub(crate) struct GoalResult {
    /// The goal.
    pub(crate) goal: Goal,
    /// Summary of the ratios of all rounds.
    pub(crate) ratio: Summary,
    /// Summary of the ratios of the [plain kernel](system::PLAIN) in place of Viaduct, if measured.
    pub(crate) plain: Option<Summary>,
    /// Summary of the ratios with the rules of each of [`COMPANY`] on both nodes, if measured.
    pub(crate) beside: [Option<Summary>; 2],
    /// The direction of the bound.
    pub(crate) better: Better,
}

impl Goal {
    /// Evaluates the goal on the rows. Returns `None` if one of the two systems was not measured.
    ///
    /// The goal holds for a node without other software. With it, only the ratio is shown.
    pub(crate) fn evaluate(self, rows: &[Row]) -> Option<GoalResult> {
        let of = |system: &str| {
            rows.iter()
                .find(|row| row.system == system && row.subject() == self.subject)
        };
        let (ours, theirs) = (of(system::VIADUCT)?, of(self.other)?);
        // Plain forwarding has no hostports, so its row has another size on the same axis.
        let plain = rows.iter().find(|row| {
            let axis = |row: &Row| row.point.map(|point| point.axis);
            let same = row.name == ours.name && axis(row) == axis(ours);
            same && row.beside.is_none() && system::PLAIN.contains(&row.system.as_str())
        });
        Some(GoalResult {
            goal: self,
            ratio: Summary::of(&ratios(ours, theirs))?,
            beside: COMPANY.map(|company| self.ratio_beside(rows, company)),
            plain: plain.and_then(|plain| Summary::of(&ratios(plain, theirs))),
            better: ours.better,
        })
    }

    /// Returns the summary of the ratios with the rules of other software on both nodes.
    fn ratio_beside(self, rows: &[Row], company: &str) -> Option<Summary> {
        let subject = subject_beside(self.subject, Some(company));
        let of = |system: &str| {
            rows.iter()
                .find(|row| row.system == system && row.subject() == subject)
        };
        Summary::of(&ratios(of(system::VIADUCT)?, of(self.other)?))
    }
}

/// Other software, in the order of its columns.
pub(crate) const COMPANY: [&str; 2] = ["kube-proxy", "Docker"];

impl GoalResult {
    /// Returns whether the median of the ratios meets the bound.
    pub(crate) fn is_met(&self) -> bool {
        match self.better {
            Better::Lower => self.ratio.median <= self.goal.bound,
            Better::Higher => self.ratio.median >= self.goal.bound,
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
    fn a_goal_is_evaluated_on_the_ratio_of_each_round() {
        // The machine is ten times slower in the last round, but the ratio is the same.
        let rows = [
            row(system::VIADUCT, &[1.0, 1.0, 10.0]),
            row(system::NFT, &[4.0, 4.0, 40.0]),
        ];
        let goal = |bound| Goal {
            subject: "cost",
            other: system::NFT,
            bound,
        };
        assert!(
            goal(0.25)
                .evaluate(&rows)
                .is_some_and(|result| result.is_met())
        );
        assert!(
            goal(0.24)
                .evaluate(&rows)
                .is_some_and(|result| !result.is_met())
        );
        assert!(goal(0.25).evaluate(&rows[..1]).is_none());
    }

    #[test]
    fn the_ratio_beside_other_software_is_shown_with_the_goal() {
        let beside = |system, sample| Row {
            beside: Some("Docker"),
            ..row(system, &[sample])
        };
        let rows = [
            row(system::VIADUCT, &[1.0]),
            row(system::NFT, &[4.0]),
            beside(system::VIADUCT, 3.0),
            beside(system::NFT, 4.0),
        ];
        let goal = Goal {
            subject: "cost",
            other: system::NFT,
            bound: 0.5,
        };
        let result = goal.evaluate(&rows).expect("both are measured");
        let medians = result.beside.map(|it| it.map(|it| it.median));
        assert_eq!((result.ratio.median, medians), (0.25, [None, Some(0.75)]));
    }

    #[test]
    fn the_plain_kernel_is_found_at_any_size_of_the_same_axis() {
        let sized = |system, sample| row(system, &[sample]).at("hostports", 1000);
        let rows = [
            sized(system::VIADUCT, 1.0),
            sized(system::NFT, 4.0),
            row(system::FORWARDING, &[3.0]).at("hostports", 0),
        ];
        let goal = Goal {
            subject: "cost, 1000 hostports",
            other: system::NFT,
            bound: 0.5,
        };
        let plain = |rows: &[Row]| goal.evaluate(rows).map(|result| result.plain);
        let others = row(system::FORWARDING, &[2.0]).at("pods", 0);
        let along_another_axis = [rows[0].clone(), rows[1].clone(), others];
        assert_eq!(plain(&rows).flatten().map(|it| it.median), Some(0.75));
        assert_eq!(plain(&rows[..2]), Some(None));
        assert_eq!(plain(&along_another_axis), Some(None));
    }
}
