//! Which MTU a network has: kubenet's rule (BEHAVIOURS K1).
//!
//! Knows nothing of path MTU or tunnels: only of the links that are there.

use std::collections::BTreeSet;

use model::Network;

use crate::bridge::is_our_alias;
use crate::check::POD_HOOKS;
use crate::{Link, LinkKind, Observed};

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
    let counted = observed.links.values().filter(|link| {
        (link.up || link.kind == LinkKind::Bridge)
            && link.kind != LinkKind::Loopback
            && !link.point_to_point
            && !ours.contains(&link.index)
            && !link.controller.is_some_and(|index| ours.contains(&index))
            && !is_of_pod(link)
    });
    let least = counted.map(|link| link.mtu).min();
    least
        .filter(|mtu| (LEAST..MOST).contains(mtu))
        .unwrap_or(FALLBACK)
}

/// Whether our programs say that a pod is behind the link: it may be on a bridge that is not ours.
fn is_of_pod(link: &Link) -> bool {
    POD_HOOKS.iter().any(|hook| link.hooks.contains(hook))
}

#[cfg(test)]
mod tests;
