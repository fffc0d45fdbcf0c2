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
        return style.no_rows("No flows.");
    }
    let columns = [
        "POD",
        "PEER",
        "KIND",
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
            let rate = rates.get(index).copied().unwrap_or(0.0);
            row.add_cell(number(known(view.sent_bytes.map(|_| bits(rate)))));
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
    if view.truncated_pods > 0 {
        writeln!(
            text,
            "Flows between pods may be missing: the sockets of {} pods are not all read",
            view.truncated_pods
        )
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
    let traffic = |packets: Option<u64>, bytes: Option<u64>| {
        known(
            packets
                .zip(bytes)
                .map(|(packets, bytes)| traffic(packets, bytes)),
        )
    };
    let seconds = |seconds: Option<u32>| known(seconds.map(|it| duration(it.into())));
    row([
        text(flow_pod(view)),
        text(peer(view)),
        text(&view.kind),
        text(&view.protocol),
        text(&view.state),
        text(path),
        text(&view.seen.source),
        text(&view.seen.destination),
        text(translation(view)),
        number(seconds(view.age_seconds)),
        number(seconds(view.idle_seconds)),
        number(traffic(view.sent_packets, view.sent_bytes)),
        number(traffic(view.answered_packets, view.answered_bytes)),
    ])
}

/// Returns the name of a flow's pod, or of the node.
pub(crate) fn flow_pod(view: &FlowView) -> String {
    pod_name(view.pod.as_ref(), view.container_id.as_ref())
}

/// Returns a value, or `-` if it is not known.
fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// Returns the name of the other end: a pod, or the node; `-` for one that is elsewhere.
fn peer(view: &FlowView) -> String {
    let is_of_node = ["pod-to-node", "node-to-pod"].contains(&view.kind.as_str());
    if view.peer_container_id.is_none() && !is_of_node {
        return "-".to_owned();
    }
    pod_name(view.peer_pod.as_ref(), view.peer_container_id.as_ref())
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

#[cfg(test)]
mod tests;
