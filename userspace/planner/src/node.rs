//! Plan of the node: bridges, sysctls, uplinks, and the table entries that belong to no pod.
//!
//! The same plan serves the first start, a changed configuration and every change of the node's
//! links, addresses and routes. It has steps only for differences, so a second plan is empty. New
//! state is added before stale state is removed. Of attachments it uses only the gateways and
//! subnets that they need.

mod bridges;
mod subnets;
mod trusted_links;

use std::collections::{BTreeMap, BTreeSet};

use model::{Cidr, IfName, InterfaceAddress, Network, NetworkName, is_link_local};
use steps::{Entries, Entry, EntryKey, LinkRef, NetfilterTable, NodeLink, Observed, Step};

use crate::bridge::all_families;
use crate::network::{has_duplicates, network_entries, set_promiscuous};
use crate::own_links::OwnLinks;
use crate::peers;
use crate::policies::policy_entries;
use crate::prefix::prefixes;
use crate::socket_hook::plan_socket_hooks;
use crate::sysctl::forward;
use crate::uplink::{self, uplinks};
use crate::{
    ContainerLinks, NodeIntent, Plan, Records, Refusal, container_link, flow_quota, netfilter_table,
};

use self::bridges::Bridges;
use self::subnets::{open_subnets, pod_subnets};
use self::trusted_links::trusted_links;

/// Ports that MASQUERADE may translate to: all but the well-known ports, as with the kernel's
/// MASQUERADE. The datapath detects other users of these ports.
const PORTS: std::ops::RangeInclusive<u16> = 1_024..=65_535;

/// Plan of the node, and the networks that it cannot serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlan {
    /// Steps for the node and all accepted networks.
    pub plan: Plan,
    /// Networks whose bridge is refused, with the reason; the other networks are planned
    /// regardless.
    pub refused: BTreeMap<NetworkName, Refusal>,
    /// Links that lead to containers of other software.
    pub containers: ContainerLinks,
    /// The netfilter table that the node's links and sockets need, without hostports.
    pub netfilter: NetfilterTable,
}

/// Plans the node. `observed` has the sysctls of [`crate::node_sysctls`].
pub fn plan_node(intent: &NodeIntent, observed: &Observed, records: &Records) -> NodePlan {
    let ours = OwnLinks::of_networks(&intent.networks, observed).with_records(records);
    // Bridges first: table entries refer to them by interface index, which needs the link.
    let mut bridges = Bridges::new(&intent.networks, observed);
    for network in &intent.networks {
        bridges.plan(network);
    }
    bridges.remove_stale_addresses(records);
    let Bridges {
        mut plan,
        planned,
        accepted,
        refused,
        ..
    } = bridges;
    // Before the network entries, which record that this agent set promiscuous mode: if the entry
    // changed first, a crash in between would leave the mode on for good.
    plan.append(set_promiscuous(&accepted, &planned, observed));
    // Forwarding for the families of all accepted networks. Our bridges, planned above, ignore
    // router advertisements by then.
    let needed = all_families(&accepted);
    plan.append(Plan::of(forward(needed, observed, &ours)));
    // After all address steps: the local entries include the addresses that the plan adds.
    let uplinks = uplinks(&intent.uplinks, observed, &ours);
    let containers = ContainerLinks::find(&intent.uplinks, observed, &ours, &accepted);
    let pods = pod_subnets(&accepted, records);
    let shared = containers.shared_prefixes(&pods, observed, records);
    let open = open_subnets(&accepted, observed, records);
    let tunnels = peers::tunnel_tables(intent, observed);
    let unmasqueraded = no_masquerade(intent, observed);
    let mut wanted = prefixes(&pods, &open, &shared, &unmasqueraded, &tunnels.prefixes);
    wanted.extend(tunnels.entries());
    wanted.extend(local_entries(observed, &plan));
    let fallback = uplink::fallback_sources(observed, &ours);
    let of_uplinks = uplink_entries(&uplinks, observed, &fallback);
    wanted.extend(sources_of(&of_uplinks));
    let of_containers = container_link::entries(&containers, observed, records, &fallback);
    wanted.extend(of_containers);
    wanted.extend(of_networks(intent, &accepted, &planned));
    wanted.extend(trusted_links(&accepted, &uplinks));
    plan.append(put_missing(&wanted, &observed.entries));
    // After the local entries: flows whose source address is not local are removed.
    plan.append(put_missing(&of_uplinks, &observed.entries));
    plan.append(put_policies(intent, observed, records, &mut wanted));
    // After the uplink entries: uplinks are open before the settings make the datapath check them.
    let flags = flags(intent, &accepted, &of_uplinks, observed);
    let bridge = intent
        .networks
        .first()
        .and_then(|it| planned.get(&it.bridge));
    let settings = settings(flags, observed.flow_entries, bridge, tunnels.port);
    plan.append(put_missing(&settings, &observed.entries));
    wanted.extend(settings);
    wanted.extend(of_uplinks);
    // After the tables: attached programs read them at once.
    plan.append(uplink::attach_missing(&uplinks, observed));
    // While a link that is no uplink any longer still has its programs.
    let netfilter = netfilter_table::base(observed, &ours, &accepted, (&uplinks, &containers));
    let table = netfilter_table::wanted(&netfilter, records);
    plan.append(Plan::of(netfilter_table::put(table.as_ref(), observed)));
    // After the new uplinks have their programs.
    plan.append(uplink::detach_others(&uplinks, observed));
    // After the tables as well, which the cgroup programs read.
    plan.append(plan_socket_hooks(records, intent.shaper, observed));
    // Last: nothing refers to stale entries now, and the sweep removes the flows that used them.
    plan.append(remove_stale(&wanted, &observed.entries));
    plan.append(Plan::of(netfilter_table::remove(table.as_ref(), observed)));
    NodePlan {
        plan,
        refused,
        containers,
        netfilter,
    }
}

/// Plans the entries of network policies, and adds them to the wanted ones. What rule sets allow
/// comes before the pods that have them.
fn put_policies(
    intent: &NodeIntent,
    observed: &Observed,
    records: &Records,
    wanted: &mut Entries,
) -> Plan {
    let mut plan = Plan::default();
    let existing = records.values().map(|record| &record.attachment);
    for of_policies in policy_entries(&intent.policies, existing) {
        plan.append(put_missing(&of_policies, &observed.entries));
        wanted.extend(of_policies);
    }
    plan
}

/// Returns the configured prefixes that are not masqueraded, and those of peers and routes.
fn no_masquerade(intent: &NodeIntent, observed: &Observed) -> BTreeSet<Cidr> {
    let mut prefixes = peers::unmasqueraded(intent, observed).prefixes;
    prefixes.extend(&intent.non_masquerade);
    prefixes
}

/// Returns entries for the node's own addresses after `plan`. Left out are IPv6 link-local
/// addresses, which no translated packet is sent to and which come and go with every veth, and the
/// addresses of bridge and bond ports, which have only such addresses.
fn local_entries(observed: &Observed, plan: &Plan) -> Entries {
    let mut all: BTreeSet<(&IfName, InterfaceAddress)> = observed
        .links
        .iter()
        .filter(|(_, link)| link.controller.is_none())
        .flat_map(|(name, link)| link.addresses.iter().map(move |own| (name, *own)))
        .collect();
    for step in plan.steps() {
        all.extend(step.added_address());
        if let Some(removed) = step.removed_address() {
            all.remove(&removed);
        }
    }
    all.into_iter()
        .map(|(_, own)| own.address)
        .filter(|address| !is_link_local(*address))
        .map(|address| (EntryKey::Local(address), Entry::Local))
        .collect()
}

fn uplink_entries(
    uplinks: &BTreeSet<IfName>,
    observed: &Observed,
    fallback: &[InterfaceAddress],
) -> Entries {
    let entry = |name: &IfName| {
        let link = observed.links.get(name)?;
        Some((
            EntryKey::Uplink(LinkRef::Name(name.clone())),
            uplink::entry(
                link,
                observed.tunnels.contains_key(name),
                &observed.routes,
                fallback,
            ),
        ))
    };
    uplinks.iter().filter_map(entry).collect()
}

/// Returns local entries for all masquerade source addresses of uplinks, whichever link has them.
fn sources_of(uplinks: &Entries) -> Entries {
    let sources = uplinks.values().filter_map(|entry| {
        let Entry::Uplink { sources, .. } = entry else {
            return None;
        };
        Some(sources)
    });
    let local = |own: &InterfaceAddress| (EntryKey::Local(own.address), Entry::Local);
    sources.flatten().map(local).collect()
}

/// Returns the entries of networks: gateways of their bridges, and egress addresses.
fn of_networks(
    intent: &NodeIntent,
    networks: &[&Network],
    bridges: &BTreeMap<IfName, NodeLink>,
) -> Entries {
    let mut entries = network_entries(networks, bridges);
    entries.extend(egress(intent, networks));
    entries
}

/// Returns the egress entries, one per bridge: networks that share a bridge share its egress
/// addresses.
fn egress(intent: &NodeIntent, networks: &[&Network]) -> Entries {
    let of = |network: &&Network| {
        let addresses = intent.egress.get(&network.bridge)?;
        let of_family = |ipv4| addresses.iter().copied().find(|own| own.is_ipv4() == ipv4);
        let entry = Entry::Egress {
            v4: of_family(true),
            v6: of_family(false),
        };
        let key = EntryKey::Egress(LinkRef::Name(network.bridge.clone()));
        (!addresses.is_empty()).then_some((key, entry))
    };
    networks.iter().filter_map(of).collect()
}

/// Returns the [`abi::SettingsFlags`]. `EXIT_CHECK` confines pods' packets to uplinks once all
/// uplinks are open, and stays set from then on: a new uplink is closed at first.
fn flags(
    intent: &NodeIntent,
    networks: &[&Network],
    uplinks: &Entries,
    observed: &Observed,
) -> u32 {
    let mut flags = intent.shaper.choose(observed).flags();
    if has_duplicates(networks) {
        flags |= abi::SettingsFlags::DUPLICATES;
    }
    let all_open = uplinks
        .values()
        .all(|entry| matches!(entry, Entry::Uplink { open: true, .. }));
    let before = observed.entries.get(&EntryKey::Settings);
    let was_guarded = matches!(before, Some(Entry::Settings(settings))
        if settings.flags & abi::SettingsFlags::EXIT_CHECK != 0);
    if intent.bypass.is_active(observed) {
        flags |= abi::SettingsFlags::BYPASS;
    }
    if intent.bypass.offloads(observed) {
        flags |= abi::SettingsFlags::OFFLOAD;
    }
    if intent.bypass.offloads_unreplied(observed) {
        flags |= abi::SettingsFlags::OFFLOAD_UNREPLIED;
    }
    if !intent.policies.list().policies.is_empty() {
        flags |= abi::SettingsFlags::POLICIES;
    }
    if !observed.routes_by_port {
        flags |= abi::SettingsFlags::ROUTES_BY_ADDRESS;
    }
    // With configured uplinks, pods leave by all other links with their own addresses.
    if intent.uplinks.is_empty() && (all_open || was_guarded) {
        flags |= abi::SettingsFlags::EXIT_CHECK;
    }
    flags
}

/// Returns the settings entry; `entries` is the size of the flow table.
fn settings(flags: u32, entries: u32, bridge: Option<&NodeLink>, tunnel_port: u16) -> Entries {
    let settings = abi::Settings {
        timeouts: abi::Timeouts::default(),
        port_low: *PORTS.start(),
        port_high: *PORTS.end(),
        flags,
        flow_quota: flow_quota(entries),
        bridge_mac: bridge
            .and_then(|it| it.mac)
            .map_or(abi::Mac::default(), |mac| abi::Mac::new(mac.0)),
        tunnel_port: abi::Port::new(tunnel_port),
        ..abi::Settings::default()
    };
    Entries::from([(EntryKey::Settings, Entry::Settings(settings))])
}

fn put_missing(wanted: &Entries, present: &Entries) -> Plan {
    let missing = wanted
        .iter()
        .filter(|(key, entry)| present.get(key) != Some(*entry));
    Plan::of(missing.map(|(key, entry)| Step::PutEntry {
        key: key.clone(),
        entry: entry.clone(),
        previous: present.get(key).cloned(),
    }))
}

/// Removes entries of the node's tables that are not wanted; the pods' tables are not touched.
/// Where a local address or an uplink is removed, a sweep removes its flows at once: their packets
/// would leave with an address that the node no longer has.
fn remove_stale(wanted: &Entries, present: &Entries) -> Plan {
    let stale = present
        .iter()
        .filter(|(key, _)| key.is_of_node() && !wanted.contains_key(key));
    let mut plan = Plan::of(stale.map(|(key, previous)| Step::RemoveEntry {
        key: key.clone(),
        previous: previous.clone(),
    }));
    let ends_flows = |key: &EntryKey| matches!(key, EntryKey::Uplink(_) | EntryKey::Local(_));
    if plan.keys().any(ends_flows) {
        plan.push(Step::Sweep);
    }
    plan
}

#[cfg(test)]
mod tests;
