//! Changes of the bandwidth limits of attached pods.

use std::num::NonZeroU64;

use ::model::{Bandwidth, RangeSet};
use kernel::fake::Errno;
use steps::Step;

use super::*;
use crate::{EngineError, LimitChange, LimitUpdate};

impl Node {
    fn table(&self, slot: u32) -> Option<Entry> {
        let entries = self.fake.snapshot().entries;
        entries.get(&EntryKey::Limit(slot)).cloned()
    }

    fn recorded(&mut self, key: &AttachmentKey) -> Bandwidth {
        let record = self.engine().store.get(key).cloned();
        record
            .expect("the attachment is recorded")
            .attachment
            .bandwidth
    }
}

fn egress(rate: u64) -> LimitChange {
    LimitChange {
        egress: LimitUpdate::Limit(limit(rate)),
        ..LimitChange::default()
    }
}

/// behaviour U4, calico #9145: limits change while the pod runs.
#[test]
fn a_limit_is_set_changed_and_removed_and_survives_a_restart() {
    let mut node = Node::start();
    let attachment = node.add(&node.intent("c1")).unwrap();
    let (key, slot) = (attachment.key.clone(), attachment.slot);
    assert_eq!(node.table(slot), None);

    let now = node.engine().set_limits(&key, egress(1_000_000)).unwrap();
    assert_eq!(now.egress, Some(limit(1_000_000)));
    node.engine()
        .set_limits(
            &key,
            LimitChange {
                ingress: LimitUpdate::Limit(limit(2_000_000)),
                egress: LimitUpdate::Keep,
            },
        )
        .unwrap();
    let expected = Entry::Limit {
        ingress: Some(planner::token_bucket(limit(2_000_000))),
        egress: Some(planner::token_bucket(limit(1_000_000))),
        shaped_subnets: Box::default(),
        generation: attachment.generation,
    };
    assert_eq!(node.table(slot), Some(expected.clone()));

    // A restarted agent finds no difference, and a cleared table is repaired.
    assert!(node.restart().items.is_empty());
    node.fake
        .clear_entries(|key, _| matches!(key, EntryKey::Limit(_)));
    node.engine().check(&key).unwrap_err();
    node.engine().reconcile(NOW);
    assert_eq!(node.table(slot), Some(expected));

    let lift = LimitChange {
        ingress: LimitUpdate::Lift,
        egress: LimitUpdate::Lift,
    };
    assert!(node.engine().set_limits(&key, lift).unwrap().is_unlimited());
    assert_eq!(node.table(slot), None);
    node.engine().check(&key).unwrap();
}

/// A reused slot does not inherit the limit of its last pod.
#[test]
fn a_limit_is_removed_with_its_pod() {
    let mut node = Node::start();
    let mut intent = node.intent("c1");
    intent.bandwidth.ingress = Some(limit(1_000));
    let attachment = node.add(&intent).unwrap();
    assert!(node.table(attachment.slot).is_some());
    node.engine().del(&attachment.key).unwrap();
    assert_eq!(node.table(attachment.slot), None);
}

#[test]
fn a_limit_that_fails_in_the_kernel_changes_nothing() {
    let mut node = Node::start();
    let attachment = node.add(&node.intent("c1")).unwrap();
    let key = attachment.key.clone();
    node.engine().set_limits(&key, egress(1_000_000)).unwrap();
    let before = (node.table(attachment.slot), node.recorded(&key));
    let puts = |step: &Step| matches!(step, Step::PutEntry { .. });
    node.fake.fail_next(puts, Errno::EIO);
    node.engine()
        .set_limits(&key, egress(5_000_000))
        .unwrap_err();
    assert_eq!((node.table(attachment.slot), node.recorded(&key)), before);
    node.engine().check(&key).unwrap();
}

#[test]
fn limits_of_an_unknown_attachment_are_refused() {
    let mut node = Node::start();
    let key = node.intent("c1").key;
    let error = node.engine().set_limits(&key, egress(1_000)).unwrap_err();
    assert!(matches!(error, EngineError::NotAttached(_)), "{error}");
}

/// A request with the ADD is reduced to the ceiling; a request of the API above the ceiling is an
/// error.
#[test]
fn limits_above_the_ceiling_of_the_network_are_clamped_in_add_and_refused_in_the_api() {
    let mut node = Node::start();
    let mut intent = node.intent("c1");
    intent.key.network = "other".parse().unwrap();
    intent.network.name = intent.key.network.clone();
    let range = RangeSet::of_cidr("10.77.0.0/24".parse().unwrap()).unwrap();
    intent.network.ranges = vec![range];
    let limits = &mut intent.network.options.limits;
    limits.ceiling.egress = NonZeroU64::new(1_000_000);
    limits.default.ingress = NonZeroU64::new(7_000_000);
    intent.bandwidth.egress = Some(limit(2_000_000));
    let attachment = node.add(&intent).unwrap();
    assert_eq!(attachment.bandwidth.egress, Some(limit(1_000_000)));
    assert_eq!(attachment.bandwidth.ingress, Some(limit(7_000_000)));

    let key = &attachment.key;
    for update in [LimitUpdate::Limit(limit(1_000_001)), LimitUpdate::Lift] {
        let change = LimitChange {
            egress: update,
            ingress: LimitUpdate::Lift,
        };
        let refused = node.engine().set_limits(key, change).unwrap_err();
        assert!(
            matches!(
                refused,
                EngineError::AboveCeiling {
                    ceiling: 1_000_000,
                    ..
                }
            ),
            "{refused}"
        );
        assert_eq!(
            node.recorded(key),
            attachment.bandwidth,
            "the limits are unchanged"
        );
    }
    let now = node.engine().set_limits(key, egress(1_000_000)).unwrap();
    assert_eq!(now, attachment.bandwidth);
}
