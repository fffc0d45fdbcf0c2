//! A row of the table, and the laws for rows.

use serde_json::Value;

use super::{Order, Software, System};

/// A column: a path of traffic in one family, or a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// A pod connects to another pod.
    PodToPod,
    /// A pod connects to a server outside the node.
    PodToWorld,
    /// A client outside the node connects to the hostport of a pod.
    WorldToHostport,
    /// A process of the node connects to a pod.
    NodeToPod,
    /// A pod connects to what the other software publishes.
    PodToTheirs,
    /// A client of the other software connects to a pod by a port of the node.
    TheirsToPod,
    /// CNI ADD.
    Add,
    /// CNI CHECK, after the traffic.
    Check,
    /// CNI STATUS.
    Status,
    /// `viaductctl doctor`.
    Doctor,
    /// CNI DEL, of both pods.
    Del,
}

impl Column {
    /// All columns, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::PodToPod,
        Self::PodToWorld,
        Self::WorldToHostport,
        Self::NodeToPod,
        Self::PodToTheirs,
        Self::TheirsToPod,
        Self::Add,
        Self::Check,
        Self::Status,
        Self::Doctor,
        Self::Del,
    ];

    /// Returns the heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::PodToPod => "pod → pod",
            Self::PodToWorld => "pod → world",
            Self::WorldToHostport => "world → hostport",
            Self::NodeToPod => "node → pod",
            Self::PodToTheirs => "pod → theirs",
            Self::TheirsToPod => "theirs → pod",
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Doctor => "doctor",
            Self::Del => "DEL",
        }
    }

    /// Returns whether it is a path of traffic, which has a result for each family.
    pub fn is_traffic(self) -> bool {
        matches!(
            self,
            Self::PodToPod
                | Self::PodToWorld
                | Self::WorldToHostport
                | Self::NodeToPod
                | Self::PodToTheirs
                | Self::TheirsToPod
        )
    }
}

/// The result of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The system or the software has no such thing.
    Absent,
    /// The traffic passes, or the report is good.
    Good,
    /// The traffic does not pass, or the report is an error, with the reason.
    Bad(String),
}

impl Cell {
    /// Converts the result of an operation.
    pub(super) fn of<T>(result: &anyhow::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Good,
            Err(error) => Self::Bad(brief(error)),
        }
    }
}

/// Returns an error without the configuration that a plugin was called with: the message of its
/// error object, if there is one.
fn brief(error: &anyhow::Error) -> String {
    let cause = error.root_cause().to_string();
    cause
        .find('{')
        .zip(cause.rfind('}'))
        .and_then(|(start, end)| cause.get(start..=end))
        .and_then(|object| serde_json::from_str::<Value>(object).ok())
        .and_then(|object| object["msg"].as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("{error:#}"))
}

/// One system beside one piece of software.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The other software.
    pub software: Software,
    /// Its version.
    pub version: String,
    /// Whether it runs before the first pod.
    pub order: Order,
    /// The measured system.
    pub system: System,
    /// The results, IPv4 first; a report has one result in both places.
    pub cells: Vec<(Column, [Cell; 2])>,
}

impl Row {
    /// Returns the results of a column, IPv4 first.
    pub fn cell(&self, column: Column) -> &[Cell; 2] {
        const NONE: [Cell; 2] = [Cell::Absent, Cell::Absent];
        self.cells
            .iter()
            .find(|(own, _)| *own == column)
            .map_or(&NONE, |(_, cells)| cells)
    }

    /// Returns whether all traffic passes and all reports are good.
    pub fn is_good(&self) -> bool {
        self.cells
            .iter()
            .flat_map(|(_, cells)| cells)
            .all(|cell| !matches!(cell, Cell::Bad(_)))
    }

    /// Returns its first columns in words.
    pub fn title(&self) -> String {
        let software = format!("{} {}", self.software.name(), self.version);
        let (order, system) = (self.order.name(), self.system.name());
        format!("{}, {order}: {system}", software.trim_end())
    }

    /// Returns whether the other row is about the same node with another system.
    fn is_beside(&self, other: &Self) -> bool {
        self.software == other.software && self.order == other.order
    }
}

/// Returns the offences against the two laws:
///
/// * Where the reference works, Viaduct works.
/// * Where Viaduct does not work, `viaductctl doctor` does not report a good node.
pub fn laws(rows: &[Row]) -> Vec<String> {
    let mut offences = Vec::new();
    for row in rows.iter().filter(|row| row.system.is_ours()) {
        let references = || {
            rows.iter()
                .filter(|other| !other.system.is_ours() && other.is_beside(row))
        };
        let mut has_lost_traffic = false;
        for (column, cells) in &row.cells {
            for (family, cell) in cells.iter().enumerate() {
                let Cell::Bad(reason) = cell else { continue };
                has_lost_traffic |= column.is_traffic() || *column == Column::Add;
                offences.extend(
                    references()
                        .filter(|it| it.cell(*column)[family] == Cell::Good)
                        .map(|it| {
                            let family = ["IPv4", "IPv6"][family];
                            format!(
                                "{}: {}, {family}, fails ({reason}), and works with {}",
                                row.title(),
                                column.name(),
                                it.system.name()
                            )
                        }),
                );
            }
        }
        if has_lost_traffic && row.cell(Column::Doctor)[0] == Cell::Good {
            offences.push(format!(
                "{}: traffic is lost, and doctor reports a good node",
                row.title()
            ));
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: System, traffic: Cell, doctor: Cell) -> Row {
        Row {
            software: Software::Ufw,
            version: "0.36".to_owned(),
            order: Order::Before,
            system,
            cells: vec![
                (Column::PodToPod, [traffic.clone(), traffic]),
                (Column::Doctor, [doctor.clone(), doctor]),
            ],
        }
    }

    fn bad() -> Cell {
        Cell::Bad("timeout".to_owned())
    }

    #[test]
    fn a_path_that_only_the_reference_has_is_an_offence() {
        let ours = row(System::Viaduct, bad(), bad());
        let theirs = row(System::Reference, Cell::Good, Cell::Absent);
        assert_eq!(laws(&[ours.clone(), theirs]).len(), 2);
        let worse = row(System::Reference, bad(), Cell::Absent);
        assert_eq!(laws(&[ours, worse]), Vec::<String>::new());
    }

    #[test]
    fn an_error_of_a_plugin_is_shown_by_its_message() {
        let error = anyhow::anyhow!("failed (Some(1)): {{ \"code\": 7, \"msg\": \"no {{}}\" }} \n")
            .context("ADD by bridge");
        assert_eq!(brief(&error), "no {}");
        assert_eq!(brief(&anyhow::anyhow!("a").context("b")), "b: a");
    }

    #[test]
    fn a_doctor_that_does_not_see_lost_traffic_is_an_offence() {
        let blind = row(System::Viaduct, bad(), Cell::Good);
        assert_eq!(laws(&[blind]).len(), 1);
        let good = row(System::Viaduct, Cell::Good, Cell::Good);
        assert_eq!(laws(&[good]), Vec::<String>::new());
    }
}
