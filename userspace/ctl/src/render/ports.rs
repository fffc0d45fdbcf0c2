//! The ports of the node: whose each is, and what holds it.

use api::{ClaimView, PortView};
use comfy_table::Row;

use super::{duration, join, number, port, row, table, text};

/// One line for each published port; `None` for all, or those of one number. `now` is in seconds since 1970.
pub(crate) fn ports(ports: &[PortView], wanted: Option<u16>, now: u64) -> String {
    let chosen = |view: &&PortView| wanted.is_none_or(|wanted| view.port.host_port == wanted);
    let chosen: Vec<&PortView> = ports.iter().filter(chosen).collect();
    if chosen.is_empty() {
        return match wanted {
            Some(number) => format!("Port {number} leads to no pod.\n"),
            None => "No published ports.\n".to_owned(),
        };
    }
    let header = [
        "PORT",
        "POD",
        "CONTAINER",
        "NETWORK",
        "FOR",
        "FLOWS",
        "HELD BY",
        "STATE",
    ];
    table(&header, chosen.into_iter().map(|view| line(view, now)))
}

fn line(view: &PortView, now: u64) -> Row {
    let pod = view.pod.as_ref();
    let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let container: String = view.container_id.chars().take(12).collect();
    row([
        text(port(&view.port)),
        text(pod.unwrap_or_else(|| "-".to_owned())),
        text(container),
        text(&view.network),
        number(duration(now.saturating_sub(view.since))),
        number(
            view.flows
                .map_or_else(|| "?".to_owned(), |count| count.to_string()),
        ),
        text(join(view.claims.iter().map(claim))),
        text(&view.state),
    ])
}

fn claim(claim: &ClaimView) -> String {
    let ClaimView { socket, held_by } = claim;
    match held_by.as_str() {
        "socket" => socket.clone(),
        "nothing" => format!("{socket} (NOT HELD)"),
        other => format!("{socket} ({other})"),
    }
}
