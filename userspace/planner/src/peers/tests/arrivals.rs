//! Tests of the links by which packets from the pods of peers arrive.

use super::tunnels::{V4, V6, settle, tunnelled};
use super::*;
use crate::peers::arrivals;
use crate::{ForwardingIntent, ForwardingMode, PodSources};

fn found(intent: &NodeIntent, observed: &Observed) -> Vec<String> {
    let all = arrivals(intent, observed).into_iter();
    all.map(|(link, source)| match source {
        Some(prefix) => format!("{link} {prefix}"),
        None => link.to_string(),
    })
    .collect()
}

/// A second link with the subnet 198.51.100.0/24.
fn with_lan(mut observed: Observed) -> Observed {
    let lan = link(8, LinkKind::Ethernet, &["198.51.100.1/24"]);
    observed.links.insert(parse("lan0"), lan);
    observed.routes.push(route("198.51.100.0/24", None, 8, 2));
    observed
}

#[test]
fn prefixes_arrive_by_the_links_of_their_peers_aggregated() {
    let observed = with_lan(connected());
    let intent = intent([
        peer(
            "b",
            &["10.2.2.0/24", "fd00:2::/64"],
            &["192.0.2.20", "2001:db8::20"],
        ),
        peer("c", &["10.2.3.0/24"], &["192.0.2.30"]),
        peer("d", &["10.2.5.0/24"], &["198.51.100.40"]),
    ]);
    assert_eq!(
        found(&intent, &observed),
        ["eth0 10.2.2.0/23", "eth0 fd00:2::/64", "lan0 10.2.5.0/24",]
    );
}

/// Its list of this node's addresses may begin with the other link's.
#[test]
fn a_peer_with_addresses_on_two_links_sends_by_either_one() {
    let observed = with_lan(connected());
    let intent = intent([peer(
        "b",
        &["10.2.2.0/24"],
        &["192.0.2.20", "198.51.100.20"],
    )]);
    assert_eq!(
        found(&intent, &observed),
        ["eth0 10.2.2.0/24", "lan0 10.2.2.0/24"]
    );
}

/// In the mode `none`, beside a route of other software, and for a peer on no link.
#[test]
fn without_a_route_of_ours_prefixes_arrive_by_the_links_of_the_route_there() {
    let mut observed = with_lan(connected());
    let mut none = intent([peer("b", &["10.2.2.0/24"], &["192.0.2.20"])]);
    none.peers.options.between_nodes = BetweenNodes::None;
    assert_eq!(found(&none, &observed), ["eth0 10.2.2.0/24"]);
    // The legs of a multipath route.
    for (gateway, link) in [("198.51.100.9", 8), ("192.0.2.9", 2)] {
        let leg = route("10.2.0.0/16", Some(gateway), link, 12);
        observed.routes.push(leg);
    }
    let both = ["eth0 10.2.2.0/24", "lan0 10.2.2.0/24"];
    assert_eq!(found(&none, &observed), both);
    let distant = intent([peer("b", &["10.2.2.0/24"], &["203.0.113.9"])]);
    assert_eq!(found(&distant, &observed), both);
    let taken = intent([peer("b", &["10.2.0.0/16"], &["192.0.2.20"])]);
    assert_eq!(
        found(&taken, &observed),
        ["eth0 10.2.0.0/16", "lan0 10.2.0.0/16"]
    );
}

#[test]
fn a_tunnel_is_named_without_prefixes_once_a_peer_needs_it() {
    let mut observed = connected();
    let mut intent = tunnelled(
        BetweenNodes::Auto,
        [
            peer("b", &["10.2.0.0/24"], &["192.0.2.20"]),
            peer("c", &["10.3.0.0/24", "fd00:3::/64"], &["203.0.113.9"]),
            peer("d", &["10.4.0.0/24"], &["2001:db8:9::9"]),
        ],
    );
    let expected = ["eth0 10.2.0.0/24", V4, V6];
    assert_eq!(found(&intent, &observed), expected);
    settle(&intent, &mut observed);
    assert_eq!(found(&intent, &observed), expected);
    // All by tunnel: the route to the first is replaced later.
    intent.peers.options.between_nodes = BetweenNodes::Tunnel;
    assert_eq!(found(&intent, &observed), expected);
    settle(&intent, &mut observed);
    assert_eq!(found(&intent, &observed), [V4, V6]);
}

#[test]
fn a_link_of_other_software_with_the_name_of_the_tunnel_is_left_out() {
    let mut observed = connected();
    let taken = link(9, LinkKind::Ethernet, &[]);
    observed.links.insert(parse(V4), taken);
    let mode = BetweenNodes::Tunnel;
    let intent = tunnelled(mode, [peer("c", &["10.3.0.0/24"], &["203.0.113.9"])]);
    assert_eq!(found(&intent, &observed), ["eth0 10.3.0.0/24"]);
}

/// An agent that has lost its records leaves routes and tunnels of the one before it.
#[test]
fn without_a_list_routes_and_tunnels_of_an_earlier_agent_count() {
    let mut observed = connected();
    let mut intent = tunnelled(
        BetweenNodes::Auto,
        [
            peer("b", &["10.2.0.0/24"], &["192.0.2.20"]),
            peer("c", &["10.3.0.0/24"], &["203.0.113.9"]),
        ],
    );
    settle(&intent, &mut observed);
    intent.peers.peers = None;
    assert_eq!(found(&intent, &observed), ["eth0 10.2.0.0/24", V4]);
    intent.peers.peers = Some(Arc::new(Peers::new([]).unwrap()));
    settle(&intent, &mut observed);
    assert_eq!(found(&intent, &observed), [""; 0]);
}

#[test]
fn packets_from_peers_are_accepted_to_links_of_ours_unless_a_cluster_prefix_has_them() {
    let observed = connected();
    let mode = BetweenNodes::Auto;
    let mut intent = tunnelled(
        mode,
        [
            peer(
                "b",
                &["10.2.0.0/24", "fd00:2::/64"],
                &["192.0.2.20", "2001:db8::20"],
            ),
            peer("c", &["10.3.0.0/24"], &["203.0.113.9"]),
            peer("this", &["10.1.0.0/24", "fd00:1::/64"], &["192.0.2.10"]),
        ],
    );
    let rules = |intent: &NodeIntent| -> Vec<String> {
        let sources = PodSources::of(intent, &observed);
        let (records, none) = (Records::new(), BTreeSet::new());
        let mode = ForwardingMode::Auto;
        let forwarding = ForwardingIntent::new(mode, &sources, &records, &none, BTreeSet::new());
        let rules = forwarding.rules.iter().map(ToString::to_string);
        rules.collect()
    };
    assert_eq!(
        rules(&intent),
        [
            "viaduct: answers to cbr0",
            "viaduct: from cbr0",
            "viaduct: peers, from 10.2.0.0/24 by eth0 to cbr0",
            "viaduct: peers, from fd00:2::/64 by eth0 to cbr0",
            "viaduct: peers, from viaduct.vx to cbr0",
        ]
    );
    intent.non_masquerade = ["10.0.0.0/8", "0.0.0.0/0", "::/0"].map(parse).into();
    assert_eq!(
        rules(&intent),
        [
            "viaduct: answers to cbr0",
            "viaduct: from cbr0",
            "viaduct: from 10.0.0.0/8 to cbr0",
            "viaduct: peers, from fd00:2::/64 by eth0 to cbr0",
            "viaduct: peers, from viaduct.vx to cbr0",
        ]
    );
}
