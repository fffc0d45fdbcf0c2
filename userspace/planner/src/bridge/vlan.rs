//! The node's end of a network's VLAN: `<bridge>.<vlan>`, which has the gateways where pods are in a VLAN.
//!
//! The bridge plugin makes a veth pair for this; a VLAN interface above the bridge does the same with one link, and has
//! the bridge's Ethernet address ([decision 25](../../../../docs/decisions/0025-vlans.md)).

use model::{IfName, Network, VlanId};

use super::{Site, bridge_alias, gateways, lend, replace};
use crate::mtu::network_mtu;
use crate::sysctl::quiet;
use crate::{Link, Plan, Refusal, Step, VlanLinkSpec, VlanStep};

/// Makes, mends or borrows the link; nothing where the gateways are on the bridge.
pub(super) fn steps(network: &Network, site: &Site<'_>) -> Result<Plan, Refusal> {
    let Some(vlan) = network.gateway_vlan() else {
        return Ok(Plan::default());
    };
    let Some(name) = network.gateway_link() else {
        return Err(Refusal::LongName {
            name: format!("{}.{vlan}", network.bridge),
        });
    };
    let mut plan = join(network, site, vlan);
    plan.append(match site.vlan_link {
        None => make(network, site, &name, vlan),
        Some(link) if !is_end_of(link, site.bridge, vlan) => {
            let bridge = network.bridge.clone();
            return Err(Refusal::NotAVlan { name, bridge, vlan });
        }
        Some(link) => mend(network, site, &name, link)?,
    });
    Ok(plan)
}

/// The node is a member of the VLAN, or nothing of it would come up to the link.
fn join(network: &Network, site: &Site<'_>, vlan: VlanId) -> Plan {
    let bridge = site.bridge.map(|bridge| &bridge.switching);
    if bridge.is_some_and(|bridge| bridge.vlans.contains_key(&vlan)) {
        return Plan::default();
    }
    Plan::of([Step::Vlan(VlanStep::Join {
        bridge: network.bridge.clone(),
        vlan,
        member: true,
    })])
}

/// A bridge that is yet to be made has no index, and no link above it either.
fn is_end_of(link: &Link, bridge: Option<&Link>, vlan: VlanId) -> bool {
    let of = bridge.map(|bridge| (bridge.index, vlan));
    of.is_some() && link.switching.vlan_of == of
}

fn make(network: &Network, site: &Site<'_>, name: &IfName, vlan: VlanId) -> Plan {
    let mut plan = Plan::of([Step::Vlan(VlanStep::CreateLink(VlanLinkSpec {
        name: name.clone(),
        bridge: network.bridge.clone(),
        vlan,
        alias: bridge_alias(&network.name),
    }))]);
    plan.append(set_mtu(network, site, name, site.bridge_mtu(network)));
    plan.append(Plan::of(quiet(name, site.observed)));
    for address in gateways(network) {
        plan.push(Step::AddAddress {
            link: name.clone(),
            address,
        });
    }
    plan.push(Step::SetUp { link: name.clone() });
    plan
}

/// The link has the bridge's MTU by itself, and never more.
fn set_mtu(network: &Network, site: &Site<'_>, name: &IfName, present: u32) -> Plan {
    let mtu = network_mtu(network, site.observed).min(site.bridge_mtu(network));
    let link = name.clone();
    Plan::of((mtu != present).then_some(Step::SetMtu { link, mtu }))
}

fn mend(
    network: &Network,
    site: &Site<'_>,
    name: &IfName,
    present: &Link,
) -> Result<Plan, Refusal> {
    let wanted = gateways(network);
    let mut plan = Plan::default();
    if present.alias.as_deref() == Some(&*bridge_alias(&network.name)) {
        plan.append(set_mtu(network, site, name, present.mtu));
        plan.append(Plan::of(quiet(name, site.observed)));
        plan.append(replace(name, present, &wanted));
    } else {
        plan.append(lend(network, name, present, &wanted, site)?);
    }
    if !present.up {
        plan.push(Step::SetUp { link: name.clone() });
    }
    Ok(plan)
}
