//! From a wish to an attachment and the steps that make it.
//!
//! The order of the steps is a promise: ports of the node are held first, because anybody may have taken them, and
//! nothing has to be undone then; then the link is made, because entries speak of it; the tables and programs are in place before the pod can send its first packet; its ports are published last, when it can be
//! reached. Knows nothing of durability (the record is the engine's) and nothing of the bridge's making.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use model::{
    Assigned, Attachment, AttachmentKey, Cidr, HairpinMode, Intent, Mac, ManagedLink, Netns,
    PortMapping, Record, Route, RouteOptions,
};

use crate::address::{Leases, choose};
use crate::check::POD_HOOKS;
use crate::claim::{attachment_claims, hold};
use crate::tables::{attachment_entries, hostport_key, hostport_keys, mapping_keys};
use crate::{EntryKey, LinkKind, Observed, Plan, PodSpec, PortOwner, Refusal, Step, VethSpec};

/// What is remembered, by attachment.
pub type Records = BTreeMap<AttachmentKey, Record>;

/// What an ADD needs to know besides the wish and the kernel.
#[derive(Clone, Debug)]
pub struct AttachContext<'a> {
    /// Addresses that have been given.
    pub leases: &'a Leases,
    /// Attachments of this node.
    pub records: &'a Records,
    /// A free row of the pod table; never 0.
    pub slot: u32,
    /// A generation that no attachment ever had.
    pub generation: u32,
    /// MTU for both ends ([`crate::network_mtu`]).
    pub mtu: u32,
}

/// Decides on an attachment and plans it. `observed` is of [`crate::Scope::Netns`] or wider, and has the bridge.
pub fn plan_attach(
    intent: &Intent,
    observed: &Observed,
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
    let claims = attachment_claims(&attachment);
    let mut plan = Plan::of(hold(&attachment, claims));
    let host = ManagedLink::of(&attachment.key);
    if let Some(link) = observed.links.get(host.name()) {
        if !link.is_host_end_of(&attachment) {
            return Err(Refusal::ForeignLink {
                link: host.name().clone(),
            });
        }
        // Name and alias both derive from this very key, and the pod has no such interface: it is what an earlier
        // ADD left in a namespace that is no more the pod's.
        plan.push(Step::DeleteVeth {
            link: host,
            alias: attachment.alias(),
        });
    }
    let detects_duplicates = intent.network.options.detects_duplicates;
    plan.append(make(&attachment, detects_duplicates, observed));
    Ok((attachment, plan))
}

fn free_netns(intent: &Intent, observed: &Observed) -> Result<Netns, Refusal> {
    let Some(netns) = observed.netns.get(&intent.netns) else {
        return Err(Refusal::NoNetns {
            path: intent.netns.clone(),
        });
    };
    if observed.pod.is_some() {
        return Err(Refusal::InterfaceExists {
            ifname: intent.key.ifname.clone(),
            path: intent.netns.clone(),
        });
    }
    Ok(netns.clone())
}

fn check_bridge(intent: &Intent, observed: &Observed) -> Result<(), Refusal> {
    let bridge = intent.network.bridge.clone();
    match observed.links.get(&bridge) {
        None => Err(Refusal::NoBridge { bridge }),
        Some(link) if link.kind != LinkKind::Bridge => Err(Refusal::NotABridge { bridge }),
        Some(_) => Ok(()),
    }
}

/// What an attachment is to be. A network without ranges, or one whose addresses come later, gives none.
pub(crate) fn decide(
    intent: &Intent,
    netns: Netns,
    context: &AttachContext<'_>,
) -> Result<Attachment, Refusal> {
    let network = &intent.network;
    let wishes = &intent.requested;
    let mut addresses = if wishes.awaits_addresses || network.ranges.is_empty() {
        Vec::new()
    } else {
        choose(network, context.leases, &wishes.addresses, &intent.key)?
    };
    // The sort is stable: IPv4 first (behaviour K24), each family in the order of its range sets.
    addresses.sort_by_key(|assigned| !assigned.address.address.is_ipv4());
    let mut wanted = wanted_routes(intent, &netns, &addresses, context.records);
    wanted.retain(|route| !is_led_elsewhere(intent, route));
    let mut port = network.options.port.clone();
    // What is the pod's own is not known where it has no address of ours.
    port.trusted |= addresses.is_empty();
    let port_mappings = ports(&intent.port_mappings, &addresses, context.records)?;
    Ok(Attachment {
        key: intent.key.clone(),
        netns,
        pod: intent.pod.clone(),
        bridge: network.bridge.clone(),
        mac: usable(wishes.mac.unwrap_or_else(|| intent.key.pod_mac()))?,
        mtu: context.mtu,
        routes: routes(&wanted, &addresses),
        addresses,
        port_mappings,
        bandwidth: network.options.limits.admit(&intent.bandwidth),
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

/// The network's routes, each with its gateway. A route of a family that the pod has no address of is left out, as
/// no next hop could be reached; of two that the kernel would take for one the first wins, as with the bridge plugin.
fn routes(wanted: &[Route], addresses: &[Assigned]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for route in wanted {
        let mut families = addresses.iter().map(|own| own.address.address.is_ipv4());
        if !families.any(|ipv4| ipv4 == route.destination.is_ipv4()) {
            continue;
        }
        let route = resolved(route, addresses);
        let identity = |route: &Route| {
            let options = route.options;
            (route.destination, options.table, options.priority)
        };
        if !routes
            .iter()
            .any(|other| identity(other) == identity(&route))
        {
            routes.push(route);
        }
    }
    routes
}

/// With the gateway of its family, unless it says that none is needed.
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

/// The routes that the network names, and after them its default routes (behaviour K13). But these not in a namespace
/// that has another attachment: they are that one's, and a pod has one of each family.
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
        // One that names its gateway is the default route, whatever else it says.
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

/// Whether it is a default route that the pod wants by another of its networks.
fn is_led_elsewhere(intent: &Intent, route: &Route) -> bool {
    let destination = route.destination;
    let mut elsewhere = intent.requested.default_gateways.iter();
    destination.prefix_len() == 0
        && route.options.table.is_none()
        && elsewhere.any(|gateway| gateway.is_ipv4() == destination.is_ipv4())
}

/// The mappings without repetitions, once it is certain that each port of the node is this pod's alone. A wildcard
/// and a particular address of one port are two ports (DATAPATH §4): the particular one wins where both match.
pub(crate) fn ports(
    wanted: &[PortMapping],
    addresses: &[Assigned],
    records: &Records,
) -> Result<Vec<PortMapping>, Refusal> {
    let families: BTreeSet<bool> = addresses
        .iter()
        .map(|a| a.address.address.is_ipv4())
        .collect();
    let numbers = wanted.iter().map(|mapping| mapping.host_port).collect();
    let owners = owners(records, &numbers);
    let mut accepted: Vec<PortMapping> = Vec::new();
    let mut seen: BTreeSet<&PortMapping> = BTreeSet::new();
    let mut mine: BTreeMap<EntryKey, PortMapping> = BTreeMap::new();
    for mapping in wanted.iter().filter(|mapping| seen.insert(mapping)) {
        for key in families
            .iter()
            .filter_map(|ipv4| hostport_key(mapping, *ipv4))
        {
            if let Some(owner) = owners.get(&key) {
                return Err(Refusal::PortTaken {
                    mapping: *mapping,
                    owner: Box::new(PortOwner {
                        key: owner.key.clone(),
                        pod: owner.pod.clone(),
                    }),
                });
            }
            let earlier = mine.insert(key, *mapping);
            let contradicted =
                earlier.filter(|earlier| earlier.container_port != mapping.container_port);
            if let Some(other) = contradicted {
                return Err(Refusal::PortContradiction {
                    mapping: *mapping,
                    other,
                });
            }
        }
        accepted.push(*mapping);
    }
    room(mine.len(), records)?;
    Ok(accepted)
}

/// Whether the table of ports takes so many more. They are counted only where they could be too many: an ADD is not to
/// take longer because of the ports of others.
fn room(wanted: usize, records: &Records) -> Result<(), Refusal> {
    let capacity = abi::maps::HOSTPORTS_CAPACITY;
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

/// Who has ports of these numbers. The others are passed over by their number alone: there may be many.
fn owners<'a>(
    records: &'a Records,
    numbers: &BTreeSet<NonZeroU16>,
) -> BTreeMap<EntryKey, &'a Attachment> {
    let mut owners = BTreeMap::new();
    if numbers.is_empty() {
        return owners;
    }
    for owner in records.values().map(|record| &record.attachment) {
        let mappings = owner.port_mappings.iter();
        for mapping in mappings.filter(|mapping| numbers.contains(&mapping.host_port)) {
            owners.extend(mapping_keys(owner, mapping).map(|key| (key, owner)));
        }
    }
    owners
}

/// The steps that write the entries of an attachment: those that publish ports, and the others.
pub(crate) fn put_entries(attachment: &Attachment, observed: &Observed) -> (Vec<Step>, Vec<Step>) {
    attachment_entries(attachment)
        .into_iter()
        .filter(|(key, entry)| observed.entries.get(key) != Some(entry))
        .map(|(key, entry)| Step::PutEntry {
            previous: observed.entries.get(&key).cloned(),
            key,
            entry,
        })
        .partition(Step::publishes)
}

fn make(attachment: &Attachment, detects_duplicates: bool, observed: &Observed) -> Plan {
    let (ports, others) = put_entries(attachment, observed);
    let host = ManagedLink::of(&attachment.key);
    let mut plan = Plan::of([create_veth(attachment)]);
    plan.append(Plan::of(others));
    plan.push(Step::Attach {
        link: host.name().clone(),
        hooks: BTreeSet::from(POD_HOOKS),
    });
    if !attachment.port.left_down {
        plan.push(Step::SetUpPod(pod_spec(attachment, detects_duplicates)));
    }
    plan.push(Step::JoinBridge {
        link: host,
        bridge: attachment.bridge.clone(),
        hairpin: attachment.hairpin,
        options: attachment.port.clone(),
    });
    if detects_duplicates && !attachment.addresses.is_empty() {
        // Only now is there a wire that a neighbour could answer by.
        plan.push(await_addresses(attachment));
    }
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
