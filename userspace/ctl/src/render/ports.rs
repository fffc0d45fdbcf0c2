//! Published host ports, with pod and port reservation.

use api::{PortReservationView, PortView};
use comfy_table::Row;

use super::format::{duration, join, short_id};
use super::{TableStyle, are_consecutive, number, port_range, row, styled_table, text};

/// Ports that follow each other and differ in nothing else: one line. Never empty.
type Range<'a> = Vec<&'a PortView>;

/// Renders published ports, one line for each port or range: all, or only those that contain the
/// number `wanted`. `now` is in seconds since 1970 (UTC).
pub(crate) fn ports(
    ports: &[PortView],
    wanted: Option<u16>,
    now: u64,
    style: TableStyle,
) -> String {
    let is_chosen = |range: &Range<'_>| {
        wanted.is_none_or(|wanted| range.iter().any(|view| view.port.host_port == wanted))
    };
    let mut chosen = ranges(ports);
    chosen.retain(is_chosen);
    if chosen.is_empty() {
        return match wanted {
            Some(number) => style.no_rows(&format!("No pod publishes host port {number}.")),
            None => style.no_rows("No published ports."),
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
    let rows = chosen.iter().filter_map(|range| line(range, now));
    styled_table(&header, rows, style)
}

/// Returns the ports as ranges, in the order of their first ports in the list.
fn ranges(ports: &[PortView]) -> Vec<Range<'_>> {
    let mut sorted: Vec<(usize, &PortView)> = ports.iter().enumerate().collect();
    sorted.sort_by_key(|(_, view)| {
        let port = &view.port;
        (
            (&view.network, &view.container_id, &port.attachment),
            (&port.protocol, &port.host_address, port.host_port),
        )
    });
    let mut ranges: Vec<(usize, Range<'_>)> = sorted
        .chunk_by(|(_, one), (_, next)| continues(one, next))
        .filter_map(|range| {
            let views = range.iter().map(|(_, view)| *view).collect();
            Some((range.first()?.0, views))
        })
        .collect();
    ranges.sort_by_key(|(position, _)| *position);
    ranges.into_iter().map(|(_, range)| range).collect()
}

/// Returns whether the second port follows the first, and is reserved by the same means.
fn continues(one: &PortView, next: &PortView) -> bool {
    are_consecutive(&one.port, &next.port)
        && (one.since, &one.state) == (next.since, &next.state)
        && one
            .claims
            .iter()
            .map(means)
            .eq(next.claims.iter().map(means))
}

/// Returns the address of a reservation, without the port, and what holds it.
fn means(claim: &PortReservationView) -> (&str, &str) {
    let socket = claim.socket.rsplit_once(':');
    (socket.map_or("", |(address, _)| address), &claim.held_by)
}

fn line(range: &Range<'_>, now: u64) -> Option<Row> {
    let (view, last) = (range.first()?, range.last()?);
    let pod = view.pod.as_ref();
    let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let flows = range.iter().map(|view| view.flows).sum::<Option<u64>>();
    let end = (range.len() > 1).then_some(last.port.host_port);
    Some(row([
        text(port_range(&view.port, &last.port)),
        text(pod.unwrap_or_else(|| "-".to_owned())),
        text(short_id(&view.container_id)),
        text(&view.network),
        number(duration(now.saturating_sub(view.since))),
        number(flows.map_or_else(|| "?".to_owned(), |count| count.to_string())),
        text(join(view.claims.iter().map(|one| claim(one, end)))),
        text(&view.state),
    ]))
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

    fn view(number: u16, held_by: &str) -> PortView {
        PortView {
            port: HostportView {
                host_port: number,
                container_port: number + 1000,
                protocol: "tcp".to_owned(),
                ..HostportView::default()
            },
            flows: Some(2),
            claims: vec![PortReservationView {
                socket: format!("0.0.0.0:{number}"),
                held_by: held_by.to_owned(),
            }],
            ..PortView::default()
        }
    }

    #[test]
    fn a_range_of_ports_is_one_line_for_each_of_its_numbers() {
        let views: Vec<PortView> = (8000..9000).map(|number| view(number, "socket")).collect();
        let all = ports(&views, None, 0, TableStyle::PLAIN);
        assert_eq!(all.lines().count(), 2, "{all}");
        assert!(all.contains("8000-8999->9000-9999/tcp"), "{all}");
        assert!(all.contains(" 2000  0.0.0.0:8000-8999\n"), "{all}");
        for (wanted, found) in [(7999, false), (8000, true), (8999, true), (9000, false)] {
            let text = ports(&views, Some(wanted), 0, TableStyle::PLAIN);
            assert_eq!(text.contains("8000-8999"), found, "{wanted}: {text}");
        }
    }

    #[test]
    fn a_range_ends_where_a_port_is_reserved_by_other_means() {
        let views = [
            view(8000, "socket"),
            view(8001, "runtime"),
            view(8002, "socket"),
            view(8003, "socket"),
        ];
        let all = ports(&views, None, 0, TableStyle::PLAIN);
        let first = |line: &str| line.split(' ').next().map(str::to_owned);
        let numbers: Vec<String> = all.lines().skip(1).filter_map(first).collect();
        assert_eq!(
            numbers,
            [
                "8000->9000/tcp",
                "8001->9001/tcp",
                "8002-8003->9002-9003/tcp"
            ]
        );
    }
}
