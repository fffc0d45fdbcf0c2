//! The node itself: bridges, sysctls, uplinks, and the tables that are not a pod's.
//!
//! The same plan serves the first start, a changed configuration and every change of the node's links, addresses and
//! routes: what is as it should be is not a step, so a second plan is empty. What is new is added before what is
//! stale is removed. Knows nothing of attachments but the gateways and subnets that they need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, IfName, InterfaceAddress, Network, NetworkName};

use crate::bridge::{Site, bridge_steps, families, gateways, is_of};
use crate::network::{has_duplicates, network_entries, set_promiscuous, was_gateway};
use crate::prefix::prefixes;
use crate::socket_hook::plan_sockets;
use crate::sysctl::{Families, forward};
use crate::uplink::{self, Ours, UPLINK_HOOKS, is_link_local, uplinks};
use crate::{
    BypassMode, Entries, Entry, EntryKey, GuardMode, Hook, Link, LinkKind, LinkRef, Observed, Plan,
    Records, Refusal, ShaperMode, Step, Switching, VlanMember, VlanStep,
};

/// Ports that MASQUERADE may move a flow to: all that no system service has, as the kernel's MASQUERADE. Whatever else
/// uses one of them, the datapath sees it.
const PORTS: std::ops::RangeInclusive<u16> = 1_024..=65_535;
/// Flows that a pod may have at once at least, however small the table.
const LEAST_QUOTA: u32 = 1_024;

/// What an entry of the flow table costs, in bytes: the entry, its share of the clock hand's queue, and what the kernel
/// adds to both.
const ENTRY: u64 = 256;

/// How many entries the flow table has on a machine with this much memory: a 400th of it, within bounds.
pub fn flow_entries(memory: u64) -> u32 {
    let entries = (memory / 400 / ENTRY).clamp(32_768, 2_097_152);
    u32::try_from(entries).unwrap_or(abi::maps::FLOWS_CAPACITY)
}

/// How many flows a pod may have at once, by the size of the flow table: a quarter of it.
pub fn flow_quota(entries: u32) -> u32 {
    LEAST_QUOTA.max(entries / 2 / 4)
}

/// What the node is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIntent {
    /// Networks: the default one, and those that attachments are on.
    pub networks: Vec<Network>,
    /// Uplinks; empty to follow the routing table.
    pub uplinks: BTreeSet<IfName>,
    /// Prefixes to which pods keep their own address.
    pub non_masquerade: BTreeSet<Cidr>,
    /// By bridge: the addresses that pods leave with, at most one of each family, instead of the uplink's.
    pub egress: BTreeMap<IfName, BTreeSet<IpAddr>>,
    /// When packets go past bridge and stack.
    pub bypass: BypassMode,
    /// What is done for limits beyond enforcing them.
    pub shaper: ShaperMode,
    /// Whether guards stand in front of uplinks.
    pub guard: GuardMode,
}

/// What is to be done about the node, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlan {
    /// Steps.
    pub plan: Plan,
    /// Networks whose bridge is refused; the others are served all the same.
    pub refused: BTreeMap<NetworkName, Refusal>,
}

/// Plans the node. `observed` is of [`crate::Scope::Node`] with [`crate::node_sysctls`].
pub fn plan_node(intent: &NodeIntent, observed: &Observed, records: &Records) -> NodePlan {
    let ours = Ours::of_networks(&intent.networks, observed).with_records(records);
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
    plan.append(set_promiscuous(&accepted, &planned, observed));
    let all = accepted.iter().map(|network| families(network));
    let needed = all.fold(Families::default(), |all, one| Families {
        v4: all.v4 || one.v4,
        v6: all.v6 || one.v6,
    });
    plan.append(Plan::of(forward(needed, observed, &ours)));

    let uplinks = uplinks(&intent.uplinks, observed, &ours);
    let mut wanted = prefixes(&pod_subnets(&accepted, records), &intent.non_masquerade);
    wanted.extend(locals(observed, &plan));
    let lent = uplink::borrowed(observed, &ours);
    let of_uplinks = uplink_entries(&uplinks, observed, &lent);
    wanted.extend(sources_of(&of_uplinks));
    wanted.extend(egress(intent, &accepted));
    wanted.extend(network_entries(&accepted, &planned));
    plan.append(put_missing(&wanted, &observed.entries));
    // A flow whose address is not local is forgotten, so what uplinks are masqueraded with is local before.
    plan.append(put_missing(&of_uplinks, &observed.entries));
    // Uplinks are open before anybody asks whether they are.
    let flags = flags(intent, &accepted, &of_uplinks, observed);
    let bridge = intent
        .networks
        .first()
        .and_then(|it| planned.get(&it.bridge));
    let settings = Entry::Settings(settings(flags, observed.flow_entries, bridge));
    let settings = Entries::from([(EntryKey::Settings, settings)]);
    plan.append(put_missing(&settings, &observed.entries));
    wanted.extend(settings);
    wanted.extend(of_uplinks);
    plan.append(attach_missing(&uplinks, observed));
    plan.append(detach_others(&uplinks, observed));
    plan.append(plan_sockets(records, intent.shaper, observed));
    plan.append(remove_stale(&wanted, &observed.entries));
    NodePlan { plan, refused }
}

/// The bridges of all networks, planned one after the other: several networks may be on one.
struct Bridges<'a> {
    networks: &'a [Network],
    observed: &'a Observed,
    /// Bridges as they will be by the steps planned so far.
    planned: BTreeMap<IfName, Link>,
    plan: Plan,
    accepted: Vec<&'a Network>,
    refused: BTreeMap<NetworkName, Refusal>,
}

impl<'a> Bridges<'a> {
    fn new(networks: &'a [Network], observed: &'a Observed) -> Self {
        Self {
            networks,
            observed,
            planned: BTreeMap::new(),
            plan: Plan::default(),
            accepted: Vec::new(),
            refused: BTreeMap::new(),
        }
    }

    fn plan(&mut self, network: &'a Network) {
        let link = |name: &IfName| self.planned.get(name).or(self.observed.links.get(name));
        let gateway_link = network.gateway_link();
        let site = Site {
            observed: self.observed,
            bridge: link(&network.bridge),
            vlan_link: gateway_link.as_ref().and_then(link),
            networks: self.networks,
        };
        match bridge_steps(network, &site) {
            Ok(steps) => {
                let names: BTreeSet<&IfName> = [Some(&network.bridge), gateway_link.as_ref()]
                    .into_iter()
                    .flatten()
                    .collect();
                let links: Vec<_> = names
                    .into_iter()
                    .filter_map(|name| {
                        Some((name.clone(), after(name, link(name).cloned(), &steps)?))
                    })
                    .collect();
                self.planned.extend(links);
                self.plan.append(steps);
                self.accepted.push(network);
            }
            Err(refusal) => {
                self.refused.insert(network.name.clone(), refusal);
            }
        }
    }

    /// Removes from our own bridges the gateways of CIDRs that are no more (behaviour K15), but not those that a
    /// live pod still goes by, and not what others have added.
    fn remove_stale_addresses(&mut self, records: &Records) {
        let attachments = || records.values().map(|record| &record.attachment);
        let mut steps = Vec::new();
        for (name, link) in &self.planned {
            let users = || {
                self.accepted
                    .iter()
                    .filter(|network| network.gateway_link().as_ref() == Some(name))
            };
            let leads_here = |bridge: &IfName| {
                bridge == name || users().any(|network| network.bridge == *bridge)
            };
            if !users().any(|network| is_of(link, network)) {
                continue;
            }
            let mut keep: BTreeSet<IpAddr> = attachments()
                .filter(|attachment| leads_here(&attachment.bridge))
                .flat_map(|attachment| attachment.addresses.iter().filter_map(|a| a.gateway))
                .collect();
            keep.extend(
                users()
                    .flat_map(|network| gateways(network))
                    .map(|g| g.address),
            );
            let stale = link
                .addresses
                .iter()
                .filter(|own| !keep.contains(&own.address) && self.was_ours(name, own));
            steps.extend(stale.map(|own| Step::RemoveAddress {
                link: name.clone(),
                address: *own,
            }));
        }
        self.plan.append(Plan::of(steps));
    }

    /// Whether an address came from us: the tables of the last plan still tell what was the pods' then.
    fn was_ours(&self, bridge: &IfName, own: &InterfaceAddress) -> bool {
        let Some(subnet) = own.subnet() else {
            return false;
        };
        let before = self.observed.entries.get(&EntryKey::Prefix(subnet));
        let of_pods = matches!(before, Some(Entry::Prefix { pods: true, .. }));
        let mut subnets = self.accepted.iter().flat_map(|network| network.subnets());
        let is_old = of_pods && !subnets.any(|now| now == subnet);
        is_old || was_gateway(bridge, own.address, self.observed)
    }
}

/// A link as it will be, as far as planning another network on it needs to know.
fn after(name: &IfName, link: Option<Link>, steps: &Plan) -> Option<Link> {
    let steps = || steps.steps().iter();
    let mut link = link.or_else(|| steps().find_map(|step| created(name, step)))?;
    for step in steps() {
        let added = step.added_address().filter(|(of, _)| *of == name);
        link.addresses.extend(added.map(|(_, own)| own));
        if let Some((_, removed)) = step.removed_address().filter(|(of, _)| *of == name) {
            link.addresses.retain(|own| *own != removed);
        }
        if let Step::Vlan(step) = step {
            switched(name, &mut link.switching, step);
        }
    }
    Some(link)
}

fn switched(name: &IfName, switching: &mut Switching, step: &VlanStep) {
    match step {
        VlanStep::Filter { bridge, on } if bridge == name => switching.filters_vlans = *on,
        VlanStep::Join { bridge, vlan, .. } if bridge == name => {
            switching.vlans.insert(*vlan, VlanMember::default());
        }
        VlanStep::Filter { .. }
        | VlanStep::Join { .. }
        | VlanStep::CreateLink(_)
        | VlanStep::DeleteLink { .. } => {}
    }
}

/// The link that a step makes, without an index yet.
fn created(name: &IfName, step: &Step) -> Option<Link> {
    let new = |kind, mac, mtu, alias: &str, switching| Link {
        index: 0,
        kind,
        mac,
        mtu,
        up: true,
        promiscuous: false,
        point_to_point: false,
        controller: None,
        hairpin: false,
        switching,
        alias: Some(alias.to_owned()),
        addresses: Vec::new(),
        avoided: BTreeSet::new(),
        hooks: BTreeSet::new(),
        outdated: BTreeSet::new(),
    };
    if let Step::CreateBridge(spec) = step
        && spec.name == *name
    {
        let switching = Switching {
            filters_vlans: spec.filters_vlans,
            ..Switching::default()
        };
        let mac = Some(spec.mac);
        return Some(new(LinkKind::Bridge, mac, spec.mtu, &spec.alias, switching));
    }
    if let Step::Vlan(VlanStep::CreateLink(spec)) = step
        && spec.name == *name
    {
        let switching = Switching {
            vlan_of: Some((0, spec.vlan)),
            ..Switching::default()
        };
        return Some(new(LinkKind::Ethernet, None, 0, &spec.alias, switching));
    }
    None
}

/// The subnets that are the pods' alone. Where the node is not the pods' gateway, their subnet is that of a wire that
/// others are on, too.
fn pod_subnets(networks: &[&Network], records: &Records) -> BTreeSet<Cidr> {
    let shared: BTreeSet<&NetworkName> = networks
        .iter()
        .filter(|network| !network.options.gateway)
        .map(|network| &network.name)
        .collect();
    let configured = networks
        .iter()
        .filter(|network| network.options.gateway)
        .flat_map(|network| network.subnets());
    let assigned = records
        .values()
        .map(|record| &record.attachment)
        .filter(|one| !shared.contains(&one.key.network))
        .flat_map(|attachment| &attachment.addresses);
    let live = assigned.filter_map(|assigned| assigned.address.subnet());
    configured.chain(live).collect()
}

/// The node's own addresses once `plan` is executed. Left out are IPv6's link-local ones, which no packet that we
/// translate is sent to and which come and go with every veth, and those of ports, which have no address otherwise.
fn locals(observed: &Observed, plan: &Plan) -> Entries {
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
    borrowed: &[InterfaceAddress],
) -> Entries {
    let entry = |name: &IfName| {
        let link = observed.links.get(name)?;
        Some((
            EntryKey::Uplink(LinkRef::Name(name.clone())),
            uplink::entry(link, &observed.routes, borrowed),
        ))
    };
    uplinks.iter().filter_map(entry).collect()
}

/// What uplinks are masqueraded with is the node's own, whatever link it is on.
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

/// Networks that share a bridge share its egress addresses.
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

/// The bits of the settings. Pods' packets are kept from other links than uplinks from when all uplinks are open, and
/// then for good: a new uplink is closed at first.
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
        if settings.flags & abi::SettingsFlags::GUARDED != 0);
    if intent.bypass.is_active(observed) {
        flags |= abi::SettingsFlags::BYPASS;
    }
    if !observed.routes_by_port {
        flags |= abi::SettingsFlags::ROUTES_BY_ADDRESS;
    }
    // Where uplinks are named, pods leave by all other links as themselves.
    if intent.uplinks.is_empty() && (all_open || was_guarded) {
        flags |= abi::SettingsFlags::GUARDED;
    }
    flags
}

/// `entries` is the size of the flow table.
fn settings(flags: u32, entries: u32, bridge: Option<&Link>) -> abi::Settings {
    abi::Settings {
        timeouts: abi::Timeouts::default(),
        port_low: *PORTS.start(),
        port_high: *PORTS.end(),
        flags,
        flow_quota: flow_quota(entries),
        bridge_mac: bridge
            .and_then(|it| it.mac)
            .map_or(abi::Mac::default(), |mac| abi::Mac::new(mac.0)),
        ..abi::Settings::default()
    }
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

/// Removes what is in the node's tables and not wanted; the pods' tables are not looked at. Flows that an address or an
/// uplink took with it are forgotten at once: what is left of them would leave with an address that is nobody's.
fn remove_stale(wanted: &Entries, present: &Entries) -> Plan {
    let of_node = |key: &EntryKey| match key {
        EntryKey::Egress(_)
        | EntryKey::Network(_)
        | EntryKey::Uplink(_)
        | EntryKey::Local(_)
        | EntryKey::Prefix(_) => true,
        EntryKey::Pod(_)
        | EntryKey::Interface(_)
        | EntryKey::Endpoint(_)
        | EntryKey::Hostport { .. }
        | EntryKey::Limit(_)
        | EntryKey::Settings => false,
    };
    let stale = present
        .iter()
        .filter(|(key, _)| of_node(key) && !wanted.contains_key(key));
    let mut plan = Plan::of(stale.map(|(key, previous)| Step::RemoveEntry {
        key: key.clone(),
        previous: previous.clone(),
    }));
    let homeless = |key: &EntryKey| matches!(key, EntryKey::Uplink(_) | EntryKey::Local(_));
    if plan.keys().any(homeless) {
        plan.push(Step::Sweep);
    }
    plan
}

fn attach_missing(uplinks: &BTreeSet<IfName>, observed: &Observed) -> Plan {
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

fn detach_others(uplinks: &BTreeSet<IfName>, observed: &Observed) -> Plan {
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

#[cfg(test)]
mod tests;
