//! All records against the kernel: at the start, after anything changed behind our back, and now and then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel::Kernel;
use model::{AttachmentKey, Network};
use planner::{Difference, Finding, Observed, Plan, Reason, Repair, Resize};

use crate::error::{MANY, chain, words};
use crate::node::{Node, Settled, highest_generation};
use crate::transaction::{Carried, carry_out};
use crate::{Engine, EngineError};

/// The subject of an item about the node itself: bridges, uplinks, sysctls and their table entries.
pub const NODE: &str = "node";

/// One comparison of records and kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When, in seconds since 1970.
    pub finished_at: u64,
    /// How long it took.
    pub duration: Duration,
    /// What it found and did; empty when everything was as it should be.
    pub items: Vec<Item>,
}

/// One thing that was not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What: an attachment, a link, the node.
    pub subject: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found and done, or why that failed.
    pub message: String,
}

/// How a repair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Put right.
    Repaired,
    /// Ours, and nobody's any more: removed.
    Removed,
    /// Not provably ours: left alone.
    LeftAlone,
    /// Tried without success.
    Failed,
}

impl Report {
    /// Whether something is still not as it should be.
    pub fn has_failed(&self) -> bool {
        self.items.iter().any(Item::has_failed)
    }

    /// Success when nothing has failed; else the first of what has.
    pub(crate) fn finished(&self) -> Result<(), EngineError> {
        match self.items.iter().find(|item| item.has_failed()) {
            Some(failed) => Err(EngineError::Unfinished(failed.message.clone())),
            None => Ok(()),
        }
    }
}

impl<K: Kernel> Engine<K> {
    /// Brings the node and every attachment to what was decided, removes what was never finished, and tells what it
    /// did. `now` is in seconds since 1970.
    pub fn reconcile(&mut self, now: u64) -> Arc<Report> {
        let _reconcile = crash::verb("reconcile");
        let started = Instant::now();
        let mut items = Vec::new();
        if let Err(error) = self.put_right(&mut items) {
            items.push(Item::failed(NODE, chain(&error)));
        }
        self.conclude(now, started, items)
    }

    /// Whether the container that has this attachment is gone, and only nobody has noticed yet: runtimes that have lost
    /// their store give the same ID to another container.
    pub(crate) fn is_abandoned(&mut self, key: &AttachmentKey) -> Result<bool, EngineError> {
        let Some(record) = self.store.get(key).cloned() else {
            return Ok(false);
        };
        let observed = self.observe(&record.attachment)?;
        Ok(!planner::is_there(&record.attachment, &observed))
    }

    /// The first time, a node that cannot be looked at is an error.
    pub(crate) fn look_first(&mut self, now: u64) -> Result<(), EngineError> {
        let started = Instant::now();
        let mut items = Vec::new();
        self.put_right(&mut items)?;
        self.conclude(now, started, items);
        Ok(())
    }

    fn conclude(&mut self, now: u64, started: Instant, items: Vec<Item>) -> Arc<Report> {
        let report = Arc::new(Report {
            finished_at: now,
            duration: started.elapsed(),
            items,
        });
        self.tell(&report);
        self.last_reconcile = Some(Arc::clone(&report));
        self.unseen.clear();
        self.cannot_settle = false;
        report
    }

    /// Logs what was done, and of the rest what is new since the last time: what fails again and again is said once.
    fn tell(&self, report: &Report) {
        let before = self.last_reconcile.as_deref();
        let is_new = |item: &&Item| {
            matches!(item.outcome, Outcome::Repaired | Outcome::Removed)
                || before.is_none_or(|before| !before.items.contains(item))
        };
        for item in report.items.iter().filter(is_new) {
            item.log();
        }
    }

    fn put_right(&mut self, items: &mut Vec<Item>) -> Result<(), EngineError> {
        let mut settled = self.settle(items)?;
        self.store
            .raise_generation(highest_generation(&settled.observed.entries))?;
        let boot_id = &self.settings.boot_id;
        let repair = planner::plan_repair(self.store.records(), &settled.observed, boot_id);
        let before = items.len();
        self.repair(repair, items);
        self.release_networks()?;
        if items.len() > before {
            // A network whose last attachment went is the node's no more.
            settled = self.settle(items)?;
        }
        self.resize(&settled.observed, items)?;
        if self.post_guards(&settled.observed, items) {
            settled = self.settle(items)?;
        }
        self.renew(&settled.observed, items);
        self.node = Node::of(&self.node_intent(), settled);
        self.check_ports()
    }

    /// Puts our programs in the places of those of an agent before us, now that the tables are as ours read them.
    fn renew(&mut self, observed: &Observed, items: &mut Vec<Item>) {
        let plan = planner::plan_renewal(observed);
        if plan.is_empty() {
            return;
        }
        let links = plan.steps().len();
        let carried = carry_out(&mut self.kernel, &plan);
        let found = format!("programs of an agent before this one at {links} links are replaced");
        items.push(Item::repaired(NODE.to_owned(), found, carried));
    }

    fn settle(&mut self, items: &mut Vec<Item>) -> Result<Settled, EngineError> {
        let intent = self.node_intent();
        let (kernel, store) = (&mut self.kernel, &mut self.store);
        self.surveyor
            .settle(kernel, &intent, store, |kernel, plan| {
                items.extend(steps(NODE, carry_out(kernel, plan)));
                Ok(())
            })
    }

    /// Posts and withdraws guards; tells whether any of that was done.
    fn post_guards(&mut self, observed: &Observed, items: &mut Vec<Item>) -> bool {
        let plan = planner::plan_guards(&self.node_intent(), observed, self.store.records());
        let before = items.len();
        items.extend(steps(NODE, carry_out(&mut self.kernel, &plan)));
        items.iter().skip(before).any(|item| !item.has_failed())
    }

    /// Lets the attachments have the MTU that their networks have now (behaviour K1).
    fn resize(&mut self, observed: &Observed, items: &mut Vec<Item>) -> Result<(), EngineError> {
        let networks: Vec<Network> = self.networks().cloned().collect();
        for Resize { key, mtu, plan } in
            planner::plan_mtu(&networks, observed, self.store.records())
        {
            let carried = carry_out(&mut self.kernel, &plan);
            let item = Item::repaired(key.to_string(), format!("its MTU is {mtu} now"), carried);
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
                Finding::Mend { differences, plan } => {
                    let carried = carry_out(&mut self.kernel, &plan);
                    let item = Item::repaired(key.to_string(), words(&differences), carried);
                    // The sockets that held ports went with the agent that had them: at a start that is no repair.
                    let is_start =
                        self.last_reconcile.is_none() && differences.iter().all(is_of_claim);
                    if !is_start || item.outcome == Outcome::Failed {
                        items.push(item);
                    }
                }
                Finding::Detach { reason, plan } => items.push(self.detach(&key, reason, &plan)),
            }
        }
        let carried = carry_out(&mut self.kernel, &repair.stale);
        items.extend(steps("tables", carried));
        items.extend(repair.strays.into_iter().map(|stray| Item {
            subject: stray.link.to_string(),
            outcome: Outcome::LeftAlone,
            message: format!("looks like ours ({:?}) and is in no record", stray.alias),
        }));
    }

    fn detach(&mut self, key: &AttachmentKey, reason: Reason, plan: &Plan) -> Item {
        let subject = key.to_string();
        match self.release(key, plan) {
            Ok(()) => Item {
                subject,
                outcome: Outcome::Removed,
                message: reason.to_string(),
            },
            Err(error) => Item::failed(&subject, format!("{reason}: {}", chain(&error))),
        }
    }

    fn release(&mut self, key: &AttachmentKey, plan: &Plan) -> Result<(), EngineError> {
        let Some(attachment) = self.begin_removal(key)? else {
            return Ok(());
        };
        self.finish_removal(&attachment, plan)
    }
}

impl Item {
    /// Whether it was tried without success.
    pub fn has_failed(&self) -> bool {
        self.outcome == Outcome::Failed
    }

    fn log(&self) {
        let Self {
            subject,
            outcome,
            message,
        } = self;
        match outcome {
            Outcome::Repaired => tracing::info!(subject, "repaired: {message}"),
            Outcome::Removed => tracing::info!(subject, "removed: {message}"),
            Outcome::LeftAlone => tracing::warn!(subject, "left alone: {message}"),
            Outcome::Failed => tracing::error!(subject, "{message}"),
        }
    }

    fn failed(subject: &str, message: String) -> Self {
        Self {
            subject: subject.to_owned(),
            outcome: Outcome::Failed,
            message,
        }
    }

    fn repaired(subject: String, found: String, carried: Vec<Carried>) -> Self {
        let mut failures = crate::transaction::failures(carried);
        if let Some(rest @ 1..) = failures.len().checked_sub(MANY) {
            failures.truncate(MANY);
            failures.push(format!("and {rest} more"));
        }
        if failures.is_empty() {
            Self {
                subject,
                outcome: Outcome::Repaired,
                message: found,
            }
        } else {
            Self::failed(&subject, format!("{found}: {}", failures.join("; ")))
        }
    }
}

fn is_of_claim(difference: &Difference) -> bool {
    matches!(difference, Difference::PortNotHeld(_))
}

/// One item for each step.
fn steps(subject: &str, carried: Vec<Carried>) -> impl Iterator<Item = Item> {
    carried.into_iter().map(|Carried { step, failure }| {
        let outcome = match &failure {
            Some(_) => Outcome::Failed,
            None => Outcome::Repaired,
        };
        Item {
            subject: subject.to_owned(),
            outcome,
            message: failure.unwrap_or(step),
        }
    })
}
