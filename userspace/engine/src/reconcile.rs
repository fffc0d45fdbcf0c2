//! Reconciles all records with the kernel: at the start, after changes by other software, and
//! periodically.

use std::sync::Arc;
use std::time::Instant;

use kernel::Kernel;
use model::{AttachmentKey, Network, PodName};
use planner::{Difference, Finding, MtuChange, Plan, PortRuntime, Reason, Repair};
use steps::Observed;

use crate::error::{chain, words};
use crate::node::{NodeState, ReconciledNode, highest_generation};
use crate::report::{Item, NODE, Outcome, Report, steps};
use crate::transaction::{execute_all, execute_all_of};
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Reconciles the node and every attachment with the records, removes unfinished attachments,
    /// and returns a report. `now` is in seconds since 1970.
    pub fn reconcile(&mut self, now: u64) -> Arc<Report> {
        let _reconcile = crash::verb("reconcile");
        let started = Instant::now();
        let mut items = Vec::new();
        if let Err(error) = self.reconcile_all(now, &mut items) {
            items.push(Item::failed(NODE, chain(&error)));
        }
        self.finish_reconcile(now, started, items)
    }

    /// Returns whether the host link of this attachment is gone. Then its container is gone too,
    /// but no DEL and no reconciliation has removed the record yet. Runtimes that have lost their
    /// store reuse container IDs.
    pub(crate) fn is_abandoned(&mut self, key: &AttachmentKey) -> Result<bool, EngineError> {
        let Some(record) = self.store.get(key).cloned() else {
            return Ok(false);
        };
        let observed = self.observe(&record.attachment)?;
        Ok(!planner::is_host_link_present(
            &record.attachment,
            &observed,
        ))
    }

    /// Reconciles at the start of the agent. Fails if the node cannot be observed.
    pub(crate) fn reconcile_at_start(&mut self, now: u64) -> Result<(), EngineError> {
        let started = Instant::now();
        let mut items = Vec::new();
        self.reconcile_all(now, &mut items)?;
        self.finish_reconcile(now, started, items);
        Ok(())
    }

    fn finish_reconcile(&mut self, now: u64, started: Instant, items: Vec<Item>) -> Arc<Report> {
        let report = Arc::new(Report {
            finished_at: now,
            duration: started.elapsed(),
            items,
        });
        self.log_items(&report);
        self.upkeep.last_reconcile = Some(Arc::clone(&report));
        self.attachments.pending_verification.clear();
        self.attachments.compaction_failed = false;
        // Observing and planning a whole node takes a multiple of the memory of its state.
        kernel::release_free_memory();
        report
    }

    /// Logs repairs and removals, and of the failures those that the last report did not have: a
    /// lasting failure is logged once.
    fn log_items(&self, report: &Report) {
        let before = self.upkeep.last_reconcile.as_deref();
        let is_new = |item: &&Item| {
            matches!(item.outcome, Outcome::Repaired | Outcome::Removed)
                || before.is_none_or(|before| !before.items.contains(item))
        };
        for item in report.items.iter().filter(is_new) {
            item.log();
        }
    }

    fn reconcile_all(&mut self, now: u64, items: &mut Vec<Item>) -> Result<(), EngineError> {
        let mut reconciled = self.reconcile_node(now, items)?;
        self.store
            .raise_generation(highest_generation(&reconciled.observed.entries))?;
        // A crash may have left a port with two interfaces of a container, or with none.
        self.hand_over_ports(None);
        let boot_id = &self.choices.settings.boot_id;
        let observed = &reconciled.observed;
        let repair = planner::plan_repair(self.store.records(), observed, boot_id, now);
        let before = items.len();
        self.repair(repair, items);
        self.release_networks()?;
        if items.len() > before {
            // Repairs may have removed the last attachment of a network: the node no longer needs
            // it.
            reconciled = self.reconcile_node(now, items)?;
        }
        self.update_mtus(&reconciled.observed, items)?;
        reconciled = self.connect(now, reconciled, items)?;
        if self.apply_xdp_prefilters(&reconciled.observed, items) {
            reconciled = self.reconcile_node(now, items)?;
        }
        self.upgrade_programs(&reconciled.observed, items);
        if let Err(error) = self.check_node(now, &reconciled.observed) {
            items.push(Item::failed("node checks", chain(&error)));
        }
        self.node = NodeState::of(&self.node_intent(), reconciled);
        self.reconcile_forwarding(items);
        self.check_ports()
    }

    /// Replaces attached programs of an earlier agent, or of another level of the datapath log.
    /// Runs last, when the tables have the entries that the new programs read.
    fn upgrade_programs(&mut self, observed: &Observed, items: &mut Vec<Item>) {
        let plan = planner::plan_program_upgrade(observed);
        if plan.is_empty() {
            return;
        }
        let links = plan.steps().len();
        let results = execute_all(&mut self.kernel, &plan);
        let found = format!("replaced outdated BPF programs on {links} links");
        items.push(Item::repaired(NODE.to_owned(), found, results));
    }

    pub(crate) fn reconcile_node(
        &mut self,
        now: u64,
        items: &mut Vec<Item>,
    ) -> Result<ReconciledNode, EngineError> {
        let intent = self.node_intent();
        let is_start = self.upkeep.last_reconcile.is_none();
        let (kernel, store) = (&mut self.kernel, &mut self.store);
        let conditions = &mut self.upkeep.conditions;
        let reconciler = &mut self.upkeep.reconciler;
        reconciler.reconcile(kernel, &intent, store, |kernel, plan| {
            items.extend(steps(NODE, execute_all(kernel, plan)));
            if !is_start {
                conditions.record_writes(now, plan.steps().iter());
            }
            Ok(())
        })
    }

    /// Attaches and detaches XDP prefilters. Returns whether one was attached or detached.
    fn apply_xdp_prefilters(&mut self, observed: &Observed, items: &mut Vec<Item>) -> bool {
        let plan =
            planner::plan_xdp_prefilters(&self.node_intent(), observed, self.store.records());
        let before = items.len();
        items.extend(steps(NODE, execute_all(&mut self.kernel, &plan)));
        items.iter().skip(before).any(|item| !item.has_failed())
    }

    /// Sets the MTU of attachments to the current MTU of their network (behaviour K1).
    fn update_mtus(
        &mut self,
        observed: &Observed,
        items: &mut Vec<Item>,
    ) -> Result<(), EngineError> {
        let networks: Vec<Network> = self.networks().cloned().collect();
        for MtuChange { key, mtu, plan } in
            planner::plan_mtu(&networks, observed, self.store.records())
        {
            let results = execute_all(&mut self.kernel, &plan);
            let item = Item::repaired(key.to_string(), format!("MTU set to {mtu}"), results)
                .of_pod(self.pod_name(&key));
            if !item.has_failed()
                && let Some(mut record) = self.store.get(&key).cloned()
            {
                record.attachment.mtu = mtu;
                self.store.put(&record)?;
            }
            items.push(item);
        }
        Ok(())
    }

    fn repair(&mut self, repair: Repair, items: &mut Vec<Item>) {
        for (key, finding) in repair.attachments {
            match finding {
                Finding::Healthy => {}
                Finding::Repair { differences, plan } => {
                    let runtime = PortRuntime {
                        container: &key.container_id,
                        binder: self.attachments.left_ports.get(&key).map(|it| it.process),
                    };
                    let results = execute_all_of(&mut self.kernel, &plan, Some(runtime));
                    let item = Item::repaired(key.to_string(), words(&differences), results)
                        .of_pod(self.pod_name(&key));
                    // Port reservations are sockets of the agent. They end with it, so making them
                    // at the start is not a repair.
                    let is_start = self.upkeep.last_reconcile.is_none()
                        && differences.iter().all(is_port_reservation);
                    if !is_start || item.outcome == Outcome::Failed {
                        items.push(item);
                    }
                }
                Finding::Detach { reason, plan } => items.push(self.detach(&key, reason, &plan)),
            }
        }
        let results = execute_all(&mut self.kernel, &repair.stale);
        items.extend(steps("tables", results));
        items.extend(repair.orphaned_links.into_iter().map(|orphan| Item {
            subject: orphan.link.to_string(),
            outcome: Outcome::LeftAlone,
            message: format!(
                "link has an alias of Viaduct ({:?}) but no record; delete it by hand if no pod uses it",
                orphan.alias
            ),
            pod: None,
        }));
    }

    fn detach(&mut self, key: &AttachmentKey, reason: Reason, plan: &Plan) -> Item {
        let subject = key.to_string();
        let pod = self.pod_name(key);
        match self.release(key, reason, plan) {
            Ok(()) => Item {
                subject,
                outcome: Outcome::Removed,
                message: reason.to_string(),
                pod,
            },
            Err(error) => {
                Item::failed(&subject, format!("{reason}: {}", chain(&error))).of_pod(pod)
            }
        }
    }

    /// Returns the name of an attachment's pod, if the runtime has passed it.
    fn pod_name(&self, key: &AttachmentKey) -> Option<PodName> {
        self.store.get(key)?.attachment.pod.clone()
    }

    fn release(
        &mut self,
        key: &AttachmentKey,
        reason: Reason,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        let Some(attachment) = self.begin_removal(key)? else {
            return Ok(());
        };
        // Before the attachment's record: nothing would repeat this after a crash in between. An
        // interface of another plugin is still there if its adoption was not finished.
        if attachment.adopted.is_none() || reason != Reason::Unfinished {
            self.delete_settings_record(key)?;
        }
        self.finish_removal(&attachment, plan)?;
        self.hand_over_ports(Some(key));
        Ok(())
    }
}

fn is_port_reservation(difference: &Difference) -> bool {
    matches!(difference, Difference::PortNotReserved(_))
}
