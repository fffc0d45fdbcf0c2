//! Renders the agent's responses as tables for terminals and `grep`, one line per object. Pure
//! functions of the response; whether something is degraded is decided by the agent.

mod bypass;
mod drops;
mod features;
mod flows;
mod format;
mod losses;
mod peers;
mod policies;
mod ports;
mod sandbox;
mod shaper;
pub(crate) mod table;
mod versions;
mod why;

use std::fmt::{Display, Write};

use api::{
    AttachmentView, Degraded, Event, ForwardingView, HostportView, NetworkView, OperationView,
    Outcome, PodView, Reconcile, Reloaded, Status, Uninstalled, UplinkView,
};
use comfy_table::Row;

use format::{duration, join, pod_name};
use table::styled_table;

pub(crate) use drops::dropped;
pub(crate) use flows::{flow_pod, flow_table, flows};
pub(crate) use format::{bits, short_id, shortened};
pub(crate) use peers::peers;
pub(crate) use policies::policies;
pub(crate) use ports::ports;
pub(crate) use sandbox::sandbox;
pub(crate) use table::{TableStyle, number, row, table, text};
pub(crate) use versions::version;
pub(crate) use why::why;

/// Milliseconds after which a running operation is shown in the status.
const LONG: u64 = 1000;

/// Renders the agent's status: health and degradations first, then networks, uplinks and features.
pub(crate) fn status(status: &Status) -> String {
    let mut text = String::new();
    line(&mut text, "Agent", versions::agent(&status.version));
    line(&mut text, "Up for", duration(status.uptime_seconds));
    line(&mut text, "Health", health(&status.degraded));
    for reason in &status.degraded {
        line(&mut text, "", degraded(reason));
        if !reason.advice.is_empty() {
            line(&mut text, "", format!("  {}", reason.advice));
        }
    }
    line(&mut text, "Attachments", status.attachments);
    if let Some(counts) = peers::counts(&status.peers) {
        line(&mut text, "Peers", counts);
    }
    if status.policies > 0 {
        line(&mut text, "Policies", status.policies);
    }
    losses::losses(&mut text, &status.losses);
    if !matches!(status.datapath_log.as_str(), "" | "off") {
        line(&mut text, "Datapath log", &status.datapath_log);
    }
    bypass::bypass(&mut text, &status.bypass);
    forwarding(&mut text, &status.forwarding);
    line(&mut text, "Shaper", shaper::shaper(&status.shaper));
    if let Some(view) = &status.sandbox {
        line(&mut text, "Sandbox", sandbox(view));
    }
    reconcile(&mut text, status.last_reconcile.as_ref());
    operations(&mut text, &status.operations);
    format!(
        "{text}\n{}\n{}{}",
        networks(&status.networks),
        uplinks(&status.uplinks),
        features::features(&status.features)
    )
}

/// Nothing where no chain drops by default.
fn forwarding(text: &mut String, view: &ForwardingView) {
    let mut label = "Forwarding";
    for default in &view.defaults {
        let state = match default.state.as_str() {
            "carried" => "carried past it",
            "left" => "left to other rules",
            _ => "dropped",
        };
        line(
            text,
            label,
            format!("{}: packets of pods are {state}", default.what),
        );
        label = "";
    }
}

/// Renders an event as one line, with its time in UTC.
pub(crate) fn event(event: &Event) -> String {
    let at = drops::timestamp(event.at.saturating_mul(1000));
    let Event {
        action,
        subject,
        message,
        ..
    } = event;
    let subject = match &event.pod {
        Some(PodView { namespace, name }) => format!("{namespace}/{name} ({subject})"),
        None => subject.clone(),
    };
    let text = format!(
        "{at}  {action:<9} {:<10} {subject}  {message}",
        event.outcome.word()
    );
    format!("{}\n", text.trim_end())
}

/// Renders the result of an uninstall: detached pods, removed objects, and objects left in place.
pub(crate) fn uninstalled(done: &Uninstalled) -> String {
    let mut text = String::new();
    let lines = [
        ("detached", &done.detached),
        ("done", &done.removed),
        ("left alone", &done.left),
        ("still installed", &done.remaining),
    ];
    for (word, items) in lines {
        for item in items {
            let _always_fits = writeln!(text, "{word}: {item}");
        }
    }
    if done.remaining.is_empty() {
        return text + "Viaduct is uninstalled from this node.\n";
    }
    text + "Viaduct is off this node, and the files that are still installed remain. To remove those that are \
            Viaduct's alone, run `viaductd --uninstall --purge` as root, with --config and the agent's configuration.\n"
}

/// Renders the result of a reload.
pub(crate) fn reloaded(reloaded: &Reloaded) -> String {
    let mut text = String::from("Configuration reloaded.\n");
    for (what, keys) in [
        ("In effect", &reloaded.applied),
        ("After a restart of the agent", &reloaded.needs_restart),
    ] {
        if !keys.is_empty() {
            let _always_fits = writeln!(text, "{what}: {}", keys.join(", "));
        }
    }
    text
}

/// Renders attachments, one line each.
pub(crate) fn list(attachments: &[AttachmentView], style: TableStyle) -> String {
    if attachments.is_empty() {
        return style.no_rows("No attachments.");
    }
    let narrow = [
        "POD",
        "IFNAME",
        "NETWORK",
        "ADDRESSES",
        "HOST LINK",
        "PORTS",
        "RX PACKETS",
        "TX PACKETS",
        "DROPS",
        "STATE",
    ];
    let wide = ["CONTAINER", "MAC", "MTU", "BRIDGE", "NAMESPACE"];
    let header: Vec<&str> = narrow
        .into_iter()
        .chain(wide.into_iter().filter(|_| style.wide))
        .collect();
    let rows = attachments.iter().map(|view| attachment(view, style));
    styled_table(&header, rows, style)
}

fn health(degraded: &[Degraded]) -> String {
    match degraded.len() {
        0 => "good".to_owned(),
        1 => "DEGRADED for 1 reason:".to_owned(),
        count => format!("DEGRADED for {count} reasons:"),
    }
}

/// Adds the operation that has been running for [`LONG`] or more, and the number of queued
/// requests.
fn operations(text: &mut String, operations: &[OperationView]) {
    let long = |one: &&OperationView| one.running && one.milliseconds >= LONG;
    let Some(operation) = operations.iter().find(long) else {
        return;
    };
    let of = operation.attachment.as_deref().unwrap_or("the node");
    let since = duration(operation.milliseconds / 1000);
    let waiting = operations.iter().filter(|one| !one.running).count();
    let what = format!(
        "{} of {of}, requested {since} ago, {waiting} waiting",
        operation.verb
    );
    line(text, "Busy with", what);
}

fn degraded(degraded: &Degraded) -> String {
    format!("- {}: {}", degraded.reason, degraded.message)
}

fn reconcile(text: &mut String, last: Option<&Reconcile>) {
    let Some(last) = last else {
        line(text, "Reconciled", "not yet");
        return;
    };
    let took = format!("in {} ms", last.duration_ms);
    if last.items.is_empty() {
        line(text, "Reconciled", format!("{took}, nothing to repair"));
        return;
    }
    line(text, "Reconciled", format!("{took}:"));
    for item in &last.items {
        let outcome = match item.outcome {
            Outcome::Repaired => "repaired",
            Outcome::Removed => "removed",
            Outcome::LeftAlone => "left alone",
            Outcome::Failed => "FAILED",
            Outcome::Other => "unknown outcome:",
        };
        let message = if item.message.is_empty() {
            String::new()
        } else {
            format!(": {}", item.message)
        };
        line(text, "", format!("- {outcome} {}{message}", item.subject));
    }
}

fn networks(networks: &[NetworkView]) -> String {
    if networks.is_empty() {
        return "No networks.\n".to_owned();
    }
    let header = [
        "NETWORK",
        "BRIDGE",
        "MTU",
        "MASQUERADE",
        "ATTACHMENTS",
        "ADDRESSES USED",
    ];
    let rows = networks.iter().map(|network| {
        let name = if network.is_default {
            format!("{} (default)", network.name)
        } else {
            network.name.clone()
        };
        let pools = network.pools.iter().map(|pool| {
            let total = if pool.total >= api::MAX_INTEGER {
                "∞".to_owned()
            } else {
                pool.total.to_string()
            };
            format!("{}/{total} of {}", pool.used, pool.subnet)
        });
        let mtu = network.mtu.map(|mtu| mtu.to_string());
        row([
            text(name),
            text(&network.bridge),
            number(mtu.unwrap_or_else(|| "-".to_owned())),
            text(if network.masquerade { "yes" } else { "no" }),
            number(network.attachments),
            text(join(pools)),
        ])
    });
    table(&header, rows)
}

fn uplinks(uplinks: &[UplinkView]) -> String {
    if uplinks.is_empty() {
        return "No uplinks.\n".to_owned();
    }
    let header = ["UPLINK", "MTU", "PROGRAMS", "ADDRESSES"];
    let rows = uplinks.iter().map(|uplink| {
        let addresses = uplink.addresses.iter();
        row([
            text(&uplink.name),
            number(uplink.mtu),
            text(programs(uplink)),
            text(join(addresses.map(|address| address.address.clone()))),
        ])
    });
    table(&header, rows)
}

fn programs(uplink: &UplinkView) -> String {
    let attached = if uplink.attached {
        "attached"
    } else {
        "MISSING"
    };
    let prefilter = if uplink.xdp_prefilter {
        ", XDP prefilter"
    } else {
        ""
    };
    format!("{attached}{prefilter}")
}

fn attachment(view: &AttachmentView, style: TableStyle) -> Row {
    let addresses = view.addresses.iter().map(|address| address.address.clone());
    let packets = |count: fn(&api::CounterView) -> u64| match &view.counters {
        Some(counters) => number(count(counters)),
        None => number("?"),
    };
    let narrow = [
        text(owner(view)),
        text(&view.ifname),
        text(&view.network),
        text(join(addresses)),
        text(&view.host_link),
        text(join(port_ranges(&view.hostports))),
        packets(|counters| counters.rx_packets),
        packets(|counters| counters.tx_packets),
        packets(|counters| counters.rx_dropped + counters.tx_dropped),
        text(&view.state),
    ];
    let wide = [
        text(&view.container_id),
        text(&view.mac),
        number(view.mtu),
        text(&view.bridge),
        text(&view.netns),
    ];
    row(narrow
        .into_iter()
        .chain(wide.into_iter().filter(|_| style.wide)))
}

fn owner(view: &AttachmentView) -> String {
    pod_name(view.pod.as_ref(), Some(&view.container_id))
}

/// Renders published ports: one text for a range of ports that follow each other.
fn port_ranges(ports: &[HostportView]) -> impl Iterator<Item = String> {
    ports
        .chunk_by(are_consecutive)
        .filter_map(|range| Some(port_range(range.first()?, range.last()?)))
}

/// Returns whether two published ports differ in their numbers only, and follow each other on the
/// node and in the pod.
fn are_consecutive(one: &HostportView, next: &HostportView) -> bool {
    let expected = HostportView {
        host_port: one.host_port.saturating_add(1),
        container_port: one.container_port.saturating_add(1),
        ..one.clone()
    };
    expected == *next
}

/// Renders the published ports from `first` to `last`, which follow each other.
fn port_range(first: &HostportView, last: &HostportView) -> String {
    let host = match &first.host_address {
        Some(address) if address.contains(':') => format!("[{address}]:"),
        Some(address) => format!("{address}:"),
        None => String::new(),
    };
    let numbers = |first: u16, last: u16| match first {
        only if only == last => only.to_string(),
        first => format!("{first}-{last}"),
    };
    format!(
        "{host}{}->{}/{}",
        numbers(first.host_port, last.host_port),
        numbers(first.container_port, last.container_port),
        first.protocol
    )
}

fn line(text: &mut String, label: &str, value: impl Display) {
    writeln!(text, "{label:<13}{value}").expect("a String takes every text");
}

#[cfg(test)]
mod tests;
