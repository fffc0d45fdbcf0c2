//! Another configuration while the engine runs.

use kernel::fake::Errno;
use planner::Step;

use super::*;
use crate::ConfigChange;

fn prefixes(texts: &[&str]) -> BTreeSet<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn ranges(cidr: &str) -> Vec<RangeSet> {
    vec![RangeSet::of_cidr(cidr.parse().unwrap()).unwrap()]
}

fn whole() -> ConfigChange {
    ConfigChange {
        pod_cidrs: Some(ranges("10.7.0.0/24")),
        hairpin: Some(HairpinMode::PromiscuousBridge),
        non_masquerade: Some(prefixes(&["192.0.2.0/24"])),
        uplinks: Some(BTreeSet::from(["eth0".parse().unwrap()])),
        egress: Some(BTreeSet::from(["192.0.2.1".parse().unwrap()])),
        bypass: Some(planner::BypassMode::Never),
        xdp_prefilter: Some(planner::XdpPrefilterMode::Native),
    }
}

/// Everything that a configuration says, as the engine goes by it.
fn goes_by(node: &mut Node) -> String {
    let settings = &node.engine().settings;
    format!("{settings:?}")
}

#[test]
fn another_configuration_is_taken_as_a_whole_and_holds_over_a_restart_with_it() {
    let mut node = Node::start();
    node.engine().configure(whole(), NOW).unwrap();
    let status = node.engine().status();
    let network = status.networks[0].network.clone();
    assert_eq!(network.ranges, ranges("10.7.0.0/24"));
    assert_eq!(network.hairpin, HairpinMode::PromiscuousBridge);
    let prefix = EntryKey::Prefix("192.0.2.0/24".parse().unwrap());
    assert!(node.fake.snapshot().entries.contains_key(&prefix));

    // What is chosen behind it is chosen over it.
    node.engine().set_pod_cidrs(ranges("10.8.0.0/24")).unwrap();
    node.default_network = network;
    node.non_masquerade = prefixes(&["192.0.2.0/24"]);
    node.restart();
    let now = node.engine().status().networks[0].network.clone();
    assert_eq!(now.ranges, ranges("10.8.0.0/24"));
}

#[test]
fn a_configuration_that_is_refused_in_part_changes_nothing() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    let (before, traces) = (goes_by(&mut node), node.traces());
    let refused = node.engine().configure(whole(), NOW).unwrap_err();
    assert!(
        matches!(refused, EngineError::PodCidrsInUse { .. }),
        "{refused:?}"
    );
    assert_eq!(goes_by(&mut node), before);
    assert_eq!(node.traces(), traces);
}

#[test]
fn a_configuration_that_the_kernel_refuses_is_taken_back() {
    let mut node = Node::start();
    let (before, entries) = (goes_by(&mut node), node.fake.snapshot().entries);
    let is_prefix = |step: &Step| matches!(step, Step::PutEntry { entry, .. } if entry.to_string().contains("not masqueraded"));
    node.fake.fail_next(is_prefix, Errno::EIO);
    let refused = node.engine().configure(whole(), NOW);
    assert!(refused.is_err());
    assert_eq!(goes_by(&mut node), before);
    assert_eq!(node.fake.snapshot().entries, entries);
}
