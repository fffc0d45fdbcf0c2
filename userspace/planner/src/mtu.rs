//! Which MTU a network has: kubenet's rule (BEHAVIOURS K1).
//!
//! Knows nothing of path MTU or tunnels: only of the links that are there.

use std::collections::BTreeSet;

use model::Network;

use crate::bridge::is_our_alias;
use crate::{LinkKind, Observed};

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
        link.up
            && link.kind != LinkKind::Loopback
            && !link.point_to_point
            && !ours.contains(&link.index)
            && !link.controller.is_some_and(|index| ours.contains(&index))
    });
    let least = counted.map(|link| link.mtu).min();
    least
        .filter(|mtu| (LEAST..MOST).contains(mtu))
        .unwrap_or(FALLBACK)
}

#[cfg(test)]
mod tests;
