//! Other limits for a pod that is attached: recorded first, then in effect, and no connection is lost.

use kernel::Kernel;
use model::{AttachmentKey, Bandwidth, Limit, State};

use crate::{Engine, EngineError};

/// What is to become of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is not limited any more.
    Lift,
    /// It is limited to this.
    Limit(Limit),
}

impl Wish {
    fn of(self, before: Option<Limit>) -> Option<Limit> {
        match self {
            Self::Keep => before,
            Self::Lift => None,
            Self::Limit(limit) => Some(limit),
        }
    }
}

/// A wish for other limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// To the pod.
    pub ingress: Wish,
    /// From the pod.
    pub egress: Wish,
}

impl LimitChange {
    fn of(self, before: &Bandwidth) -> Bandwidth {
        Bandwidth {
            ingress: self.ingress.of(before.ingress),
            egress: self.egress.of(before.egress),
            peers: before.peers,
        }
    }
}

impl<K: Kernel> Engine<K> {
    /// Gives an attachment other limits, wholly or not at all, and tells which it has now.
    pub fn set_limits(
        &mut self,
        key: &AttachmentKey,
        change: LimitChange,
    ) -> Result<Bandwidth, EngineError> {
        let record = self
            .store
            .get(key)
            .filter(|record| record.state == State::Attached);
        let Some(before) = record.cloned() else {
            return Err(EngineError::Unknown(key.clone()));
        };
        let mut after = before.attachment.clone();
        after.bandwidth = change.of(&after.bandwidth);
        let bandwidth = self.change(&before, after)?.bandwidth;
        tracing::info!(%key, ?bandwidth, "limited");
        Ok(bandwidth)
    }
}
