//! Reads, creates and changes links of the node's network namespace.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::io;

use model::{IfName, Mac, VlanId};
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVlan, LinkAttribute,
    LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};
use steps::{Link, LinkKind, Switching};

use crate::error::is_gone;
use crate::netlink::socket::{Netlink, Request};

/// Returns the link with this name; `None` when there is none. Addresses and hooks are left empty.
pub(crate) fn find(netlink: &mut Netlink, name: &IfName) -> io::Result<Option<Link>> {
    Ok(find_message(netlink, name)?.as_ref().map(link))
}

/// Returns the name of the link with this index, if there is one.
pub(crate) fn name_of(index: u32) -> Option<IfName> {
    if_indextoname(index).ok()?.to_str().ok()?.parse().ok()
}

/// As [`find`]; a missing link is `ENODEV`.
pub(crate) fn get(netlink: &mut Netlink, name: &IfName) -> io::Result<Link> {
    find(netlink, name)?.ok_or_else(|| Errno::ENODEV.into())
}

/// Returns the whole message about the link with this name.
pub(crate) fn find_message(
    netlink: &mut Netlink,
    name: &IfName,
) -> io::Result<Option<LinkMessage>> {
    match netlink.request(Request::get(query(name))) {
        Ok(Some(Message::NewLink(message))) => Ok(Some(message)),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns all links with their names. Addresses and hooks are left empty.
pub(crate) fn all(netlink: &mut Netlink) -> io::Result<Vec<(IfName, Link)>> {
    let everything = Message::GetLink(without_statistics(LinkMessage::default()));
    let messages = netlink.dump(&everything)?;
    let seen = messages.iter().filter_map(|message| match message {
        Message::NewLink(message) => Some((name(message)?, link(message))),
        _ => None,
    });
    Ok(seen.collect())
}

/// Returns the interface name, if [`IfName`] accepts it.
fn name(message: &LinkMessage) -> Option<IfName> {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => name.parse().ok(),
            _ => None,
        })
}

/// Converts a message to a link.
pub(crate) fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        kind: match message.header.link_layer_type {
            LinkLayerType::Loopback => LinkKind::Loopback,
            LinkLayerType::Ether => LinkKind::Ethernet,
            _ => LinkKind::Raw,
        },
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        promiscuous: flags.contains(LinkFlags::Promisc),
        point_to_point: flags.contains(LinkFlags::Pointopoint),
        controller: None,
        peer: peer(message),
        hairpin: false,
        switching: Switching::default(),
        alias: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) if link.kind != LinkKind::Loopback => {
                link.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac);
            }
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) if *index != 0 => link.controller = Some(*index),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::LinkInfo(infos) => infos
                .iter()
                .for_each(|info| apply_link_info(&mut link, info)),
            _ => {}
        }
    }
    link.switching.vlan_of = vlan_of(message);
    link
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(message: &LinkMessage) {
    let _ = vlan_of(message);
    let _ = (name(message), link(message));
}

fn apply_link_info(link: &mut Link, info: &LinkInfo) {
    match info {
        LinkInfo::Kind(InfoKind::Bridge) => link.kind = LinkKind::Bridge,
        LinkInfo::Data(InfoData::Bridge(data)) => {
            link.switching.filters_vlans = data.contains(&InfoBridge::VlanFiltering(true));
        }
        LinkInfo::Kind(InfoKind::Veth) => link.kind = LinkKind::Veth,
        LinkInfo::Kind(InfoKind::Dummy) => link.kind = LinkKind::Dummy,
        // A tun device of the same kind has no Ethernet header.
        LinkInfo::Kind(InfoKind::Tun) if link.kind == LinkKind::Ethernet => {
            link.kind = LinkKind::Tap;
        }
        LinkInfo::PortData(InfoPortData::BridgePort(port)) => {
            link.hairpin = port.contains(&InfoBridgePort::HairpinMode(true));
            link.switching.isolated = port.contains(&InfoBridgePort::Isolated(true));
        }
        _ => {}
    }
}

/// One queue for each direction, which is what the kernel uses in any case: without these
/// attributes, it allocates one for each possible CPU and then frees all but one
/// (`veth_get_num_queues`, drivers/net/veth.c).
pub(crate) const QUEUES: [LinkAttribute; 2] =
    [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];

pub(crate) fn query(name: &IfName) -> Message {
    Message::GetLink(without_statistics(named(name).build()))
}

pub(crate) fn without_statistics(mut message: LinkMessage) -> LinkMessage {
    let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    message.attributes.push(mask);
    message
}

pub(crate) fn named(name: &IfName) -> LinkMessageBuilder<LinkUnspec> {
    LinkUnspec::new_with_name(name.as_str())
}

/// Makes the message that sets the link with this index up.
pub(crate) fn set_up_message(index: u32) -> Message {
    Message::SetLink(indexed(index).up().build())
}

/// Starts a message about the link with this index.
pub(crate) fn indexed(index: u32) -> LinkMessageBuilder<LinkUnspec> {
    LinkUnspec::new_with_index(index)
}

/// Returns the index of a veth pair's other end, if it is in the same namespace.
fn peer(message: &LinkMessage) -> Option<u32> {
    let mut peer = None;
    let mut is_veth = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(index) if *index != 0 => peer = Some(*index),
            LinkAttribute::LinkNetNsId(_) => return None,
            LinkAttribute::LinkInfo(infos) => {
                is_veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth));
            }
            _ => {}
        }
    }
    peer.filter(|_| is_veth)
}

/// Returns the parent's index and the VLAN of a VLAN device.
pub(crate) fn vlan_of(message: &LinkMessage) -> Option<(u32, VlanId)> {
    let attributes = || message.attributes.iter();
    let parent = attributes().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    let infos = attributes().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    let vlan = infos?.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(data)) => data.iter().find_map(|info| match info {
            InfoVlan::Id(id) => VlanId::new(*id),
            _ => None,
        }),
        _ => None,
    });
    Some((parent?, vlan?))
}
