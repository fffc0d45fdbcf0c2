//! Tests of the routes to peers: each conflict by itself, then laws of all lists.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use model::{Cidr, Peer, Peers};
use proptest::prelude::*;
use steps::{Entry, EntryKey, LinkKind, NextHop, Observed, RouteEntry, Step};

use super::{PeerPlan, PeerState, plan_peers, unmasqueraded};
use crate::testing::{link, network, node, parse};
use crate::{BetweenNodes, NodeIntent, PeerIntent, PeerOptions, Records, plan_node};

mod arrivals;
mod tunnels;

fn peer(name: &str, prefixes: &[&str], addresses: &[&str]) -> Peer {
    let prefixes: Vec<Cidr> = prefixes.iter().map(|text| parse(text)).collect();
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| parse(text)).collect();
    Peer::new(parse(name), prefixes, addresses).unwrap()
}

fn intent(peers: impl IntoIterator<Item = Peer>) -> NodeIntent {
    NodeIntent {
        networks: vec![network()],
        peers: PeerIntent {
            peers: Some(Arc::new(Peers::new(peers).unwrap())),
            options: PeerOptions::default(),
        },
        ..NodeIntent::default()
    }
}

/// The node of [`node`], with the routes of its uplink's addresses.
fn connected() -> Observed {
    let mut node = node();
    for prefix in ["192.0.2.0/24", "2001:db8::/64"] {
        node.routes.push(route(prefix, None, 2, 2));
    }
    node
}

fn route(destination: &str, gateway: Option<&str>, link: u32, protocol: u8) -> RouteEntry {
    RouteEntry {
        destination: parse(destination),
        gateway: gateway.map(parse),
        link,
        table: 254,
        mtu: None,
        protocol,
    }
}

/// Executes the route changes of a plan.
fn execute(plan: &PeerPlan, observed: &mut Observed) {
    for step in plan.plan.steps() {
        let Step::ChangeRoutes(changes) = step else {
            panic!("{step}");
        };
        for change in changes {
            let entry = |hop: &NextHop| RouteEntry {
                destination: change.prefix,
                gateway: Some(hop.gateway),
                link: observed.links[&hop.link].index,
                table: 254,
                mtu: None,
                protocol: steps::PEER_ROUTE_PROTOCOL,
            };
            let (from, to) = (
                change.from.as_ref().map(entry),
                change.to.as_ref().map(entry),
            );
            observed.routes.retain(|route| Some(route) != from.as_ref());
            observed.routes.extend(to);
        }
    }
}

fn routes(observed: &Observed) -> Vec<String> {
    let ours = observed.routes.iter().filter(|one| one.protocol == 118);
    let mut texts: Vec<String> = ours
        .map(|one| format!("{} via {}", one.destination, one.gateway.unwrap()))
        .collect();
    texts.sort();
    texts
}

fn problems(plan: &PeerPlan) -> Vec<String> {
    plan.problems.iter().map(ToString::to_string).collect()
}

fn states(plan: &PeerPlan) -> Vec<PeerState> {
    plan.peers.iter().map(|peer| peer.state).collect()
}

#[test]
fn a_peer_on_a_link_gets_a_route_of_each_family() {
    let mut observed = connected();
    let intent = intent([peer(
        "b",
        &["10.2.0.0/24", "fd00:2::/64"],
        &["203.0.113.9", "192.0.2.20", "2001:db8::20"],
    )]);
    let plan = plan_peers(&intent, &observed);
    insta::assert_snapshot!(
        plan.plan,
        @" 1. change routes to peers: 10.2.0.0/24 via 192.0.2.20 dev eth0, fd00:2::/64 via 2001:db8::20 dev eth0"
    );
    assert_eq!(
        states(&plan),
        [PeerState::Unreachable],
        "before the changes"
    );
    execute(&plan, &mut observed);
    let after = plan_peers(&intent, &observed);
    assert!(after.plan.is_empty());
    assert_eq!(states(&after), [PeerState::Routed]);
}

/// The kernel has refused a route, or other software has removed or replaced it.
#[test]
fn a_peers_state_is_that_of_the_kernels_routes() {
    let mut observed = connected();
    let prefixes = ["10.2.0.0/24", "fd00:2::/64"];
    let intent = intent([peer("b", &prefixes, &["192.0.2.20", "2001:db8::20"])]);
    execute(&plan_peers(&intent, &observed), &mut observed);
    let complete = observed.clone();
    observed
        .routes
        .retain(|route| route.destination != parse("10.2.0.0/24"));
    assert_eq!(
        states(&plan_peers(&intent, &observed)),
        [PeerState::Partial]
    );
    let other_hop = route("10.2.0.0/24", Some("192.0.2.99"), 2, 118);
    observed.routes.push(other_hop);
    assert_eq!(
        states(&plan_peers(&intent, &observed)),
        [PeerState::Partial]
    );
    observed.routes.retain(|route| route.protocol != 118);
    assert_eq!(
        states(&plan_peers(&intent, &observed)),
        [PeerState::Unreachable]
    );
    assert_eq!(states(&plan_peers(&intent, &complete)), [PeerState::Routed]);
}

#[test]
fn a_peer_that_is_on_no_link_is_reported_by_name() {
    let mut observed = connected();
    let intent = intent([
        peer("b", &["10.2.0.0/24"], &["203.0.113.9"]),
        peer("c", &["10.3.0.0/24", "fd00:3::/64"], &["192.0.2.30"]),
    ]);
    execute(&plan_peers(&intent, &observed), &mut observed);
    let plan = plan_peers(&intent, &observed);
    assert_eq!(
        problems(&plan),
        [
            "peer b has no IPv4 address on a link of this node",
            "peer c has no IPv6 address on a link of this node",
        ]
    );
    assert_eq!(states(&plan), [PeerState::Unreachable, PeerState::Partial]);
}

/// A longer route with a gateway leads away from the link; so does a link that is down, or one of
/// pods.
#[test]
fn an_address_behind_a_gateway_or_on_a_link_of_pods_is_not_on_a_link() {
    let mut observed = connected();
    observed
        .routes
        .push(route("192.0.2.128/25", Some("192.0.2.1"), 2, 3));
    observed.routes.push(route("10.1.0.0/16", None, 3, 2));
    observed.links.insert(parse("down"), {
        let mut down = link(7, LinkKind::Ethernet, &["198.51.100.1/24"]);
        down.up = false;
        down
    });
    observed.routes.push(route("198.51.100.0/24", None, 7, 2));
    for address in ["192.0.2.200", "10.1.9.9", "198.51.100.2"] {
        let plan = plan_peers(
            &intent([peer("b", &["10.2.0.0/24"], &[address])]),
            &observed,
        );
        assert_eq!(states(&plan), [PeerState::Unreachable], "{address}");
    }
}

#[test]
fn each_conflict_is_reported_by_name_and_the_rest_is_applied() {
    let mut observed = connected();
    let plan = plan_peers(
        &intent([
            peer("old", &["10.9.0.0/24"], &["192.0.2.40"]),
            peer("twice", &["10.7.0.0/24"], &["192.0.2.41"]),
            peer("wide", &["10.0.0.0/15", "10.8.0.0/24"], &["192.0.2.42"]),
            peer(
                "around",
                &["192.0.2.128/25", "10.6.0.0/24"],
                &["192.0.2.43"],
            ),
            peer("impostor", &["10.5.0.0/24"], &["192.0.2.10"]),
            peer("twice", &["10.4.0.0/24"], &["192.0.2.200"]),
            peer("new", &["10.9.0.0/16"], &["192.0.2.40", "192.0.2.44"]),
        ]),
        &observed,
    );
    execute(&plan, &mut observed);
    assert_eq!(
        routes(&observed),
        [
            "10.4.0.0/24 via 192.0.2.200",
            "10.6.0.0/24 via 192.0.2.43",
            "10.8.0.0/24 via 192.0.2.42",
            "10.9.0.0/16 via 192.0.2.40",
        ]
    );
    let mut found = problems(&plan);
    found.sort();
    assert_eq!(
        found,
        [
            "peer around: 192.0.2.128/25 contains the node address 192.0.2.200",
            "peer impostor has the address 192.0.2.10 of this node",
            "peer old has the address 192.0.2.40 of peer new",
            "peer old: 10.9.0.0/24 overlaps 10.9.0.0/16 of the newer peer new",
            "peer twice is listed twice: only the last entry is used",
            "peer wide: 10.0.0.0/15 overlaps this node's own subnet 10.1.0.0/24",
        ]
    );
}

#[test]
fn an_entry_of_the_node_itself_is_no_conflict() {
    let own = peer("a", &["10.1.0.0/24", "fd00:1::/64"], &["192.0.2.10"]);
    let plan = plan_peers(&intent([own]), &connected());
    assert_eq!(states(&plan), [PeerState::ThisNode]);
    assert!(plan.plan.is_empty() && plan.problems.is_empty());
}

#[test]
fn a_changed_next_hop_replaces_the_route_and_a_peer_that_left_loses_it() {
    let mut observed = connected();
    let first = [
        peer("b", &["10.2.0.0/24"], &["192.0.2.20"]),
        peer("c", &["10.3.0.0/24"], &["192.0.2.30"]),
    ];
    execute(&plan_peers(&intent(first), &observed), &mut observed);
    let second = intent([peer("b", &["10.2.0.0/24"], &["192.0.2.21"])]);
    let plan = plan_peers(&second, &observed);
    insta::assert_snapshot!(
        plan.plan,
        @" 1. change routes to peers: 10.2.0.0/24 via 192.0.2.21 dev eth0, no 10.3.0.0/24 via 192.0.2.30 dev eth0"
    );
    let Step::ChangeRoutes(changes) = &plan.plan.steps()[0] else {
        panic!("{}", plan.plan);
    };
    assert!(
        changes[0].from.is_some(),
        "the route is replaced, not removed and added"
    );
    execute(&plan, &mut observed);
    assert_eq!(routes(&observed), ["10.2.0.0/24 via 192.0.2.21"]);
}

#[test]
fn routes_of_other_software_to_the_same_prefix_stay_and_are_reported() {
    let mut observed = connected();
    let intent = intent([peer("b", &["10.2.0.0/24"], &["192.0.2.20"])]);
    execute(&plan_peers(&intent, &observed), &mut observed);
    let foreign = route("10.2.0.0/24", Some("192.0.2.99"), 2, 12);
    observed.routes.push(foreign.clone());
    let plan = plan_peers(&intent, &observed);
    assert_eq!(
        problems(&plan),
        ["peer b: other software (route protocol 12) has a route to 10.2.0.0/24"]
    );
    execute(&plan, &mut observed);
    assert!(observed.routes.contains(&foreign));
    assert!(routes(&observed).is_empty());
}

/// An agent that has lost its records knows no peers.
#[test]
fn without_a_list_of_peers_no_route_is_removed_and_its_prefix_is_not_masqueraded() {
    let mut observed = connected();
    observed
        .routes
        .push(route("10.2.0.0/24", Some("192.0.2.20"), 2, 118));
    let unknown = NodeIntent {
        networks: vec![network()],
        ..NodeIntent::default()
    };
    assert!(plan_peers(&unknown, &observed).plan.is_empty());
    let kept = unmasqueraded(&unknown, &observed).prefixes;
    assert_eq!(kept, BTreeSet::from([parse("10.2.0.0/24")]));
    let empty = plan_peers(&intent([]), &observed);
    execute(&empty, &mut observed);
    assert!(routes(&observed).is_empty());
}

#[test]
fn with_between_nodes_none_there_are_no_routes_and_pods_keep_their_addresses() {
    let mut intent = intent([peer("b", &["10.2.0.0/24"], &["192.0.2.20"])]);
    intent.peers.options.between_nodes = BetweenNodes::None;
    let observed = connected();
    let plan = plan_peers(&intent, &observed);
    assert!(plan.plan.is_empty() && plan.problems.is_empty());
    assert_eq!(states(&plan), [PeerState::Unrouted]);
    let kept = unmasqueraded(&intent, &observed).prefixes;
    assert_eq!(kept, BTreeSet::from([parse("10.2.0.0/24")]));
}

#[test]
fn prefixes_of_followed_routes_are_not_masqueraded_and_the_default_route_is() {
    let mut observed = connected();
    observed
        .routes
        .push(route("10.7.0.0/24", Some("192.0.2.1"), 2, 12));
    observed
        .routes
        .push(route("10.8.0.0/24", Some("192.0.2.1"), 2, 11));
    observed
        .routes
        .push(route("0.0.0.0/0", Some("192.0.2.1"), 2, 12));
    let mut intent = intent([]);
    intent.peers.options.protocols.insert(12);
    let planned = plan_node(&intent, &observed, &Records::new()).plan;
    let kept: Vec<String> = planned
        .steps()
        .iter()
        .filter_map(|step| {
            let Step::PutEntry { key, entry, .. } = step else {
                return None;
            };
            let EntryKey::Prefix(prefix) = key else {
                return None;
            };
            let kept = matches!(
                entry,
                Entry::Prefix {
                    no_masquerade: true,
                    ..
                }
            );
            kept.then(|| prefix.to_string())
        })
        .collect();
    assert_eq!(kept, ["10.7.0.0/24"]);
}

#[test]
fn followed_routes_that_do_not_fit_the_table_are_reported_and_masqueraded() {
    let mut observed = connected();
    for number in 0..30_000_u32 {
        let network = Ipv4Addr::from_bits(0x0b00_0000 | number << 9);
        let text = format!("{network}/24");
        observed.routes.push(route(&text, Some("192.0.2.1"), 2, 12));
    }
    let mut intent = intent([peer("b", &["10.2.0.0/24"], &["192.0.2.20"])]);
    intent.peers.options.protocols.insert(12);
    assert_eq!(unmasqueraded(&intent, &observed).prefixes.len(), 1);
    let found = problems(&plan_peers(&intent, &observed));
    assert!(found[0].contains("have 30000 prefixes"), "{found:?}");
}

/// Some peers, whose prefixes and addresses are often in conflict.
fn peers() -> impl Strategy<Value = Vec<Peer>> {
    let prefix = (0..8_u32, 14..=24_u8).prop_map(|(bits, length)| {
        let address = Ipv4Addr::from_bits(0x0a00_0000 | bits << 16);
        Cidr::containing(address.into(), length).unwrap()
    });
    let address = (5..16_u8).prop_map(|host| IpAddr::from([192, 0, 2, host]));
    let distant = (1..4_u8).prop_map(|host| IpAddr::from([203, 0, 113, host]));
    let parts = (
        0..6_u8,
        prop::collection::vec(prefix, 0..3),
        prop::collection::vec(prop_oneof![4 => address, 1 => distant], 0..3),
    );
    let peer = parts.prop_map(|(name, prefixes, addresses)| {
        Peer::new(parse(&format!("n{name}")), prefixes, addresses).unwrap()
    });
    prop::collection::vec(peer, 0..8)
}

fn foreign() -> impl Strategy<Value = Vec<RouteEntry>> {
    let route = (0..8_u32, 14..=24_u8).prop_map(|(bits, length)| RouteEntry {
        destination: Cidr::containing(Ipv4Addr::from_bits(0x0a00_0000 | bits << 16).into(), length)
            .unwrap(),
        ..route("10.0.0.0/8", Some("192.0.2.1"), 2, 3)
    });
    prop::collection::vec(route, 0..3)
}

proptest! {
    /// Whatever the lists are: foreign routes stay, a second plan is empty, used prefixes are
    /// disjoint from each other and from the node's own, and every route leads to an address of the
    /// peer that has its prefix.
    #[test]
    fn routes_follow_any_sequence_of_lists(
        lists in prop::collection::vec(peers(), 1..4),
        foreign in foreign(),
    ) {
        let mut observed = connected();
        observed.routes.extend(foreign);
        let others = |observed: &Observed| -> Vec<RouteEntry> {
            observed.routes.iter().filter(|one| one.protocol != 118).cloned().collect()
        };
        let before = others(&observed);
        for list in lists {
            let intent = intent(list.clone());
            let plan = plan_peers(&intent, &observed);
            execute(&plan, &mut observed);
            prop_assert_eq!(&others(&observed), &before);
            let again = plan_peers(&intent, &observed);
            prop_assert!(again.plan.is_empty(), "{}", again.plan);
            prop_assert_eq!(&again.problems, &plan.problems);
            let own: Vec<&RouteEntry> =
                observed.routes.iter().filter(|one| one.protocol == 118).collect();
            for (index, route) in own.iter().enumerate() {
                prop_assert!(own[..index].iter().all(|o| !o.destination.overlaps(&route.destination)));
                prop_assert!(!route.destination.overlaps(&parse("10.1.0.0/24")));
                let gateway = route.gateway.unwrap();
                let leads_there = list.iter().any(|peer| {
                    let prefixes = peer.prefixes();
                    prefixes.contains(&route.destination) && peer.addresses().contains(&gateway)
                });
                prop_assert!(leads_there, "{:?}", route);
            }
            // What is listed has a route or a problem by name.
            let named: BTreeSet<_> = plan.problems.iter().filter_map(|one| one.peer()).collect();
            for (peer, status) in list.iter().zip(&again.peers) {
                let routed = matches!(status.state, PeerState::Routed | PeerState::ThisNode);
                prop_assert!(routed || named.contains(peer.name()) || peer.prefixes().is_empty());
            }
        }
    }
}
