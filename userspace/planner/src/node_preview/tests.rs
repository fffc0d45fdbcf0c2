//! Tests of a node without an agent.

use std::collections::BTreeMap;

use model::DegradedReason;
use steps::{BaseChain, FilterHook, FilterTable, RouteEntry, TableState};

use super::*;
use crate::testing::{link, network_of, parse};

const ETH0: u32 = 2;
const PODMAN: u32 = 3;

/// A node with the uplink `eth0` on which no agent has run yet.
fn observed() -> Observed {
    let mut observed = Observed {
        links: [("eth0", link(ETH0, LinkKind::Ethernet, &["192.0.2.10/24"]))]
            .map(|(name, link)| (parse(name), link))
            .into(),
        ..Observed::default()
    };
    observed.routes = vec![route("0.0.0.0/0", ETH0), route("192.0.2.0/24", ETH0)];
    observed
}

fn route(destination: &str, link: u32) -> RouteEntry {
    RouteEntry {
        destination: parse(destination),
        gateway: None,
        link,
        table: 254,
        mtu: None,
        protocol: 3,
    }
}

fn intent() -> NodeIntent {
    NodeIntent {
        networks: vec![network_of("default", "cbr0", &["10.213.0.0/20"])],
        ..NodeIntent::default()
    }
}

fn reasons(intent: &NodeIntent, observed: Observed) -> Vec<DegradedReason> {
    let preview = NodePreview::new(intent, observed);
    let facts = CheckFacts::default();
    let conditions = preview.conditions(&facts);
    conditions.iter().map(NodeCondition::reason).collect()
}

/// Tables of Docker: the policy of FORWARD drops.
fn docker(chains: &[&str]) -> ForwardTables {
    let state = TableState {
        generation: 1,
        base: vec![BaseChain {
            name: "FORWARD".to_owned(),
            hook: FilterHook::Forward,
            drops: true,
        }],
        rules: chains
            .iter()
            .map(|chain| ((*chain).to_owned(), Vec::new()))
            .collect(),
    };
    ForwardTables {
        has_nftables: true,
        tables: BTreeMap::from([(FilterTable::iptables(FilterFamily::Ip), state)]),
    }
}

#[test]
fn a_plain_node_before_the_installation_has_an_uplink_and_no_condition() {
    let intent = intent();
    let preview = NodePreview::new(&intent, observed());
    assert_eq!(preview.uplinks(), BTreeSet::from([parse("eth0")]));
    assert_eq!(preview.conditions(&CheckFacts::default()), []);
    assert!(preview.query().routes.is_empty());
}

#[test]
fn a_subnet_that_another_bridge_has_is_an_overlap_before_the_installation() {
    let mut node = observed();
    let podman = link(PODMAN, LinkKind::Bridge, &["10.213.1.1/24"]);
    node.links.insert(parse("cni-podman0"), podman);
    node.routes.push(route("10.213.1.0/24", PODMAN));
    assert_eq!(reasons(&intent(), node), [DegradedReason::SubnetOverlap]);
}

#[test]
fn an_mtu_above_that_of_the_uplink_is_a_mismatch_before_the_installation() {
    let mut intent = intent();
    intent.networks[0].mtu = Some(1500);
    let mut node = observed();
    node.links.get_mut(&parse("eth0")).unwrap().link.mtu = 1400;
    assert_eq!(reasons(&intent, node), [DegradedReason::MtuMismatch]);
}

#[test]
fn a_bridge_with_a_smaller_mtu_than_its_ports_is_a_mismatch_without_records() {
    let mut node = observed();
    let mut bridge = link(10, LinkKind::Bridge, &["10.213.0.1/20"]);
    bridge.link.mtu = 1400;
    let mut veth = link(11, LinkKind::Veth, &[]);
    veth.link.controller = Some(10);
    veth.link.mtu = 1500;
    node.links.insert(parse("cbr0"), bridge);
    node.links.insert(parse("veth1"), veth);
    let mut intent = intent();
    intent.networks[0].mtu = Some(1400);
    assert_eq!(reasons(&intent, node), [DegradedReason::MtuMismatch]);
}

#[test]
fn a_dropping_policy_drops_packets_of_pods_until_an_agent_has_added_rules() {
    let intent = intent();
    let preview = NodePreview::new(&intent, observed());
    let state = |mode| {
        let found = preview.dropping_defaults(&docker(&["FORWARD"]), mode);
        found.into_iter().map(|default| default.state).next()
    };
    assert_eq!(state(ForwardingMode::Auto), Some(DefaultState::Carried));
    let left = state(ForwardingMode::Leave);
    assert!(matches!(left, Some(DefaultState::Drops(_))), "{left:?}");
    for mode in [ForwardingMode::Auto, ForwardingMode::Leave] {
        let carried = preview.dropping_defaults(&docker(&["FORWARD", FORWARD_CHAIN]), mode);
        assert_eq!(carried, BTreeSet::new());
    }
}
