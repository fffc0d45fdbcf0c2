//! Ports that the agent leaves to a container runtime, because the runtime binds them itself
//! (decisions 82 and 176).
//!
//! Until the runtime has bound them, the hostport entries refuse every other process. Polls in the
//! background whether it has; what it does not bind, the agent reserves again.

use std::time::{Duration, Instant};

use kernel::Kernel;
use model::{Attachment, AttachmentKey, State};
use planner::PortRuntime;
use steps::PortUserQuery;

use crate::error::chain;
use crate::left_port::LeftPorts;
use crate::transaction::{execute_all_of, failures};
use crate::{Engine, EngineError};

/// Time after which a runtime that still runs is not waited for any longer.
const OVERDUE: Duration = Duration::from_mins(1);
/// First interval between two polls; it doubles up to [`MAX_INTERVAL`].
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_millis(500);

impl<K: Kernel> Engine<K> {
    /// Leaves the ports of a new attachment to `process`, if its runtime binds them itself. A
    /// failure leaves them with the agent, and the runtime reports that they are in use.
    pub(crate) fn leave_ports(&mut self, attachment: &Attachment, process: Option<u32>) {
        let reservations = planner::attachment_reservations(attachment);
        let Some(process) = process.filter(|_| !reservations.is_empty()) else {
            return;
        };
        let plan = planner::plan_leave_ports(attachment, reservations, process);
        let runtime = PortRuntime {
            container: &attachment.key.container_id,
            binder: Some(process),
        };
        for failure in failures(execute_all_of(&mut self.kernel, &plan, Some(runtime))) {
            tracing::warn!(key = %attachment.key, failure, "cannot leave a port to the runtime");
        }
        let now = Instant::now();
        let left = LeftPorts {
            process,
            since: now,
            interval: FIRST_INTERVAL,
            next: now + FIRST_INTERVAL,
        };
        self.attachments
            .left_ports
            .insert(attachment.key.clone(), left);
    }

    /// Polls the attachments that are due. Returns whether there was one.
    pub(crate) fn check_left_ports(&mut self) -> bool {
        let now = Instant::now();
        let due: Vec<(AttachmentKey, LeftPorts)> = self
            .attachments
            .left_ports
            .iter()
            .filter(|(_, left)| left.next <= now)
            .map(|(key, left)| (key.clone(), *left))
            .collect();
        for (key, left) in &due {
            let overdue = now.duration_since(left.since) >= OVERDUE;
            match self.settle_left_ports(key, left.process, overdue) {
                Ok(true) => drop(self.attachments.left_ports.remove(key)),
                Ok(false) => self.poll_again(key, now),
                Err(error) => {
                    tracing::warn!(%key, error = chain(&error), "cannot read the users of ports");
                    self.poll_again(key, now);
                }
            }
        }
        !due.is_empty()
    }

    fn poll_again(&mut self, key: &AttachmentKey, now: Instant) {
        if let Some(left) = self.attachments.left_ports.get_mut(key) {
            left.interval = (left.interval * 2).min(MAX_INTERVAL);
            left.next = now + left.interval;
        }
    }

    /// Returns whether the runtime has finished: the ports that it has not bound are reserved by
    /// the agent again.
    pub(crate) fn settle_left_ports(
        &mut self,
        key: &AttachmentKey,
        process: u32,
        overdue: bool,
    ) -> Result<bool, EngineError> {
        let attached = self
            .store
            .get(key)
            .filter(|record| record.state == State::Attached)
            .map(|record| record.attachment.clone());
        let Some(attachment) = attached else {
            return Ok(true);
        };
        let users = self.kernel.observe(&PortUserQuery {
            reservations: planner::attachment_reservations(&attachment),
            process,
        })?;
        let Some(plan) = planner::plan_left_ports(&attachment, process, &users, overdue) else {
            return Ok(false);
        };
        let runtime = PortRuntime {
            container: &key.container_id,
            binder: Some(process),
        };
        // A port that another process has bound is reported by the next reconciliation.
        for failure in failures(execute_all_of(&mut self.kernel, &plan, Some(runtime))) {
            tracing::warn!(%key, failure, "cannot reserve a port that the runtime has not bound");
        }
        Ok(true)
    }
}
