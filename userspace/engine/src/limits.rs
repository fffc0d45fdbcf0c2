//! Changes the bandwidth limits of attached pods. The new limits are recorded first, then written
//! to the tables; no connection is lost.

use kernel::Kernel;
use model::{Attachment, AttachmentKey, Bandwidth, Limit, LimitPolicy, State};

use crate::limit_log::log_clamped;
use crate::{Engine, EngineError};

/// Update of the limit of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitUpdate {
    /// Keep the current limit.
    #[default]
    Keep,
    /// Remove the limit.
    Lift,
    /// Set this limit.
    Limit(Limit),
}

impl LimitUpdate {
    fn apply_to(self, before: Option<Limit>) -> Option<Limit> {
        match self {
            Self::Keep => before,
            Self::Lift => None,
            Self::Limit(limit) => Some(limit),
        }
    }
}

/// Update of the limits of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// Traffic to the pod.
    pub ingress: LimitUpdate,
    /// Traffic from the pod.
    pub egress: LimitUpdate,
}

impl LimitChange {
    fn apply_to(self, before: &Bandwidth) -> Bandwidth {
        Bandwidth {
            ingress: self.ingress.apply_to(before.ingress),
            egress: self.egress.apply_to(before.egress),
            shaped_subnets: before.shaped_subnets,
        }
    }
}

/// Returns an error if a limit is above the ceiling of the network. No limit counts as above every
/// ceiling.
fn refuse_above_ceiling(
    policy: &LimitPolicy,
    key: &AttachmentKey,
    wanted: &Bandwidth,
) -> Result<(), EngineError> {
    let allowed = policy.clamp_to_ceiling(wanted);
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
    /// Returns the limit policy of the network of an attachment. Adopted interfaces have no network
    /// of the agent, and so no policy.
    fn policy(&self, attachment: &Attachment) -> LimitPolicy {
        let default = &self.choices.settings.default_network;
        let name = &attachment.key.network;
        let network = match &attachment.adopted {
            Some(_) => None,
            None if *name == default.name => Some(default),
            None => self.store.networks().get(name),
        };
        network.map_or_else(LimitPolicy::default, |network| network.options.limits)
    }

    /// Returns the limits that an attachment gets when a chained plugin requests `requested`:
    /// defaults and ceilings of its network applied.
    pub(crate) fn admit_limits(&self, attachment: &Attachment, requested: &Bandwidth) -> Bandwidth {
        let allowed = self.policy(attachment).apply(requested);
        log_clamped(&attachment.key, requested, &allowed);
        allowed
    }

    /// Changes the limits of an attachment and returns the new ones. On a failure the old ones
    /// stay.
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
            return Err(EngineError::NotAttached(key.clone()));
        };
        let mut after = before.attachment.clone();
        after.bandwidth = change.apply_to(&after.bandwidth);
        // An explicit request above the ceiling is an error; only requests of plugins are reduced
        // to the ceiling.
        refuse_above_ceiling(&self.policy(&after), key, &after.bandwidth)?;
        let bandwidth = self.change(&before, after)?.bandwidth;
        tracing::info!(%key, ?bandwidth, "bandwidth limits changed");
        Ok(bandwidth)
    }
}
