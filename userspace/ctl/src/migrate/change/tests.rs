//! Executes plans on a node in memory, with faults at each effect.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::anyhow;
use api::TranslatedConnection;

use super::*;
use crate::migrate::plan::tests::{cached, observed};
use crate::migrate::plan::{Direction, Observed};

/// A node with pods, by their container IDs.
#[derive(Default)]
struct Fake {
    rules: BTreeSet<String>,
    published: BTreeSet<String>,
    adopted: BTreeSet<String>,
    flows: BTreeMap<String, u64>,
    lost: u64,
    calls: Vec<String>,
    /// The call that fails.
    fault: Option<usize>,
}

impl Fake {
    fn new() -> Self {
        Self {
            rules: BTreeSet::from(["a", "b"].map(str::to_owned)),
            ..Self::default()
        }
    }

    fn call(&mut self, name: &str, pod: &Pod) -> Result<String> {
        let id = pod.cached.container_id.to_string();
        let number = self.calls.len();
        self.calls.push(format!("{name} {id}"));
        if self.fault == Some(number) {
            return Err(anyhow!("the kernel refuses"));
        }
        Ok(id)
    }

    /// Returns what `observe` would read from this node.
    fn observed(&self) -> Observed {
        let mut observed = observed(vec![
            cached("a", "10.1.0.2", 8080),
            cached("b", "10.1.0.3", 8081),
        ]);
        observed.attachments = self
            .adopted
            .iter()
            .map(|id| api::AttachmentView {
                container_id: id.clone(),
                ifname: "eth0".to_owned(),
                adopted: true,
                hostports: vec![
                    api::HostportView::default();
                    usize::from(self.published.contains(id))
                ],
                ..api::AttachmentView::default()
            })
            .collect();
        observed
    }

    fn migrate(&mut self, direction: Direction) -> Result<Report> {
        let plan = Plan::new(direction, &self.observed());
        execute(plan, self)
    }

    /// Every pod has its port by one of both.
    fn assert_served(&self) {
        for id in ["a", "b"] {
            let served = self.rules.contains(id) || self.published.contains(id);
            assert!(served, "{id}: {:?}", self.calls);
        }
    }
}

impl Effects for Fake {
    fn keep(&mut self, _addresses: Vec<String>) -> Result<KeptConnections> {
        let lost = (0..self.lost).map(|_| TranslatedConnection::default());
        Ok(KeptConnections {
            kept: 3,
            lost: lost.collect(),
            of_pods: Vec::new(),
        })
    }

    fn publish(&mut self, pod: &Pod) -> Result<()> {
        let id = self.call("publish", pod)?;
        self.adopted.insert(id.clone());
        self.published.insert(id);
        Ok(())
    }

    fn remove_rules(&mut self, pod: &Pod) -> Result<()> {
        let id = self.call("remove", pod)?;
        self.rules.remove(&id);
        self.assert_served();
        Ok(())
    }

    fn restore_rules(&mut self, pod: &Pod) -> Result<()> {
        let id = self.call("restore", pod)?;
        self.rules.insert(id);
        Ok(())
    }

    fn drain(&mut self, pod: &Pod) -> Result<()> {
        let id = self.call("drain", pod)?;
        self.published.remove(&id);
        self.assert_served();
        Ok(())
    }

    fn flows(&mut self, pod: &Pod) -> Result<u64> {
        let id = self.call("flows", pod)?;
        Ok(self.flows.get(&id).copied().unwrap_or(0))
    }

    fn release(&mut self, pod: &Pod) -> Result<()> {
        let id = self.call("release", pod)?;
        self.adopted.remove(&id);
        Ok(())
    }
}

#[test]
fn all_ports_are_published_before_the_first_rules_are_removed() {
    let mut node = Fake::new();
    let report = node.migrate(Direction::Apply).unwrap();
    assert!(!report.has_failed());
    assert_eq!(
        node.calls,
        ["publish a", "publish b", "remove a", "remove b"]
    );
    assert_eq!(node.rules.len(), 0);
}

#[test]
fn an_undo_makes_all_rules_before_it_unpublishes_ports() {
    let mut node = Fake::new();
    node.migrate(Direction::Apply).unwrap();
    node.calls.clear();
    assert!(!node.migrate(Direction::Undo).unwrap().has_failed());
    assert_eq!(
        node.calls,
        [
            "restore a",
            "restore b",
            "drain a",
            "flows a",
            "release a",
            "drain b",
            "flows b",
            "release b"
        ]
    );
    assert!(node.adopted.is_empty() && node.rules.len() == 2);
}

#[test]
fn an_undo_releases_a_pod_when_its_last_connection_has_ended() {
    let mut node = Fake::new();
    node.migrate(Direction::Apply).unwrap();
    node.flows.insert("a".to_owned(), 2);
    let report = node.migrate(Direction::Undo).unwrap();
    assert!(!report.has_failed());
    assert_eq!(node.adopted, BTreeSet::from(["a".to_owned()]));
    node.flows.clear();
    node.migrate(Direction::Undo).unwrap();
    assert!(node.adopted.is_empty());
}

#[test]
fn a_failed_effect_leaves_each_port_served_and_the_next_migration_finishes() {
    for direction in [Direction::Apply, Direction::Undo] {
        for fault in 0..9 {
            let mut node = Fake::new();
            if direction == Direction::Undo {
                node.migrate(Direction::Apply).unwrap();
                node.calls.clear();
            }
            node.fault = Some(fault);
            let report = node.migrate(direction).unwrap();
            node.assert_served();
            let was_hit = fault < node.calls.len();
            assert_eq!(report.has_failed(), was_hit, "{:?}", node.calls);
            node.fault = None;
            assert!(!node.migrate(direction).unwrap().has_failed());
            let served = match direction {
                Direction::Apply => (&node.published, &node.rules),
                Direction::Undo => (&node.rules, &node.published),
            };
            assert_eq!((served.0.len(), served.1.len()), (2, 0), "{:?}", node.calls);
        }
    }
}

#[test]
fn connections_that_cannot_be_kept_stop_the_migration_before_it_begins() {
    let mut node = Fake::new();
    node.lost = 1;
    let error = node.migrate(Direction::Apply).unwrap_err();
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert!(node.calls.is_empty());
}
