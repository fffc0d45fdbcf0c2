//! Reload of the configuration.

use ::model::DatapathLogLevel;
use kernel::fake::Errno;
use steps::Step;

use super::*;
use crate::ConfigChange;

fn prefixes(texts: &[&str]) -> BTreeSet<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn ranges(cidr: &str) -> Vec<RangeSet> {
    vec![RangeSet::of_cidr(cidr.parse().unwrap()).unwrap()]
}

fn full_change() -> ConfigChange {
    ConfigChange {
        pod_cidrs: Some(ranges("10.7.0.0/24")),
        hairpin: Some(HairpinMode::PromiscuousBridge),
        non_masquerade: Some(prefixes(&["192.0.2.0/24"])),
        uplinks: Some(BTreeSet::from(["eth0".parse().unwrap()])),
        egress: Some(BTreeSet::from(["192.0.2.1".parse().unwrap()])),
        bypass: Some(planner::BypassMode::Never),
        forwarding: Some(planner::ForwardingMode::Leave),
        peers: Some(planner::PeerOptions {
            between_nodes: planner::BetweenNodes::None,
            protocols: BTreeSet::from([12]),
            tunnel: planner::TunnelOptions::default(),
        }),
        xdp_prefilter: Some(planner::XdpPrefilterMode::Native),
        datapath_log: Some(DatapathLogLevel::Debug),
    }
}

/// Returns the settings in effect.
fn settings(node: &mut Node) -> String {
    let settings = &node.engine().choices.settings;
    format!("{settings:?}")
}

#[test]
fn a_reloaded_configuration_is_applied_completely_and_survives_a_restart() {
    let mut node = Node::start();
    node.engine().configure(full_change(), NOW).unwrap();
    let status = node.engine().status();
    let network = status.networks[0].network.clone();
    assert_eq!(network.ranges, ranges("10.7.0.0/24"));
    assert_eq!(network.hairpin, HairpinMode::PromiscuousBridge);
    let prefix = EntryKey::Prefix("192.0.2.0/24".parse().unwrap());
    assert!(node.fake.snapshot().entries.contains_key(&prefix));

    // An override after the reload replaces the reloaded value.
    node.engine().set_pod_cidrs(ranges("10.8.0.0/24")).unwrap();
    node.default_network = network;
    node.non_masquerade = prefixes(&["192.0.2.0/24"]);
    node.restart();
    let now = node.engine().status().networks[0].network.clone();
    assert_eq!(now.ranges, ranges("10.8.0.0/24"));
}

#[test]
fn another_datapath_log_level_replaces_all_attached_programs_once() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    let change = |level| ConfigChange {
        datapath_log: Some(level),
        ..ConfigChange::default()
    };
    let debug = DatapathLogLevel::Debug;
    let before = node.engine().status().datapath_log;
    node.engine().configure(change(debug), NOW).unwrap();
    let after = node.engine().status().datapath_log;
    assert_eq!(after.level, debug);
    assert_ne!(after.program, before.program);
    let links = node.fake.snapshot().links;
    let attached = links.values().filter(|link| !link.hooks.is_empty());
    assert!(attached.clone().count() >= 2, "a pod and an uplink");
    for link in attached {
        assert!(link.outdated.is_empty(), "{link:?}");
    }
    // The same level loads nothing.
    node.engine().configure(change(debug), NOW).unwrap();
    assert_eq!(node.engine().status().datapath_log, after);
}

#[test]
fn a_configuration_with_a_refused_value_changes_nothing() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    let (before, traces) = (settings(&mut node), node.traces());
    let refused = node.engine().configure(full_change(), NOW).unwrap_err();
    assert!(
        matches!(refused, EngineError::PodCidrsInUse { .. }),
        "{refused:?}"
    );
    assert_eq!(settings(&mut node), before);
    assert_eq!(node.traces(), traces);
}

#[test]
fn a_configuration_that_fails_in_the_kernel_is_rolled_back() {
    let mut node = Node::start();
    let (before, entries) = (settings(&mut node), node.fake.snapshot().entries);
    let is_prefix = |step: &Step| matches!(step, Step::PutEntry { entry, .. } if entry.to_string().contains("not masqueraded"));
    node.fake.fail_next(is_prefix, Errno::EIO);
    let refused = node.engine().configure(full_change(), NOW);
    assert!(refused.is_err());
    assert_eq!(settings(&mut node), before);
    assert_eq!(node.fake.snapshot().entries, entries);
}
