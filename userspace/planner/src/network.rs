//! Network table entries, one per bridge, and the promiscuous mode of bridges (behaviours K19 to
//! K22).
//!
//! An entry with `duplicates` records that this agent has made the bridge promiscuous. Only then is
//! promiscuous mode turned off when no network wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{HairpinMode, IfName, InterfaceAddress, Network, NetworkAccess};
use steps::{Entries, Entry, EntryKey, LinkRef, NodeLink, Observed, Step};

use crate::Plan;
use crate::bridge::{gateways, is_of};

/// Returns the entries of all bridges. Where several networks share a bridge, the entry has the
/// first gateway of each family: any of them will do.
pub(crate) fn network_entries(
    networks: &[&Network],
    bridges: &BTreeMap<IfName, NodeLink>,
) -> Entries {
    let promiscuous = promiscuous(networks);
    let mut entries = Entries::new();
    for (name, bridge) in bridges {
        let users = || networks.iter().filter(|network| network.bridge == *name);
        let owner = users().find(|network| is_of(bridge, network));
        let Some(mac) = owner.map(|owner| owner.bridge_mac()).or(bridge.mac) else {
            continue;
        };
        let gateways: Vec<InterfaceAddress> =
            users().flat_map(|network| gateways(network)).collect();
        // The programs must recognise frames to the bridge of an internal network in any case.
        let is_internal =
            |network: &&Network| network.options.port.access == NetworkAccess::Internal;
        if gateways.is_empty() && !users().any(is_internal) {
            continue;
        }
        let [v4, v6] = [true, false].map(|ipv4| first(&gateways, ipv4));
        let length = |gateway: Option<InterfaceAddress>| gateway.map_or(0, |own| own.prefix_len);
        let entry = Entry::Network {
            v4: v4.map(|own| own.address),
            v6: v6.map(|own| own.address),
            mac,
            duplicates: promiscuous.contains(name).then(|| [v4, v6].map(length)),
        };
        entries.insert(EntryKey::Network(LinkRef::Name(name.clone())), entry);
    }
    entries
}

fn first(gateways: &[InterfaceAddress], ipv4: bool) -> Option<InterfaceAddress> {
    let mut gateways = gateways.iter().copied();
    gateways.find(|own| own.address.is_ipv4() == ipv4)
}

/// Returns whether any bridge is to be promiscuous, so that duplicates of frames can occur.
pub(crate) fn has_duplicates(networks: &[&Network]) -> bool {
    !promiscuous(networks).is_empty()
}

fn promiscuous(networks: &[&Network]) -> BTreeSet<IfName> {
    networks
        .iter()
        .filter(|network| network.hairpin == HairpinMode::PromiscuousBridge)
        .map(|network| network.bridge.clone())
        .collect()
}

/// Plans promiscuous mode: on for bridges that need it, off where this agent turned it on and no
/// network wants it.
pub(crate) fn set_promiscuous(
    networks: &[&Network],
    bridges: &BTreeMap<IfName, NodeLink>,
    observed: &Observed,
) -> Plan {
    let wanted = promiscuous(networks);
    let on = bridges
        .iter()
        .filter(|(name, bridge)| wanted.contains(*name) && !bridge.promiscuous);
    let off = observed.links.iter().filter(|(name, link)| {
        link.promiscuous && !wanted.contains(*name) && is_made_promiscuous(name, observed)
    });
    let step = |on| {
        move |(link, _): (&IfName, &NodeLink)| Step::SetPromiscuous {
            link: link.clone(),
            on,
        }
    };
    Plan::of(on.map(step(true)).chain(off.map(step(false))))
}

fn is_made_promiscuous(bridge: &IfName, observed: &Observed) -> bool {
    matches!(
        entry(bridge, observed),
        Some(Entry::Network {
            duplicates: Some(_),
            ..
        })
    )
}

/// Returns whether this agent gave the bridge this gateway, by the entry of the last plan.
pub(crate) fn was_gateway(bridge: &IfName, address: IpAddr, observed: &Observed) -> bool {
    let Some(Entry::Network { v4, v6, .. }) = entry(bridge, observed) else {
        return false;
    };
    [v4, v6].contains(&&Some(address))
}

fn entry<'a>(bridge: &IfName, observed: &'a Observed) -> Option<&'a Entry> {
    let key = EntryKey::Network(LinkRef::Name(bridge.clone()));
    observed.entries.get(&key)
}
