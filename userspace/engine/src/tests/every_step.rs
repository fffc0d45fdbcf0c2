//! A failure and a crash at every kernel call of an ADD and of a DEL.

use super::failing_kernel::{Fate, survive};
use super::*;

/// More kernel calls than the longest operation has.
const MAX_CALLS: usize = 200;

fn intent_with_port(node: &Node, network: &Network) -> Intent {
    let mut intent = node.intent_on(network, "c1");
    intent.port_mappings = vec![publish(8080)];
    intent.bandwidth.egress = Some(limit(1_000_000));
    intent
}

/// Returns the default network, whose bridge exists, and a network whose bridge an ADD has to make.
fn networks(node: &Node) -> [Network; 2] {
    let own = network("own", "br1", &["10.2.0.0/24"]);
    [node.default_network.clone(), own]
}

/// behaviour C10: a runtime tries again without a DEL.
#[test]
fn an_add_that_fails_at_any_call_leaves_no_trace_and_succeeds_when_tried_again() {
    for which in 0..2 {
        let mut failures = 0;
        for call in 0..MAX_CALLS {
            let mut node = Node::start();
            let intent = intent_with_port(&node, &networks(&node)[which]);
            let before = node.traces();
            node.kernel.meet(Fate::Fail(call));
            let result = node.add(&intent);
            if node.kernel.live() {
                result.unwrap();
                break;
            }
            failures += 1;
            result.unwrap_err();
            assert_eq!(node.traces(), before, "call {call}");
            node.add(&intent).unwrap();
            node.engine().check(&intent.key).unwrap();
        }
        assert!((10..MAX_CALLS).contains(&failures), "{failures}");
    }
}

#[test]
fn an_add_that_crashes_at_any_call_leaves_no_trace_after_the_next_start() {
    let mut deaths = 0;
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let intent = node.intent("c1");
        let before = node.traces();
        node.kernel.meet(Fate::Die(call));
        let result = survive(|| node.add(&intent));
        if let Some(result) = result {
            result.unwrap();
            break;
        }
        deaths += 1;
        node.restart();
        assert_eq!(node.traces(), before, "call {call}");
        assert!(node.engine().reconcile(NOW).items.is_empty(), "call {call}");
        node.add(&intent).unwrap();
    }
    assert!((9..MAX_CALLS).contains(&deaths), "{deaths}");
}

/// The bridge stays for a later ADD; nothing of the pod stays.
#[test]
fn an_add_that_crashes_while_making_its_bridge_can_be_repeated() {
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let own = network("own", "br1", &["10.2.0.0/24"]);
        let intent = intent_with_port(&node, &own);
        let (_, records) = node.traces();
        node.kernel.meet(Fate::Die(call));
        if survive(|| node.add(&intent)).is_some() {
            break;
        }
        node.restart();
        let (seen, now) = node.traces();
        assert_eq!(now, records, "call {call}");
        assert_eq!(of_pods(&seen), (Vec::new(), BTreeMap::new()), "call {call}");
        node.add(&intent).unwrap();
        node.engine().check(&intent.key).unwrap();
    }
}

#[test]
fn a_crashed_add_can_be_repeated_without_a_restart_in_between() {
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let intent = intent_with_port(&node, &node.default_network);
        node.kernel.meet(Fate::Die(call));
        if survive(|| node.add(&intent)).is_some() {
            break;
        }
        node.kernel.live();
        node.add(&intent).unwrap();
        node.engine().check(&intent.key).unwrap();
    }
}

#[test]
fn a_del_that_fails_at_any_call_is_an_error_and_the_next_del_finishes_it() {
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let before = node.traces();
        let intent = intent_with_port(&node, &node.default_network);
        node.add(&intent).unwrap();
        node.kernel.meet(Fate::Fail(call));
        let result = node.engine().del(&intent.key);
        if node.kernel.live() {
            result.unwrap();
            break;
        }
        result.unwrap_err();
        node.engine().del(&intent.key).unwrap();
        assert!(node.contents().records.is_empty());
        node.engine().reconcile(NOW);
        assert_eq!(of_pods(&node.traces().0), of_pods(&before.0), "call {call}");
    }
}

#[test]
fn a_del_that_crashes_at_any_call_is_finished_by_the_next_start() {
    for call in 0..MAX_CALLS {
        let mut node = Node::start();
        let before = node.traces();
        let intent = intent_with_port(&node, &node.default_network);
        node.add(&intent).unwrap();
        node.kernel.meet(Fate::Die(call));
        if survive(|| node.engine().del(&intent.key)).is_some() {
            break;
        }
        node.restart();
        assert_eq!(of_pods(&node.traces().0), of_pods(&before.0), "call {call}");
        assert!(node.contents().records.is_empty(), "call {call}");
        assert!(node.engine().reconcile(NOW).items.is_empty(), "call {call}");
    }
}
