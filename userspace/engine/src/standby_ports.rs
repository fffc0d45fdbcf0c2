//! Hands the ports of an interface over to another interface of the same container.

use kernel::Kernel;
use model::{AttachmentKey, State};

use crate::Engine;
use crate::error::chain;

impl<K: Kernel> Engine<K> {
    /// Lets each published port of a container with several interfaces be served by exactly one of
    /// them. `leaving` is an attachment that is about to give up its ports. A failure leaves the
    /// record as it was; the next reconciliation tries again.
    pub(crate) fn hand_over_ports(&mut self, leaving: Option<&AttachmentKey>) {
        let records = self.store.records();
        let candidates: Vec<AttachmentKey> = planner::sharing_attachments(records)
            .into_iter()
            .filter(|(id, _)| leaving.is_none_or(|leaving| leaving.container_id == **id))
            .flat_map(|(_, records)| records)
            .filter(|record| record.state == State::Attached)
            .map(|record| record.attachment.key.clone())
            .filter(|key| Some(key) != leaving)
            .collect();
        for key in candidates {
            // Each change is recorded before the next interface is looked at.
            let Some(record) = self.store.get(&key).cloned() else {
                continue;
            };
            let records = self.store.records();
            let new = planner::with_current_standby(&record.attachment, records, leaving);
            let Some(new) = new else {
                continue;
            };
            match self.change(&record, new) {
                Ok(new) => tracing::info!(
                    %key,
                    standby = new.standby.len(),
                    "ports of a container with several interfaces were handed over"
                ),
                Err(error) => tracing::warn!(
                    %key,
                    error = chain(&error),
                    "cannot hand over ports; the next reconciliation tries again"
                ),
            }
        }
    }
}
