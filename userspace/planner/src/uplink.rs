//! Which links lead away from the node (DATAPATH §2).
//!
//! Knows nothing of the bridges' making: it is told which links are ours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Network};

use crate::bridge::is_our_alias;
use crate::{Entry, Hook, Link, LinkKind, Observed, Records, RouteEntry};

/// Number of the routing table that holds the node's own addresses.
const LOCAL: u32 = 255;

/// The hooks of an uplink.
pub(crate) const UPLINK_HOOKS: [Hook; 2] = [Hook::UplinkIn, Hook::UplinkOut];

/// Links that lead to pods and not away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ours(BTreeSet<IfName>);

impl Ours {
    /// The bridges of `networks`, and every bridge that has our alias.
    pub(crate) fn of_networks(networks: &[Network], observed: &Observed) -> Self {
        // A configuration that names the node's own uplink as its bridge is refused; it stays an uplink.
        let bridge = |network: &Network| {
            let link = observed.links.get(&network.bridge);
            let wrong = link.is_some_and(|link| link.kind != LinkKind::Bridge);
            (!wrong).then(|| network.bridge.clone())
        };
        let ends = networks
            .iter()
            .filter(|network| network.gateway_vlan().is_some())
            .filter_map(Network::gateway_link);
        let configured = networks.iter().filter_map(bridge).chain(ends);
        let signed = observed
            .links
            .iter()
            .filter(|(_, link)| is_our_alias(link.alias.as_deref()))
            .map(|(name, _)| name.clone());
        Self(configured.chain(signed).collect())
    }

    /// And the links of attachments.
    pub(crate) fn with_records(mut self, records: &Records) -> Self {
        for record in records.values() {
            self.0.insert(record.attachment.bridge.clone());
            self.0.insert(record.attachment.host_link().name().clone());
        }
        self
    }

    fn has(&self, name: &IfName) -> bool {
        self.0.contains(name)
    }
}

/// The uplinks: those named, as far as they are there, or else those that the routing table and the addresses tell.
pub(crate) fn uplinks(
    explicit: &BTreeSet<IfName>,
    observed: &Observed,
    ours: &Ours,
) -> BTreeSet<IfName> {
    if explicit.is_empty() {
        return followed(observed, ours);
    }
    let may = |name: &&IfName| {
        let link = observed.links.get(*name);
        link.is_some_and(|link| link.kind != LinkKind::Loopback) && !ours.has(name)
    };
    explicit.iter().filter(may).cloned().collect()
}

/// Links that are up and have an address or a route, but the loopback, our own, and ports of anything: packets enter
/// and leave by the link that has the address, never by what is below it. Bridges of others count, so that their
/// containers reach hostports too.
pub(crate) fn followed(observed: &Observed, ours: &Ours) -> BTreeSet<IfName> {
    let routed: BTreeSet<u32> = observed
        .routes
        .iter()
        .filter(|route| leads_somewhere(route))
        .map(|route| route.link)
        .collect();
    let leads = |(name, link): &(&IfName, &Link)| {
        link.up
            && link.kind != LinkKind::Loopback
            && link.controller.is_none()
            && !ours.has(name)
            && (routed.contains(&link.index) || sources(link).next().is_some())
    };
    observed
        .links
        .iter()
        .filter(leads)
        .map(|(name, _)| name.clone())
        .collect()
}

fn leads_somewhere(route: &RouteEntry) -> bool {
    let destination = route.destination.network();
    route.table != LOCAL && !destination.is_multicast() && !is_link_local(destination)
}

/// The table entry of an uplink, closed until our programs are seen on it. `borrowed` are addresses of other links.
pub(crate) fn entry(link: &Link, routes: &[RouteEntry], borrowed: &[InterfaceAddress]) -> Entry {
    let least = routes
        .iter()
        .filter(|route| route.link == link.index)
        .filter_map(|route| route.mtu)
        .min();
    Entry::Uplink {
        ethernet: link.kind != LinkKind::Raw,
        mtu: least.map_or(link.mtu, |least| least.min(link.mtu)),
        sources: choices(link, borrowed),
        open: UPLINK_HOOKS.iter().all(|hook| link.hooks.contains(hook)),
    }
}

/// The addresses that MASQUERADE may choose from, in the kernel's order, at most [`abi::SOURCES`]; those that the kernel
/// avoids only where there is no other.
///
/// Of several on one subnet only the first is ever chosen, so the others are left out. Where still more are left, each
/// family keeps its first half of the room, and what one family does not need the other has. A link without an
/// address of a family borrows the first one of another link, as the kernel does.
fn choices(link: &Link, borrowed: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
    let mut seen = BTreeSet::new();
    let is_good = |own: &InterfaceAddress| !link.avoided.contains(&own.address);
    let is_choice = |own: &InterfaceAddress| own.address.is_ipv6() && is_good(own);
    let has_choice = sources(link).any(|own| is_choice(&own));
    let mut choices: Vec<InterfaceAddress> = sources(link)
        .filter(|own| !has_choice || is_good(own))
        .filter(|own| seen.insert(own.subnet()))
        .collect();
    for ipv4 in [true, false] {
        let of_family = |own: &&InterfaceAddress| own.address.is_ipv4() == ipv4;
        if !choices.iter().any(|own| of_family(&own)) {
            choices.extend(borrowed.iter().find(of_family));
        }
    }
    let many = |choices: &[InterfaceAddress], ipv4: bool| {
        choices
            .iter()
            .filter(|own| own.address.is_ipv4() == ipv4)
            .count()
    };
    while choices.len() > abi::SOURCES {
        let ipv4 = many(&choices, true) > abi::SOURCES / 2
            && (many(&choices, false) <= abi::SOURCES / 2
                || choices.last().is_some_and(|last| last.address.is_ipv4()));
        let last = choices
            .iter()
            .rposition(|own| own.address.is_ipv4() == ipv4);
        choices.remove(last.unwrap_or(abi::SOURCES));
    }
    choices
}

/// Addresses of links that lead away, in the order of the links: what one without addresses leaves with.
pub(crate) fn borrowed(observed: &Observed, ours: &Ours) -> Vec<InterfaceAddress> {
    let mut lenders: Vec<&Link> = observed
        .links
        .iter()
        .filter(|(name, link)| {
            link.up
                && link.kind != LinkKind::Loopback
                && link.controller.is_none()
                && !ours.has(name)
        })
        .map(|(_, link)| link)
        .collect();
    lenders.sort_by_key(|link| link.index);
    lenders.into_iter().flat_map(sources).collect()
}

/// Addresses that others can answer to, in the kernel's order: primary ones first.
fn sources(link: &Link) -> impl Iterator<Item = InterfaceAddress> {
    link.addresses
        .iter()
        .copied()
        .filter(|own| !is_link_local(own.address))
}

/// IPv6 only: IPv4's 169.254.0.0/16 is routed in some clouds.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests;
