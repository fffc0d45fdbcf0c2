//! Two-phase ADDs: state between the phases, and failures of the second phase.

use ::model::State;

use super::failing_kernel::{Fate, survive};
use super::*;

/// More kernel calls than a second phase has.
const MAX_CALLS: usize = 200;

/// Returns the intents of both phases of an ADD to a network with a foreign IPAM plugin.
fn phases(node: &Node, container: &str, address: &str) -> [Intent; 2] {
    let second = Network {
        ranges: vec![foreign_range(address)],
        ..network("lent", "br1", &["10.2.0.0/24"])
    };
    let first = Network {
        ranges: Vec::new(),
        ..second.clone()
    };
    let mut first = node.intent_on(&first, container);
    first.requested.awaits_addresses = true;
    let mut second = node.intent_on(&second, container);
    second.port_mappings = vec![publish(8080)];
    [first, second]
}

fn foreign_range(address: &str) -> RangeSet {
    let gateway = Some("10.2.0.1".parse().unwrap());
    let range = ::model::Range::single(address.parse().unwrap(), gateway).unwrap();
    RangeSet::new(vec![range]).unwrap()
}

fn state(node: &mut Node, intent: &Intent) -> Option<State> {
    let contents = node.contents();
    contents.records.get(&intent.key).map(|record| record.state)
}

#[test]
fn a_linked_attachment_survives_a_restart_and_gets_its_addresses() {
    let mut node = Node::start();
    let [first, second] = phases(&node, "c1", "10.2.0.9/24");
    let linked = node.add(&first).unwrap();
    assert!(linked.addresses.is_empty() && linked.port.trusted);
    assert!(node.restart().items.is_empty());
    assert_eq!(state(&mut node, &first), Some(State::Linked));
    assert!(
        node.engine().check(&first.key).is_err(),
        "the ADD is not finished"
    );
    let whole = node.engine().complete(&second).unwrap();
    assert!(!whole.port.trusted);
    assert_eq!(
        (whole.slot, whole.generation, whole.mac),
        (linked.slot, linked.generation, linked.mac)
    );
    assert_eq!(whole.addresses[0].address.to_string(), "10.2.0.9/24");
    node.engine().check(&first.key).unwrap();
    assert!(node.engine().reconcile(NOW).items.is_empty());
    node.add(&first).unwrap_err();
    node.engine().complete(&second).unwrap_err();
    node.engine().check(&first.key).unwrap();
}

#[test]
fn a_second_add_phase_that_fails_at_any_call_leaves_no_trace() {
    let mut failures = 0;
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let [other, its] = phases(&node, "c0", "10.2.0.8/24");
        let its = Intent {
            port_mappings: Vec::new(),
            ..its
        };
        node.add(&other).unwrap();
        node.engine().complete(&its).unwrap();
        let before = node.traces();
        let [first, second] = phases(&node, "c1", "10.2.0.9/24");
        node.add(&first).unwrap();
        node.kernel.meet(Fate::Fail(call));
        let result = node.engine().complete(&second);
        if node.kernel.live() {
            result.unwrap();
            break;
        }
        failures += 1;
        result.unwrap_err();
        node.engine().del(&first.key).unwrap();
        node.engine().reconcile(NOW);
        assert_eq!(of_pods(&node.traces().0), of_pods(&before.0), "call {call}");
        node.engine().check(&other.key).unwrap();
        node.add(&first).unwrap();
        node.engine().complete(&second).unwrap();
    }
    assert!((5..MAX_CALLS).contains(&failures), "{failures}");
}

#[test]
fn a_second_add_phase_that_crashes_at_any_call_is_removed_by_a_del() {
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let before = node.traces();
        let [first, second] = phases(&node, "c1", "10.2.0.9/24");
        node.add(&first).unwrap();
        node.kernel.meet(Fate::Die(call));
        if survive(|| node.engine().complete(&second)).is_some() {
            break;
        }
        node.restart();
        node.engine().del(&first.key).unwrap();
        assert!(node.contents().records.is_empty(), "call {call}");
        node.engine().reconcile(NOW);
        assert_eq!(of_pods(&node.traces().0), of_pods(&before.0), "call {call}");
    }
}

#[test]
fn a_foreign_ipam_address_of_another_pod_is_refused() {
    let mut node = Node::start();
    for (container, address) in [("c1", "10.2.0.9/24"), ("c2", "10.2.0.9/24")] {
        let [first, second] = phases(&node, container, address);
        let second = Intent {
            port_mappings: Vec::new(),
            ..second
        };
        node.add(&first).unwrap();
        let done = node.engine().complete(&second);
        assert_eq!(done.is_ok(), container == "c1", "{done:?}");
    }
    let records = node.contents().records;
    assert_eq!(records.len(), 1, "the link of the refused pod is removed");
}
