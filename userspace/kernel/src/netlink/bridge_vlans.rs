//! Bridge VLANs: VLAN filtering, the VLANs of ports, and the node's interfaces in VLANs.
//!
//! A kernel without `CONFIG_BRIDGE_VLAN_FILTERING` ignores some of these requests and returns
//! `EOPNOTSUPP` for the others. So each change is read back, and isolation that does not exist is
//! an error.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::BTreeMap;
use std::io;

use model::{IfName, PortVlans, VlanId};
use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridge, InfoData, InfoKind, InfoVeth,
    LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::{LinkMessageBuilder, LinkVeth};
use steps::{Link, LinkKind, VlanLinkSpec, VlanMember, VlanStep, wanted_vlans};

use crate::error::{Attempt as _, Failed, is};
use crate::netlink::link_removal;
use crate::netlink::link_removal::undo_creation;
use crate::netlink::links::{QUEUES, find, get, indexed, named, set_up_message};
use crate::netlink::socket::Netlink;

/// MTU of the port of an interface in a VLAN, in bytes: the largest of a veth (`ETH_MAX_MTU`).
const PORT_MTU: u32 = 65535;

/// VLANs of one port, or of the node itself on a bridge.
type Members = BTreeMap<VlanId, VlanMember>;

/// A bridge port, or the bridge itself.
struct Port {
    /// Index of the bridge.
    bridge: Option<u32>,
    vlans: Members,
}

impl Port {
    /// Returns the index of the bridge and the VLAN of the port's untagged frames.
    fn untagged(&self) -> Option<(u32, VlanId)> {
        let pvid = self.vlans.iter().find(|(_, member)| member.pvid);
        Some((self.bridge?, *pvid?.0))
    }
}

/// Fills in the VLANs of `links`, and of which VLAN they are the node's interface. Sends no request
/// where no bridge filters VLANs.
pub(crate) fn observe<'a>(
    netlink: &mut Netlink,
    links: impl Iterator<Item = &'a mut Link>,
) -> io::Result<()> {
    let mut links: Vec<&mut Link> = links.collect();
    if !links.iter().any(|link| link.switching.filters_vlans) {
        return Ok(());
    }
    let ports = all_ports(netlink)?;
    for link in &mut links {
        let own = ports.get(&link.index);
        link.switching.vlans = own.map(|port| port.vlans.clone()).unwrap_or_default();
        let other = link.peer.and_then(|peer| ports.get(&peer));
        if let Some(of) = other.and_then(Port::untagged) {
            link.switching.vlan_of = Some(of);
        }
    }
    Ok(())
}

fn all_ports(netlink: &mut Netlink) -> io::Result<BTreeMap<u32, Port>> {
    let mut query = LinkMessage::default();
    query.header.interface_family = AddressFamily::Bridge;
    let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]);
    query.attributes.push(mask);
    let messages = netlink.dump(&Message::GetLink(query))?;
    let seen = messages.iter().filter_map(|message| match message {
        Message::NewLink(message) => Some((message.header.index, port(message))),
        _ => None,
    });
    Ok(seen.collect())
}

fn port(message: &LinkMessage) -> Port {
    let mut attributes = message.attributes.iter();
    Port {
        bridge: attributes.find_map(|attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        }),
        vlans: members(message),
    }
}

fn members(message: &LinkMessage) -> Members {
    let infos = message
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::AfSpecBridge(specs) => Some(specs),
            _ => None,
        })
        .flatten()
        .filter_map(|spec| match spec {
            AfSpecBridge::VlanInfo(info) => Some(info),
            _ => None,
        });
    let member = |info: &BridgeVlanInfo| {
        let member = VlanMember {
            pvid: info.flags.contains(BridgeVlanInfoFlags::Pvid),
            untagged: info.flags.contains(BridgeVlanInfoFlags::Untagged),
        };
        Some((VlanId::new(info.vid)?, member))
    };
    infos.filter_map(member).collect()
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(message: &LinkMessage) {
    let _ = port(message).untagged();
}

/// Executes a VLAN step.
pub(crate) fn execute(netlink: &mut Netlink, step: &VlanStep) -> Result<(), Failed> {
    match step {
        VlanStep::Filter { bridge, on } => filter_vlans(netlink, bridge, *on),
        VlanStep::CreateLink(spec) => create_link(netlink, spec),
        VlanStep::DeleteLink { name, alias } => delete_link(netlink, name, alias),
    }
}

/// Switches VLAN filtering of a bridge on or off.
fn filter_vlans(netlink: &mut Netlink, bridge: &IfName, on: bool) -> Result<(), Failed> {
    let call = || format!("set VLAN filtering of {bridge} to {on}");
    let present = get(netlink, bridge).attempt(call)?;
    let info = vec![
        LinkInfo::Kind(InfoKind::Bridge),
        LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(on)])),
    ];
    let mut message = indexed(present.index).build();
    message.attributes.push(LinkAttribute::LinkInfo(info));
    netlink.change(Message::NewLink(message), 0).attempt(call)?;
    if get(netlink, bridge).attempt(call)?.switching.filters_vlans == on {
        return Ok(());
    }
    Err(Failed::new(call(), Errno::EOPNOTSUPP))
}

/// Sets the VLANs of a port: adds missing ones and removes stale ones, but the bridge's default
/// VLAN where `keeps_default` is set. A port whose VLANs are not managed keeps those that the
/// bridge gave it.
pub(crate) fn set_vlans(netlink: &mut Netlink, port: u32, vlans: &PortVlans) -> io::Result<()> {
    if !vlans.is_managed() {
        return Ok(());
    }
    let wanted = wanted_vlans(vlans);
    let present = all_ports(netlink)?
        .remove(&port)
        .map_or_else(Members::new, |port| port.vlans);
    let is_stale = |id: &VlanId| !vlans.keeps_default && !wanted.contains_key(id);
    let stale = present.iter().filter(|(id, _)| is_stale(id));
    let missing = wanted
        .iter()
        .filter(|(id, member)| present.get(id) != Some(member));
    let message = |(id, member): (&VlanId, &VlanMember)| vlan_message(port, *id, *member);
    let removals = stale.map(|one| Message::DelLink(message(one)));
    let additions = missing.map(|one| Message::SetLink(message(one)));
    netlink.change_all(removals.chain(additions))
}

/// Makes the message about one VLAN of a port.
fn vlan_message(index: u32, id: VlanId, member: VlanMember) -> LinkMessage {
    let mut flags = BridgeVlanInfoFlags::empty();
    flags.set(BridgeVlanInfoFlags::Pvid, member.pvid);
    flags.set(BridgeVlanInfoFlags::Untagged, member.untagged);
    let info = BridgeVlanInfo {
        flags,
        vid: id.get(),
    };
    let mut message = indexed(index).build();
    message.header.interface_family = AddressFamily::Bridge;
    let specs = LinkAttribute::AfSpecBridge(vec![AfSpecBridge::VlanInfo(info)]);
    message.attributes.push(specs);
    message
}

/// Creates the node's interface in a VLAN. An identical one that exists is success; one that was
/// left half made is completed. The alias of the interface is set last.
fn create_link(netlink: &mut Netlink, spec: &VlanLinkSpec) -> Result<(), Failed> {
    let call = || {
        format!(
            "create {} in VLAN {} of {}",
            spec.name, spec.vlan, spec.bridge
        )
    };
    let bridge = get(netlink, &spec.bridge).attempt(call)?;
    let created = netlink.change(pair_message(spec, &bridge), NLM_F_CREATE | NLM_F_EXCL);
    let mut present = get(netlink, &spec.name).attempt(call)?;
    match created {
        Ok(()) => {}
        Err(error) if is(&error, Errno::EEXIST) => {
            observe(netlink, [&mut bridge.clone(), &mut present].into_iter()).attempt(call)?;
            let of = Some((bridge.index, spec.vlan));
            if present.alias.as_ref() == Some(&spec.alias) && present.switching.vlan_of == of {
                return Ok(());
            }
            let is_half_made = present.alias.is_none() && !present.up && present.mac == bridge.mac;
            if !is_half_made {
                return Err(Failed::new(call(), error));
            }
        }
        Err(error) => return Err(Failed::new(call(), error)),
    }
    let Some(port) = present.peer else {
        return Err(Failed::new(call(), Errno::EEXIST));
    };
    join(netlink, spec, &bridge, port).map_err(|error| {
        undo_creation(netlink, &spec.name);
        Failed::new(call(), error)
    })
}

/// Makes the message that creates the pair. The kernel registers the port first, and names it. The
/// port has the largest MTU, so that the bridge passes what the interface accepts.
fn pair_message(spec: &VlanLinkSpec, bridge: &Link) -> Message {
    let mut port = LinkMessage::default();
    port.attributes.extend(QUEUES);
    port.attributes.push(LinkAttribute::Mtu(PORT_MTU));
    let mut pair = LinkMessageBuilder::<LinkVeth>::new(spec.name.as_str(), "")
        .mtu(bridge.mtu)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(port)))
        .build();
    let mac = bridge.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec()));
    pair.attributes.extend(mac);
    pair.attributes.extend(QUEUES);
    Message::NewLink(pair)
}

/// Makes the other end of a new interface a port of the bridge in the VLAN, and then signs the
/// interface.
fn join(netlink: &mut Netlink, spec: &VlanLinkSpec, bridge: &Link, port: u32) -> io::Result<()> {
    let vlans = PortVlans {
        access: Some(spec.vlan),
        keeps_default: spec.keeps_default,
        ..PortVlans::default()
    };
    let change = indexed(port).controller(bridge.index).alias(&spec.alias);
    netlink.change(Message::SetLink(change.build()), 0)?;
    set_vlans(netlink, port, &vlans)?;
    netlink.change(set_up_message(port), 0)?;
    let sign = named(&spec.name).alias(&spec.alias).build();
    netlink.change(Message::SetLink(sign), 0)
}

/// Deletes the node's interface in a VLAN, and its port. Fails with `EPERM` if its alias is not
/// ours.
fn delete_link(netlink: &mut Netlink, name: &IfName, alias: &str) -> Result<(), Failed> {
    let call = || format!("delete {name}");
    let Some(link) = find(netlink, name).attempt(call)? else {
        return Ok(());
    };
    if link.kind == LinkKind::Bridge || link.alias.as_deref() != Some(alias) {
        let call = format!("delete {name}, which is not ours by its alias");
        return Err(Failed::new(call, Errno::EPERM));
    }
    link_removal::delete(link.index).attempt(call)
}
