//! Bridge VLANs: VLAN filtering, the VLANs of ports and of the node, and the node's VLAN links.
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
use rtnetlink::LinkVlan;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridge, InfoData, InfoKind,
    LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use steps::{Link, VlanLinkSpec, VlanMember, VlanStep, wanted_vlans};

use crate::error::{Attempt as _, Failed, is, is_gone};
use crate::netlink::link_removal;
use crate::netlink::link_removal::undo_creation;
use crate::netlink::links::{find, get, indexed, named};
use crate::netlink::socket::Netlink;

/// VLANs of one port, or of the node itself on a bridge.
type Members = BTreeMap<VlanId, VlanMember>;

/// Fills in the VLANs of `links`. Sends no request where no bridge filters VLANs.
pub(crate) fn observe<'a>(
    netlink: &mut Netlink,
    links: impl Iterator<Item = &'a mut Link>,
) -> io::Result<()> {
    let mut links: Vec<&mut Link> = links.collect();
    if !links.iter().any(|link| link.switching.filters_vlans) {
        return Ok(());
    }
    let mut members = all_members(netlink)?;
    for link in &mut links {
        link.switching.vlans = members.remove(&link.index).unwrap_or_default();
    }
    Ok(())
}

fn all_members(netlink: &mut Netlink) -> io::Result<BTreeMap<u32, Members>> {
    let mut query = LinkMessage::default();
    query.header.interface_family = AddressFamily::Bridge;
    let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]);
    query.attributes.push(mask);
    let messages = netlink.dump(&Message::GetLink(query))?;
    let seen = messages.iter().filter_map(|message| match message {
        Message::NewLink(message) => Some((message.header.index, members(message))),
        _ => None,
    });
    Ok(seen.collect())
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
    let _ = members(message);
}

/// Executes a VLAN step.
pub(crate) fn execute(netlink: &mut Netlink, step: &VlanStep) -> Result<(), Failed> {
    match step {
        VlanStep::Filter { bridge, on } => filter_vlans(netlink, bridge, *on),
        VlanStep::Join {
            bridge,
            vlan,
            member,
        } => set_member(netlink, bridge, *vlan, *member),
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

/// Adds the node itself to a VLAN of a bridge, or removes it.
fn set_member(
    netlink: &mut Netlink,
    bridge: &IfName,
    vlan: VlanId,
    member: bool,
) -> Result<(), Failed> {
    let call = || format!("set membership of the node in VLAN {vlan} of {bridge} to {member}");
    let Some(present) = find(netlink, bridge).attempt(call)? else {
        let gone = Failed::new(call(), Errno::ENODEV);
        return if member { Err(gone) } else { Ok(()) };
    };
    let message = vlan_message(present.index, vlan, VlanMember::default(), true);
    let done = if member {
        netlink.change(Message::SetLink(message), 0)
    } else {
        netlink.change(Message::DelLink(message), 0)
    };
    match done {
        Err(error) if !member && is_gone(&error) => Ok(()),
        done => done.attempt(call),
    }
}

/// Sets the VLANs of a port: adds missing ones and removes stale ones, but the bridge's default
/// VLAN where `keeps_default` is set. A port whose VLANs are not managed keeps those that the
/// bridge gave it.
pub(crate) fn set_vlans(netlink: &mut Netlink, port: u32, vlans: &PortVlans) -> io::Result<()> {
    if !vlans.is_managed() {
        return Ok(());
    }
    let wanted = wanted_vlans(vlans);
    let present = all_members(netlink)?.remove(&port).unwrap_or_default();
    let is_stale = |id: &VlanId| !vlans.keeps_default && !wanted.contains_key(id);
    let stale = present.iter().filter(|(id, _)| is_stale(id));
    let missing = wanted
        .iter()
        .filter(|(id, member)| present.get(id) != Some(member));
    let message = |(id, member): (&VlanId, &VlanMember)| vlan_message(port, *id, *member, false);
    let removals = stale.map(|one| Message::DelLink(message(one)));
    let additions = missing.map(|one| Message::SetLink(message(one)));
    netlink.change_all(removals.chain(additions))
}

/// Makes the message about one VLAN of a port, or of the node itself on a bridge.
fn vlan_message(index: u32, id: VlanId, member: VlanMember, of_node: bool) -> LinkMessage {
    let mut flags = BridgeVlanInfoFlags::empty();
    flags.set(BridgeVlanInfoFlags::Pvid, member.pvid);
    flags.set(BridgeVlanInfoFlags::Untagged, member.untagged);
    let info = BridgeVlanInfo {
        flags,
        vid: id.get(),
    };
    let own = of_node.then_some(AfSpecBridge::Flags(BridgeFlag::LowerDev));
    let specs = own.into_iter().chain([AfSpecBridge::VlanInfo(info)]);
    let mut message = indexed(index).build();
    message.header.interface_family = AddressFamily::Bridge;
    let specs = LinkAttribute::AfSpecBridge(specs.collect());
    message.attributes.push(specs);
    message
}

/// Creates the node's link of a VLAN. An identical link that exists is success.
fn create_link(netlink: &mut Netlink, spec: &VlanLinkSpec) -> Result<(), Failed> {
    let call = || {
        format!(
            "create {} for VLAN {} of {}",
            spec.name, spec.vlan, spec.bridge
        )
    };
    let bridge = get(netlink, &spec.bridge).attempt(call)?;
    let message = LinkVlan::new(spec.name.as_str(), bridge.index, spec.vlan.get()).build();
    match netlink.change(Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL) {
        Ok(()) => {}
        Err(error) if is(&error, Errno::EEXIST) => {
            let present = get(netlink, &spec.name).attempt(call)?;
            let same = present.switching.vlan_of == Some((bridge.index, spec.vlan))
                && present.alias.as_ref() == Some(&spec.alias);
            return if same {
                Ok(())
            } else {
                Err(Failed::new(call(), error))
            };
        }
        Err(error) => return Err(Failed::new(call(), error)),
    }
    let alias = named(&spec.name).alias(&spec.alias).build();
    netlink.change(Message::SetLink(alias), 0).map_err(|error| {
        undo_creation(netlink, &spec.name);
        Failed::new(format!("set alias of {}", spec.name), error)
    })
}

/// Deletes the node's link of a VLAN. Fails with `EPERM` if its alias is not ours.
fn delete_link(netlink: &mut Netlink, name: &IfName, alias: &str) -> Result<(), Failed> {
    let call = || format!("delete {name}");
    let Some(link) = find(netlink, name).attempt(call)? else {
        return Ok(());
    };
    if link.switching.vlan_of.is_none() || link.alias.as_deref() != Some(alias) {
        let call = format!("delete {name}, which is not ours by its alias");
        return Err(Failed::new(call, Errno::EPERM));
    }
    link_removal::delete(link.index).attempt(call)
}
