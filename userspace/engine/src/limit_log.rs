//! Logs bandwidth limits that the policy of a network has reduced.

use model::{AttachmentKey, Bandwidth};

/// Logs each direction whose requested rate was reduced to the ceiling of the network.
pub(crate) fn log_clamped(key: &AttachmentKey, requested: &Bandwidth, allowed: &Bandwidth) {
    let both = [
        ("ingress", requested.ingress, allowed.ingress),
        ("egress", requested.egress, allowed.egress),
    ];
    for (direction, requested, allowed) in both {
        if let (Some(requested), Some(allowed)) = (requested, allowed)
            && requested.rate > allowed.rate
        {
            let (requested, ceiling) = (requested.rate, allowed.rate);
            tracing::warn!(
                %key,
                direction,
                %requested,
                %ceiling,
                "requested rate is above the ceiling of the network; using the ceiling"
            );
        }
    }
}
