//! Uplinks: the links through which packets enter and leave the node, and their table entries.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Network};
use steps::{Entry, Hook, Link, LinkKind, Observed, RouteEntry, Step};

use crate::bridge::is_our_alias;
use crate::container_link::is_container_link;
use crate::{Plan, Records};

/// Number of the kernel's `local` routing table, which holds the node's own addresses.
pub(crate) const LOCAL_TABLE: u32 = 255;

/// The programs of an uplink.
pub(crate) const UPLINK_HOOKS: [Hook; 2] = [Hook::UplinkIn, Hook::UplinkOut];

/// Links that lead to pods: our bridges, VLAN interfaces and the links of attachments. They are
/// never uplinks.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnLinks(BTreeSet<IfName>);

impl OwnLinks {
    /// Collects the bridges of `networks`, their VLAN interfaces, and every link with our alias.
    pub(crate) fn of_networks(networks: &[Network], observed: &Observed) -> Self {
        // A network that names a link of another kind as its bridge is refused; that link stays an
        // uplink.
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

    /// Adds the host links of the recorded attachments, and the bridges that they were made for.
    pub(crate) fn with_records(mut self, records: &Records) -> Self {
        for record in records.values() {
            // The bridge of an adopted pod stays what it is to the node.
            if record.attachment.adopted.is_none() {
                self.0.insert(record.attachment.bridge.clone());
            }
            self.0.insert(record.attachment.host_link().name().clone());
        }
        self
    }

    pub(crate) fn has(&self, name: &IfName) -> bool {
        self.0.contains(name)
    }
}

/// Returns the uplinks: the configured ones that exist, or else those detected from routes and
/// addresses.
pub(crate) fn uplinks(
    explicit: &BTreeSet<IfName>,
    observed: &Observed,
    ours: &OwnLinks,
) -> BTreeSet<IfName> {
    if explicit.is_empty() {
        return detected_uplinks(observed, ours);
    }
    let may = |name: &&IfName| {
        let link = observed.links.get(*name);
        link.is_some_and(|link| link.kind != LinkKind::Loopback) && !ours.has(name)
    };
    explicit.iter().filter(may).cloned().collect()
}

/// Returns the links by which packets enter and leave the node: all [`candidates`] but those that
/// lead to containers of other software.
pub(crate) fn detected_uplinks(observed: &Observed, ours: &OwnLinks) -> BTreeSet<IfName> {
    candidates(observed, ours)
        .filter(|(_, link)| !is_container_link(link, observed))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Returns the links that are up and have an address or a route. The loopback, our own links and
/// ports of bridges and bonds are left out: packets enter and leave by the link that has the
/// address, not by the ports below it.
pub(crate) fn candidates<'a>(
    observed: &'a Observed,
    ours: &OwnLinks,
) -> impl Iterator<Item = (&'a IfName, &'a Link)> {
    let routed: BTreeSet<u32> = observed
        .routes
        .iter()
        .filter(|route| leads_somewhere(route))
        .map(|route| route.link)
        .collect();
    let leads = move |(name, link): &(&IfName, &Link)| {
        link.up
            && link.kind != LinkKind::Loopback
            && link.controller.is_none()
            && !ours.has(name)
            && (routed.contains(&link.index) || sources(link).next().is_some())
    };
    observed.links.iter().filter(leads)
}

/// Returns whether the route leads to other hosts: not to the node itself, and not to a group or a
/// link-local address.
pub(crate) fn leads_somewhere(route: &RouteEntry) -> bool {
    let destination = route.destination.network();
    route.table != LOCAL_TABLE && !destination.is_multicast() && !is_link_local(destination)
}

/// Returns the table entry of an uplink: closed until both programs are observed on it. `fallback`
/// are addresses of other links, from [`fallback_sources`].
pub(crate) fn entry(link: &Link, routes: &[RouteEntry], fallback: &[InterfaceAddress]) -> Entry {
    let least = routes
        .iter()
        .filter(|route| route.link == link.index)
        .filter_map(|route| route.mtu)
        .min();
    Entry::Uplink {
        ethernet: link.kind != LinkKind::Raw,
        mtu: least.map_or(link.mtu, |least| least.min(link.mtu)),
        sources: masquerade_sources(link, fallback),
        open: UPLINK_HOOKS.iter().all(|hook| link.hooks.contains(hook)),
    }
}

/// Returns the source addresses for MASQUERADE in the kernel's order, at most [`abi::SOURCES`].
/// Addresses that the kernel avoids are included only where there is no other.
///
/// Of several addresses on one subnet only the first is ever chosen, so the others are left out.
/// Where more than [`abi::SOURCES`] remain, each family keeps its first half of the places, and may
/// use places that the other family does not need. A link without an address of a family uses the
/// first of `fallback`, as the kernel does.
fn masquerade_sources(link: &Link, fallback: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
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
            choices.extend(fallback.iter().find(of_family));
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

/// Returns the addresses of all links that are up and not ours, by interface index: the source
/// addresses for an uplink without an address of a family.
pub(crate) fn fallback_sources(observed: &Observed, ours: &OwnLinks) -> Vec<InterfaceAddress> {
    let mut links: Vec<&Link> = observed
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
    links.sort_by_key(|link| link.index);
    links.into_iter().flat_map(sources).collect()
}

/// Returns the addresses with more than link scope, in the kernel's order: primary addresses first.
fn sources(link: &Link) -> impl Iterator<Item = InterfaceAddress> {
    link.addresses
        .iter()
        .copied()
        .filter(|own| !is_link_local(own.address))
}

/// Plans to attach the uplink programs that are missing on `uplinks`.
pub(crate) fn attach_missing(uplinks: &BTreeSet<IfName>, observed: &Observed) -> Plan {
    let step = |name: &IfName| {
        let present = &observed.links.get(name)?.hooks;
        let hooks: BTreeSet<Hook> = UPLINK_HOOKS
            .into_iter()
            .filter(|h| !present.contains(h))
            .collect();
        (!hooks.is_empty()).then(|| Step::Attach {
            link: name.clone(),
            hooks,
        })
    };
    Plan::of(uplinks.iter().filter_map(step))
}

/// Plans to detach the uplink programs from all links that are no uplinks.
pub(crate) fn detach_others(uplinks: &BTreeSet<IfName>, observed: &Observed) -> Plan {
    let others = observed
        .links
        .iter()
        .filter(|(name, _)| !uplinks.contains(*name));
    let step = |(name, link): (&IfName, &Link)| {
        let hooks: BTreeSet<Hook> = UPLINK_HOOKS
            .into_iter()
            .filter(|h| link.hooks.contains(h))
            .collect();
        (!hooks.is_empty()).then(|| Step::Detach {
            link: name.clone(),
            hooks,
        })
    };
    Plan::of(others.filter_map(step))
}

/// Returns whether this is an IPv6 link-local address. IPv4's 169.254.0.0/16 is not counted: some
/// clouds route it.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests;
