//! The netfilter table of ours, `inet viaduct`: what our programs do at uplinks, for packets that
//! enter by other links; and what the cgroup programs do, for sockets that they do not see.
//!
//! Containers of other software reach hostports through it: netfilter translates for them, in one
//! order with the other software's own rules. So do sockets of the node that the cgroup programs do
//! not see: those of processes outside of the cgroup, raw sockets and SCTP. The table exists only
//! while there are such links or sockets, and has NAT chains only while there are hostports,
//! because they turn connection tracking on for all packets of the node. See decisions 81 and 99.

use std::collections::BTreeSet;

use model::{Attachment, Cidr, IfName, Network, NetworkAccess, Protocol};
use steps::{NetfilterState, NetfilterStep, NetfilterTable, Observed, Step};

use crate::own_links::{OwnLinks, candidates};
use crate::tables::hostport_keys;
use crate::{ContainerLinks, Records};

/// Returns the table with everything that `attachment` needs.
fn with(mut table: NetfilterTable, attachment: &Attachment) -> NetfilterTable {
    if hostport_keys(attachment).next().is_none() {
        return table;
    }
    table.hostports = true;
    let mut mappings = attachment.port_mappings.iter();
    // No cgroup program sees SCTP sockets.
    table.output |= mappings.any(|mapping| mapping.protocol == Protocol::Sctp);
    if attachment.adopted.is_some() {
        let addresses = attachment.addresses.iter();
        let subnets = addresses.filter_map(|assigned| assigned.address.subnet());
        table.hairpin.extend(subnets);
    }
    table
}

fn is_needed(table: &NetfilterTable) -> bool {
    let translates = !table.links.is_empty() || table.output;
    (table.hostports && translates) || !table.pods.is_empty() || !table.closed.is_empty()
}

/// Returns the table that a node with these links and sockets needs, without hostports. Nothing is
/// written of it while it has neither subnets nor hostports.
pub(crate) fn base(
    observed: &Observed,
    ours: &OwnLinks,
    networks: &[&Network],
    (uplinks, containers): (&BTreeSet<IfName>, &ContainerLinks),
) -> NetfilterTable {
    let mut others = candidates(observed, ours).filter(|(name, _)| !uplinks.contains(*name));
    // The veth of an adopted pod without a bridge is one of ours, and none of these.
    if others.next().is_none() {
        return NetfilterTable {
            output: observed.has_unseen_sockets,
            ..NetfilterTable::default()
        };
    }
    let bridges = networks.iter().flat_map(|network| {
        let links = [Some(network.bridge.clone()), network.gateway_link()];
        links.into_iter().flatten()
    });
    let loopbacks = observed
        .links
        .iter()
        .filter(|(_, link)| link.kind == steps::LinkKind::Loopback)
        .map(|(name, _)| name.clone());
    // The kernel's route to a subnet that two bridges have leads to one of them only.
    let is_exclusive = |subnet: &Cidr| {
        let mut overlaps = containers.overlaps.iter();
        !overlaps.any(|overlap| !overlap.is_host() && overlap.prefix.overlaps(subnet))
    };
    let subnets = networks
        .iter()
        .filter(|network| network.options.gateway)
        .flat_map(|network| network.subnets());
    let closed = networks
        .iter()
        .filter(|network| network.options.port.access != NetworkAccess::Direct);
    let is_routed = |network: &Network, subnet: &Cidr| {
        let port = &network.options.port;
        port.access == NetworkAccess::Published && port.routed.contains(subnet.is_ipv4())
    };
    let routed = closed.clone().flat_map(|network| {
        let subnets = network.subnets().into_iter();
        subnets.filter(|subnet| is_routed(network, subnet))
    });
    NetfilterTable {
        links: bridges
            .chain(loopbacks)
            .chain(uplinks.iter().cloned())
            .collect(),
        pods: subnets.filter(is_exclusive).collect(),
        routed: routed.collect(),
        closed: closed.flat_map(|network| network.subnets()).collect(),
        // Connections are tracked anyway, so raw sockets are served as well.
        output: true,
        ..NetfilterTable::default()
    }
}

/// Returns the table for all attachments; `None` where none is needed.
pub(crate) fn wanted(base: &NetfilterTable, records: &Records) -> Option<NetfilterTable> {
    let attachments = records.values().map(|record| &record.attachment);
    let mut table = attachments.fold(base.clone(), with);
    table.output &= table.hostports;
    is_needed(&table).then_some(table)
}

/// Plans the table before `attachment`'s first hostport is published. `base` is
/// [`crate::NodePlan::netfilter`], `now` the state after the last step.
pub fn plan_netfilter_for(
    attachment: &Attachment,
    base: &NetfilterTable,
    now: &NetfilterState,
) -> Option<Step> {
    let before = match now {
        NetfilterState::Present(table) => table,
        NetfilterState::Absent => base,
        NetfilterState::Damaged | NetfilterState::Unsupported => return None,
    };
    let mut table = with(before.clone(), attachment);
    table.output = table.hostports && (table.output || base.output);
    (table.hostports && is_needed(&table) && table != *before).then(|| {
        Step::Netfilter(Box::new(NetfilterStep::Put {
            table,
            previous: now.clone(),
        }))
    })
}

/// Plans to write the table where it differs from the wanted one.
pub(crate) fn put(wanted: Option<&NetfilterTable>, observed: &Observed) -> Option<Step> {
    let (table, now) = (wanted?, &observed.netfilter);
    let differs = match now {
        NetfilterState::Present(present) => present != table,
        NetfilterState::Absent | NetfilterState::Damaged => true,
        NetfilterState::Unsupported => false,
    };
    differs.then(|| {
        Step::Netfilter(Box::new(NetfilterStep::Put {
            table: table.clone(),
            previous: now.clone(),
        }))
    })
}

/// Plans to remove the table where it is not wanted.
pub(crate) fn remove(wanted: Option<&NetfilterTable>, observed: &Observed) -> Option<Step> {
    let is_there = matches!(
        observed.netfilter,
        NetfilterState::Present(_) | NetfilterState::Damaged
    );
    (wanted.is_none() && is_there).then(|| {
        Step::Netfilter(Box::new(NetfilterStep::Remove {
            previous: observed.netfilter.clone(),
        }))
    })
}

#[cfg(test)]
mod tests;
