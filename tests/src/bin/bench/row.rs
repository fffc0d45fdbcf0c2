//! What every family gives back: rows. One row is one system under one measurement, with one sample for each round.

use serde_json::{Value, json};

/// A system that is measured, as reports call it.
pub(crate) mod system {
    /// Two namespaces and a wire: what the kernel takes in any case.
    pub(crate) const BARE: &str = "bare veth";
    /// A bridge and routing, with no address translated and no rule.
    pub(crate) const FORWARDING: &str = "forwarding";
    /// Of ADD, a process that starts and ends, and the calls by which the kernel makes a pod's link: what it takes in any case.
    pub(crate) const CALLS: &str = "process and kernel";
    /// The reference plugins, whose rules are in the old tables.
    pub(crate) const LEGACY: &str = "reference, legacy";
    /// The reference plugins, whose rules are in nftables.
    pub(crate) const NFT: &str = "reference, nft";
    /// Viaduct.
    pub(crate) const VIADUCT: &str = "viaduct";
    /// The kernel where it does nothing of what the others do: at most one of them is in a family.
    pub(crate) const PLAIN: [&str; 2] = [FORWARDING, CALLS];
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// Costs and delays.
    Lower,
    /// Rates.
    Higher,
}

/// Where on an axis a row lies, when the same thing is measured at several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// What grows, in the plural: `hostports`, `pods`.
    pub(crate) axis: &'static str,
    /// How many there are.
    pub(crate) at: u64,
}

/// One system under one measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// What is measured: rows of one name are compared with each other.
    pub(crate) name: String,
    /// Which system: one of [`system`], or one that the family itself explains.
    pub(crate) system: String,
    /// The unit of the samples, as it is printed.
    pub(crate) unit: &'static str,
    /// Which way is better.
    pub(crate) better: Better,
    /// The size it was measured at, where there are several.
    pub(crate) point: Option<Point>,
    /// What Viaduct's median has to be at the least and at the most, where that is not about another system.
    pub(crate) bounds: Option<(f64, f64)>,
    /// One sample for each round, in the order of rounds: sample `n` of every system was taken in round `n`.
    pub(crate) samples: Vec<f64>,
}

impl Row {
    /// A row without samples, of which less is better.
    pub(crate) fn new(
        name: impl Into<String>,
        system: impl Into<String>,
        unit: &'static str,
    ) -> Self {
        Self {
            name: name.into(),
            system: system.into(),
            unit,
            better: Better::Lower,
            point: None,
            bounds: None,
            samples: Vec::new(),
        }
    }

    /// Viaduct's median has to be between these.
    pub(crate) fn within(mut self, least: f64, most: f64) -> Self {
        self.bounds = Some((least, most));
        self
    }

    /// More of it is better.
    pub(crate) fn higher(mut self) -> Self {
        self.better = Better::Higher;
        self
    }

    /// Measured at this size.
    pub(crate) fn at(mut self, axis: &'static str, at: u64) -> Self {
        self.point = Some(Point { axis, at });
        self
    }

    /// The key under which it is compared with other systems.
    pub(crate) fn subject(&self) -> String {
        match self.point {
            Some(Point { axis, at }) => format!("{}, {at} {axis}", self.name),
            None => self.name.clone(),
        }
    }

    /// As raw data.
    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "system": self.system,
            "unit": self.unit,
            "better": match self.better { Better::Lower => "lower", Better::Higher => "higher" },
            "point": self.point.map(|point| json!({ "axis": point.axis, "at": point.at })),
            "bounds": self.bounds,
            "samples": self.samples,
        })
    }
}

/// Rows as they fill up, round by round.
#[derive(Debug, Default)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    /// Adds a sample to the row like `row`, which begins here if it is new.
    pub(crate) fn push(&mut self, row: Row, sample: f64) {
        let same = |known: &&mut Row| {
            known.name == row.name && known.system == row.system && known.point == row.point
        };
        match self.0.iter_mut().find(same) {
            Some(known) => known.samples.push(sample),
            None => self.0.push(Row {
                samples: vec![sample],
                ..row
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_thing_gather_in_one_row() {
        let mut rows = Rows::default();
        for (system, sample) in [("a", 1.0), ("b", 5.0), ("a", 2.0)] {
            rows.push(Row::new("cost", system, "ns"), sample);
        }
        rows.push(Row::new("cost", "a", "ns").at("pods", 7), 9.0);
        let samples: Vec<_> = rows.0.iter().map(|row| row.samples.clone()).collect();
        assert_eq!(samples, [vec![1.0, 2.0], vec![5.0], vec![9.0]]);
        assert_eq!(rows.0[2].subject(), "cost, 7 pods");
    }
}
