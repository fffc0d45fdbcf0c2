//! Published host ports, with pod and port reservation.

use api::{PortReservationView, PortView};
use comfy_table::Row;

use super::format::{duration, join, short_id};
use super::{TableStyle, number, port, row, styled_table, text};

/// Renders published ports, one line each: all, or only those with number `wanted`. `now` is in
/// seconds since 1970 (UTC).
pub(crate) fn ports(
    ports: &[PortView],
    wanted: Option<u16>,
    now: u64,
    style: TableStyle,
) -> String {
    let chosen = |view: &&PortView| wanted.is_none_or(|wanted| view.port.host_port == wanted);
    let chosen: Vec<&PortView> = ports.iter().filter(chosen).collect();
    if chosen.is_empty() {
        return match wanted {
            Some(number) => format!("No pod publishes host port {number}.\n"),
            None => "No published ports.\n".to_owned(),
        };
    }
    let header = [
        "PORT",
        "POD",
        "CONTAINER",
        "NETWORK",
        "AGE",
        "FLOWS",
        "RESERVED BY",
        "STATE",
    ];
    let rows = chosen.into_iter().map(|view| line(view, now));
    styled_table(&header, rows, style)
}

fn line(view: &PortView, now: u64) -> Row {
    let pod = view.pod.as_ref();
    let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let container = short_id(&view.container_id);
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

fn claim(claim: &PortReservationView) -> String {
    let PortReservationView { socket, held_by } = claim;
    match held_by.as_str() {
        "socket" => socket.clone(),
        "runtime" => format!("{socket} (container runtime)"),
        "nothing" => format!("{socket} (NOT RESERVED)"),
        other => format!("{socket} ({other})"),
    }
}
