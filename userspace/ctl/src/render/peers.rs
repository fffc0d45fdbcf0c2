//! Peers, with their state and what prevents their connection.

use std::fmt::Write as _;

use api::{PeerCount, PeerView};

use super::table::{TableStyle, row, styled_table, text};

/// Renders peers, one line each, and below them what cannot be applied.
pub(crate) fn peers(peers: &[PeerView], style: TableStyle) -> String {
    if peers.is_empty() {
        return style.no_rows("No peers.");
    }
    let header = ["PEER", "STATE", "PREFIXES", "ADDRESSES", "ROUTES"];
    let rows = peers.iter().map(|peer| {
        row([
            text(&peer.name),
            text(&peer.state),
            text(list(&peer.prefixes)),
            text(list(&peer.addresses)),
            text(ways(peer)),
        ])
    });
    let mut table = styled_table(&header, rows, style);
    let problems: Vec<&String> = peers.iter().flat_map(|peer| &peer.problems).collect();
    if !problems.is_empty() && style.headers {
        table.push('\n');
        for problem in problems {
            let _always_fits = writeln!(table, "{problem}");
        }
    }
    table
}

/// Returns the number of peers in each state, as `4998 routed, 2 unreachable`; `None` without
/// peers.
pub(crate) fn counts(counts: &[PeerCount]) -> Option<String> {
    let texts: Vec<String> = counts
        .iter()
        .map(|count| format!("{} {}", count.peers, count.state))
        .collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Returns the ways to a peer: next hops, and where a tunnel ends.
fn ways(peer: &PeerView) -> String {
    let tunnel = peer.tunnel.as_deref();
    let tunnel = tunnel.map_or(String::new(), |address| format!(" (tunnel to {address})"));
    list(&peer.via) + &tunnel
}

/// Joins items with commas; `-` if there are none, so that the number of columns is constant.
fn list(items: &[String]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, state: &str, via: &[&str], problems: &[&str]) -> PeerView {
        let strings = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        PeerView {
            name: name.to_owned(),
            prefixes: strings(&["10.244.2.0/24", "fd00:2::/64"]),
            addresses: strings(&["192.0.2.2"]),
            state: state.to_owned(),
            via: strings(via),
            tunnel: None,
            problems: strings(problems),
        }
    }

    #[test]
    fn each_peer_is_one_line_with_its_state_and_problems_come_below() {
        let peers = [
            peer("a", "routed", &["via 192.0.2.2 dev eth0"], &[]),
            peer(
                "b",
                "unreachable",
                &[],
                &["peer b has no IPv4 address on a link of this node"],
            ),
            peer("c", "routed", &["via 10.244.2.0 dev viaduct.vx"], &[]),
        ];
        let listed = peers.map(|peer| PeerView {
            tunnel: (peer.name == "c").then(|| "203.0.113.3".to_owned()),
            ..peer
        });
        insta::assert_snapshot!(super::peers(&listed, TableStyle::PLAIN), @r"
        PEER  STATE        PREFIXES                   ADDRESSES  ROUTES
        a     routed       10.244.2.0/24,fd00:2::/64  192.0.2.2  via 192.0.2.2 dev eth0
        b     unreachable  10.244.2.0/24,fd00:2::/64  192.0.2.2  -
        c     routed       10.244.2.0/24,fd00:2::/64  192.0.2.2  via 10.244.2.0 dev viaduct.vx (tunnel to 203.0.113.3)

        peer b has no IPv4 address on a link of this node
        ");
        assert_eq!(super::peers(&[], TableStyle::PLAIN), "No peers.\n");
    }

    #[test]
    fn the_status_counts_peers_by_state_and_has_no_line_without_peers() {
        let count = |state: &str, peers| PeerCount {
            state: state.to_owned(),
            peers,
        };
        let found = counts(&[count("routed", 4_998), count("unreachable", 2)]);
        assert_eq!(found.as_deref(), Some("4998 routed, 2 unreachable"));
        assert_eq!(counts(&[]), None);
    }
}
