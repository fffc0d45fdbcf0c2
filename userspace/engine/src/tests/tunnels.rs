//! Tunnels to peers: they follow the list, are checked before they are used, and survive the agent.

use ::model::{IfName, Peers};
use planner::BetweenNodes;
use steps::{EntryKey, Hook, PEER_ROUTE_PROTOCOL};

use super::*;
use crate::AttachedPods;

const FAR: &str =
    "b 10.2.0.0/24,fd00:2::/64 192.0.2.20,2001:db8::20\nfar 10.3.0.0/24,fd00:3::/64 203.0.113.3\n";

fn tunnelled() -> Node {
    let mut node = Node::start();
    node.peers.between_nodes = BetweenNodes::Auto;
    node.restart();
    node
}

fn set(node: &mut Node, peers: &str) {
    let peers: Peers = peers.parse().unwrap();
    node.engine().set_peers(peers, NOW).unwrap();
}

fn name() -> IfName {
    "viaduct.vx".parse().unwrap()
}

/// Returns the state of all that a tunnel consists of.
fn state(node: &Node) -> String {
    let seen = node.fake.snapshot();
    let ours = |one: &&steps::RouteEntry| one.protocol == PEER_ROUTE_PROTOCOL;
    let mut routes: Vec<String> = seen
        .routes
        .iter()
        .filter(ours)
        .map(|one| format!("{one:?}"))
        .collect();
    routes.sort();
    let found = seen.links.get(&name());
    let link = found.map(|it| (it.up, it.mac, it.mtu, &it.addresses, &it.hooks));
    let peers = seen
        .entries
        .keys()
        .filter(|key| matches!(key, EntryKey::TunnelPeer(_)));
    format!(
        "{:?} {link:?} {routes:?} {:?}",
        seen.tunnels,
        peers.collect::<Vec<_>>()
    )
}

#[test]
fn a_tunnel_has_programs_tables_and_routes_and_goes_with_its_last_peer() {
    let mut node = tunnelled();
    let before = state(&node);
    set(&mut node, FAR);
    let seen = node.fake.snapshot();
    let link = &seen.links[&name()];
    assert!(link.up && link.hooks.contains(&Hook::UplinkIn), "{link:?}");
    assert_eq!(seen.tunnels[&name()].entries.len(), 3);
    let ours = seen
        .routes
        .iter()
        .filter(|one| one.protocol == PEER_ROUTE_PROTOCOL);
    assert_eq!(ours.count(), 4);
    let port = |node: &Node| match node.fake.snapshot().entries.get(&EntryKey::Settings) {
        Some(Entry::Settings(settings)) => settings.tunnel_port,
        _ => abi::Port::NONE,
    };
    assert_eq!(port(&node), abi::Port::new(8118));
    let peer = EntryKey::TunnelPeer("203.0.113.3".parse().unwrap());
    assert!(seen.entries.contains_key(&peer));
    let report = node.restart();
    assert_eq!(report.items, [], "nothing is left to do");

    set(&mut node, "");
    assert_eq!(state(&node), before);
    assert_eq!(port(&node), abi::Port::NONE);
}

#[test]
fn an_agent_that_dies_at_any_step_of_a_tunnel_leaves_nothing_that_its_next_start_does_not_mend() {
    let mut whole = tunnelled();
    set(&mut whole, FAR);
    let expected = state(&whole);
    for steps in 0.. {
        let mut node = tunnelled();
        node.fake.crash_after(steps);
        let peers: Peers = FAR.parse().unwrap();
        let finished = node.engine().set_peers(peers, NOW).is_ok() && !node.fake.is_crashed();
        node.fake.restart();
        node.restart();
        assert_eq!(state(&node), expected, "after {steps} steps");
        if finished {
            assert!(steps > 8, "a tunnel takes several steps");
            return;
        }
    }
}

#[test]
fn an_uninstall_removes_the_tunnels() {
    let mut node = tunnelled();
    set(&mut node, FAR);
    node.for_uninstall()
        .uninstall(AttachedPods::Refuse)
        .unwrap();
    assert!(node.fake.snapshot().tunnels.is_empty());
    assert!(!node.fake.snapshot().links.contains_key(&name()));
}
