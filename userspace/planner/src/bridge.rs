//! A network's bridge: made when it is missing, mended when it is ours, used when it is someone else's.
//!
//! Ours is a bridge whose alias says so: it gets the MAC address, MTU and addresses that the network demands. One
//! that is not ours gets at most the gateway's address, where nothing speaks against it; nothing that it has is
//! changed or removed. Only an uninstall deletes a bridge: others may have become its ports. Knows nothing of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Network, NetworkName};

use crate::mtu::network_mtu;
use crate::sysctl::{Families, forward, quiet};
use crate::uplink::{Ours, is_link_local};
use crate::{BridgeSpec, Link, LinkKind, Observed, Plan, Refusal, Step, VlanStep};

mod vlan;

const ALIAS: &str = "viaduct ";

/// The alias of the bridge of a network: that it is there proves that we made the bridge.
pub fn bridge_alias(network: &NetworkName) -> String {
    // The kernel keeps 255 bytes (`IFALIASZ`), and names are ASCII.
    format!("{ALIAS}{network}").chars().take(255).collect()
}

/// Whether an alias is that of a bridge that we made.
pub(crate) fn is_our_alias(alias: Option<&str>) -> bool {
    alias.is_some_and(|alias| alias.starts_with(ALIAS))
}

/// Plans the bridge of `network`, and the forwarding that its families need. `observed` is of
/// [`crate::Scope::Node`] with [`crate::node_sysctls`].
pub fn plan_bridge(network: &Network, observed: &Observed) -> Result<Plan, Refusal> {
    let gateway_link = network.gateway_link();
    let site = Site {
        observed,
        bridge: observed.links.get(&network.bridge),
        vlan_link: gateway_link.and_then(|name| observed.links.get(&name)),
        networks: std::slice::from_ref(network),
    };
    let mut plan = bridge_steps(network, &site)?;
    let ours = Ours::of_networks(std::slice::from_ref(network), observed);
    plan.append(Plan::of(forward(families(network), observed, &ours)));
    Ok(plan)
}

/// The families that the network's pods have.
pub(crate) fn families(network: &Network) -> Families {
    Families {
        v4: network.ranges.iter().any(model::RangeSet::is_ipv4),
        v6: network.ranges.iter().any(|set| !set.is_ipv4()),
    }
}

/// A network's links as they are, or will be by steps planned before, and what other networks have there.
pub(crate) struct Site<'a> {
    /// What was seen of the node.
    pub(crate) observed: &'a Observed,
    /// The bridge.
    pub(crate) bridge: Option<&'a Link>,
    /// The link that has the gateways, where that is not the bridge.
    pub(crate) vlan_link: Option<&'a Link>,
    /// All networks of the node.
    pub(crate) networks: &'a [Network],
}

impl Site<'_> {
    /// The gateways of all networks that have them on a link: they contradict nobody. Which of the networks is planned
    /// first must not matter.
    fn gateways(&self, link: &IfName) -> BTreeSet<InterfaceAddress> {
        self.networks
            .iter()
            .filter(|network| network.gateway_link().as_ref() == Some(link))
            .flat_map(gateways)
            .collect()
    }

    /// The MTU that the bridge will have: that of the network that it was made for.
    fn bridge_mtu(&self, network: &Network) -> u32 {
        let Some(bridge) = self.bridge else {
            return network_mtu(network, self.observed);
        };
        let mut networks = self.networks.iter();
        let owner = networks.find(|other| other.bridge == network.bridge && is_of(bridge, other));
        owner.map_or(bridge.mtu, |owner| network_mtu(owner, self.observed))
    }
}

/// The steps that concern the network's links alone.
pub(crate) fn bridge_steps(network: &Network, site: &Site<'_>) -> Result<Plan, Refusal> {
    let mut plan = match site.bridge {
        None => make(network, site.observed),
        Some(link) if link.kind != LinkKind::Bridge => {
            return Err(Refusal::NotABridge {
                bridge: network.bridge.clone(),
            });
        }
        Some(link) if is_of(link, network) => mend(network, link, site.observed),
        Some(link) => borrow(network, link, site)?,
    };
    if let Some(link) = site.bridge {
        plan.append(filter_vlans(network, link)?);
    }
    plan.append(vlan::steps(network, site)?);
    Ok(plan)
}

/// A bridge of others is not changed so much that it would forward other frames than before.
fn filter_vlans(network: &Network, present: &Link) -> Result<Plan, Refusal> {
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

/// Whether the bridge was made for this network.
pub(crate) fn is_of(link: &Link, network: &Network) -> bool {
    link.is_signed(&bridge_alias(&network.name), network.bridge_mac())
}

/// The addresses that the bridge itself is to have.
fn bridge_gateways(network: &Network) -> Vec<InterfaceAddress> {
    match network.gateway_vlan() {
        Some(_) => Vec::new(),
        None => gateways(network),
    }
}

/// The addresses that the node is to have as the gateway. Two ranges with one gateway make one address, of the wider subnet.
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

fn make(network: &Network, observed: &Observed) -> Plan {
    let link = network.bridge.clone();
    let mut plan = Plan::of([create(network, observed)]);
    plan.append(Plan::of(quiet(&link, observed)));
    for address in bridge_gateways(network) {
        plan.push(Step::AddAddress {
            link: link.clone(),
            address,
        });
    }
    plan.push(Step::SetUp { link });
    plan
}

fn create(network: &Network, observed: &Observed) -> Step {
    Step::CreateBridge(BridgeSpec {
        name: network.bridge.clone(),
        mac: network.bridge_mac(),
        mtu: network_mtu(network, observed),
        filters_vlans: network.options.port.vlans.is_managed(),
        alias: bridge_alias(&network.name),
    })
}

fn mend(network: &Network, present: &Link, observed: &Observed) -> Plan {
    let link = || network.bridge.clone();
    let mut plan = Plan::default();
    if present.alias.is_none() {
        // Made by somebody who was killed before the bridge was signed: the step finishes it.
        plan.push(create(network, observed));
    }
    let mac = network.bridge_mac();
    if present.mac != Some(mac) {
        plan.push(Step::SetMac { link: link(), mac });
    }
    let mtu = network_mtu(network, observed);
    if present.mtu != mtu {
        plan.push(Step::SetMtu { link: link(), mtu });
    }
    plan.append(Plan::of(quiet(&network.bridge, observed)));
    plan.append(replace(&network.bridge, present, &bridge_gateways(network)));
    if !present.up {
        plan.push(Step::SetUp { link: link() });
    }
    plan
}

/// Gives a link of ours the addresses that it lacks; one that it has with another prefix length goes.
fn replace(name: &IfName, present: &Link, wanted: &[InterfaceAddress]) -> Plan {
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

fn borrow(network: &Network, present: &Link, site: &Site<'_>) -> Result<Plan, Refusal> {
    let wanted = bridge_gateways(network);
    let mut plan = lend(network, &network.bridge, present, &wanted, site)?;
    if !present.up {
        plan.push(Step::SetUp {
            link: network.bridge.clone(),
        });
    }
    Ok(plan)
}

/// Gives a link of others the addresses that it lacks, where nothing of theirs contradicts, or may go (behaviour R3).
fn lend(
    network: &Network,
    name: &IfName,
    present: &Link,
    wanted: &[InterfaceAddress],
    site: &Site<'_>,
) -> Result<Plan, Refusal> {
    let known = site.gateways(name);
    let missing = || wanted.iter().filter(|own| !present.addresses.contains(own));
    let foreign = present
        .addresses
        .iter()
        .filter(|other| !wanted.contains(other) && !known.contains(other));
    let mut in_the_way = BTreeSet::new();
    for other in foreign {
        let Some(address) = missing().find(|own| contradicts(other, own)) else {
            continue;
        };
        if !network.options.force_address {
            return Err(Refusal::BridgeAddress {
                bridge: name.clone(),
                wanted: *address,
                present: *other,
            });
        }
        in_the_way.insert(*other);
    }
    let mut plan = remove(name, in_the_way.iter());
    plan.append(Plan::of(missing().map(|address| Step::AddAddress {
        link: name.clone(),
        address: *address,
    })));
    Ok(plan)
}

/// As the bridge plugin has it (behaviour R3): any other IPv4 address, but only an overlapping IPv6 one.
fn contradicts(other: &InterfaceAddress, wanted: &InterfaceAddress) -> bool {
    if other.address.is_ipv4() != wanted.address.is_ipv4() || is_link_local(other.address) {
        return false;
    }
    let overlap = other.subnet().zip(wanted.subnet());
    wanted.address.is_ipv4() || overlap.is_some_and(|(a, b)| a.overlaps(&b))
}

#[cfg(test)]
mod tests;
