//! Container links: the bridges and veths by which other software connects its containers.
//!
//! They are no uplinks. Other software translates there, by netfilter, and its programs and rules
//! decide about these packets. Our programs are not attached, the containers see the pods' own
//! addresses, and hostports reached from there are translated by a netfilter table of ours
//! ([`steps::NetfilterTable`]). See decision 81.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, IfName, InterfaceAddress, Network, NetworkName, is_link_local};
use steps::{Entries, Entry, EntryKey, LinkKind, LinkRef, NodeLink, Observed, RouteEntry};

use crate::Records;
use crate::own_links::{OwnLinks, candidates, leads_somewhere};

/// Container links of the node, and the addresses behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerLinks {
    /// Names of the links.
    pub names: BTreeSet<IfName>,
    /// Addresses of containers that have a route of their own. Containers behind a bridge have
    /// none.
    pub addresses: BTreeSet<IpAddr>,
    /// Prefixes that are also those of networks of this node.
    pub overlaps: BTreeSet<Overlap>,
}

/// A prefix behind a container link that overlaps a subnet of one of our networks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overlap {
    /// The container link.
    pub link: IfName,
    /// Subnet of an address of the link, or destination of a route through it.
    pub prefix: Cidr,
    /// The network.
    pub network: NetworkName,
}

impl Overlap {
    /// Returns whether it is the route to a single container.
    pub fn is_host(&self) -> bool {
        is_host(&self.prefix)
    }
}

impl ContainerLinks {
    /// Finds the container links. Links in `explicit`, the configured uplinks, are none.
    pub(crate) fn find(
        explicit: &BTreeSet<IfName>,
        observed: &Observed,
        ours: &OwnLinks,
        networks: &[&Network],
    ) -> Self {
        let links: BTreeMap<&IfName, &NodeLink> = candidates(observed, ours)
            .filter(|(name, link)| !explicit.contains(*name) && is_container_link(link, observed))
            .collect();
        let overlap = |(name, link): (&&IfName, &&NodeLink)| {
            let name = (*name).clone();
            let of_network = move |prefix: Cidr| {
                let name = name.clone();
                networks
                    .iter()
                    .filter(move |network| {
                        network.subnets().iter().any(|own| own.overlaps(&prefix))
                    })
                    .map(move |network| Overlap {
                        link: name.clone(),
                        prefix,
                        network: network.name.clone(),
                    })
            };
            prefixes(link, observed).into_iter().flat_map(of_network)
        };
        let hosts = links
            .values()
            .flat_map(|link| routes(link, observed))
            .filter(|route| is_host(&route.destination));
        Self {
            addresses: hosts.map(|route| route.destination.network()).collect(),
            overlaps: links.iter().flat_map(overlap).collect(),
            names: links.into_keys().cloned().collect(),
        }
    }

    /// Returns the prefixes of `pods` that containers of other software use too: the part that is
    /// behind a container link, and the subnets of adopted pods, whose plugin has other pods there.
    pub(crate) fn shared_prefixes(
        &self,
        pods: &BTreeSet<Cidr>,
        observed: &Observed,
        records: &Records,
    ) -> BTreeSet<Cidr> {
        let links = self
            .names
            .iter()
            .filter_map(|name| observed.links.get(name));
        let behind = links.flat_map(|link| prefixes(link, observed));
        let shared = behind.flat_map(|prefix| {
            pods.iter()
                .filter(move |own| own.overlaps(&prefix))
                // Of two that overlap, one contains the other.
                .map(move |own| {
                    if own.prefix_len() > prefix.prefix_len() {
                        *own
                    } else {
                        prefix
                    }
                })
        });
        shared.chain(adopted_subnets(records)).collect()
    }
}

/// Returns whether other software connects containers by the link.
///
/// * A bridge, unless a default route or a route with a next hop leads through it, or one of its
///   ports is a network card, VLAN interface or bond: then hosts of the outside are behind it.
/// * A veth that has only host routes and host addresses, as the reference plugin ptp makes it.
pub(crate) fn is_container_link(link: &NodeLink, observed: &Observed) -> bool {
    let mut routes = routes(link, observed);
    match link.kind {
        LinkKind::Bridge => {
            let leads_outside =
                |route: &RouteEntry| route.gateway.is_some() || route.destination.prefix_len() == 0;
            !routes.any(leads_outside) && !has_outside_port(link, observed)
        }
        LinkKind::Veth => {
            let is_of_container =
                |route: &RouteEntry| route.gateway.is_none() && is_host(&route.destination);
            let mut own = global_addresses(link).filter_map(|own| own.subnet());
            routes.all(is_of_container) && own.all(|subnet| is_host(&subnet))
        }
        LinkKind::Loopback
        | LinkKind::Tap
        | LinkKind::Dummy
        | LinkKind::Ethernet
        | LinkKind::Raw => false,
    }
}

fn has_outside_port(bridge: &NodeLink, observed: &Observed) -> bool {
    let mut ports = observed
        .links
        .values()
        .filter(|port| port.controller == Some(bridge.index));
    ports.any(|port| !matches!(port.kind, LinkKind::Veth | LinkKind::Tap | LinkKind::Dummy))
}

fn routes<'a>(link: &NodeLink, observed: &'a Observed) -> impl Iterator<Item = &'a RouteEntry> {
    let index = link.index;
    observed
        .routes
        .iter()
        .filter(move |route| route.link == index && leads_somewhere(route))
}

fn is_host(prefix: &Cidr) -> bool {
    prefix.prefix_len() == if prefix.is_ipv4() { 32 } else { 128 }
}

fn global_addresses(link: &NodeLink) -> impl Iterator<Item = InterfaceAddress> {
    let own = link.addresses.iter().copied();
    own.filter(|own| !is_link_local(own.address))
}

/// Returns the prefixes behind a container link: the subnets of its addresses, and the destinations
/// of the routes through it. An address of the link without a subnet is the node's own.
fn prefixes(link: &NodeLink, observed: &Observed) -> BTreeSet<Cidr> {
    let subnets = global_addresses(link).filter_map(|own| own.subnet());
    let routed = routes(link, observed).map(|route| route.destination);
    subnets
        .filter(|subnet| !is_host(subnet))
        .chain(routed)
        .collect()
}

fn adopted_subnets(records: &Records) -> impl Iterator<Item = Cidr> {
    records
        .values()
        .map(|record| &record.attachment)
        .filter(|attachment| attachment.adopted.is_some())
        .flat_map(|attachment| &attachment.addresses)
        .filter_map(|assigned| assigned.address.subnet())
}

/// Returns network entries for the container links, through which pods' packets may leave without
/// our programs, and for the links of adopted pods. The gateway of such an entry is the source
/// address that the kernel would choose towards the pod: a pod that connects to its own hostport
/// sees it as the client. `fallback` are addresses of other links
/// ([`crate::uplink::fallback_sources`]), for links of adopted pods that have none.
pub(crate) fn entries(
    containers: &ContainerLinks,
    observed: &Observed,
    records: &Records,
    fallback: &[InterfaceAddress],
) -> Entries {
    let adopted = adopted_pods(records);
    let by_kind = |wanted: LinkKind| {
        let of_kind = move |name: &&IfName| {
            let link = observed.links.get(*name);
            link.is_some_and(|link| link.kind == wanted)
        };
        containers.names.iter().filter(of_kind)
    };
    // Where the table cannot hold all, it holds those that lead to most containers.
    let names = adopted
        .keys()
        .copied()
        .chain(by_kind(LinkKind::Bridge))
        .chain(by_kind(LinkKind::Veth));
    let mut entries = Entries::new();
    for name in names {
        let Some((link, mac)) = observed
            .links
            .get(name)
            .and_then(|link| Some((link, link.mac?)))
        else {
            continue;
        };
        if entries.len() >= CAPACITY {
            break;
        }
        let pods = adopted.get(name);
        let gateway = |ipv4| gateway(link, ipv4, pods, fallback);
        let entry = Entry::Network {
            v4: gateway(true),
            v6: gateway(false),
            mac,
            duplicates: None,
        };
        entries.insert(EntryKey::Network(LinkRef::Name(name.clone())), entry);
    }
    entries
}

/// Most network entries for links of other software. The rest of the table is for our bridges.
const CAPACITY: usize = abi::maps::NETWORKS.capacity as usize * 3 / 4;

/// Returns the addresses of adopted pods by the bridge or veth that leads to them.
fn adopted_pods(records: &Records) -> BTreeMap<&IfName, Vec<IpAddr>> {
    let mut pods: BTreeMap<&IfName, Vec<IpAddr>> = BTreeMap::new();
    let attachments = records.values().map(|record| &record.attachment);
    for attachment in attachments.filter(|attachment| attachment.adopted.is_some()) {
        let addresses = attachment.addresses.iter().map(|one| one.address.address);
        pods.entry(&attachment.bridge)
            .or_default()
            .extend(addresses);
    }
    pods
}

fn gateway(
    link: &NodeLink,
    ipv4: bool,
    pods: Option<&Vec<IpAddr>>,
    fallback: &[InterfaceAddress],
) -> Option<IpAddr> {
    let of_family = |own: &InterfaceAddress| own.address.is_ipv4() == ipv4;
    let near = |own: &InterfaceAddress| {
        let subnet = own.subnet();
        let mut pods = pods.into_iter().flatten();
        pods.any(|pod| subnet.is_some_and(|subnet| subnet.contains(*pod)))
    };
    let own = || global_addresses(link).filter(of_family);
    let other = || {
        let wanted = pods.is_some_and(|pods| pods.iter().any(|pod| pod.is_ipv4() == ipv4));
        fallback.iter().copied().filter(of_family).find(|_| wanted)
    };
    let chosen = own().find(near).or_else(|| own().next()).or_else(other);
    chosen.map(|own| own.address)
}

#[cfg(test)]
mod tests;
