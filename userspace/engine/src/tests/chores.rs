//! What is done when nobody waits.

use super::*;
use crate::Outcome;
use crate::chores::Chore;

#[test]
fn what_an_add_has_made_is_looked_at_once_when_nobody_waits() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    assert_eq!(node.engine().do_chore(), Some(Chore::Looked));
    assert_eq!(node.engine().do_chore(), None);
}

#[test]
fn what_is_not_as_an_add_has_made_it_is_put_right_and_told() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.fake
        .clear_entries(|key, _| matches!(key, EntryKey::Endpoint(_)));
    assert_eq!(node.engine().do_chore(), Some(Chore::Reconciled));
    node.engine().check(&intent.key).unwrap();
    let report = node.engine().status().last_reconcile.unwrap();
    let outcomes: Vec<_> = report.items.iter().map(|item| item.outcome).collect();
    assert_eq!(outcomes, [Outcome::Repaired]);
    assert_eq!(node.engine().do_chore(), None);
}

#[test]
fn an_attachment_that_is_gone_again_is_not_missed() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.engine().del(&intent.key).unwrap();
    assert_eq!(node.engine().do_chore(), Some(Chore::Looked));
    assert_eq!(node.engine().do_chore(), None);
}

#[test]
fn records_are_settled_when_there_are_many() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let mut chores = Vec::new();
    for _ in 0..100 {
        node.add(&intent).unwrap();
        node.engine().del(&intent.key).unwrap();
        chores.extend(std::iter::from_fn(|| node.engine().do_chore()));
    }
    let settled = chores.iter().filter(|chore| **chore == Chore::Settled);
    assert!((1..10).contains(&settled.count()));
    assert!(!node.engine().store.is_unsettled());
}

#[test]
fn records_that_cannot_be_settled_are_tried_again_behind_the_next_comparison() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    while !node.engine().store.is_unsettled() {
        node.add(&intent).unwrap();
        node.engine().del(&intent.key).unwrap();
    }
    while node.engine().do_chore() == Some(Chore::Looked) {}
    node.engine().cannot_settle = true;
    node.add(&intent).unwrap();
    while !node.engine().store.is_unsettled() {
        node.engine().del(&intent.key).unwrap();
        node.add(&intent).unwrap();
    }
    assert_eq!(node.engine().do_chore(), Some(Chore::Looked));
    assert!(!node.engine().has_chores(), "it is not tried all the time");
    node.engine().reconcile(NOW);
    assert_eq!(node.engine().do_chore(), Some(Chore::Settled));
}
