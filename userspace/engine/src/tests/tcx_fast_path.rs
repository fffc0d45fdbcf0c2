//! TCX fast path of high-traffic pods, and upgrade of attached programs.

use abi::Counters;
use kernel::fake::Errno;
use kernel::{Measured, PodCounters};
use steps::{Hook, Step};

use super::*;
use crate::Outcome;
use crate::background::BackgroundTask;

/// Returns a node with one pod for each element of `sent`, which is the number of packets that the
/// pod has sent.
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
    let tasks = std::iter::from_fn(|| node.engine().run_background_task()).count();
    assert!(tasks >= sent.len(), "verifications of the ADDs have run");
    node.fake.take_log();
    node
}

/// Searches for high-traffic pods, runs all background tasks, and returns the number of links that
/// got the TCX fast path.
fn attach_fast_paths(node: &mut Node) -> usize {
    node.engine().find_high_traffic_pods();
    let tasks = std::iter::from_fn(|| node.engine().run_background_task());
    let attempts = tasks
        .filter(|task| *task == BackgroundTask::TcxAttached)
        .count();
    let log = node.fake.take_log();
    let attached = log.iter().filter(|step| is_attach(step)).count();
    assert_eq!(attempts, attached);
    attempts
}

fn is_attach(step: &Step) -> bool {
    matches!(step, Step::Attach { hooks, .. } if hooks.contains(&Hook::FromBusyPod))
}

#[test]
fn a_high_traffic_pod_gets_the_tcx_fast_path_once_and_a_quiet_pod_never() {
    let mut node = node_of_pods(&[1_000_000, 1_000]);
    assert_eq!(attach_fast_paths(&mut node), 1);
    assert_eq!(attach_fast_paths(&mut node), 0);
    node.engine().reconcile(NOW);
    assert_eq!(
        attach_fast_paths(&mut node),
        0,
        "reconciliation observes it"
    );
    let report = node.engine().status().last_reconcile.unwrap();
    assert_eq!(report.items, [], "and reports no difference");
}

#[test]
fn the_tcx_fast_path_is_attached_to_at_most_four_pods_per_search() {
    let mut node = node_of_pods(&[1_000_000; 6]);
    assert_eq!(
        [attach_fast_paths(&mut node), attach_fast_paths(&mut node)],
        [4, 2]
    );
}

#[test]
fn no_pod_gets_the_tcx_fast_path_without_the_netfilter_bypass() {
    let mut node = node_of_pods(&[1_000_000]);
    node.engine().node.bypass = false;
    assert_eq!(attach_fast_paths(&mut node), 0);
}

#[test]
fn a_failed_tcx_fast_path_is_not_tried_again() {
    let mut node = node_of_pods(&[1_000_000]);
    node.fake.fail_next(is_attach, Errno::ENOMEM);
    node.engine().find_high_traffic_pods();
    assert_eq!(
        node.engine().run_background_task(),
        Some(BackgroundTask::TcxAttached)
    );
    assert_eq!(attach_fast_paths(&mut node), 0);
}

#[test]
fn outdated_programs_are_replaced_and_reported_once() {
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
