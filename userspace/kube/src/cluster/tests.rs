//! Tests of the plan: single rules, and laws by random clusters.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn node(created: i64, cidrs: &[&str], addresses: &[&str]) -> NodeFacts {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    NodeFacts::parse(NodeTexts {
        created,
        pod_cidrs: owned(cidrs),
        internal_ips: owned(addresses),
        network_unavailable: None,
    })
}

fn nodes(list: impl IntoIterator<Item = (&'static str, NodeFacts)>) -> Nodes {
    list.into_iter()
        .map(|(name, facts)| (name.into(), facts))
        .collect()
}

fn two() -> Nodes {
    nodes([
        ("a", node(1, &["10.1.1.0/24"], &["192.0.2.1"])),
        (
            "b",
            node(
                2,
                &["10.1.2.0/24", "fd00:2::/64"],
                &["192.0.2.2", "2001:db8::2"],
            ),
        ),
    ])
}

fn reports(nodes: &Nodes, own: &str) -> Vec<String> {
    let problems = plan(nodes, own).unwrap().problems;
    problems.iter().map(ToString::to_string).collect()
}

fn names(desired: &Desired) -> Vec<String> {
    let peers = desired.peers.list().iter();
    peers.map(|peer| peer.name().to_string()).collect()
}

#[test]
fn the_own_node_gives_pod_cidrs_and_all_other_nodes_are_peers() {
    let desired = plan(&two(), "b").unwrap();
    let own: Vec<String> = desired.own.iter().map(ToString::to_string).collect();
    assert_eq!(own, ["10.1.2.0/24", "fd00:2::/64"]);
    assert_eq!(desired.peers.to_string(), "a 10.1.1.0/24 192.0.2.1\n");
    assert!(desired.problems.is_empty(), "{:?}", desired.problems);
}

#[test]
fn a_list_without_the_own_node_changes_nothing() {
    for list in [two(), Nodes::new()] {
        let withheld = plan(&list, "c").unwrap_err();
        assert_eq!(withheld, Withheld::OwnNode(list.len()));
    }
}

#[test]
fn a_node_without_a_pod_cidr_or_an_address_is_reported_and_costs_no_other() {
    let mut list = two();
    list.insert("new".into(), node(3, &[], &["192.0.2.3"]));
    list.insert("far".into(), node(4, &["10.1.4.0/24"], &[]));
    let desired = plan(&list, "a").unwrap();
    assert_eq!(names(&desired), ["b", "far"]);
    assert_eq!(
        reports(&list, "a"),
        ["node far has no InternalIP", "node new has no pod CIDR"]
    );
}

#[test]
fn a_family_without_an_internal_address_is_reported_for_that_family_only() {
    let mut list = two();
    list.insert(
        "c".into(),
        node(3, &["10.1.3.0/24", "fd00:3::/64"], &["192.0.2.3"]),
    );
    let desired = plan(&list, "a").unwrap();
    assert!(
        desired
            .peers
            .to_string()
            .ends_with("c 10.1.3.0/24,fd00:3::/64 192.0.2.3\n"),
        "{}",
        desired.peers
    );
    assert_eq!(
        reports(&list, "a"),
        ["node c has an IPv6 pod CIDR and no IPv6 InternalIP"]
    );
}

#[test]
fn an_own_node_without_a_pod_cidr_has_peers_and_is_reported() {
    let mut list = two();
    list.insert("a".into(), node(1, &[], &["192.0.2.1"]));
    let desired = plan(&list, "a").unwrap();
    assert!(desired.own.is_empty());
    assert_eq!(names(&desired), ["b"]);
    assert!(reports(&list, "a")[0].starts_with("this node has no pod CIDR"));
}

#[test]
fn cidrs_and_addresses_that_the_agent_would_refuse_are_left_out_and_reported() {
    let mut list = two();
    let addresses = ["127.0.0.1", "fe80::1", "nonsense", "192.0.2.9"];
    list.insert(
        "c".into(),
        node(3, &["0.0.0.0/0", "10.1.3.7/24", "x"], &addresses),
    );
    let desired = plan(&list, "a").unwrap();
    let newest = desired.peers.list().last().unwrap();
    assert_eq!(newest.prefixes(), ["10.1.3.0/24".parse().unwrap()]);
    assert_eq!(newest.addresses(), ["192.0.2.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(desired.problems.len(), 5, "{:?}", desired.problems);
}

#[test]
fn the_newer_of_two_nodes_with_one_pod_cidr_is_last_and_the_other_is_reported() {
    let mut list = two();
    list.insert("old".into(), node(7, &["10.1.8.0/24"], &["192.0.2.7"]));
    list.insert("new".into(), node(8, &["10.1.8.0/24"], &["192.0.2.8"]));
    assert_eq!(names(&plan(&list, "a").unwrap()), ["b", "old", "new"]);
    assert_eq!(
        reports(&list, "a"),
        ["10.1.8.0/24 of node old overlaps 10.1.8.0/24 of node new, which has it"]
    );
    // The node itself keeps its prefix, whatever its age.
    assert_eq!(
        reports(&list, "old"),
        ["10.1.8.0/24 of node new overlaps 10.1.8.0/24 of node old, which has it"]
    );
}

#[test]
fn a_prefix_inside_that_of_another_node_is_reported() {
    let mut list = two();
    list.insert("c".into(), node(3, &["10.9.0.0/24"], &["192.0.2.3"]));
    list.insert("wide".into(), node(4, &["10.1.0.0/16"], &["192.0.2.4"]));
    assert_eq!(
        reports(&list, "c"),
        [
            "10.1.2.0/24 of node b overlaps 10.1.0.0/16 of node wide, which has it",
            "10.1.1.0/24 of node a overlaps 10.1.0.0/16 of node wide, which has it",
        ]
    );
    // The wide one is not used where the node itself has a part of it, so node a has its own.
    assert_eq!(
        reports(&list, "b"),
        ["10.1.0.0/16 of node wide overlaps 10.1.2.0/24 of node b, which has it"]
    );
}

#[test]
fn a_prefix_of_many_nodes_is_reported_once_for_each_node_without_it() {
    let mut list = two();
    for number in 0..3_000 {
        let facts = node(3 + number, &["10.1.8.0/24"], &["192.0.2.7"]);
        list.insert(format!("node-{number}").into(), facts);
    }
    let reports = reports(&list, "a");
    assert_eq!(reports.len(), 2_999);
    for report in reports {
        assert!(
            report.ends_with("of node node-2999, which has it"),
            "{report}"
        );
    }
}

#[test]
fn every_problem_has_a_kind_of_the_metric() {
    let mut list = two();
    list.insert("no name".into(), node(3, &[], &[]));
    list.insert("a".into(), node(1, &[], &["x"]));
    let desired = plan(&list, "a").unwrap();
    for problem in desired.problems {
        assert!(Problem::KINDS.contains(&problem.kind()), "{problem}");
    }
}

/// Small numbers, so that random Nodes clash often.
fn any_facts() -> impl Strategy<Value = NodeFacts> {
    let cidr = prop_oneof![
        (0_u8..6, 22_u8..26).prop_map(|(net, length)| format!("10.0.{net}.0/{length}")),
        (0_u8..6).prop_map(|net| format!("fd00:{net}::/64")),
        Just("::/0".to_owned()),
    ];
    let address = prop_oneof![
        (1_u8..9).prop_map(|host| format!("192.0.2.{host}")),
        (1_u8..9).prop_map(|host| format!("2001:db8::{host}")),
        Just("127.0.0.1".to_owned()),
    ];
    let lists = (
        prop::collection::vec(cidr, 0..4),
        prop::collection::vec(address, 0..4),
    );
    (0_i64..5, lists).prop_map(|(created, (pod_cidrs, internal_ips))| {
        NodeFacts::parse(NodeTexts {
            created,
            pod_cidrs,
            internal_ips,
            network_unavailable: None,
        })
    })
}

fn any_nodes() -> impl Strategy<Value = Nodes> {
    let name = "[a-f]".prop_map(String::into_boxed_str);
    prop::collection::btree_map(name, any_facts(), 1..6)
}

/// Nodes whose own prefixes are disjoint.
fn any_nodes_of_disjoint_prefixes() -> impl Strategy<Value = Nodes> {
    any_nodes().prop_map(|mut nodes| {
        for facts in nodes.values_mut() {
            let mut disjoint: Vec<Cidr> = Vec::new();
            for cidr in &facts.pod_cidrs {
                if !disjoint.iter().any(|one| one.overlaps(cidr)) {
                    disjoint.push(*cidr);
                }
            }
            facts.pod_cidrs = disjoint.into();
        }
        nodes
    })
}

proptest! {
    /// Every Node with a pod CIDR is a peer once, but for the node itself; the newest is last.
    #[test]
    fn peers_are_the_other_nodes_with_pod_cidrs_by_age(nodes in any_nodes()) {
        let own = nodes.keys().next().unwrap().clone();
        let desired = plan(&nodes, &own).unwrap();
        let expected: BTreeSet<String> = nodes
            .iter()
            .filter(|(name, facts)| **name != own && !facts.pod_cidrs.is_empty())
            .map(|(name, _)| name.to_string())
            .collect();
        let found = names(&desired);
        prop_assert_eq!(found.len(), expected.len());
        prop_assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), expected);
        let ages: Vec<i64> = found.iter().map(|name| nodes[name.as_str()].created).collect();
        prop_assert!(ages.is_sorted(), "{:?}", ages);
    }

    /// Each prefix is reported once, and without the reported ones no two Nodes overlap. Winners
    /// are newer, or the node itself, and have what they win.
    #[test]
    fn overlaps_are_reported_once_for_each_prefix_that_is_not_used(
        nodes in any_nodes_of_disjoint_prefixes(),
    ) {
        let own = nodes.keys().next().unwrap().clone();
        let desired = plan(&nodes, &own).unwrap();
        let mut used: BTreeSet<(&str, Cidr)> = nodes
            .iter()
            .flat_map(|(name, facts)| facts.pod_cidrs.iter().map(|cidr| (name.as_ref(), *cidr)))
            .collect();
        for problem in &desired.problems {
            let Problem::Overlap { loser, lost, .. } = problem else { continue };
            prop_assert!(used.remove(&(loser.as_str(), *lost)), "{} twice", lost);
        }
        for problem in &desired.problems {
            let Problem::Overlap { node, prefix, loser, lost } = problem else { continue };
            prop_assert!(used.contains(&(node.as_str(), *prefix)) && prefix.overlaps(lost));
            let (winner, other) = (&nodes[node.as_str()], &nodes[loser.as_str()]);
            let is_newer = (winner.created, node) > (other.created, loser);
            prop_assert!(node.as_str() == &*own || (loser.as_str() != &*own && is_newer));
        }
        for (node, prefix) in &used {
            let mut others = used.iter().filter(|(other, _)| other != node);
            prop_assert!(!others.any(|(_, other)| other.overlaps(prefix)), "{}", prefix);
        }
    }

    /// Without the own Node there is no plan.
    #[test]
    fn no_plan_is_made_without_the_own_node(nodes in any_nodes()) {
        prop_assert!(plan(&nodes, "z").is_err());
    }

    /// What is sent is accepted: the text form of the list is that of a valid one.
    #[test]
    fn every_list_of_peers_is_one_that_the_agent_accepts(nodes in any_nodes()) {
        let own = nodes.keys().next().unwrap().clone();
        let peers = plan(&nodes, &own).unwrap().peers;
        prop_assert_eq!(&peers.to_string().parse::<Peers>().unwrap(), &peers);
    }
}
