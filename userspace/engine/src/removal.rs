//! Removes attachments: DEL, and the part of it that reconciliation shares.

use kernel::Kernel;
use model::{Attachment, AttachmentKey, State};
use planner::Plan;

use crate::phases::Phase;
use crate::transaction::{execute_all_recorded, failures};
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Removes whatever is left of an attachment. An unknown key is success (behaviour S10).
    pub fn del(&mut self, key: &AttachmentKey) -> Result<(), EngineError> {
        let _del = crash::verb("del");
        let Some(attachment) = self.begin_removal(key)? else {
            // The interface is gone, and settings of it may still be recorded.
            return self.delete_settings_record(key);
        };
        self.phases.end(Phase::Record);
        // Before the removal is planned: another interface of the container takes the ports over
        // in place, without a moment at which they lead nowhere.
        self.hand_over_ports(Some(key));
        self.phases.end(Phase::Apply);
        let observed = self.observe_outside(&attachment)?;
        self.phases.end(Phase::Observe);
        let plan = planner::plan_detach(&attachment, &observed);
        self.phases.end(Phase::Plan);
        self.finish_removal(&attachment, &plan)?;
        self.delete_settings_record(key)?;
        self.release_networks()?;
        self.phases.end(Phase::Record);
        tracing::info!(%key, link = %attachment.host_link(), "detached pod interface");
        Ok(())
    }

    /// Records the attachment as [`State::Removing`] and returns it; `None` if there is no record.
    ///
    /// The state is written before the first step, so that an agent that dies in between finishes
    /// the removal at its next start.
    pub(crate) fn begin_removal(
        &mut self,
        key: &AttachmentKey,
    ) -> Result<Option<Attachment>, EngineError> {
        let Some(mut record) = self.store.get(key).cloned() else {
            return Ok(None);
        };
        if record.state != State::Removing {
            record.state = State::Removing;
            self.store.put(&record)?;
        }
        Ok(Some(record.attachment))
    }

    /// Executes every step of the removal. The record is deleted only if none has failed.
    pub(crate) fn finish_removal(
        &mut self,
        attachment: &Attachment,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        let results = execute_all_recorded(&mut self.kernel, &mut self.phases, plan);
        let failures = failures(results);
        if failures.is_empty() {
            self.phases.end(Phase::Apply);
        } else {
            self.phases.fail(Phase::Apply, || failures.join("; "));
            return Err(EngineError::Incomplete {
                key: attachment.key.clone(),
                failures,
            });
        }
        self.remove_releasing(&attachment.key)
    }
}
