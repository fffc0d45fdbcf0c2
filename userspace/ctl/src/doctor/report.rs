//! Report of `viaductctl doctor`: sections of checks, as data and as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::{DegradedReason, NodeCheck};
use serde::Serialize;

use crate::render::table::{borderless, text_of};

/// Result of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Whether no check has failed.
    pub(crate) healthy: bool,
    /// What was checked.
    sections: Vec<Section>,
}

/// Checks of one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) checks: Vec<Check>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Word of the check; of a kernel feature, its name.
    pub(super) name: String,
    /// Word of the degraded reason, of a fault that the agent reports too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) outcome: Outcome,
    /// What was found, in one sentence.
    pub(super) message: String,
    /// What to do; empty if there is nothing to do.
    pub(super) advice: String,
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// As it should be.
    Ok,
    /// A fact that is neither good nor bad.
    Info,
    /// doctor could not check it.
    Skip,
    /// It may be a fault, which depends on what only the operator knows.
    Warn,
    /// A fault.
    Fail,
}

impl Outcome {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl Report {
    /// Makes a report of sections. A degraded reason that the agent has reported is left out where
    /// a check of this program has found it as well.
    pub(super) fn of(mut sections: Vec<Section>) -> Self {
        let agent = NodeCheck::Agent.word();
        let all = sections.iter().flat_map(|section| &section.checks);
        let reported: BTreeSet<String> = all
            .filter(|check| check.name == agent)
            .filter_map(|check| check.reason.clone())
            .collect();
        for section in &mut sections {
            section.checks.retain(|check| {
                let is_repeated = check
                    .reason
                    .as_ref()
                    .is_some_and(|it| reported.contains(it));
                check.name == agent || !is_repeated
            });
        }
        let mut checks = sections.iter().flat_map(|section| &section.checks);
        Self {
            healthy: !checks.any(|check| check.outcome == Outcome::Fail),
            sections,
        }
    }

    fn failures(&self) -> usize {
        let checks = self.sections.iter().flat_map(|section| &section.checks);
        checks
            .filter(|check| check.outcome == Outcome::Fail)
            .count()
    }
}

impl Check {
    /// Makes a check with its usual advice, if it found a fault.
    pub(super) fn new(check: NodeCheck, outcome: Outcome, message: impl Into<String>) -> Self {
        let advice = match outcome {
            Outcome::Ok | Outcome::Info => "",
            Outcome::Skip | Outcome::Warn | Outcome::Fail => check.advice(),
        };
        Self {
            name: check.word().to_owned(),
            reason: None,
            outcome,
            message: message.into(),
            advice: advice.to_owned(),
        }
    }

    pub(super) fn ok(check: NodeCheck, message: impl Into<String>) -> Self {
        Self::new(check, Outcome::Ok, message)
    }

    pub(super) fn info(check: NodeCheck, message: impl Into<String>) -> Self {
        Self::new(check, Outcome::Info, message)
    }

    pub(super) fn skip(check: NodeCheck, message: impl Into<String>) -> Self {
        Self::new(check, Outcome::Skip, message)
    }

    pub(super) fn warn(check: NodeCheck, message: impl Into<String>) -> Self {
        Self::new(check, Outcome::Warn, message)
    }

    pub(super) fn fail(check: NodeCheck, message: impl Into<String>) -> Self {
        Self::new(check, Outcome::Fail, message)
    }

    /// Gives a fault the word and the advice that the agent has for it.
    pub(super) fn because(mut self, reason: DegradedReason) -> Self {
        self.reason = Some(reason.word().to_owned());
        self.with_advice(reason.advice())
    }

    pub(super) fn with_advice(mut self, advice: &str) -> Self {
        advice.clone_into(&mut self.advice);
        self
    }
}

/// Renders a report: health first, then each section with a row for each check, and what to do
/// below it. Lines are wrapped at `width` columns, if there is one.
pub(crate) fn render(report: &Report, width: Option<u16>) -> String {
    let mut text = match report.failures() {
        0 => "Health: good\n".to_owned(),
        1 => "Health: DEGRADED for 1 reason\n".to_owned(),
        count => format!("Health: DEGRADED for {count} reasons\n"),
    };
    for section in &report.sections {
        let _always_fits = writeln!(text, "\nChecks of the {}:", section.name);
        text += &table(&section.checks, width);
    }
    text
}

fn table(checks: &[Check], width: Option<u16>) -> String {
    let mut table = borderless(width);
    for check in checks {
        let word = check.reason.as_ref().unwrap_or(&check.name);
        let finding = match check.advice.as_str() {
            "" => check.message.clone(),
            advice => format!("{}\n=> {advice}", check.message),
        };
        table.add_row([check.outcome.word(), word, &finding]);
    }
    text_of(table)
}
