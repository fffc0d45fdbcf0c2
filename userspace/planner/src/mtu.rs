//! Which MTU a network has: kubenet's rule (behaviour K1).
//!
//! Knows nothing of path MTU or tunnels: only of the links that are there.

use std::collections::BTreeSet;

use model::{Attachment, AttachmentKey, Network, State};

use crate::bridge::is_our_alias;
use crate::check::POD_HOOKS;
use crate::{Link, LinkKind, Observed, Plan, Records, Step};

/// What is used when the links tell nothing usable.
const FALLBACK: u32 = 1460;

/// Below this IPv4 does not work (RFC 791), so kubenet does not believe it.
const LEAST: u32 = 576;

/// kubenet's "no link found yet".
const MOST: u32 = 999_999;

/// The MTU of `network`: its own wish, or the smallest one among the links that are up, neither loopback nor
/// point-to-point; 1460 when there is none or it is not credible.
///
/// kubenet counts its own bridge and the veths on it too. This does not: they have the MTU that this rule gave them
/// earlier, so counting them would keep the smallest value ever seen, even after the uplink it came from has grown.
/// Other bridges count even when they are down: one that a network is put on is set up by that, and the MTU of the
/// other networks must not change with it.
pub fn network_mtu(network: &Network, observed: &Observed) -> u32 {
    if let Some(mtu) = network.mtu {
        return mtu;
    }
    let ours: BTreeSet<u32> = observed
        .links
        .iter()
        .filter(|(name, link)| **name == network.bridge || is_our_alias(link.alias.as_deref()))
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
        .filter(|mtu| (LEAST..MOST).contains(mtu))
        .unwrap_or(FALLBACK)
}

/// What brings an attachment to the MTU that its network has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The attachment.
    pub key: AttachmentKey,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// What sets it; a pod's end follows its network only, so that what the pod has set itself stays.
    pub plan: Plan,
}

/// The attachments of `networks` that have another MTU than their network. `observed` is of [`crate::Scope::Node`].
/// Routes have no MTU of their own and follow their links.
pub fn plan_mtu(networks: &[Network], observed: &Observed, records: &Records) -> Vec<Resize> {
    let attached = records
        .values()
        .filter(|record| record.state == State::Attached && record.attachment.adopted.is_none())
        .map(|record| &record.attachment);
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
        (!plan.is_empty()).then_some(Resize { key, mtu, plan })
    };
    attached.filter_map(resize).collect()
}

/// Whether our programs say that a pod is behind the link: it may be on a bridge that is not ours.
fn is_of_pod(link: &Link) -> bool {
    POD_HOOKS.iter().any(|hook| link.hooks.contains(hook))
}

#[cfg(test)]
mod tests;
