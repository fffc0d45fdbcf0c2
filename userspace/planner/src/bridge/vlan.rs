//! VLAN interface of a network: `<bridge>.<vlan>`, which has the gateway addresses where pods are
//! in a VLAN.
//!
//! It is one end of a veth pair, as the bridge plugin creates it. The other end is a bridge port
//! with the VLAN as its PVID. The interface has the bridge's Ethernet address, since the tables
//! hold one per bridge ([decision
//! 148](../../../../docs/decisions/0148-make-the-gateway-interface-of-a-vlan-a-veth-pair.md)).

use model::{IfName, Network, VlanId};
use steps::{LinkKind, NodeLink, Step, VlanLinkSpec, VlanStep};

use super::{
    BridgeContext, add_missing, add_to_foreign, bridge_alias, derived_link_local, gateways,
    missing_link_local,
};
use crate::mtu::network_mtu;
use crate::sysctl::disable_autoconf;
use crate::{Plan, Refusal};

/// Plans the VLAN interface: created, repaired or used as it is; empty where the gateways are on
/// the bridge.
pub(super) fn steps(network: &Network, context: &BridgeContext<'_>) -> Result<Plan, Refusal> {
    let Some(vlan) = network.gateway_vlan() else {
        return Ok(Plan::default());
    };
    let Some(name) = network.gateway_link() else {
        return Err(Refusal::LongName {
            name: format!("{}.{vlan}", network.bridge),
        });
    };
    match context.vlan_link {
        None => Ok(create(network, context, &name, vlan)),
        Some(link) if is_end_of(link, context.bridge, vlan) => {
            repair(network, context, &name, link)
        }
        Some(link) if is_half_made(link, context.bridge) => {
            Ok(create(network, context, &name, vlan))
        }
        Some(_) => {
            let bridge = network.bridge.clone();
            Err(Refusal::NotAVlan { name, bridge, vlan })
        }
    }
}

/// Returns whether `link` is the VLAN interface of `vlan` on `bridge`. A bridge that does not exist
/// yet has none.
fn is_end_of(link: &NodeLink, bridge: Option<&NodeLink>, vlan: VlanId) -> bool {
    let of = bridge.map(|bridge| (bridge.index, vlan));
    of.is_some() && link.switching.vlan_of == of
}

/// Returns whether an agent was killed after it created the veth pair and before its port was in
/// the VLAN: the alias is set last.
fn is_half_made(link: &NodeLink, bridge: Option<&NodeLink>) -> bool {
    let mac = bridge.and_then(|bridge| bridge.mac);
    link.kind == LinkKind::Veth
        && link.alias.is_none()
        && !link.up
        && mac.is_some()
        && link.mac == mac
}

fn create(network: &Network, context: &BridgeContext<'_>, name: &IfName, vlan: VlanId) -> Plan {
    let mut plan = Plan::of([Step::Vlan(VlanStep::CreateLink(VlanLinkSpec {
        name: name.clone(),
        bridge: network.bridge.clone(),
        vlan,
        keeps_default: network.options.port.vlans.keeps_default,
        alias: bridge_alias(&network.name),
    }))]);
    plan.append(set_mtu(network, context, name, context.bridge_mtu(network)));
    plan.append(Plan::of(disable_autoconf(name, context.observed)));
    // The interface has the MAC address of the bridge.
    let mac = match context.bridge {
        Some(bridge) => bridge.mac,
        None => Some(network.bridge_mac()),
    };
    let own = mac.and_then(|mac| derived_link_local(name, mac, context.observed));
    for address in gateways(network).into_iter().chain(own) {
        plan.push(Step::AddAddress {
            link: name.clone(),
            address,
        });
    }
    plan.push(Step::SetUp { link: name.clone() });
    plan
}

/// Plans the MTU. A new VLAN interface has the bridge's MTU, and never gets more: the bridge would
/// discard what is larger.
fn set_mtu(network: &Network, context: &BridgeContext<'_>, name: &IfName, present: u32) -> Plan {
    let mtu = network_mtu(network, context.observed).min(context.bridge_mtu(network));
    let link = name.clone();
    Plan::of((mtu != present).then_some(Step::SetMtu { link, mtu }))
}

fn repair(
    network: &Network,
    context: &BridgeContext<'_>,
    name: &IfName,
    present: &NodeLink,
) -> Result<Plan, Refusal> {
    let mut wanted = gateways(network);
    let mut plan = Plan::default();
    if present.alias.as_deref() == Some(&*bridge_alias(&network.name)) {
        plan.append(set_mtu(network, context, name, present.mtu));
        plan.append(Plan::of(disable_autoconf(name, context.observed)));
        let own = |mac| missing_link_local(name, mac, present, context.observed);
        wanted.extend(present.mac.and_then(own));
        plan.append(add_missing(name, present, &wanted));
    } else {
        plan.append(add_to_foreign(network, name, present, &wanted, context)?);
    }
    if !present.up {
        plan.push(Step::SetUp { link: name.clone() });
    }
    Ok(plan)
}
