//! IPsec policies, MTUs, the cgroup and limits.

use steps::{CgroupCoverage, IpsecDirection, IpsecPolicy, Usage};

use super::*;

fn policy(direction: IpsecDirection, source: &str, destination: &str) -> IpsecPolicy {
    IpsecPolicy {
        direction,
        source: parse(source),
        destination: parse(destination),
        is_narrowed: false,
        blocks: false,
        transforms: false,
        priority: 0,
    }
}

#[test]
fn an_ipsec_default_that_blocks_drops_packets_of_pods_without_a_policy_that_allows_them() {
    let mut node = Node::new();
    node.facts.ipsec.blocked = vec![IpsecDirection::Forward];
    assert_eq!(
        node.texts(),
        ["the IPsec default of direction fwd drops packets of pods of network net"]
    );
    assert!(prevents(&node.conditions()));
    let any = "0.0.0.0/0";
    node.facts.ipsec.policies = vec![
        policy(IpsecDirection::Forward, "10.88.0.0/16", any),
        policy(IpsecDirection::Forward, any, "10.88.0.0/16"),
    ];
    assert_eq!(node.conditions(), []);
    node.facts.ipsec.policies[0].is_narrowed = true;
    assert_eq!(node.conditions().len(), 1);
}

#[test]
fn an_ipsec_policy_that_blocks_counts_where_no_policy_before_it_allows() {
    let mut node = Node::new();
    let any = "0.0.0.0/0";
    let mut block = policy(IpsecDirection::Out, "10.88.0.0/25", any);
    (block.blocks, block.priority) = (true, 10);
    node.facts.ipsec.policies = vec![block.clone()];
    assert_eq!(
        node.texts(),
        ["IPsec policy out 10.88.0.0/25 -> 0.0.0.0/0 drops packets of pods of network net"]
    );
    let allow = policy(IpsecDirection::Out, "10.0.0.0/8", any);
    node.facts.ipsec.policies = vec![block.clone(), allow];
    assert_eq!(node.conditions(), []);
    block.source = parse("10.99.0.0/16");
    node.facts.ipsec.policies = vec![block];
    assert_eq!(node.conditions(), [], "it is for others");
}

#[test]
fn an_ipsec_tunnel_for_everything_takes_packets_before_they_are_masqueraded() {
    let mut node = Node::new();
    let mut tunnel = policy(IpsecDirection::Out, "0.0.0.0/0", "10.99.0.0/16");
    tunnel.transforms = true;
    node.facts.ipsec.policies = vec![tunnel.clone()];
    assert_eq!(
        node.texts(),
        [
            "IPsec policy out 0.0.0.0/0 -> 10.99.0.0/16 encrypts, without masquerading, packets of pods of network net"
        ]
    );
    node.intent.non_masquerade = [parse("10.99.0.0/16")].into();
    assert_eq!(node.conditions(), [], "they are to keep their addresses");
    node.intent.non_masquerade.clear();
    node.facts.ipsec.policies[0].source = parse("10.88.0.0/24");
    assert_eq!(
        node.conditions(),
        [],
        "the policy is for the pods' addresses"
    );
    node.facts.ipsec.policies = vec![tunnel];
    node.network().masquerade = false;
    assert_eq!(node.conditions(), []);
}

#[test]
fn an_mtu_above_that_of_the_default_route_is_reported() {
    let mut node = Node::new();
    node.network().mtu = Some(1500);
    assert_eq!(node.conditions(), []);
    node.observed.routes[2].mtu = Some(1400);
    assert_eq!(
        node.texts(),
        [
            "network net has MTU 1500, but the default route through eth0 has 1400: larger packets of pods depend on path MTU discovery"
        ]
    );
    assert!(!prevents(&node.conditions()));
    node.network().mtu = Some(1400);
    assert_eq!(node.conditions(), []);
}

#[test]
fn a_cgroup_that_does_not_contain_the_nodes_processes_is_reported() {
    let mut node = Node::new();
    let coverage = |is_root, is_configured, outside: &[&str]| CgroupCoverage {
        is_root,
        is_configured,
        outside: outside.iter().map(ToString::to_string).collect(),
    };
    for (cgroup, expected) in [
        (coverage(true, false, &[]), 0),
        (coverage(true, true, &[]), 0),
        // The root of a cgroup namespace.
        (coverage(false, false, &[]), 1),
        // Nothing is published yet.
        (coverage(false, true, &["sshd"]), 0),
    ] {
        node.facts.cgroup = Some(cgroup.clone());
        assert_eq!(node.conditions().len(), expected, "{cgroup:?}");
    }
    let records = publishing();
    node.facts.cgroup = Some(coverage(false, true, &["sshd"]));
    let found = node.conditions_with(&records);
    assert!(found[0].to_string().contains("(not sshd)"), "{found:?}");
    node.facts.cgroup = Some(coverage(false, true, &[]));
    assert_eq!(node.conditions_with(&records), []);
}

#[test]
fn limits_are_reported_before_they_are_reached() {
    let mut node = Node::new();
    let usage = |used, limit| Some(Usage { used, limit });
    for (files, conntrack, expected) in [
        (usage(100, 1_048_576), usage(10, 262_144), vec![]),
        (usage(950, 1024), None, vec!["file-limit"]),
        (usage(100, 256), None, vec!["file-limit"]),
        (None, usage(262_000, 262_144), vec!["conntrack-full"]),
    ] {
        (node.facts.open_files, node.facts.conntrack) = (files, conntrack);
        let found = node.conditions();
        let words: Vec<&str> = found.iter().map(|one| one.reason().word()).collect();
        assert_eq!(words, expected);
        assert!(!prevents(&found));
    }
    (node.facts.open_files, node.facts.conntrack) = (None, usage(262_144, 262_144));
    assert!(prevents(&node.conditions()), "the table is full");
    node.intent.bypass = BypassMode::Always;
    assert_eq!(node.conditions(), [], "packets of pods are not tracked");
    node.facts.neighbours_overflow = [false, true];
    let text = node.texts().remove(0);
    assert!(
        text.starts_with("the IPv6 neighbour table is full"),
        "{text}"
    );
}
