//! Plan of the bridges of all networks: links, addresses, VLANs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Network, NetworkName};
use steps::{Entry, EntryKey, Link, LinkKind, NodeLink, Observed, Step, Switching, VlanStep};

use crate::bridge::{BridgeContext, bridge_steps, gateways, is_of};
use crate::network::was_gateway;
use crate::{Plan, Records, Refusal};

/// Plans the bridges of all networks, one after the other: several networks may share a bridge.
pub(super) struct Bridges<'a> {
    networks: &'a [Network],
    observed: &'a Observed,
    /// Bridges and VLAN interfaces as they are after the steps planned so far.
    pub(super) planned: BTreeMap<IfName, NodeLink>,
    pub(super) plan: Plan,
    pub(super) accepted: Vec<&'a Network>,
    pub(super) refused: BTreeMap<NetworkName, Refusal>,
}

impl<'a> Bridges<'a> {
    pub(super) fn new(networks: &'a [Network], observed: &'a Observed) -> Self {
        Self {
            networks,
            observed,
            planned: BTreeMap::new(),
            plan: Plan::default(),
            accepted: Vec::new(),
            refused: BTreeMap::new(),
        }
    }

    pub(super) fn plan(&mut self, network: &'a Network) {
        let link = |name: &IfName| self.planned.get(name).or(self.observed.links.get(name));
        let gateway_link = network.gateway_link();
        let context = BridgeContext {
            observed: self.observed,
            bridge: link(&network.bridge),
            vlan_link: gateway_link.as_ref().and_then(link),
            networks: self.networks,
        };
        match bridge_steps(network, &context) {
            Ok(steps) => {
                let names: BTreeSet<&IfName> = [Some(&network.bridge), gateway_link.as_ref()]
                    .into_iter()
                    .flatten()
                    .collect();
                let links: Vec<_> = names
                    .into_iter()
                    .filter_map(|name| {
                        Some((name.clone(), link_after(name, link(name).cloned(), &steps)?))
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

    /// Removes gateways of former pod CIDRs from our own bridges (behaviour K15). Keeps the
    /// gateways of live pods and the addresses that other software has added.
    pub(super) fn remove_stale_addresses(&mut self, records: &Records) {
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

    /// Returns whether this agent added the address: the observed tables still contain the last
    /// plan's prefixes and gateways.
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

/// Returns a link as it is after `steps`, as far as planning another network on it needs.
fn link_after(name: &IfName, link: Option<NodeLink>, steps: &Plan) -> Option<NodeLink> {
    let steps = || steps.steps().iter();
    let mut link = link.or_else(|| steps().find_map(|step| created(name, step)))?;
    for step in steps() {
        let added = step.added_address().filter(|(of, _)| *of == name);
        link.addresses.extend(added.map(|(_, own)| own));
        if let Some((_, removed)) = step.removed_address().filter(|(of, _)| *of == name) {
            link.addresses.retain(|own| *own != removed);
        }
        if let Step::SetMac { link: of, mac } = step
            && of == name
        {
            (link.mac, link.mac_is_set) = (Some(*mac), true);
        }
        if let Step::Vlan(step) = step {
            apply_vlan_step(name, &mut link.switching, step);
        }
    }
    Some(link)
}

fn apply_vlan_step(name: &IfName, switching: &mut Switching, step: &VlanStep) {
    match step {
        VlanStep::Filter { bridge, on } if bridge == name => switching.filters_vlans = *on,
        VlanStep::Filter { .. } | VlanStep::CreateLink(_) | VlanStep::DeleteLink { .. } => {}
    }
}

/// Returns the link that a step creates, with index 0 because the kernel has not assigned one.
fn created(name: &IfName, step: &Step) -> Option<NodeLink> {
    let new = |kind, mac, mtu, alias: &str, switching| {
        NodeLink::from(Link {
            index: 0,
            kind,
            mac,
            mtu,
            up: true,
            promiscuous: false,
            point_to_point: false,
            controller: None,
            peer: None,
            hairpin: false,
            switching,
            alias: Some(alias.to_owned()),
        })
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
        return Some(new(LinkKind::Veth, None, 0, &spec.alias, switching));
    }
    None
}
