//! Conditions of the node that make packets of pods die: reported, and gone when the cause is.

use kernel::fake::Fake;
use planner::NodeCondition;
use steps::{CgroupCoverage, LinkKind, Usage};

use super::*;
use crate::{AddEffect, Degraded};

fn words(node: &mut Node) -> Vec<&'static str> {
    node.engine().reconcile(NOW);
    let degraded = node.engine().status().degraded;
    degraded.iter().map(|one| one.reason().word()).collect()
}

/// A cause of a condition, and its end.
type Cause = (&'static str, fn(&Fake), fn(&Fake));

const CAUSES: [Cause; 6] = [
    (
        "subnet-overlap",
        |fake| {
            fake.add_link("tun0", LinkKind::Raw);
            fake.add_route("10.1.0.8/29", None, "tun0");
        },
        |fake| fake.delete_link("tun0"),
    ),
    (
        "forwarding-off",
        |fake| fake.set_sysctl("net/ipv4/conf/eth0/forwarding", "0"),
        |fake| fake.set_sysctl("net/ipv4/conf/eth0/forwarding", "1"),
    ),
    (
        "ipsec-policy",
        |fake| {
            fake.edit_facts(|facts| facts.ipsec.blocked = vec![steps::IpsecDirection::Forward]);
        },
        |fake| fake.edit_facts(|facts| facts.ipsec.blocked.clear()),
    ),
    (
        "cgroup-uncovered",
        |fake| fake.edit_facts(|facts| facts.cgroup = Some(CgroupCoverage::default())),
        |fake| fake.edit_facts(|facts| facts.cgroup = None),
    ),
    (
        "file-limit",
        |fake| fake.edit_facts(|facts| facts.open_files = Some(FEW_FILES)),
        |fake| fake.edit_facts(|facts| facts.open_files = None),
    ),
    (
        "neighbour-table-full",
        |fake| fake.edit_facts(|facts| facts.neighbours_overflow = [true, false]),
        |fake| fake.edit_facts(|facts| facts.neighbours_overflow = [false, false]),
    ),
];

const FEW_FILES: Usage = Usage {
    used: 1000,
    limit: 1024,
};

#[test]
fn each_condition_of_the_node_is_reported_and_ends_with_its_cause() {
    for (word, begin, end) in CAUSES {
        let mut node = Node::start();
        // Packets that bypass the stack do not need the uplink to forward.
        node.engine().choices.settings.bypass = planner::BypassMode::Never;
        assert_eq!(words(&mut node), [""; 0]);
        begin(&node.fake);
        assert_eq!(words(&mut node), [word]);
        end(&node.fake);
        assert_eq!(words(&mut node), [""; 0], "{word} has ended");
    }
}

#[test]
fn a_condition_prevents_an_add_to_its_network_alone() {
    let mut node = Node::start();
    node.fake
        .edit_facts(|facts| facts.ipsec.blocked = vec![steps::IpsecDirection::Forward]);
    node.engine().reconcile(NOW);
    let degraded = node.engine().status().degraded;
    let [
        found @ Degraded::Node(NodeCondition::Ipsec { network, .. }),
        ..,
    ] = &degraded[..]
    else {
        panic!("{degraded:?}");
    };
    assert_eq!(found.effect_on_add(network), AddEffect::Fails);
    let other = "other".parse().unwrap();
    assert_eq!(found.effect_on_add(&other), AddEffect::Works);
}

#[test]
fn forwarding_that_other_software_turns_off_is_turned_on_again() {
    let mut node = Node::start();
    for key in ["net/ipv4/ip_forward", "net/ipv4/conf/cbr0/forwarding"] {
        node.fake.set_sysctl(key, "0");
        assert_eq!(words(&mut node), [""; 0]);
        let sysctls = node.fake.snapshot().sysctls;
        let value = &sysctls[&steps::SysctlKey(key.to_owned())];
        assert_eq!(value.as_deref(), Some("1"));
    }
}

#[test]
fn a_sysctl_that_other_software_keeps_changing_back_is_reported_for_five_minutes() {
    let mut node = Node::start();
    for second in [0, 10, 20] {
        assert_eq!(node.engine().status().degraded, []);
        node.fake.set_sysctl("net/ipv4/ip_forward", "0");
        node.engine().reconcile(NOW + second);
    }
    let reasons = |node: &mut Node, later: u64| -> Vec<&'static str> {
        node.engine().reconcile(NOW + later);
        let degraded = node.engine().status().degraded;
        degraded.iter().map(|one| one.reason().word()).collect()
    };
    assert_eq!(reasons(&mut node, 299), ["sysctl-contested"]);
    assert_eq!(reasons(&mut node, 321), [""; 0]);
}
