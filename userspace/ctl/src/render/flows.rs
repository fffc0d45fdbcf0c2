//! Flows, and the usage of the flow table.

use std::fmt::Write;

use api::{FlowTableView, FlowView, FlowsView, PodFlowsView};
use comfy_table::Row;

use super::format::{bits, duration, join, pod_name, traffic};
use super::table::{TableStyle, number, row, styled_table, text};

/// Renders flows, one line each. `rates` has the bits per second of each flow, where they were
/// measured.
pub(crate) fn flows(view: &FlowsView, rates: Option<&[f64]>, style: TableStyle) -> String {
    if view.flows.is_empty() && view.matching == 0 {
        return "No flows.\n".to_owned();
    }
    let columns = [
        "POD",
        "PROTO",
        "STATE",
        "PATH",
        "SOURCE",
        "DESTINATION",
        "TRANSLATED",
        "AGE",
        "IDLE",
        "SENT",
        "REPLIES",
    ];
    let header: Vec<&str> = columns.into_iter().chain(rates.map(|_| "BIT/s")).collect();
    let rows = view.flows.iter().enumerate().map(|(index, view)| {
        let mut row = flow(view);
        if let Some(rates) = rates {
            row.add_cell(number(bits(rates.get(index).copied().unwrap_or(0.0))));
        }
        row
    });
    let mut text = styled_table(&header, rows, style);
    let shown = u64::try_from(view.flows.len()).unwrap_or(u64::MAX);
    if shown < view.matching {
        let rest = view.matching - shown;
        writeln!(text, "and {rest} more: see --limit").expect("a String takes every text");
    }
    if let Some(reason) = view.stack_reasons.first()
        && view.flows.iter().any(|flow| flow.path == "stack")
    {
        let more = match view.stack_reasons.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more: see viaductctl status"),
        };
        writeln!(text, "Packets take the stack: {reason}{more}")
            .expect("a String takes every text");
    }
    text
}

fn flow(view: &FlowView) -> Row {
    let path = match (view.path.as_str(), view.stack_reason.as_str()) {
        ("", _) => "-".to_owned(),
        (path, "") => path.to_owned(),
        (path, reason) => format!("{path} ({reason})"),
    };
    row([
        text(pod_name(view.pod.as_ref(), view.container_id.as_ref())),
        text(&view.protocol),
        text(&view.state),
        text(path),
        text(&view.seen.source),
        text(&view.seen.destination),
        text(translation(view)),
        number(duration(view.age_seconds.into())),
        number(duration(view.idle_seconds.into())),
        number(traffic(view.sent_packets, view.sent_bytes)),
        number(traffic(view.answered_packets, view.answered_bytes)),
    ])
}

/// Returns the translated source and destination, each only where translation changed it.
fn translation(view: &FlowView) -> String {
    let (seen, translated) = (&view.seen, &view.translated);
    let mut changes = Vec::new();
    if seen.source != translated.source {
        changes.push(format!("from {}", translated.source));
    }
    if seen.destination != translated.destination {
        changes.push(format!("to {}", translated.destination));
    }
    join(changes.into_iter())
}

/// Renders the usage of the flow table: entries in total, flows and evictions per pod.
pub(crate) fn flow_table(view: &FlowTableView, style: TableStyle) -> String {
    let FlowTableView {
        entries,
        used_entries,
        quota,
        pods,
    } = view;
    let header = ["POD", "FLOWS", "QUOTA", "EVICTED"];
    let line = |pod: &PodFlowsView| {
        row([
            text(pod_name(pod.pod.as_ref(), Some(&pod.container_id))),
            number(pod.flows),
            number(quota),
            number(pod.evicted_flows),
        ])
    };
    let usage = format!("{used_entries} of {entries} entries used, 2 per flow\n");
    usage + &styled_table(&header, pods.iter().map(line), style)
}
