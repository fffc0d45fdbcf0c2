//! A network's bridge: made when it is missing, mended when it is ours, used when it is someone else's.
//!
//! Ours is a bridge whose alias says so: it gets the MAC address, MTU and addresses that the network demands. One
//! that is not ours gets at most the gateway's address, where nothing speaks against it; nothing that it has is
//! changed or removed. No bridge is ever deleted: others may have become its ports. Knows nothing of pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{InterfaceAddress, Network, NetworkName};

use crate::mtu::network_mtu;
use crate::sysctl::{Families, forward, quiet};
use crate::uplink::{Ours, is_link_local};
use crate::{BridgeSpec, Link, LinkKind, Observed, Plan, Refusal, Step};

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
/// [`crate::Scope::Node`] with [`crate::node_sysctls`]. A network without ranges needs no bridge yet.
pub fn plan_bridge(network: &Network, observed: &Observed) -> Result<Plan, Refusal> {
    let link = observed.links.get(&network.bridge);
    let mut plan = bridge_steps(network, link, observed)?;
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

/// The steps that concern the bridge alone, given what it is (or will be by steps planned before).
pub(crate) fn bridge_steps(
    network: &Network,
    link: Option<&Link>,
    observed: &Observed,
) -> Result<Plan, Refusal> {
    if network.ranges.is_empty() {
        return Ok(Plan::default());
    }
    match link {
        None => Ok(make(network, observed)),
        Some(link) if link.kind != LinkKind::Bridge => Err(Refusal::NotABridge {
            bridge: network.bridge.clone(),
        }),
        Some(link) if is_of(link, network) => Ok(mend(network, link, observed)),
        Some(link) => borrow(network, link),
    }
}

/// Whether the bridge was made for this network.
pub(crate) fn is_of(link: &Link, network: &Network) -> bool {
    link.is_signed(&bridge_alias(&network.name), network.bridge_mac())
}

/// The addresses that the bridge is to have. Two ranges with one gateway make one address, of the wider subnet.
pub(crate) fn gateways(network: &Network) -> Vec<InterfaceAddress> {
    let mut widest: BTreeMap<IpAddr, u8> = BTreeMap::new();
    for gateway in network.gateways() {
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
    for address in gateways(network) {
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
    for address in gateways(network) {
        if present.addresses.contains(&address) {
            continue;
        }
        let others = present.addresses.iter();
        let same = others.filter(|other| other.address == address.address);
        plan.append(Plan::of(same.map(|other| Step::RemoveAddress {
            link: link(),
            address: *other,
        })));
        plan.push(Step::AddAddress {
            link: link(),
            address,
        });
    }
    if !present.up {
        plan.push(Step::SetUp { link: link() });
    }
    plan
}

fn borrow(network: &Network, present: &Link) -> Result<Plan, Refusal> {
    let wanted = gateways(network);
    let mut plan = Plan::default();
    for address in wanted.iter().filter(|own| !present.addresses.contains(own)) {
        let others = present.addresses.iter();
        let mut foreign = others.filter(|other| !wanted.contains(other));
        if let Some(other) = foreign.find(|other| contradicts(other, address)) {
            return Err(Refusal::BridgeAddress {
                bridge: network.bridge.clone(),
                wanted: *address,
                present: *other,
            });
        }
        plan.push(Step::AddAddress {
            link: network.bridge.clone(),
            address: *address,
        });
    }
    if !present.up {
        plan.push(Step::SetUp {
            link: network.bridge.clone(),
        });
    }
    Ok(plan)
}

/// As the bridge plugin has it (BEHAVIOURS R3): any other IPv4 address, but only an overlapping IPv6 one.
fn contradicts(other: &InterfaceAddress, wanted: &InterfaceAddress) -> bool {
    if other.address.is_ipv4() != wanted.address.is_ipv4() || is_link_local(other.address) {
        return false;
    }
    let overlap = other.subnet().zip(wanted.subnet());
    wanted.address.is_ipv4() || overlap.is_some_and(|(a, b)| a.overlaps(&b))
}

#[cfg(test)]
mod tests;
