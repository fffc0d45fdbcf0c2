//! Plan of a network's bridge: created when missing, repaired when ours, used as it is when
//! foreign.
//!
//! A bridge with our alias is ours: it gets the MAC address, MTU and addresses of the network. It
//! has no carrier before the first pod, as with each bridge whose MAC address is set
//! (`br_stp_change_bridge_id` in `net/bridge/br_stp_if.c`), so the kernel gives it no link-local
//! address until then. The plan adds that address, which is usable without a carrier. A foreign
//! bridge gets at most the gateway addresses, where they do not conflict with its own, and
//! keeps its MAC address for good; nothing else of it is changed or removed. Only an uninstall
//! deletes a bridge, because other software may have added ports to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Mac, Network, is_link_local};
use steps::{BridgeSpec, LinkKind, NodeLink, Observed, Step, VlanStep};

use crate::alias::{bridge_alias, is_our_alias};
use crate::mtu::network_mtu;
use crate::own_links::OwnLinks;
use crate::sysctl::{Families, derives_link_local, disable_autoconf, forward};
use crate::{Plan, Refusal};

mod vlan;

/// Plans the bridge of `network`, and the forwarding that its families need. `observed` has the
/// sysctls of [`crate::node_sysctls`].
pub fn plan_bridge(network: &Network, observed: &Observed) -> Result<Plan, Refusal> {
    let gateway_link = network.gateway_link();
    let context = BridgeContext {
        observed,
        bridge: observed.links.get(&network.bridge),
        vlan_link: gateway_link.and_then(|name| observed.links.get(&name)),
        networks: std::slice::from_ref(network),
    };
    let mut plan = bridge_steps(network, &context)?;
    let ours = OwnLinks::of_networks(std::slice::from_ref(network), observed);
    plan.append(Plan::of(forward(families(network), observed, &ours)));
    Ok(plan)
}

/// Returns the address families of the network's pods.
pub(crate) fn families(network: &Network) -> Families {
    Families {
        v4: network.ranges.iter().any(model::RangeSet::is_ipv4),
        v6: network.ranges.iter().any(|set| !set.is_ipv4()),
    }
}

/// Returns the address families of the pods of all these networks.
pub(crate) fn all_families(networks: &[&Network]) -> Families {
    let each = networks.iter().map(|network| families(network));
    each.fold(Families::default(), |all, one| Families {
        v4: all.v4 || one.v4,
        v6: all.v6 || one.v6,
    })
}

/// Links of a network, as observed or as changed by the steps planned before, and the other
/// networks on them.
pub(crate) struct BridgeContext<'a> {
    /// Observation of the node.
    pub(crate) observed: &'a Observed,
    /// Bridge of the network, if it exists.
    pub(crate) bridge: Option<&'a NodeLink>,
    /// Link that has the gateway addresses: the bridge or its VLAN interface, if it exists.
    pub(crate) vlan_link: Option<&'a NodeLink>,
    /// All networks of the node.
    pub(crate) networks: &'a [Network],
}

impl BridgeContext<'_> {
    /// Returns the gateways of all networks on a link. They never conflict with each other, so that
    /// the order in which networks are planned does not matter.
    fn gateways(&self, link: &IfName) -> BTreeSet<InterfaceAddress> {
        self.networks
            .iter()
            .filter(|network| network.gateway_link().as_ref() == Some(link))
            .flat_map(gateways)
            .collect()
    }

    /// Returns the MTU that the bridge will have: for a bridge of ours, that of the network it was
    /// created for, or of another one with its gateway on it.
    fn bridge_mtu(&self, network: &Network) -> u32 {
        let Some(bridge) = self.bridge else {
            return self.shared_mtu(network);
        };
        match self.owner(bridge) {
            Some(owner) => self.shared_mtu(owner),
            None if is_our_alias(bridge.alias.as_deref()) => {
                self.shared_mtu(network).min(bridge.mtu)
            }
            None => bridge.mtu,
        }
    }

    /// Returns the network that a bridge was created for.
    fn owner(&self, bridge: &NodeLink) -> Option<&Network> {
        self.networks.iter().find(|network| is_of(bridge, network))
    }

    /// Returns the MTU of `network`'s bridge: the smallest of `network` and of all networks that
    /// have their gateway on it. The kernel reports or fragments what is larger; the bridge would
    /// silently discard what is larger than the MTU of a port (decision 90).
    fn shared_mtu(&self, network: &Network) -> u32 {
        let of = |network: &Network| network_mtu(network, self.observed);
        self.networks
            .iter()
            .filter(|other| {
                other.options.gateway && other.gateway_link().as_ref() == Some(&network.bridge)
            })
            .fold(of(network), |least, other| least.min(of(other)))
    }
}

/// Returns the steps for the network's links, without forwarding.
pub(crate) fn bridge_steps(
    network: &Network,
    context: &BridgeContext<'_>,
) -> Result<Plan, Refusal> {
    let mut plan = match context.bridge {
        None => create(network, context),
        Some(link) if link.kind != LinkKind::Bridge => {
            return Err(Refusal::NotABridge {
                bridge: network.bridge.clone(),
            });
        }
        Some(link) if is_of(link, network) => repair(network, link, context),
        Some(link) => use_foreign(network, link, context)?,
    };
    if let Some(link) = context.bridge {
        plan.append(filter_vlans(network, link)?);
    }
    plan.append(vlan::steps(network, context)?);
    Ok(plan)
}

/// Plans VLAN filtering where the network needs it. A foreign bridge is refused instead: it would
/// forward other frames than before.
fn filter_vlans(network: &Network, present: &NodeLink) -> Result<Plan, Refusal> {
    if !network.options.port.vlans.is_managed() || present.switching.filters_vlans {
        return Ok(Plan::default());
    }
    let bridge = network.bridge.clone();
    if is_of(present, network) || is_our_alias(present.alias.as_deref()) {
        Ok(Plan::of([Step::Vlan(VlanStep::Filter {
            bridge,
            on: true,
        })]))
    } else {
        Err(Refusal::NoVlanFiltering { bridge })
    }
}

/// Returns whether the bridge was created for this network.
pub(crate) fn is_of(link: &NodeLink, network: &Network) -> bool {
    link.is_signed(&bridge_alias(&network.name), network.bridge_mac())
}

/// Returns the addresses that the bridge itself is to have: none where a VLAN interface has the
/// gateways.
fn bridge_gateways(network: &Network) -> Vec<InterfaceAddress> {
    match network.gateway_vlan() {
        Some(_) => Vec::new(),
        None => gateways(network),
    }
}

/// Returns the addresses that the node is to have as the gateway. Ranges with the same gateway
/// share one address, with the shortest of their prefix lengths.
pub(crate) fn gateways(network: &Network) -> Vec<InterfaceAddress> {
    let mut widest: BTreeMap<IpAddr, u8> = BTreeMap::new();
    let own = network.gateways();
    for gateway in own.iter().filter(|_| network.options.gateway) {
        let length = widest.entry(gateway.address).or_insert(gateway.prefix_len);
        *length = gateway.prefix_len.min(*length);
    }
    let whole = |(address, prefix_len)| InterfaceAddress {
        address,
        prefix_len,
    };
    widest.into_iter().map(whole).collect()
}

fn create(network: &Network, context: &BridgeContext<'_>) -> Plan {
    let link = network.bridge.clone();
    let mut plan = Plan::of([create_step(network, context)]);
    // Before addresses and link up: the kernel starts duplicate address detection then.
    plan.append(Plan::of(disable_autoconf(&link, context.observed)));
    let own = derived_link_local(&link, network.bridge_mac(), context.observed);
    for address in bridge_gateways(network).into_iter().chain(own) {
        plan.push(Step::AddAddress {
            link: link.clone(),
            address,
        });
    }
    plan.push(Step::SetUp { link });
    plan
}

/// Returns the link-local address that the kernel gives a link with this MAC address, once the link
/// has a carrier.
fn derived_link_local(name: &IfName, mac: Mac, observed: &Observed) -> Option<InterfaceAddress> {
    derives_link_local(name, observed).then(|| mac.link_local())
}

/// Returns the link-local address of that kind that an existing link lacks; `None` where the link
/// has any link-local address.
fn missing_link_local(
    name: &IfName,
    mac: Mac,
    present: &NodeLink,
    observed: &Observed,
) -> Option<InterfaceAddress> {
    let mut own = present.addresses.iter();
    let has_one = own.any(|own| is_link_local(own.address));
    derived_link_local(name, mac, observed).filter(|_| !has_one)
}

fn create_step(network: &Network, context: &BridgeContext<'_>) -> Step {
    Step::CreateBridge(BridgeSpec {
        name: network.bridge.clone(),
        mac: network.bridge_mac(),
        mtu: context.shared_mtu(network),
        filters_vlans: network.options.port.vlans.is_managed(),
        alias: bridge_alias(&network.name),
    })
}

fn repair(network: &Network, present: &NodeLink, context: &BridgeContext<'_>) -> Plan {
    let link = || network.bridge.clone();
    let mut plan = Plan::default();
    if present.alias.is_none() {
        // Created by an agent that was killed before it set the alias: the step completes the
        // bridge.
        plan.push(create_step(network, context));
    }
    let mac = network.bridge_mac();
    if present.mac != Some(mac) {
        plan.push(Step::SetMac { link: link(), mac });
    }
    let mtu = context.shared_mtu(network);
    if present.mtu != mtu {
        plan.push(Step::SetMtu { link: link(), mtu });
    }
    plan.append(Plan::of(disable_autoconf(
        &network.bridge,
        context.observed,
    )));
    let mut wanted = bridge_gateways(network);
    wanted.extend(missing_link_local(
        &network.bridge,
        mac,
        present,
        context.observed,
    ));
    plan.append(add_missing(&network.bridge, present, &wanted));
    if !present.up {
        plan.push(Step::SetUp { link: link() });
    }
    plan
}

/// Plans the missing addresses of a link of ours; an address with another prefix length is removed
/// first.
fn add_missing(name: &IfName, present: &NodeLink, wanted: &[InterfaceAddress]) -> Plan {
    let mut plan = Plan::default();
    let missing = wanted.iter().filter(|own| !present.addresses.contains(own));
    for address in missing {
        let same = present
            .addresses
            .iter()
            .filter(|other| other.address == address.address);
        plan.append(remove(name, same));
        plan.push(Step::AddAddress {
            link: name.clone(),
            address: *address,
        });
    }
    plan
}

fn remove<'a>(name: &IfName, addresses: impl Iterator<Item = &'a InterfaceAddress>) -> Plan {
    Plan::of(addresses.map(|address| Step::RemoveAddress {
        link: name.clone(),
        address: *address,
    }))
}

fn use_foreign(
    network: &Network,
    present: &NodeLink,
    context: &BridgeContext<'_>,
) -> Result<Plan, Refusal> {
    let wanted = bridge_gateways(network);
    let mut plan = add_to_foreign(network, &network.bridge, present, &wanted, context)?;
    plan.append(Plan::of(pin_mac(network, present)));
    // The plan of the network that the bridge was created for sets the MTU, if there is one.
    let mtu = context.bridge_mtu(network);
    if context.owner(present).is_none() && present.mtu != mtu {
        let link = network.bridge.clone();
        plan.push(Step::SetMtu { link, mtu });
    }
    if !present.up {
        plan.push(Step::SetUp {
            link: network.bridge.clone(),
        });
    }
    Ok(plan)
}

/// Plans to set a foreign bridge's MAC address to the one that it has (behaviour F2). Until then it
/// changes with the ports: to the lowest MAC address, and to none without a port.
fn pin_mac(network: &Network, present: &NodeLink) -> Option<Step> {
    let is_set = present.mac_is_set || is_our_alias(present.alias.as_deref());
    let mac = present
        .mac
        .filter(|mac| mac.0 != [0; 6])
        .unwrap_or_else(|| foreign_mac(network));
    (!is_set).then(|| Step::SetMac {
        link: network.bridge.clone(),
        mac,
    })
}

/// Returns a MAC address for a foreign bridge that has none. It is not the one that identifies
/// bridges of ours.
fn foreign_mac(network: &Network) -> Mac {
    let mut mac = network.bridge_mac();
    mac.0[0] |= 0x04;
    mac
}

/// Plans the missing addresses of a foreign link. Conflicting addresses are refused, or removed
/// with `force_address` (behaviour R3).
fn add_to_foreign(
    network: &Network,
    name: &IfName,
    present: &NodeLink,
    wanted: &[InterfaceAddress],
    context: &BridgeContext<'_>,
) -> Result<Plan, Refusal> {
    let known = context.gateways(name);
    let missing = || wanted.iter().filter(|own| !present.addresses.contains(own));
    let foreign = present
        .addresses
        .iter()
        .filter(|other| !wanted.contains(other) && !known.contains(other));
    let mut conflicting = BTreeSet::new();
    for other in foreign {
        let Some(address) = missing().find(|own| conflicts(other, own)) else {
            continue;
        };
        if !network.options.force_address {
            return Err(Refusal::BridgeAddress {
                bridge: name.clone(),
                wanted: *address,
                present: *other,
            });
        }
        conflicting.insert(*other);
    }
    let mut plan = remove(name, conflicting.iter());
    plan.append(Plan::of(missing().map(|address| Step::AddAddress {
        link: name.clone(),
        address: *address,
    })));
    Ok(plan)
}

/// Returns whether an address of a foreign bridge conflicts with a gateway, by the bridge plugin's
/// rule (behaviour R3): any other IPv4 address does, but only an overlapping IPv6 one.
fn conflicts(other: &InterfaceAddress, wanted: &InterfaceAddress) -> bool {
    if other.address.is_ipv4() != wanted.address.is_ipv4() || is_link_local(other.address) {
        return false;
    }
    let overlap = other.subnet().zip(wanted.subnet());
    wanted.address.is_ipv4() || overlap.is_some_and(|(a, b)| a.overlaps(&b))
}

#[cfg(test)]
mod tests;
