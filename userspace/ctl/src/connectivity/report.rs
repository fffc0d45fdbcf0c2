//! Report of `viaductctl test`, as data and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use super::finding::Outcome;
use super::plan::Cell;
use super::reason::{Drops, Reason};
use crate::render::table::{borderless, text_of};

/// Result of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Whether no check has failed and all have run.
    pub(crate) passed: bool,
    /// Whether a signal ended the test.
    pub(super) interrupted: bool,
    pub(super) checks: Vec<Check>,
    /// Packets of the pods that were dropped, before limits were set.
    pub(super) drops: Vec<Dropped>,
    /// What the test could not remove; empty if it left nothing.
    pub(super) left: Vec<String>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    /// `IPv4` or `IPv6`.
    pub(super) family: &'static str,
    pub(super) protocol: &'static str,
    /// Destination address, with its port if there is one.
    pub(super) destination: String,
    pub(super) outcome: Outcome,
    /// What was found, in one sentence.
    pub(super) message: String,
    /// Why it failed; empty if it did not, or if that is not known.
    pub(super) reason: String,
    /// What to do about it.
    pub(super) advice: String,
}

/// Dropped packets of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Dropped {
    /// Container ID.
    pub(super) pod: String,
    pub(super) reason: String,
    pub(super) packets: u64,
}

impl Check {
    pub(super) fn of(cell: &Cell, (outcome, message): (Outcome, String)) -> Self {
        let destination = match cell.to.port() {
            0 => cell.to.ip().to_string(),
            _ => cell.to.to_string(),
        };
        Self {
            name: cell.name.clone(),
            family: family(cell.to.is_ipv4()),
            protocol: cell.probe.protocol(),
            destination,
            outcome,
            message,
            reason: String::new(),
            advice: String::new(),
        }
    }

    pub(super) fn because(mut self, reason: Reason) -> Self {
        self.reason = reason.text;
        self.advice = reason.advice;
        self
    }
}

/// Returns the name of an address family.
pub(super) const fn family(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4" } else { "IPv6" }
}

impl Report {
    /// Makes a report of the checks, and of the drops of the pods with these IDs.
    pub(super) fn new(checks: Vec<Check>, ids: [&str; 2], drops: Drops) -> Self {
        let drops = ids.into_iter().zip(drops).flat_map(|(pod, reasons)| {
            reasons.into_iter().map(move |(reason, packets)| Dropped {
                pod: pod.to_owned(),
                reason,
                packets,
            })
        });
        Self {
            passed: !checks.iter().any(|check| check.outcome == Outcome::Fail),
            interrupted: false,
            drops: drops.collect(),
            checks,
            left: Vec::new(),
        }
    }

    fn count(&self, outcome: Outcome) -> usize {
        let checks = self.checks.iter();
        checks.filter(|check| check.outcome == outcome).count()
    }
}

/// Renders a report: a row for each check, then causes, dropped packets and the summary. Rows are
/// wrapped at `width` columns, if there is one.
pub(crate) fn render(report: &Report, width: Option<u16>) -> String {
    let mut text = table(&report.checks, width);
    text.push('\n');
    causes(&mut text, &report.checks);
    for Dropped {
        pod,
        reason,
        packets,
    } in &report.drops
    {
        add(
            &mut text,
            format_args!("Dropped: {packets} packets of pod {pod} as {reason}"),
        );
    }
    for left in &report.left {
        add(&mut text, format_args!("Left: {left}"));
    }
    let [failed, warned] = [Outcome::Fail, Outcome::Warn].map(|it| report.count(it));
    let all = report.checks.len();
    if report.interrupted {
        add(&mut text, format_args!("Result: interrupted."));
    } else if failed > 0 {
        add(
            &mut text,
            format_args!("Result: {failed} of {all} checks failed."),
        );
    } else if warned > 0 {
        add(
            &mut text,
            format_args!("Result: no check failed, {warned} of {all} with a warning."),
        );
    } else {
        add(&mut text, format_args!("Result: all {all} checks passed."));
    }
    text
}

fn table(checks: &[Check], width: Option<u16>) -> String {
    let mut table = borderless(width);
    table.set_header(["RESULT", "CHECK", "FAMILY", "PROTOCOL", "FOUND"]);
    for check in checks {
        let Check {
            name,
            family,
            protocol,
            message,
            ..
        } = check;
        table.add_row([check.outcome.word(), name, family, protocol, message]);
    }
    text_of(table)
}

/// Adds the cause of each failed check, and what to do; equal ones once.
fn causes(text: &mut String, checks: &[Check]) {
    let mut shown: Vec<(&str, &str)> = Vec::new();
    for check in checks.iter().filter(|check| !check.reason.is_empty()) {
        let cause = (check.reason.as_str(), check.advice.as_str());
        if shown.contains(&cause) {
            continue;
        }
        shown.push(cause);
        let Check {
            name,
            family,
            protocol,
            destination,
            ..
        } = check;
        add(
            text,
            format_args!("{name}, {family} {protocol} to {destination}:"),
        );
        add(text, format_args!("  {}", check.reason));
        if !check.advice.is_empty() {
            add(text, format_args!("  => {}", check.advice));
        }
    }
    if !shown.is_empty() {
        text.push('\n');
    }
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes every text");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::connectivity::finding::{Finding, judge};
    use crate::connectivity::plan::{Facts, PodFacts, World, cells};

    fn facts() -> Facts {
        let pod = |name: &str, last: u8| PodFacts {
            id: format!("viaductctl-test-9-{name}"),
            addresses: vec![[10, 244, 1, last].into()],
            mtu: 1500,
        };
        Facts {
            pods: [pod("a", 2), pod("b", 3)],
            node: vec!["192.0.2.1".parse().unwrap()],
            world: vec![World {
                address: "192.0.2.254".parse().unwrap(),
                port: None,
                is_gateway: true,
            }],
            host_port: 20_123,
            dns: None,
        }
    }

    fn report(is_broken: bool) -> Report {
        let answered = Finding::Answered(std::time::Duration::from_micros(840));
        let checks = cells(&facts()).into_iter().map(|cell| {
            let finding = match (is_broken, cell.name.as_str()) {
                (true, "pod to pod, 1500 bytes") => Finding::Lost { fits: Some(1400) },
                (true, "gateway 192.0.2.254, 1500 bytes") => Finding::TooLong(1400),
                (true, "published port from a pod") => Finding::Lost { fits: None },
                _ => answered.clone(),
            };
            let check = Check::of(&cell, judge(&cell, &finding));
            if check.outcome != Outcome::Fail {
                return check;
            }
            check.because(Reason {
                text: "the filter table discards it: rule 1 of chain FORWARD of table ip filter \
                       (drop)"
                    .to_owned(),
                advice: "Remove the rule, or accept packets of 10.244.1.0/24 before it.".to_owned(),
            })
        });
        let drops = BTreeMap::from([("no-port".to_owned(), 3)]);
        let drops = if is_broken {
            [drops, BTreeMap::new()]
        } else {
            Drops::default()
        };
        let ids = ["viaductctl-test-9-a", "viaductctl-test-9-b"];
        Report::new(checks.collect(), ids, drops)
    }

    #[test]
    fn the_test_of_a_healthy_node_fits_into_80_and_120_columns() {
        for width in [80, 120] {
            let text = render(&report(false), Some(width));
            assert!(
                text.lines()
                    .all(|line| line.chars().count() <= width.into()),
                "{text}"
            );
            insta::assert_snapshot!(format!("healthy_{width}"), text);
        }
    }

    #[test]
    fn the_test_of_a_broken_node_names_cause_and_advice_in_80_and_120_columns() {
        let mut report = report(true);
        assert!(!report.passed);
        report
            .left
            .push("pod viaductctl-test-9-a: no agent listens".to_owned());
        for width in [80, 120] {
            let text = render(&report, Some(width));
            insta::assert_snapshot!(format!("broken_{width}"), text);
        }
    }

    #[test]
    fn an_interrupted_test_is_reported_as_interrupted() {
        let mut report = report(false);
        report.interrupted = true;
        assert!(render(&report, None).ends_with("Result: interrupted.\n"));
    }
}
