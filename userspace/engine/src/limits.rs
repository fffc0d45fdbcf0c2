//! Other limits for a pod that is attached: recorded first, then in effect, and no connection is lost.

use kernel::Kernel;
use model::{Attachment, AttachmentKey, Bandwidth, Limit, LimitPolicy, State};

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

/// Tells that a pod gets less than was asked for.
pub(crate) fn tell(key: &AttachmentKey, asked: &Bandwidth, gets: &Bandwidth) {
    let both = [
        ("ingress", asked.ingress, gets.ingress),
        ("egress", asked.egress, gets.egress),
    ];
    for (direction, asked, gets) in both {
        if let (Some(asked), Some(gets)) = (asked, gets)
            && asked.rate > gets.rate
        {
            let (asked, ceiling) = (asked.rate, gets.rate);
            tracing::warn!(%key, direction, %asked, %ceiling, "limited to the ceiling of its network");
        }
    }
}

/// Refuses what is above the ceiling of a network.
fn refuse(
    policy: &LimitPolicy,
    key: &AttachmentKey,
    wanted: &Bandwidth,
) -> Result<(), EngineError> {
    let allowed = policy.below_ceiling(wanted);
    let both = [
        ("ingress", wanted.ingress, allowed.ingress),
        ("egress", wanted.egress, allowed.egress),
    ];
    let above = both
        .into_iter()
        .find(|(_, wanted, allowed)| wanted != allowed);
    let Some((direction, _, Some(allowed))) = above else {
        return Ok(());
    };
    Err(EngineError::AboveCeiling {
        key: key.clone(),
        direction,
        ceiling: allowed.rate.get(),
    })
}

impl<K: Kernel> Engine<K> {
    /// What the network of an attachment makes of limits. Links of others have no network of ours.
    fn policy(&self, attachment: &Attachment) -> LimitPolicy {
        let default = &self.settings.default_network;
        let name = &attachment.key.network;
        let network = match &attachment.adopted {
            Some(_) => None,
            None if *name == default.name => Some(default),
            None => self.store.networks().get(name),
        };
        network.map_or_else(LimitPolicy::default, |network| network.options.limits)
    }

    /// What an attachment gets for which another plugin asks for this.
    pub(crate) fn admit_limits(&self, attachment: &Attachment, asked: &Bandwidth) -> Bandwidth {
        let gets = self.policy(attachment).admit(asked);
        tell(&attachment.key, asked, &gets);
        gets
    }

    /// Gives an attachment other limits, wholly or not at all, and tells which it has now.
    pub fn set_limits(
        &mut self,
        key: &AttachmentKey,
        change: LimitChange,
    ) -> Result<Bandwidth, EngineError> {
        let Some(before) = self
            .store
            .get(key)
            .filter(|record| record.state == State::Attached)
            .cloned()
        else {
            return Err(EngineError::Unknown(key.clone()));
        };
        let mut after = before.attachment.clone();
        after.bandwidth = change.of(&after.bandwidth);
        // Whoever asks by name is told, and gets no other limit than was asked for.
        refuse(&self.policy(&after), key, &after.bandwidth)?;
        let bandwidth = self.change(&before, after)?.bandwidth;
        tracing::info!(%key, ?bandwidth, "limited");
        Ok(bandwidth)
    }
}
