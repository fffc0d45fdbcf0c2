//! Report of `viaductctl doctor`: sections of checks, as data and as text.

use std::fmt::Write as _;

use serde::Serialize;

/// Result of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Whether no check is bad.
    pub(crate) healthy: bool,
    /// What was checked.
    sections: Vec<Section>,
}

/// Checks of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) checks: Vec<Check>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Word of the check; of a bad one, the reason word where the agent has one.
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// What was found, in one sentence.
    pub(super) message: String,
    /// What to do, in one sentence; empty if there is nothing to do.
    pub(super) advice: String,
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// As it should be.
    Good,
    /// A fact that is neither good nor bad.
    Info,
    /// It may be a fault, which depends on what only the operator knows.
    Warning,
    /// A fault.
    Bad,
}

impl Report {
    pub(super) fn of(sections: Vec<Section>) -> Self {
        let mut checks = sections.iter().flat_map(|section| &section.checks);
        Self {
            healthy: !checks.any(|check| check.outcome == Outcome::Bad),
            sections,
        }
    }

    fn count_bad(&self) -> usize {
        let checks = self.sections.iter().flat_map(|section| &section.checks);
        checks.filter(|check| check.outcome == Outcome::Bad).count()
    }
}

impl Check {
    pub(super) fn new(name: &str, outcome: Outcome, message: String, advice: &str) -> Self {
        Self {
            name: name.to_owned(),
            outcome,
            message,
            advice: advice.to_owned(),
        }
    }

    pub(super) fn good(name: &str, message: String) -> Self {
        Self::new(name, Outcome::Good, message, "")
    }

    pub(super) fn info(name: &str, message: String) -> Self {
        Self::new(name, Outcome::Info, message, "")
    }
}

/// Renders a report: health first, then each section with a line for each check, and what to do
/// below it.
pub(crate) fn render(report: &Report) -> String {
    let mut text = match report.count_bad() {
        0 => "Health: good\n".to_owned(),
        1 => "Health: DEGRADED for 1 reason\n".to_owned(),
        count => format!("Health: DEGRADED for {count} reasons\n"),
    };
    for section in &report.sections {
        let _always_fits = writeln!(text, "\nChecks of the {}:", section.name);
        for check in &section.checks {
            text += &line(check);
        }
    }
    text
}

fn line(check: &Check) -> String {
    let Check {
        name,
        outcome,
        message,
        advice,
    } = check;
    let mut text = match outcome {
        Outcome::Good | Outcome::Info => format!("- {message}\n"),
        Outcome::Warning => format!("- WARNING {name}: {message}\n"),
        Outcome::Bad => format!("- {name}: {message}\n"),
    };
    for line in advice.lines() {
        let _always_fits = writeln!(text, "  {line}");
    }
    text
}
