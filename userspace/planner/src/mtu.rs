//! MTU of a network by kubenet's rule (behaviour K1), and the plans that update attachments to it.
//!
//! Considers only the MTUs of the node's links, tunnels of ours included, and no path MTU.

use std::collections::BTreeSet;

use model::{Attachment, AttachmentKey, Network, State};
use steps::{LinkKind, NodeLink, Observed, Step};

use crate::alias::is_our_alias;
use crate::hooks::POD_HOOKS;
use crate::{Plan, Records};

/// MTU in bytes where no link has a usable one.
const FALLBACK: u32 = 1460;

/// Least MTU of IPv4 in bytes (RFC 791); kubenet ignores smaller values.
const MIN_MTU: u32 = 576;

/// kubenet's "no link found yet".
const NO_LINK: u32 = 999_999;

/// Returns the MTU of `network` in bytes: the configured one, or the smallest among the links that
/// are up and neither loopback nor point-to-point; 1460 where there is none or it is out of range.
///
/// kubenet counts its own bridge and the veths on it too. This rule does not: they have the MTU
/// that it gave them earlier, so counting them would keep the smallest value ever seen, even after
/// the uplink's MTU has grown. Other bridges count even when they are down: an ADD sets a foreign
/// bridge up, and the MTU of the other networks must not change with it.
pub fn network_mtu(network: &Network, observed: &Observed) -> u32 {
    if let Some(mtu) = network.mtu {
        return mtu;
    }
    let ours: BTreeSet<u32> = observed
        .links
        .iter()
        .filter(|(name, link)| {
            **name == network.bridge
                || (is_our_alias(link.alias.as_deref()) && !observed.tunnels.contains_key(*name))
        })
        .map(|(_, link)| link.index)
        .collect();
    let least = observed
        .links
        .values()
        .filter(|link| {
            (link.up || link.kind == LinkKind::Bridge)
                && link.kind != LinkKind::Loopback
                && !link.point_to_point
                && !ours.contains(&link.index)
                && !link.controller.is_some_and(|index| ours.contains(&index))
                && !is_of_pod(link)
        })
        .map(|link| link.mtu)
        .min();
    least
        .filter(|mtu| (MIN_MTU..NO_LINK).contains(mtu))
        .unwrap_or(FALLBACK)
}

/// Plan that updates one attachment to its network's current MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtuChange {
    /// Key of the attachment.
    pub key: AttachmentKey,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// Steps that set the MTU. The pod's end is set only where the network's MTU has changed, so
    /// that an MTU which the pod has set itself stays.
    pub plan: Plan,
}

/// Plans the MTU of attachments of `networks` whose MTU differs from their network's. Routes
/// without an MTU of their own follow their links.
pub fn plan_mtu(networks: &[Network], observed: &Observed, records: &Records) -> Vec<MtuChange> {
    let attached = records
        .values()
        .filter(|record| record.state == State::Attached && record.attachment.adopted.is_none())
        .map(|record| &record.attachment)
        // Where the runtime has moved the pod's end, both ends keep their MTU.
        .filter(|attachment| !attachment.is_moved_by_runtime());
    let resize = |attachment: &Attachment| {
        let network = networks
            .iter()
            .find(|network| network.name == attachment.key.network)?;
        let mtu = network_mtu(network, observed);
        let host = attachment.host_link().name().clone();
        let link = observed.links.get(&host)?;
        let ours = link.is_host_end_of(attachment);
        let on_host = (ours && link.mtu != mtu).then_some(Step::SetMtu { link: host, mtu });
        let in_pod = (attachment.mtu != mtu).then(|| Step::SetPodMtu {
            netns: attachment.netns.clone(),
            ifname: attachment.key.ifname.clone(),
            mtu,
        });
        let plan = Plan::of(on_host.into_iter().chain(in_pod));
        let key = attachment.key.clone();
        (!plan.is_empty()).then_some(MtuChange { key, mtu, plan })
    };
    attached.filter_map(resize).collect()
}

/// Returns whether a pod is behind the link, by the programs on it: the pod may be on a bridge that
/// is not ours.
fn is_of_pod(link: &NodeLink) -> bool {
    POD_HOOKS.iter().any(|hook| link.hooks.contains(hook))
}

#[cfg(test)]
mod tests;
