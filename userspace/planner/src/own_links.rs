//! Links that lead to pods, and the links that may be uplinks beside them.

use std::collections::BTreeSet;

use model::{IfName, InterfaceAddress, Network, is_link_local};
use steps::{LinkKind, NodeLink, Observed, RouteEntry};

use crate::Records;
use crate::alias::is_our_alias;

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

/// Returns the links that are up and have an address or a route. The loopback, our own links and
/// ports of bridges and bonds are left out: packets enter and leave by the link that has the
/// address, not by the ports below it.
pub(crate) fn candidates<'a>(
    observed: &'a Observed,
    ours: &OwnLinks,
) -> impl Iterator<Item = (&'a IfName, &'a NodeLink)> {
    let routed: BTreeSet<u32> = observed
        .routes
        .iter()
        .filter(|route| leads_somewhere(route))
        .map(|route| route.link)
        .collect();
    let leads = move |(name, link): &(&IfName, &NodeLink)| {
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

/// Number of the kernel's `local` routing table, which holds the node's own addresses.
pub(crate) const LOCAL_TABLE: u32 = 255;

/// Returns the addresses with more than link scope, in the kernel's order: primary addresses first.
pub(crate) fn sources(link: &NodeLink) -> impl Iterator<Item = InterfaceAddress> {
    link.addresses
        .iter()
        .copied()
        .filter(|own| !is_link_local(own.address))
}
