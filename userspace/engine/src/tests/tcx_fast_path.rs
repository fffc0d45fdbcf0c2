//! Pods that send much get the short way, a few at a time, when nobody waits; and programs of an agent before are replaced.

use abi::Counters;
use kernel::fake::Errno;
use kernel::{Measured, PodCounters};
use planner::{Hook, Step};

use super::*;
use crate::Outcome;
use crate::background::BackgroundTask;

/// A node with pods, of whom each has sent so many packets.
fn node_of_pods(sent: &[u64]) -> Node {
    let mut node = Node::start();
    let mut measured = Measured::default();
    for (number, packets) in sent.iter().enumerate() {
        let intent = node.intent(&format!("c{number}"));
        let slot = node.add(&intent).unwrap().slot;
        let egress = Counters {
            packets: *packets,
            ..Counters::default()
        };
        let counters = PodCounters {
            egress,
            ..PodCounters::default()
        };
        measured.pods.insert(slot, counters);
    }
    node.fake.set_measured(measured);
    let chores = std::iter::from_fn(|| node.engine().run_background_task()).count();
    assert!(chores >= sent.len(), "what ADDs leave to do is done");
    node.fake.take_log();
    node
}

/// How many links get the short way behind a look.
fn hastened(node: &mut Node) -> usize {
    node.engine().find_high_traffic_pods();
    let chores = std::iter::from_fn(|| node.engine().run_background_task());
    let hastened = chores.filter(|chore| *chore == BackgroundTask::TcxAttached).count();
    let log = node.fake.take_log();
    let attached = log.iter().filter(|step| is_attach(step)).count();
    assert_eq!(hastened, attached);
    hastened
}

fn is_attach(step: &Step) -> bool {
    matches!(step, Step::Attach { hooks, .. } if hooks.contains(&Hook::FromBusyPod))
}

#[test]
fn a_busy_pod_gets_the_short_way_once_and_a_quiet_one_never() {
    let mut node = node_of_pods(&[1_000_000, 1_000]);
    assert_eq!(hastened(&mut node), 1);
    assert_eq!(hastened(&mut node), 0);
    node.engine().reconcile(NOW);
    assert_eq!(hastened(&mut node), 0, "a comparison sees it");
    let report = node.engine().status().last_reconcile.unwrap();
    assert_eq!(report.items, [], "and does not mind it");
}

#[test]
fn many_busy_pods_get_it_a_few_at_a_time() {
    let mut node = node_of_pods(&[1_000_000; 6]);
    assert_eq!([hastened(&mut node), hastened(&mut node)], [4, 2]);
}

#[test]
fn where_packets_go_by_the_stack_nobody_gets_it() {
    let mut node = node_of_pods(&[1_000_000]);
    node.engine().node.bypass = false;
    assert_eq!(hastened(&mut node), 0);
}

#[test]
fn what_fails_is_not_tried_again_and_again() {
    let mut node = node_of_pods(&[1_000_000]);
    node.fake.fail_next(is_attach, Errno::ENOMEM);
    node.engine().find_high_traffic_pods();
    assert_eq!(node.engine().run_background_task(), Some(BackgroundTask::TcxAttached));
    assert_eq!(hastened(&mut node), 0);
}

#[test]
fn programs_of_an_agent_before_are_replaced_and_told_of_once() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let link = node.add(&intent).unwrap().host_link().name().to_string();
    node.fake.edit_link(&link, |link| {
        link.outdated = link.hooks.clone();
    });
    let outcomes = |node: &mut Node| {
        node.engine().reconcile(NOW);
        let report = node.engine().status().last_reconcile.unwrap();
        report
            .items
            .iter()
            .map(|item| item.outcome)
            .collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&mut node), [Outcome::Repaired]);
    assert_eq!(outcomes(&mut node), []);
}
