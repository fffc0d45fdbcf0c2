//! Published host ports, with pod and port reservation.

use api::{PortReservationView, PortView};
use comfy_table::Row;

use super::format::{duration, join, short_id};
use super::{TableStyle, number, port, row, styled_table, text};

/// Renders published ports, one line for each port or range: all, or only those that contain the
/// number `wanted`. `now` is in seconds since 1970 (UTC).
pub(crate) fn ports(
    ports: &[PortView],
    wanted: Option<u16>,
    now: u64,
    style: TableStyle,
) -> String {
    let contains = |view: &PortView, wanted: u16| {
        let first = view.port.host_port;
        (first..=view.port.host_port_end.unwrap_or(first)).contains(&wanted)
    };
    let chosen = |view: &&PortView| wanted.is_none_or(|wanted| contains(view, wanted));
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
        text(join(
            (view.claims.iter()).map(|one| claim(one, view.port.host_port_end)),
        )),
        text(&view.state),
    ])
}

/// Renders a reservation; `end` is the last port of a range.
fn claim(claim: &PortReservationView, end: Option<u16>) -> String {
    let PortReservationView { socket, held_by } = claim;
    let socket = match end {
        Some(end) => format!("{socket}-{end}"),
        None => socket.clone(),
    };
    match held_by.as_str() {
        "socket" => socket,
        "runtime" => format!("{socket} (container runtime)"),
        "nothing" => format!("{socket} (NOT RESERVED)"),
        other => format!("{socket} ({other})"),
    }
}

#[cfg(test)]
mod tests {
    use api::HostportView;

    use super::*;

    #[test]
    fn a_range_of_ports_is_one_line_for_each_of_its_numbers() {
        let view = PortView {
            port: HostportView {
                host_port: 8000,
                host_port_end: Some(8999),
                container_port: 9000,
                container_port_end: Some(9999),
                protocol: "tcp".to_owned(),
                ..HostportView::default()
            },
            claims: vec![PortReservationView {
                socket: "0.0.0.0:8000".to_owned(),
                held_by: "socket".to_owned(),
            }],
            ..PortView::default()
        };
        let all = ports(std::slice::from_ref(&view), None, 0, TableStyle::PLAIN);
        assert!(all.contains("8000-8999->9000-9999/tcp"), "{all}");
        assert!(all.contains("  0.0.0.0:8000-8999\n"), "{all}");
        for (wanted, found) in [(7999, false), (8000, true), (8999, true), (9000, false)] {
            let text = ports(
                std::slice::from_ref(&view),
                Some(wanted),
                0,
                TableStyle::PLAIN,
            );
            assert_eq!(text.contains("8000-8999"), found, "{wanted}: {text}");
        }
    }
}
