//! Subnets of pods, and those of them where hosts may have addresses that the agent does not know.

use std::collections::BTreeSet;

use model::{Cidr, IfName, Network, NetworkName, Record, State};
use steps::{NodeLink, Observed};

use crate::Records;
use crate::alias::is_gateway_port;

/// Returns the subnets that contain pods only. Networks whose gateway is not the node are left out:
/// their subnet is shared with other hosts on the wire.
pub(super) fn pod_subnets(networks: &[&Network], records: &Records) -> BTreeSet<Cidr> {
    of_pods(networks, records)
        .map(|(subnet, _)| subnet)
        .collect()
}

/// Returns the pods' subnets on bridges with a port that may have other addresses than those of
/// their pods: a port of other software, an adopted one, or that of a pod whose source addresses
/// are not checked.
pub(super) fn open_subnets(
    networks: &[&Network],
    observed: &Observed,
    records: &Records,
) -> BTreeSet<Cidr> {
    of_pods(networks, records)
        .filter(|(_, bridge)| has_open_port(bridge, observed, records))
        .map(|(subnet, _)| subnet)
        .collect()
}

/// Returns the subnets with their bridges: of the networks, and of the attached pods.
fn of_pods<'a>(
    networks: &'a [&Network],
    records: &'a Records,
) -> impl Iterator<Item = (Cidr, &'a IfName)> {
    let shared: BTreeSet<&NetworkName> = networks
        .iter()
        .filter(|network| !network.options.gateway)
        .map(|network| &network.name)
        .collect();
    let configured = networks
        .iter()
        .filter(|network| network.options.gateway)
        .flat_map(|network| {
            let subnets = network.subnets().into_iter();
            subnets.map(|subnet| (subnet, &network.bridge))
        });
    let live = records
        .values()
        .map(|record| &record.attachment)
        .filter(move |one| !shared.contains(&one.key.network))
        .flat_map(|one| {
            let subnets = one.addresses.iter().filter_map(|own| own.address.subnet());
            subnets.map(|subnet| (subnet, &one.bridge))
        });
    configured.chain(live)
}

/// Returns whether the bridge has a port that is not a pod's with checked addresses. A bridge that
/// does not exist yet has no ports.
fn has_open_port(bridge: &IfName, observed: &Observed, records: &Records) -> bool {
    let Some(index) = observed.links.get(bridge).map(|link| link.index) else {
        return false;
    };
    // A linked pod is trusted until it has its addresses, and no packet is routed to it before.
    let is_checked =
        |record: &Record| !record.attachment.port.trusted || record.state == State::Linked;
    let checked: BTreeSet<IfName> = records
        .values()
        .filter(|record| record.attachment.adopted.is_none() && is_checked(record))
        .map(|record| record.attachment.host_link().name().clone())
        .collect();
    let is_open = |(name, link): (&IfName, &NodeLink)| {
        link.controller == Some(index) && !checked.contains(name) && !is_gateway_port(link)
    };
    observed.links.iter().any(is_open)
}
