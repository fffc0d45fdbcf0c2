//! Plans an ADD: decides on the attachment and the steps that create it.
//!
//! The order of the steps is a promise:
//!
//! 1. host ports are reserved, because another process may have bound one, and then nothing has to
//!    be undone;
//! 2. the link is created, because entries refer to its index;
//! 3. tables and programs are complete before the pod can send its first packet;
//! 4. hostport entries are written when the pod is reachable;
//! 5. last, the pod announces its addresses to neighbours that have another MAC address for them.
//!
//! The record is the engine's, and the bridge exists already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use model::{
    Assigned, Attachment, Cidr, ContainerId, HairpinMode, Intent, Mac, ManagedLink, Netns,
    NetworkAccess, PortMapping, Route, RouteOptions, StandbyPort,
};
use steps::{Entries, EntryKey, LinkKind, ObservedNetns, PodSpec, Step, VethSpec};

use crate::announcement::{LastMacs, announce};
use crate::hooks::POD_HOOKS;
use crate::policies::{PolicyIndex, plan_policies_of};
use crate::port_reservation::{attachment_reservations, reserve};
use crate::tables::{attachment_entries, hostport_key, hostport_keys, mapping_keys};
use crate::{Plan, PortOwner, Records, Refusal};
use ipam::{Leases, choose};

/// Inputs of an ADD besides the intent and the observation.
#[derive(Clone, Debug)]
pub struct AttachContext<'a> {
    /// Addresses that are taken.
    pub leases: &'a Leases,
    /// Records of this node's attachments.
    pub records: &'a Records,
    /// A free row of the pod table; never 0.
    pub slot: u32,
    /// A generation that no attachment has ever had.
    pub generation: u32,
    /// MTU for both ends ([`crate::network_mtu`]).
    pub mtu: u32,
    /// The MAC address that each address had last.
    pub last_macs: &'a LastMacs,
    /// Network policies.
    pub policies: &'a PolicyIndex,
}

/// Decides on an attachment and plans it. `observed` has the host's end and the bridge.
pub fn plan_attach(
    intent: &Intent,
    observed: &ObservedNetns,
    context: &AttachContext<'_>,
) -> Result<(Attachment, Plan), Refusal> {
    if context.records.contains_key(&intent.key) {
        return Err(Refusal::AlreadyAttached {
            key: intent.key.clone(),
        });
    }
    let netns = free_netns(intent, observed)?;
    check_bridge(intent, observed)?;
    let attachment = decide(intent, netns, context)?;
    let reservations = attachment_reservations(&attachment);
    let mut plan = Plan::of(reserve(&attachment, reservations));
    let host = ManagedLink::of(&attachment.key);
    if let Some(link) = observed.links.get(host.name()) {
        if !link.is_host_end_of(&attachment) {
            return Err(Refusal::ForeignLink {
                link: host.name().clone(),
            });
        }
        // Name and alias both derive from this key, and the pod has no such interface: an earlier
        // ADD left the veth with its peer in a namespace that is no longer the pod's.
        plan.push(Step::DeleteVeth {
            link: host,
            alias: attachment.alias(),
        });
    }
    let detects_duplicates = intent.network.options.detects_duplicates;
    plan.append(plan_policies_of(
        &attachment,
        context.policies,
        context.records,
    ));
    plan.append(create(&attachment, detects_duplicates));
    let bridge = observed.links.get(&attachment.bridge);
    plan.append(Plan::of(announce(&attachment, bridge, context.last_macs)));
    Ok((attachment, plan))
}

fn free_netns(intent: &Intent, observed: &ObservedNetns) -> Result<Netns, Refusal> {
    let Some(inside) = &observed.inside else {
        return Err(Refusal::NoNetns {
            path: intent.netns.clone(),
        });
    };
    if inside.pod.is_some() {
        return Err(Refusal::InterfaceExists {
            ifname: intent.key.ifname.clone(),
            path: intent.netns.clone(),
        });
    }
    Ok(inside.netns.clone())
}

fn check_bridge(intent: &Intent, observed: &ObservedNetns) -> Result<(), Refusal> {
    let bridge = intent.network.bridge.clone();
    match observed.links.get(&bridge) {
        None => Err(Refusal::NoBridge { bridge }),
        Some(link) if link.kind != LinkKind::Bridge => Err(Refusal::NotABridge { bridge }),
        Some(_) => Ok(()),
    }
}

/// Decides on the attachment. It has no addresses where the network has no ranges, or where they
/// come later.
pub(crate) fn decide(
    intent: &Intent,
    netns: Netns,
    context: &AttachContext<'_>,
) -> Result<Attachment, Refusal> {
    let network = &intent.network;
    let requested = &intent.requested;
    let mut addresses = if requested.awaits_addresses || network.ranges.is_empty() {
        Vec::new()
    } else {
        choose(network, context.leases, &requested.addresses, &intent.key)?
    };
    // The sort is stable: IPv4 first (behaviour K24), each family in the order of its range sets.
    addresses.sort_by_key(|assigned| !assigned.address.address.is_ipv4());
    let mut wanted = wanted_routes(intent, &netns, &addresses, context.records);
    let is_internal = network.options.port.access == NetworkAccess::Internal;
    wanted.retain(|route| {
        let is_default = route.destination.prefix_len() == 0;
        !(is_internal && is_default || is_other_networks_default(intent, route))
    });
    let mut port = network.options.port.clone();
    // Without an address of ours, the source address check does not have the pod's addresses.
    port.trusted |= addresses.is_empty();
    let container = &intent.key.container_id;
    let (port_mappings, standby) = ports(
        container,
        &intent.port_mappings,
        &addresses,
        context.records,
    )?;
    Ok(Attachment {
        key: intent.key.clone(),
        netns,
        pod: intent.pod.clone(),
        bridge: network.bridge.clone(),
        mac: usable(requested.mac.unwrap_or_else(|| intent.key.pod_mac()))?,
        mtu: context.mtu,
        routes: routes(&wanted, &addresses),
        addresses,
        port_mappings,
        standby,
        bandwidth: network.options.limits.apply(&intent.bandwidth),
        masquerade: network.masquerade,
        hairpin: network.hairpin == HairpinMode::HairpinVeth,
        port,
        adopted: None,
        slot: context.slot,
        generation: context.generation,
    })
}

fn usable(mac: Mac) -> Result<Mac, Refusal> {
    let multicast = mac.0[0] & 1 == 1;
    if multicast || mac == Mac([0; 6]) {
        Err(Refusal::UnusableMac { mac })
    } else {
        Ok(mac)
    }
}

/// Returns the routes, each with its gateway. Routes of a family without an address of the pod are
/// left out, because no next hop is reachable. Of two routes that are the same to the kernel the
/// first wins, as with the bridge plugin.
fn routes(wanted: &[Route], addresses: &[Assigned]) -> Vec<Route> {
    let families: BTreeSet<bool> = addresses
        .iter()
        .map(|own| own.address.address.is_ipv4())
        .collect();
    let mut seen = BTreeSet::new();
    wanted
        .iter()
        .filter(|route| families.contains(&route.destination.is_ipv4()))
        .map(|route| resolved(route, addresses))
        .filter(|route| {
            let options = route.options;
            seen.insert((route.destination, options.table, options.priority))
        })
        .collect()
}

/// Returns the route with the gateway of its family, unless its scope is link or narrower.
fn resolved(route: &Route, addresses: &[Assigned]) -> Route {
    let ipv4 = route.destination.is_ipv4();
    let is_direct =
        ipv4 && (route.options.scope).is_some_and(|scope| scope >= RouteOptions::SCOPE_LINK);
    let mut gateways = addresses.iter().filter_map(|assigned| assigned.gateway);
    let of_family = gateways.find(|gateway| gateway.is_ipv4() == ipv4 && !is_direct);
    let gateway = route.gateway.or(of_family);
    Route {
        destination: route.destination,
        gateway,
        options: route.options.normal(ipv4, gateway.is_some()),
    }
}

/// Returns the configured routes of the network, then its default routes (behaviour K13). In a
/// namespace with another attachment the default routes are left out: they are that attachment's,
/// and a pod has one of each family.
fn wanted_routes(
    intent: &Intent,
    netns: &Netns,
    addresses: &[Assigned],
    records: &Records,
) -> Vec<Route> {
    let network = &intent.network;
    let mut others = records
        .iter()
        .filter(|(key, _)| **key != intent.key)
        .map(|(_, record)| &record.attachment.netns);
    let same = |other: &Netns| (other.device, other.inode) == (netns.device, netns.inode);
    if !network.default_route || others.any(same) {
        return network.routes.clone();
    }
    let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    let destinations = any.into_iter().filter_map(|any| Cidr::containing(any, 0));
    let default = |destination: Cidr| {
        let mut gateways = addresses.iter().filter_map(|assigned| assigned.gateway);
        let gateway = gateways.find(|own| own.is_ipv4() == destination.is_ipv4())?;
        let mut named = network
            .routes
            .iter()
            .filter(|route| route.destination == destination);
        // A configured route with a gateway is the default route, whatever its options are.
        (!named.any(|route| route.gateway.is_some())).then_some(Route {
            destination,
            gateway: Some(gateway),
            options: RouteOptions::default(),
        })
    };
    network
        .routes
        .iter()
        .copied()
        .chain(destinations.filter_map(default))
        .collect()
}

/// Returns whether this is a default route of a family for which another network of the pod is the
/// default.
fn is_other_networks_default(intent: &Intent, route: &Route) -> bool {
    let destination = route.destination;
    let mut elsewhere = intent.requested.default_gateways.iter();
    destination.prefix_len() == 0
        && route.options.table.is_none()
        && elsewhere.any(|gateway| gateway.is_ipv4() == destination.is_ipv4())
}

/// Returns the mappings without duplicates, and the ports that another interface of the container
/// serves; or a refusal where another container has published one of the ports. A wildcard and a
/// specific address of one port are two ports: the datapath looks up the specific one first.
pub(crate) fn ports(
    container: &ContainerId,
    wanted: &[PortMapping],
    addresses: &[Assigned],
    records: &Records,
) -> Result<(Vec<PortMapping>, BTreeSet<StandbyPort>), Refusal> {
    let families: BTreeSet<bool> = addresses
        .iter()
        .map(|a| a.address.address.is_ipv4())
        .collect();
    let numbers = wanted.iter().map(|mapping| mapping.host_port).collect();
    let owners = owners(records, &numbers);
    let mut accepted: Vec<PortMapping> = Vec::new();
    let mut seen: BTreeSet<&PortMapping> = BTreeSet::new();
    let mut mine: BTreeMap<EntryKey, PortMapping> = BTreeMap::new();
    let mut standby = BTreeSet::new();
    for mapping in wanted.iter().filter(|mapping| seen.insert(mapping)) {
        for (ipv4, key) in families
            .iter()
            .filter_map(|ipv4| Some((*ipv4, hostport_key(mapping, *ipv4)?)))
        {
            if let Some((owner, target)) = owners.get(&key) {
                if owner.key.container_id == *container && *target == mapping.container_port {
                    standby.insert(StandbyPort {
                        mapping: *mapping,
                        ipv4,
                    });
                    continue;
                }
                return Err(Refusal::PortTaken {
                    mapping: *mapping,
                    owner: Box::new(PortOwner {
                        key: owner.key.clone(),
                        pod: owner.pod.clone(),
                    }),
                });
            }
            let earlier = mine.insert(key, *mapping);
            let conflicting =
                earlier.filter(|earlier| earlier.container_port != mapping.container_port);
            if let Some(other) = conflicting {
                return Err(Refusal::PortConflict {
                    mapping: *mapping,
                    other,
                });
            }
        }
        accepted.push(*mapping);
    }
    check_room(mine.len(), records)?;
    Ok((accepted, standby))
}

/// Checks that the hostport table has room for `wanted` more entries. Existing ones are counted
/// only where an upper bound exceeds the capacity, so that an ADD does not take longer because of
/// other pods' ports.
fn check_room(wanted: usize, records: &Records) -> Result<(), Refusal> {
    let capacity = abi::maps::HOSTPORTS.capacity;
    let fits = |used: usize| u32::try_from(wanted + used).is_ok_and(|all| all <= capacity);
    let attachments = || records.values().map(|record| &record.attachment);
    let at_most: usize = attachments()
        .map(|owner| 2 * owner.port_mappings.len())
        .sum();
    if wanted == 0 || fits(at_most) {
        return Ok(());
    }
    let used = attachments()
        .map(|owner| hostport_keys(owner).count())
        .sum();
    if fits(used) {
        return Ok(());
    }
    Err(Refusal::NoRoomForPorts {
        wanted,
        used,
        capacity,
    })
}

/// Returns the owners of hostports with these numbers, and the pod's ports. Mappings with other
/// numbers are skipped cheaply: there may be many.
fn owners<'a>(
    records: &'a Records,
    numbers: &BTreeSet<NonZeroU16>,
) -> BTreeMap<EntryKey, (&'a Attachment, NonZeroU16)> {
    let mut owners = BTreeMap::new();
    if numbers.is_empty() {
        return owners;
    }
    for owner in records.values().map(|record| &record.attachment) {
        let mappings = owner.port_mappings.iter();
        for mapping in mappings.filter(|mapping| numbers.contains(&mapping.host_port)) {
            let target = (owner, mapping.container_port);
            owners.extend(mapping_keys(owner, mapping).map(|key| (key, target)));
        }
    }
    owners
}

/// Returns the steps that write the entries of an attachment: hostport entries first, then all
/// others.
pub(crate) fn put_entries(attachment: &Attachment, present: &Entries) -> (Vec<Step>, Vec<Step>) {
    attachment_entries(attachment)
        .into_iter()
        .filter(|(key, entry)| present.get(key) != Some(entry))
        .map(|(key, entry)| Step::PutEntry {
            previous: present.get(&key).cloned(),
            key,
            entry,
        })
        .partition(Step::publishes)
}

fn create(attachment: &Attachment, detects_duplicates: bool) -> Plan {
    // No entries are read: slot and addresses are free, so an entry that is there is a leftover.
    let (ports, others) = put_entries(attachment, &Entries::new());
    let host = ManagedLink::of(&attachment.key);
    // The link first: entries refer to its index.
    let mut plan = Plan::of([create_veth(attachment)]);
    // Tables, then programs, before the pod's interface is up and can send.
    plan.append(Plan::of(others));
    plan.push(Step::Attach {
        link: host.name().clone(),
        hooks: BTreeSet::from(POD_HOOKS),
    });
    let is_moved = attachment.is_moved_by_runtime();
    if !attachment.port.left_down && !is_moved {
        plan.push(Step::SetUpPod(pod_spec(attachment, detects_duplicates)));
    }
    plan.push(Step::JoinBridge {
        link: host,
        bridge: attachment.bridge.clone(),
        hairpin: attachment.hairpin,
        options: attachment.port.clone(),
    });
    if detects_duplicates && !is_moved && !attachment.addresses.is_empty() {
        // Only as a bridge port can neighbours answer the probes.
        plan.push(await_addresses(attachment));
    }
    // The pod is reachable now.
    plan.append(Plan::of(ports));
    plan
}

pub(crate) fn await_addresses(attachment: &Attachment) -> Step {
    Step::AwaitAddresses {
        netns: attachment.netns.clone(),
        ifname: attachment.key.ifname.clone(),
    }
}

fn create_veth(attachment: &Attachment) -> Step {
    Step::CreateVeth(VethSpec {
        host: ManagedLink::of(&attachment.key),
        alias: attachment.alias(),
        host_mac: attachment.key.host_mac(),
        pod: attachment.key.ifname.clone(),
        pod_mac: attachment.mac,
        mtu: attachment.mtu,
        netns: attachment.netns.clone(),
    })
}

pub(crate) fn pod_spec(attachment: &Attachment, detects_duplicates: bool) -> PodSpec {
    PodSpec {
        netns: attachment.netns.clone(),
        ifname: attachment.key.ifname.clone(),
        addresses: attachment
            .addresses
            .iter()
            .map(|assigned| assigned.address)
            .collect(),
        detects_duplicates,
        routes: attachment.routes.clone(),
        large_packets: attachment.bandwidth.egress.is_some(),
    }
}

#[cfg(test)]
mod tests;
