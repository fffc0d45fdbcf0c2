//! Uplinks: the links through which packets enter and leave the node, and their table entries.

use std::collections::BTreeSet;

use model::{IfName, InterfaceAddress};
use steps::{Entry, Hook, LinkKind, NodeLink, Observed, RouteEntry, Step};

use crate::Plan;
use crate::container_link::is_container_link;
use crate::hooks::UPLINK_HOOKS;
use crate::own_links::{OwnLinks, candidates, sources};

/// Returns the uplinks: the configured ones that exist, or else those detected from routes and
/// addresses; and the tunnels to other nodes.
pub(crate) fn uplinks(
    explicit: &BTreeSet<IfName>,
    observed: &Observed,
    ours: &OwnLinks,
) -> BTreeSet<IfName> {
    let tunnels = observed.tunnels.keys().cloned();
    if explicit.is_empty() {
        let detected = detected_uplinks(observed, ours).into_iter();
        return detected.chain(tunnels).collect();
    }
    let may = |name: &&IfName| {
        let link = observed.links.get(*name);
        link.is_some_and(|link| link.kind != LinkKind::Loopback) && !ours.has(name)
    };
    let explicit = explicit.iter().filter(may).cloned();
    explicit.chain(tunnels).collect()
}

/// Returns the links by which packets enter and leave the node: all [`candidates`] but those that
/// lead to containers of other software.
pub(crate) fn detected_uplinks(observed: &Observed, ours: &OwnLinks) -> BTreeSet<IfName> {
    candidates(observed, ours)
        .filter(|(_, link)| !is_container_link(link, observed))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Returns the table entry of an uplink: closed until both programs are observed on it. `fallback`
/// are addresses of other links, from [`fallback_sources`].
pub(crate) fn entry(
    link: &NodeLink,
    is_tunnel: bool,
    routes: &[RouteEntry],
    fallback: &[InterfaceAddress],
) -> Entry {
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
        tunnel: is_tunnel,
    }
}

/// Returns the source addresses for MASQUERADE in the kernel's order, at most [`abi::SOURCES`].
/// Addresses that the kernel avoids are included only where there is no other.
///
/// Of several addresses on one subnet only the first is ever chosen, so the others are left out.
/// Where more than [`abi::SOURCES`] remain, each family keeps its first half of the places, and may
/// use places that the other family does not need. A link without an address of a family uses the
/// first of `fallback`, as the kernel does.
fn masquerade_sources(link: &NodeLink, fallback: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
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
    let mut links: Vec<&NodeLink> = observed
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
    let step = |(name, link): (&IfName, &NodeLink)| {
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

#[cfg(test)]
mod tests;
