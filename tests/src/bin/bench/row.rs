//! Rows, the results of families. A row holds the samples of one system in one measurement, one
//! sample for each round.

use serde_json::{Value, json};

/// Names of the measured systems in reports.
pub(crate) mod system {
    /// Two namespaces and a veth pair: the minimum cost in the kernel.
    pub(crate) const BARE: &str = "bare veth";
    /// A bridge and routing, without NAT and without netfilter rules.
    pub(crate) const FORWARDING: &str = "forwarding";
    /// One process start and the netlink requests that create a pod's link: the minimum of an ADD.
    pub(crate) const BASELINE: &str = "process and kernel";
    /// The reference plugins, with their rules in the kernel's old tables (iptables-legacy).
    pub(crate) const LEGACY: &str = "reference, legacy";
    /// The reference plugins, with their rules in nftables (iptables-nft).
    pub(crate) const NFT: &str = "reference, nft";
    /// Viaduct, with its default arguments.
    pub(crate) const VIADUCT: &str = "viaduct";
    /// Viaduct without checks of what pods send.
    pub(crate) const UNCHECKED: &str = "viaduct, unchecked";
    /// Viaduct without network policies.
    pub(crate) const WITHOUT_POLICIES: &str = "viaduct, no policies";
    /// A network of Docker's own bridge driver, with Docker's settings.
    pub(crate) const DOCKER: &str = "bridge driver";
    /// The same, with `--userland-proxy=false`.
    pub(crate) const DOCKER_WITHOUT_PROXY: &str = "bridge driver, no proxy";
    /// A network of a driver that does nothing: what every driver has to add to.
    pub(crate) const DOCKER_ALONE: &str = "dockerd alone";
    /// Viaduct while no client follows drop events.
    pub(crate) const WITHOUT_LISTENER: &str = "viaduct, no listener";
    /// A VXLAN device with static entries, a bridge and netfilter's masquerade, as flannel makes
    /// them.
    pub(crate) const FLANNEL: &str = "bridge and VXLAN, nft";
    /// The plain kernel, without the functions of a CNI plugin. A family has at most one of them.
    pub(crate) const PLAIN: [&str; 2] = [FORWARDING, BASELINE];
}

/// The direction in which a value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// For costs and latencies.
    Lower,
    /// For rates.
    Higher,
}

/// The size of a row whose measurement is made at several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// The counted objects, in the plural: `hostports`, `pods`.
    pub(crate) axis: &'static str,
    /// Their number.
    pub(crate) at: u64,
}

/// The samples of one system in one measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Name of the measurement. Rows with the same name are compared.
    pub(crate) name: String,
    /// Name of the system: one of [`system`], or one that the family defines.
    pub(crate) system: String,
    /// Unit of the samples, as printed.
    pub(crate) unit: &'static str,
    /// The direction in which a sample is better.
    pub(crate) better: Better,
    /// The size, if the measurement is made at several sizes.
    pub(crate) point: Option<Point>,
    /// Other software whose rules were on the node, if any.
    pub(crate) beside: Option<&'static str>,
    /// Lower and upper bound of Viaduct's median, for goals that do not compare with another
    /// system.
    pub(crate) bounds: Option<(f64, f64)>,
    /// One sample for each round: sample `n` of each system was taken in round `n`.
    pub(crate) samples: Vec<f64>,
}

impl Row {
    /// Creates a row without samples, for which lower is better.
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
            beside: None,
            bounds: None,
            samples: Vec::new(),
        }
    }

    /// Sets the bounds of Viaduct's median.
    pub(crate) fn within(mut self, least: f64, most: f64) -> Self {
        self.bounds = Some((least, most));
        self
    }

    /// Declares that higher is better.
    pub(crate) fn higher(mut self) -> Self {
        self.better = Better::Higher;
        self
    }

    /// Sets the size.
    pub(crate) fn at(mut self, axis: &'static str, at: u64) -> Self {
        self.point = Some(Point { axis, at });
        self
    }

    /// Returns the key of the comparison with other systems: the name, the size if there is one,
    /// and the other software if there is any.
    pub(crate) fn subject(&self) -> String {
        let alone = match self.point {
            Some(Point { axis, at }) => format!("{}, {at} {axis}", self.name),
            None => self.name.clone(),
        };
        subject_beside(&alone, self.beside)
    }

    /// Returns the title of a chart: the name, and the other software if there is any.
    pub(crate) fn title(&self) -> String {
        subject_beside(&self.name, self.beside)
    }

    /// Converts the row to JSON, for `report.json`.
    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "system": self.system,
            "unit": self.unit,
            "better": match self.better { Better::Lower => "lower", Better::Higher => "higher" },
            "beside": self.beside,
            "point": self.point.map(|point| json!({ "axis": point.axis, "at": point.at })),
            "bounds": self.bounds,
            "samples": self.samples,
        })
    }
}

/// Returns a subject as measured beside other software.
pub(crate) fn subject_beside(subject: &str, company: Option<&str>) -> String {
    match company {
        Some(company) => format!("{subject}, beside {company}"),
        None => subject.to_owned(),
    }
}

/// Rows under construction, which get samples round by round.
#[derive(Debug, Default)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    /// Adds a sample to the row with the name, system and size of `row`, and creates it if it is
    /// new.
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
    fn samples_with_the_same_name_system_and_size_are_collected_in_one_row() {
        let mut rows = Rows::default();
        for (system, sample) in [("a", 1.0), ("b", 5.0), ("a", 2.0)] {
            rows.push(Row::new("cost", system, "ns"), sample);
        }
        rows.push(Row::new("cost", "a", "ns").at("pods", 7), 9.0);
        let samples: Vec<_> = rows.0.iter().map(|row| row.samples.clone()).collect();
        assert_eq!(samples, [vec![1.0, 2.0], vec![5.0], vec![9.0]]);
        assert_eq!(rows.0[2].subject(), "cost, 7 pods");
        rows.0[2].beside = Some("Docker");
        assert_eq!(rows.0[2].subject(), "cost, 7 pods, beside Docker");
    }
}
