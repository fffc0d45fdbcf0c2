//! The way back: an attachment goes, whatever is left of it.

use kernel::Kernel;
use model::{Attachment, AttachmentKey, State};
use planner::Plan;

use crate::transaction::{carry_out, failures};
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Removes an attachment, whatever is left of it. One that is unknown is removed already (behaviour S10).
    pub fn del(&mut self, key: &AttachmentKey) -> Result<(), EngineError> {
        let _del = crash::verb("del");
        let Some(attachment) = self.begin_removal(key)? else {
            return Ok(());
        };
        let observed = self.observe_outside(&attachment)?;
        let plan = planner::plan_detach(&attachment, &observed);
        self.finish_removal(&attachment, &plan)?;
        self.forget_settings(key)?;
        self.release_networks()?;
        tracing::info!(%key, link = %attachment.host_link(), "detached");
        Ok(())
    }

    /// Records that an attachment is being removed; `None` when there is none.
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

    /// Executes what removes an attachment; the record goes when nothing is left.
    pub(crate) fn finish_removal(
        &mut self,
        attachment: &Attachment,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        let failures = failures(carry_out(&mut self.kernel, plan));
        if !failures.is_empty() {
            return Err(EngineError::Incomplete {
                key: attachment.key.clone(),
                failures,
            });
        }
        self.remove_releasing(&attachment.key)
    }
}
