//! ADDs whose result the version of the protocol cannot express: only the bridge is made.

use super::failing_kernel::Fate;
use super::*;
use crate::NetworkClash;
use planner::Refusal;

/// More kernel calls than it takes to make a bridge.
const MAX_CALLS: usize = 200;

fn own_network() -> Network {
    network("own", "br1", &["10.2.0.0/24", "10.3.0.0/24"])
}

fn bridges(node: &Node) -> Vec<String> {
    let observed = node.fake.snapshot();
    let bridges = observed
        .links
        .iter()
        .filter(|(_, link)| link.kind == LinkKind::Bridge);
    bridges.map(|(name, _)| name.to_string()).collect()
}

#[test]
fn a_refused_add_makes_the_bridge_without_addresses_and_nothing_of_a_pod() {
    let mut node = Node::start();
    let intent = node.intent_on(&own_network(), "c1");
    let before = node.traces();
    for _ in 0..2 {
        node.engine().make_bridge(&intent).unwrap();
        let after = node.traces();
        assert_eq!(of_pods(&after.0), of_pods(&before.0));
        assert_eq!(after.1, before.1, "nothing is recorded");
        let bridge = &node.fake.snapshot().links[&"br1".parse().unwrap()];
        let mut addresses = bridge.addresses.iter().map(|own| own.address.to_string());
        assert!(
            bridge.up && addresses.all(|own| own.starts_with("fe80:")),
            "{bridge:?}"
        );
    }
    assert!(node.restart().items.is_empty());
    assert!(bridges(&node).contains(&"br1".to_owned()));
    node.add(&intent).unwrap();
    node.engine().check(&intent.key).unwrap();
}

#[test]
fn a_refused_add_with_another_fault_makes_no_bridge() {
    let mut node = Node::start();
    let before = node.traces();
    let mut intent = node.intent_on(&own_network(), "c1");
    intent.requested.mac = Some("01:00:5e:00:00:01".parse().unwrap());
    let error = node.engine().make_bridge(&intent).unwrap_err();
    assert!(
        matches!(error, EngineError::Refused(Refusal::UnusableMac { .. })),
        "{error}"
    );
    intent.requested.mac = None;
    intent.netns = "/run/netns/gone".parse().unwrap();
    let error = node.engine().make_bridge(&intent).unwrap_err();
    assert!(
        matches!(error, EngineError::Refused(Refusal::NoNetns { .. })),
        "{error}"
    );
    let overlapping = network("own", "br1", &["10.2.0.0/24", "10.1.0.0/16"]);
    let intent = node.intent_on(&overlapping, "c1");
    let error = node.engine().make_bridge(&intent).unwrap_err();
    assert!(
        matches!(error, EngineError::Clash(NetworkClash::Overlap { .. })),
        "{error}"
    );
    assert_eq!(node.traces(), before);
}

#[test]
fn a_refused_add_of_an_attached_pod_changes_nothing() {
    let mut node = Node::start();
    let intent = node.intent_on(&own_network(), "c1");
    node.add(&intent).unwrap();
    let before = node.traces();
    node.engine().make_bridge(&intent).unwrap_err();
    let other = node.intent_on(&own_network(), "c2");
    node.engine().make_bridge(&other).unwrap();
    assert_eq!(node.traces(), before);
    node.engine().check(&intent.key).unwrap();
}

#[test]
fn a_bridge_of_a_network_with_pods_is_made_again_with_its_addresses() {
    let mut node = Node::start();
    let intent = node.intent_on(&own_network(), "c1");
    node.add(&intent).unwrap();
    let addresses = |node: &Node| {
        node.fake.snapshot().links[&"br1".parse().unwrap()]
            .addresses
            .clone()
    };
    let before = addresses(&node);
    node.fake.delete_link("br1");
    let other = node.intent_on(&own_network(), "c2");
    node.engine().make_bridge(&other).unwrap();
    assert_eq!(addresses(&node), before);
}

#[test]
fn a_refused_add_that_fails_at_any_call_leaves_no_trace() {
    let mut failures = 0;
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let intent = node.intent_on(&own_network(), "c1");
        let before = node.traces();
        node.kernel.meet(Fate::Fail(call));
        let result = node.engine().make_bridge(&intent);
        if node.kernel.live() {
            result.unwrap();
            break;
        }
        failures += 1;
        result.unwrap_err();
        assert_eq!(node.traces(), before, "call {call}");
    }
    assert!(failures > 3, "{failures} calls");
}
