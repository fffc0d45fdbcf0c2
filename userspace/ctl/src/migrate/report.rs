//! The report of a migration: one line for each pod.

use serde::Serialize;

use super::plan::{Plan, Pod, Step};
use crate::render::table::{row, styled_table, text};
use crate::render::{TableStyle, short_id};

/// What became of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Ports are unpublished; this number of connections still needs the pod's programs.
    Draining(u64),
    Refused(String),
    Failed(String),
}

impl Outcome {
    pub(super) fn failed(what: &str, error: &anyhow::Error) -> Self {
        Self::Failed(format!("{what}: {error:#}"))
    }
}

/// The report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// Open connections that netfilter goes on translating.
    #[serde(rename = "keptConnections")]
    kept_connections: u64,
    pods: Vec<Line>,
}

/// The line of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Line {
    #[serde(rename = "containerID")]
    container_id: String,
    network: String,
    ifname: String,
    ports: Vec<String>,
    step: &'static str,
    outcome: String,
    #[serde(skip)]
    has_failed: bool,
}

impl Report {
    pub(super) fn new(kept_connections: u64, pods: Vec<(Pod, Outcome)>) -> Self {
        Self {
            kept_connections,
            pods: pods
                .into_iter()
                .map(|(pod, outcome)| line(&pod, &outcome))
                .collect(),
        }
    }

    /// Returns whether a pod was refused, or an effect failed.
    pub(super) fn has_failed(&self) -> bool {
        self.pods.iter().any(|pod| pod.has_failed)
    }
}

fn line(pod: &Pod, outcome: &Outcome) -> Line {
    let (outcome_text, has_failed) = match outcome {
        Outcome::Done => ("done".to_owned(), false),
        Outcome::Draining(flows) => (
            format!("{flows} connections still use Viaduct's translation: repeat --undo later"),
            false,
        ),
        Outcome::Refused(why) => (format!("refused: {why}"), true),
        Outcome::Failed(why) => (format!("failed: {why}"), true),
    };
    Line {
        container_id: pod.cached.container_id.to_string(),
        network: pod.cached.network.clone(),
        ifname: pod.cached.ifname.to_string(),
        ports: pod.ports.iter().map(ToString::to_string).collect(),
        step: match pod.step {
            Step::Publish => "publish the ports, remove the rules",
            Step::RemoveRules => "remove the rules",
            Step::Restore => "make the rules, unpublish the ports",
            Step::Release => "release the interface",
            Step::Done => "nothing to do",
            Step::Refuse(_) => "none",
        },
        outcome: outcome_text,
        has_failed,
    }
}

/// Returns the report of a plan that is not executed.
pub(super) fn planned(plan: &Plan, kept_connections: u64) -> Report {
    let lines = plan.pods.iter().map(|pod| {
        if let Step::Refuse(refusal) = &pod.step {
            return line(pod, &Outcome::Refused(refusal.to_string()));
        }
        Line {
            outcome: "planned".to_owned(),
            ..line(pod, &Outcome::Done)
        }
    });
    Report {
        kept_connections,
        pods: lines.collect(),
    }
}

/// Returns the report as text.
pub(super) fn render(report: &Report, style: TableStyle) -> String {
    if report.pods.is_empty() {
        return "No pod has ports published by portmap.\n".to_owned();
    }
    let header = [
        "CONTAINER",
        "NETWORK",
        "INTERFACE",
        "PORTS",
        "STEP",
        "OUTCOME",
    ];
    let rows = report.pods.iter().map(|pod| {
        row([
            text(short_id(&pod.container_id)),
            text(&pod.network),
            text(&pod.ifname),
            text(pod.ports.join(", ")),
            text(pod.step),
            text(&pod.outcome),
        ])
    });
    let table = styled_table(&header, rows, style);
    format!(
        "{table}Open connections that netfilter goes on translating: {}\n",
        report.kept_connections
    )
}
