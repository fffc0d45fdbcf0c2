//! Background tasks: verification after ADD and compaction of the journal.

use super::*;
use crate::Outcome;
use crate::background::BackgroundTask;

#[test]
fn an_attachment_is_verified_once_in_the_background() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    assert_eq!(
        node.engine().run_background_task(),
        Some(BackgroundTask::Verified)
    );
    assert_eq!(node.engine().run_background_task(), None);
}

#[test]
fn an_attachment_that_fails_verification_is_reconciled_and_reported() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.fake
        .clear_entries(|key, _| matches!(key, EntryKey::Endpoint(_)));
    assert_eq!(
        node.engine().run_background_task(),
        Some(BackgroundTask::Reconciled)
    );
    node.engine().check(&intent.key).unwrap();
    let report = node.engine().status().last_reconcile.unwrap();
    let outcomes: Vec<_> = report.items.iter().map(|item| item.outcome).collect();
    assert_eq!(outcomes, [Outcome::Repaired]);
    assert_eq!(node.engine().run_background_task(), None);
}

#[test]
fn verification_ignores_an_attachment_that_was_removed() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.engine().del(&intent.key).unwrap();
    assert_eq!(
        node.engine().run_background_task(),
        Some(BackgroundTask::Verified)
    );
    assert_eq!(node.engine().run_background_task(), None);
}

#[test]
fn the_journal_of_many_records_is_compacted_in_the_background() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let mut tasks = Vec::new();
    for _ in 0..100 {
        node.add(&intent).unwrap();
        node.engine().del(&intent.key).unwrap();
        tasks.extend(std::iter::from_fn(|| node.engine().run_background_task()));
    }
    let compactions = tasks
        .iter()
        .filter(|task| **task == BackgroundTask::Compacted);
    assert!((1..10).contains(&compactions.count()));
    assert!(!node.engine().store.is_compaction_due());
}

#[test]
fn a_failed_compaction_is_tried_again_after_the_next_reconciliation() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    while !node.engine().store.is_compaction_due() {
        node.add(&intent).unwrap();
        node.engine().del(&intent.key).unwrap();
    }
    while node.engine().run_background_task() == Some(BackgroundTask::Verified) {}
    node.engine().attachments.compaction_failed = true;
    node.add(&intent).unwrap();
    while !node.engine().store.is_compaction_due() {
        node.engine().del(&intent.key).unwrap();
        node.add(&intent).unwrap();
    }
    assert_eq!(
        node.engine().run_background_task(),
        Some(BackgroundTask::Verified)
    );
    assert!(
        !node.engine().has_background_tasks(),
        "a failed compaction is not repeated at once"
    );
    node.engine().reconcile(NOW);
    assert_eq!(
        node.engine().run_background_task(),
        Some(BackgroundTask::Compacted)
    );
}
