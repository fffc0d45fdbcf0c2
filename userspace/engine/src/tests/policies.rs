//! Network policies: they are stored before they are applied, and survive the agent.

use planner::PolicyIndex;

use super::failing_kernel::{Fate, survive};
use super::*;
use crate::UpdateOutcome;

const TWO: &str = "group web 10.1.0.2/32\n\
                   policy db\n\
                   prefix 10.1.0.0/28\n\
                   ingress\n\
                   rule @web tcp:5432-5432\n\
                   policy web\n\
                   pod shop web-0\n\
                   egress\n";

fn compiled(text: &str) -> PolicyIndex {
    PolicyIndex::new(text.parse().unwrap()).unwrap()
}

impl Node {
    fn set_policies(&mut self, text: &str) -> UpdateOutcome {
        self.engine().set_policies(compiled(text), NOW).unwrap()
    }

    fn policies(&mut self) -> String {
        self.engine().status().policies.to_string()
    }

    fn degraded_reasons(&mut self) -> Vec<&'static str> {
        let degraded = self.engine().status().degraded;
        degraded.iter().map(|one| one.reason().word()).collect()
    }
}

#[test]
fn network_policies_are_replaced_as_a_whole_and_an_equal_list_changes_nothing() {
    let mut node = Node::start();
    assert_eq!(node.policies(), "");
    assert_eq!(node.set_policies(TWO), UpdateOutcome::Updated);
    assert_eq!(node.set_policies(TWO), UpdateOutcome::Unchanged);
    assert_eq!(node.policies(), TWO);
    let intent = node.engine().node_intent();
    assert_eq!(
        intent.policies.list().to_string(),
        TWO,
        "the planner has them"
    );
    assert_eq!(node.set_policies(""), UpdateOutcome::Updated);
    assert_eq!(node.policies(), "");
}

#[test]
fn network_policies_survive_the_agent_without_their_source() {
    let mut node = Node::start();
    node.set_policies(TWO);
    let report = node.restart();
    assert_eq!(report.items, [], "nothing is left to do");
    assert_eq!(node.policies(), TWO);
    assert_eq!(node.set_policies(TWO), UpdateOutcome::Unchanged);
    assert_eq!(node.degraded_reasons(), [""; 0]);
}

/// The node cannot be observed after the list is stored: the next reconciliation applies it.
#[test]
fn network_policies_are_stored_before_they_are_applied() {
    let mut node = Node::start();
    node.kernel.meet(Fate::Fail(0));
    node.engine().set_policies(compiled(TWO), NOW).unwrap_err();
    assert_eq!(node.policies(), TWO);
    node.restart();
    assert_eq!(node.policies(), TWO);
}

#[test]
fn an_agent_that_dies_while_it_applies_policies_has_them_at_its_next_start() {
    for calls in 0.. {
        let mut node = Node::start();
        node.set_policies("policy old\nprefix 10.1.0.0/28\ningress\n");
        node.kernel.meet(Fate::Die(calls));
        let finished = survive(|| node.set_policies(TWO)).is_some();
        node.restart();
        assert_eq!(node.policies(), TWO, "after {calls} calls of the kernel");
        if finished {
            assert!(calls > 0, "the node is observed");
            return;
        }
    }
}

#[test]
fn unreadable_stored_policies_are_reported_until_the_next_list() {
    let mut node = Node::start();
    node.set_policies(TWO);
    let store = &mut node.engine().store;
    store
        .put_choice("policies", "rule of another release\n")
        .unwrap();
    node.restart();
    assert_eq!(node.policies(), "");
    assert_eq!(node.degraded_reasons(), ["policies-lost"]);
    let degraded = node.engine().status().degraded;
    let message = degraded[0].to_string();
    assert!(
        message.contains("line 1 of the network policies"),
        "{message}"
    );
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    assert_eq!(node.set_policies(""), UpdateOutcome::Updated);
    assert_eq!(node.degraded_reasons(), [""; 0]);
    node.restart();
    assert_eq!(node.degraded_reasons(), [""; 0]);
}

#[test]
fn a_policies_file_that_cannot_be_read_is_a_degradation_and_the_last_policies_stay() {
    let mut node = Node::start();
    node.set_policies(TWO);
    node.engine().upkeep.policies_unreadable = Some("/run/p: invalid JSON".to_owned());
    assert_eq!(node.degraded_reasons(), ["policies-unreadable"]);
    assert_eq!(node.policies(), TWO);
    node.engine().upkeep.policies_unreadable = None;
    assert_eq!(node.degraded_reasons(), [""; 0]);
}
