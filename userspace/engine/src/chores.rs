//! What is done when nobody waits: looking at what ADDs have made, settling the records, and shortening busy pods' ways.
//!
//! Every step of an ADD is acknowledged by the kernel before the next, so an ADD does not look at its work before it
//! answers; that it looks afterwards finds what acknowledgements cannot tell (decision 68).

use kernel::Kernel;
use model::{AttachmentKey, State};

use crate::error::chain;
use crate::{Engine, EngineError};

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// An attachment is as it was made, or gone since.
    Looked,
    /// One was not, and everything was compared.
    Reconciled,
    /// The records are settled, if they could be.
    Settled,
    /// A busy pod has got the short way, if it could be.
    Hastened,
}

impl<K: Kernel> Engine<K> {
    /// Notes that an attachment was made, at `now` in seconds since 1970.
    pub(crate) fn look_later(&mut self, key: &AttachmentKey, now: u64) {
        self.unseen.insert(key.clone(), now);
    }

    /// Whether there is something left to do.
    pub(crate) fn has_chores(&self) -> bool {
        !self.unseen.is_empty() || self.is_to_settle() || self.busy.is_due()
    }

    /// Does one thing of what is left to do, if there is one.
    pub(crate) fn do_chore(&mut self) -> Option<Chore> {
        if let Some((key, made_at)) = self.unseen.pop_first() {
            return Some(self.look_again(&key, made_at));
        }
        if self.is_to_settle() {
            return Some(self.settle_records());
        }
        self.hasten().then_some(Chore::Hastened)
    }

    fn is_to_settle(&self) -> bool {
        self.store.is_unsettled() && !self.cannot_settle
    }

    fn look_again(&mut self, key: &AttachmentKey, made_at: u64) -> Chore {
        match self.look_at_attached(key) {
            Ok(()) => Chore::Looked,
            Err(error) => {
                tracing::warn!(%key, error = chain(&error), "not as it was made a moment ago");
                self.reconcile(made_at);
                Chore::Reconciled
            }
        }
    }

    fn look_at_attached(&mut self, key: &AttachmentKey) -> Result<(), EngineError> {
        let record = self.store.get(key);
        let record = record.filter(|record| record.state == State::Attached);
        match record.map(|record| record.attachment.clone()) {
            Some(attachment) => self.verify(&attachment),
            None => Ok(()),
        }
    }

    /// Without success the journal has them still, and the next comparison lets it be tried again.
    fn settle_records(&mut self) -> Chore {
        if let Err(error) = self.store.settle() {
            tracing::warn!(error = chain(&error), "cannot settle the records");
            self.cannot_settle = true;
        }
        Chore::Settled
    }
}
