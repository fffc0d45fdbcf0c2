//! What is done when nobody waits.

use super::*;
use crate::Outcome;
use crate::background::BackgroundTask;

#[test]
fn what_an_add_has_made_is_looked_at_once_when_nobody_waits() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    assert_eq!(node.engine().run_background_task(), Some(BackgroundTask::Verified));
    assert_eq!(node.engine().run_background_task(), None);
}

#[test]
fn what_is_not_as_an_add_has_made_it_is_put_right_and_told() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.fake
        .clear_entries(|key, _| matches!(key, EntryKey::Endpoint(_)));
    assert_eq!(node.engine().run_background_task(), Some(BackgroundTask::Reconciled));
    node.engine().check(&intent.key).unwrap();
    let report = node.engine().status().last_reconcile.unwrap();
    let outcomes: Vec<_> = report.items.iter().map(|item| item.outcome).collect();
    assert_eq!(outcomes, [Outcome::Repaired]);
    assert_eq!(node.engine().run_background_task(), None);
}

#[test]
fn an_attachment_that_is_gone_again_is_not_missed() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.engine().del(&intent.key).unwrap();
    assert_eq!(node.engine().run_background_task(), Some(BackgroundTask::Verified));
    assert_eq!(node.engine().run_background_task(), None);
}

#[test]
fn records_are_settled_when_there_are_many() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let mut chores = Vec::new();
    for _ in 0..100 {
        node.add(&intent).unwrap();
        node.engine().del(&intent.key).unwrap();
        chores.extend(std::iter::from_fn(|| node.engine().run_background_task()));
    }
    let reconciled = chores.iter().filter(|chore| **chore == BackgroundTask::Compacted);
    assert!((1..10).contains(&reconciled.count()));
    assert!(!node.engine().store.is_compaction_due());
}

#[test]
fn records_that_cannot_be_settled_are_tried_again_behind_the_next_comparison() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    while !node.engine().store.is_compaction_due() {
        node.add(&intent).unwrap();
        node.engine().del(&intent.key).unwrap();
    }
    while node.engine().run_background_task() == Some(BackgroundTask::Verified) {}
    node.engine().compaction_failed = true;
    node.add(&intent).unwrap();
    while !node.engine().store.is_compaction_due() {
        node.engine().del(&intent.key).unwrap();
        node.add(&intent).unwrap();
    }
    assert_eq!(node.engine().run_background_task(), Some(BackgroundTask::Verified));
    assert!(!node.engine().has_background_tasks(), "it is not tried all the time");
    node.engine().reconcile(NOW);
    assert_eq!(node.engine().run_background_task(), Some(BackgroundTask::Compacted));
}
