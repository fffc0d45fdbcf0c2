//! Tunnels to peers: the VXLAN devices, their static entries, and what the datapath knows of them.
//!
//! A device exists while a peer needs it. It is made down, gets our programs with the other uplinks
//! ([`crate::plan_node`]), and is set up and used afterwards. Its MAC address and those of the
//! peers come from their names, so that nothing has to be exchanged.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Cidr, IfName, InterfaceAddress, Mac, PeerName, is_link_local};
use steps::{
    Entries, Entry, EntryKey, NodeLink, Observed, ObservedTunnel, Step, TUNNEL_LINKS, TunnelChange,
    TunnelEntry, TunnelSpec, TunnelStep,
};

use crate::bridge::gateways;
use crate::hooks::UPLINK_HOOKS;
use crate::{NodeIntent, Plan, TunnelOptions};

/// Bytes that VXLAN adds to an inner packet: inner Ethernet, VXLAN, UDP and outer IP header.
const OVERHEAD: [u32; 2] = [14 + 8 + 8 + 20, 14 + 8 + 8 + 40];

/// Least MTU of IPv6 (RFC 8200): the kernel turns IPv6 off on a link with less. Over a smaller
/// link, outer packets are fragmented.
const MIN_MTU: u32 = 1_280;

/// A peer that is reached by a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TunnelledPeer {
    pub(super) mac: Mac,
    /// Address to which outer packets are sent.
    pub(super) outer: IpAddr,
    /// MTU in bytes on the way to it.
    pub(super) mtu: u32,
    /// Next hops of the routes through the tunnel, one for each family of the peer's prefixes.
    pub(super) gateways: Vec<IpAddr>,
}

/// The devices as they are, and as they are to be.
pub(super) struct Tunnels<'a> {
    observed: &'a Observed,
    options: &'a TunnelOptions,
    /// MAC address of this node.
    mac: Mac,
    /// Addresses of the devices: this node's gateways, so that packets of the node have a source
    /// that the peers route back through the tunnel.
    addresses: Vec<InterfaceAddress>,
}

/// Steps before the routes through the tunnels are changed, and after.
#[derive(Default)]
pub(super) struct TunnelPlan {
    pub(super) before: Vec<Step>,
    pub(super) after: Vec<Step>,
}

/// Returns the name of the device with this outer family.
pub(super) fn link_name(ipv6: bool) -> IfName {
    let name = TUNNEL_LINKS[usize::from(ipv6)];
    name.parse().expect("the constants are interface names")
}

/// Returns the MAC address of a node in the tunnels: locally administered, from its name without
/// regard to case. 46 bits are the name's, by FNV-1a and the finalizer of `SplitMix64`: of 5,000
/// nodes, two have the same with a probability of one in five million.
pub(super) fn mac_of(node: &PeerName) -> Mac {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in node.to_string().to_ascii_lowercase().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    let [_, _, first, rest @ ..] = hash.to_be_bytes();
    let [b, c, d, e, f] = rest;
    // Locally administered, and no group.
    Mac([(first & 0xfc) | 0x02, b, c, d, e, f])
}

impl<'a> Tunnels<'a> {
    /// `own` is the name of this node's entry in the list, if it has one.
    pub(super) fn of(
        intent: &'a NodeIntent,
        observed: &'a Observed,
        own: Option<&PeerName>,
    ) -> Self {
        let options = &intent.peers.options.tunnel;
        let nameless = Mac([2, 0, 0, 0, 0, 1]);
        let own_gateways = || intent.networks.iter().flat_map(gateways);
        let first = |ipv4: bool| own_gateways().find(|own| own.address.is_ipv4() == ipv4);
        let host = |own: InterfaceAddress| InterfaceAddress {
            prefix_len: if own.address.is_ipv4() { 32 } else { 128 },
            ..own
        };
        Self {
            observed,
            options,
            mac: options.node.as_ref().or(own).map_or(nameless, mac_of),
            addresses: [true, false]
                .into_iter()
                .filter_map(first)
                .map(host)
                .collect(),
        }
    }

    /// Returns whether a link of other software has the name of the device.
    pub(super) fn is_taken(&self, ipv6: bool) -> bool {
        let name = link_name(ipv6);
        let is_foreign = |link: &NodeLink| {
            // An agent that was killed leaves a device without alias, which is completed.
            let is_unfinished = link.alias.is_none() && link.mac == Some(self.mac);
            !self.observed.tunnels.contains_key(&name) && !is_unfinished
        };
        self.observed.links.get(&name).is_some_and(is_foreign)
    }

    /// Returns whether routes may lead through the device: it is as configured, and our programs
    /// check what enters by it.
    pub(super) fn is_ready(&self, ipv6: bool) -> bool {
        let name = link_name(ipv6);
        let link = self.observed.links.get(&name);
        self.observed
            .tunnels
            .get(&name)
            .is_some_and(|it| self.is_configured(it, ipv6))
            && link.is_some_and(|link| UPLINK_HOOKS.iter().all(|hook| link.hooks.contains(hook)))
    }

    fn is_configured(&self, tunnel: &ObservedTunnel, ipv6: bool) -> bool {
        let TunnelOptions { vni, port, .. } = self.options;
        let found = (tunnel.vni, tunnel.port, tunnel.ipv6, tunnel.learns);
        found == (*vni, *port, ipv6, false)
    }

    /// Plans the devices for these peers.
    pub(super) fn plan(&self, peers: &[TunnelledPeer]) -> TunnelPlan {
        let mut plan = TunnelPlan::default();
        for ipv6 in [false, true] {
            let of_device: Vec<&TunnelledPeer> = peers
                .iter()
                .filter(|peer| peer.outer.is_ipv6() == ipv6)
                .collect();
            if !self.is_taken(ipv6) {
                self.plan_device(ipv6, &of_device, &mut plan);
            }
        }
        plan
    }

    fn plan_device(&self, ipv6: bool, peers: &[&TunnelledPeer], plan: &mut TunnelPlan) {
        let name = link_name(ipv6);
        let present = self.observed.tunnels.get(&name);
        let delete = || Step::Tunnel(TunnelStep::Delete(name.clone()));
        let Some(least) = peers.iter().map(|peer| peer.mtu).min() else {
            plan.after.extend(present.map(|_| delete()));
            return;
        };
        let mtu = least
            .saturating_sub(OVERHEAD[usize::from(ipv6)])
            .max(MIN_MTU);
        let as_wanted = present.filter(|tunnel| self.is_configured(tunnel, ipv6));
        let (Some(tunnel), Some(link)) = (as_wanted, self.observed.links.get(&name)) else {
            plan.before.extend(present.map(|_| delete()));
            plan.before
                .push(Step::Tunnel(TunnelStep::Create(TunnelSpec {
                    name,
                    ipv6,
                    vni: self.options.vni,
                    port: self.options.port,
                    mac: self.mac,
                    mtu,
                })));
            return;
        };
        plan.before.extend(self.configure(&name, link, mtu));
        if self.is_ready(ipv6) {
            let up = (!link.up).then(|| Step::SetUp { link: name.clone() });
            plan.before.extend(up);
            let wanted: BTreeSet<TunnelEntry> = peers.iter().copied().flat_map(entries).collect();
            let [added, removed] = changes(&name, &wanted, &tunnel.entries);
            plan.before.extend(added);
            plan.after.extend(removed);
        }
    }

    /// Plans Ethernet address, MTU and addresses of a device.
    fn configure(&self, name: &IfName, link: &NodeLink, mtu: u32) -> Vec<Step> {
        let name = || name.clone();
        let mac = self.mac;
        let set_mac = (link.mac != Some(mac)).then(|| Step::SetMac { link: name(), mac });
        let set_mtu = (link.mtu != mtu).then(|| Step::SetMtu { link: name(), mtu });
        let is_missing = |own: &&InterfaceAddress| !link.addresses.contains(own);
        let is_stale =
            |own: &&InterfaceAddress| !is_link_local(own.address) && !self.addresses.contains(own);
        let missing = self.addresses.iter().filter(is_missing);
        let added = missing.map(|address| Step::AddAddress {
            link: name(),
            address: *address,
        });
        let stale = link.addresses.iter().filter(is_stale);
        let removed = stale.map(|address| Step::RemoveAddress {
            link: name(),
            address: *address,
        });
        let settings = set_mac.into_iter().chain(set_mtu);
        settings.chain(added).chain(removed).collect()
    }
}

fn entries(peer: &TunnelledPeer) -> impl Iterator<Item = TunnelEntry> {
    let (mac, remote) = (peer.mac, peer.outer);
    let neighbour = move |gateway: &IpAddr| TunnelEntry::Neighbour {
        gateway: *gateway,
        mac,
    };
    let forwarding = TunnelEntry::Forwarding { mac, remote };
    peer.gateways.iter().map(neighbour).chain([forwarding])
}

/// Returns the step that adds missing entries, and the one that removes those that no wanted entry
/// has replaced.
fn changes(
    link: &IfName,
    wanted: &BTreeSet<TunnelEntry>,
    present: &BTreeSet<TunnelEntry>,
) -> [Option<Step>; 2] {
    let kept: BTreeSet<Key> = wanted.iter().map(key).collect();
    let change = |entry: &TunnelEntry, add| TunnelChange {
        link: link.clone(),
        entry: entry.clone(),
        add,
    };
    // Neighbours come after the forwarding entries: a packet with an unknown Ethernet address is
    // lost, and one that waits for a neighbour is not.
    let mut added: Vec<_> = wanted
        .difference(present)
        .map(|one| change(one, true))
        .collect();
    added.sort_by_key(|change| matches!(change.entry, TunnelEntry::Neighbour { .. }));
    let stale = present
        .difference(wanted)
        .filter(|one| !kept.contains(&key(one)));
    let removed: Vec<_> = stale.map(|one| change(one, false)).collect();
    [added, removed].map(|all| (!all.is_empty()).then_some(Step::Tunnel(TunnelStep::Change(all))))
}

/// What an entry is looked up by: adding one replaces the one with the same key.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Gateway(IpAddr),
    Mac(Mac),
}

fn key(entry: &TunnelEntry) -> Key {
    match entry {
        TunnelEntry::Neighbour { gateway, .. } => Key::Gateway(*gateway),
        TunnelEntry::Forwarding { mac, .. } => Key::Mac(*mac),
    }
}

/// Plans to delete all devices.
pub(crate) fn remove_tunnels(observed: &Observed) -> Plan {
    let names = observed.tunnels.keys().cloned();
    Plan::of(names.map(|name| Step::Tunnel(TunnelStep::Delete(name))))
}

/// What the datapath knows of the tunnels.
#[derive(Default)]
pub(crate) struct TunnelTables {
    /// Addresses from which outer packets come.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Prefixes from which inner packets come.
    pub(crate) prefixes: BTreeSet<Cidr>,
    /// UDP port of the outer packets; 0 without tunnels.
    pub(crate) port: u16,
}

impl TunnelTables {
    /// Returns the tables of the devices that an earlier agent has left, while no list is known.
    pub(super) fn kept(observed: &Observed) -> Self {
        let mut kept = Self {
            port: observed
                .tunnels
                .values()
                .map(|it| it.port)
                .max()
                .unwrap_or(0),
            ..Self::default()
        };
        for (key, entry) in &observed.entries {
            match (key, entry) {
                (EntryKey::TunnelPeer(address), _) => _ = kept.addresses.insert(*address),
                (EntryKey::Prefix(prefix), Entry::Prefix { peer: true, .. }) => {
                    kept.prefixes.insert(*prefix);
                }
                _ => {}
            }
        }
        kept
    }

    /// Returns the entries of the addresses.
    pub(crate) fn entries(&self) -> Entries {
        let limit = abi::maps::TUNNEL_PEERS.capacity as usize;
        let addresses = self.addresses.iter().take(limit);
        let entry = |address: &IpAddr| (EntryKey::TunnelPeer(*address), Entry::TunnelPeer);
        addresses.map(entry).collect()
    }
}
