//! Background tasks: work that the engine does while no request waits in its queue.
//!
//! * Verify attachments after their ADD. Every step of an ADD is acknowledged by the kernel before
//!   the next, so an ADD answers without comparing the result. The comparison afterwards finds what
//!   an acknowledgement cannot show (decision 68).
//! * Compact the journal of the records.
//! * Attach the TCX fast path for pods with high traffic.
//! * Poll for runtimes that bind the ports of their containers themselves.

use std::time::Instant;

use kernel::Kernel;
use model::{AttachmentKey, State};

use crate::attachment_state::PendingVerification;
use crate::error::chain;
use crate::phases::Phase;
use crate::trace::{TimeSpan, TracedPhase};
use crate::{Engine, EngineError};

/// When the engine's thread runs background tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// After 10 ms without a request.
    WhenIdle,
    /// Never. For tests of the engine's callers, which change a fake kernel between two requests. A
    /// background task would repair or remove the change if the test thread has to wait for a CPU.
    Never,
}

/// A background task that has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackgroundTask {
    /// An attachment was compared with its record and is as recorded, or it has been removed since.
    Verified,
    /// An attachment did not match its record, so all records were reconciled.
    Reconciled,
    /// The journal was compacted, or that failed.
    Compacted,
    /// The TCX fast path was attached to a link, or that failed.
    TcxAttached,
    /// Ports that were left to runtimes were checked.
    PortsChecked,
}

impl<K: Kernel> Engine<K> {
    /// Queues an attachment for verification; `now` is the time of its ADD in seconds since 1970.
    pub(crate) fn verify_later(&mut self, key: &AttachmentKey, now: u64) {
        let pending = PendingVerification {
            made_at: now,
            recorder: self.phases.recorder(),
        };
        self.attachments
            .pending_verification
            .insert(key.clone(), pending);
    }

    /// Returns whether a background task waits.
    pub(crate) fn has_background_tasks(&self) -> bool {
        !self.attachments.pending_verification.is_empty()
            || self.should_compact()
            || self.attachments.tcx_queue.has_waiting()
            || !self.attachments.left_ports.is_empty()
    }

    /// Runs one background task; `None` if there is none.
    pub(crate) fn run_background_task(&mut self) -> Option<BackgroundTask> {
        if let Some((key, pending)) = self.attachments.pending_verification.pop_first() {
            return Some(self.verify_or_reconcile(&key, &pending));
        }
        if self.should_compact() {
            return Some(self.compact_records());
        }
        if self.attach_tcx_fast_path() {
            return Some(BackgroundTask::TcxAttached);
        }
        self.check_left_ports()
            .then_some(BackgroundTask::PortsChecked)
    }

    fn should_compact(&self) -> bool {
        self.store.is_compaction_due() && !self.attachments.compaction_failed
    }

    fn verify_or_reconcile(
        &mut self,
        key: &AttachmentKey,
        pending: &PendingVerification,
    ) -> BackgroundTask {
        let begun = Instant::now();
        let verified = self.verify_attached(key);
        if let Some(recorder) = &pending.recorder {
            recorder.record(vec![TracedPhase {
                phase: Phase::Verify,
                span: TimeSpan::since(begun),
                steps: Vec::new(),
                failure: verified.as_ref().err().map(|error| chain(error)),
            }]);
        }
        match verified {
            Ok(()) => BackgroundTask::Verified,
            Err(error) => {
                tracing::warn!(
                    %key,
                    error = chain(&error),
                    "attachment does not match its record after ADD; reconciling"
                );
                self.reconcile(pending.made_at);
                BackgroundTask::Reconciled
            }
        }
    }

    fn verify_attached(&mut self, key: &AttachmentKey) -> Result<(), EngineError> {
        let attached = self
            .store
            .get(key)
            .filter(|record| record.state == State::Attached)
            .map(|record| record.attachment.clone());
        match attached {
            Some(attachment) => self.verify(&attachment),
            None => Ok(()),
        }
    }

    /// Compacts the journal. After a failure the journal still holds all records, and compaction is
    /// not tried again before the next reconciliation.
    fn compact_records(&mut self) -> BackgroundTask {
        if let Err(error) = self.store.compact_journal() {
            tracing::warn!(
                error = chain(&error),
                "cannot compact the journal of the records; trying again after the next reconciliation"
            );
            self.attachments.compaction_failed = true;
        }
        BackgroundTask::Compacted
    }
}
