//! Tunnels to other nodes: VXLAN devices of ours, with static neighbours and forwarding entries.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use model::{IfName, Mac};
use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoVxlan, LinkAttribute, LinkInfo,
    LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::{LinkMessageBuilder, LinkVxlan};
use steps::{
    NodeLink, ObservedTunnel, TUNNEL_ALIAS, TUNNEL_LINKS, TunnelChange, TunnelEntry, TunnelSpec,
    TunnelStep,
};

use crate::error::{Attempt as _, Failed, is, is_gone};
use crate::netlink::ifindex::Names;
use crate::netlink::link_removal::{self, undo_creation};
use crate::netlink::links::{find_message, link, named};
use crate::netlink::socket::{Netlink, Request};

/// Changes whose messages are in memory at once.
const CHUNK: usize = 256;

/// `NUD_NOARP` and `NUD_PERMANENT`: the state of a static forwarding entry.
const STATIC: u16 = 0x40 | 0x80;

/// Executes one step.
pub(crate) fn execute(
    netlink: &mut Netlink,
    names: &Names,
    step: &TunnelStep,
) -> Result<(), Failed> {
    match step {
        TunnelStep::Create(spec) => create(netlink, spec),
        TunnelStep::Delete(name) => delete(netlink, name),
        TunnelStep::Change(changes) => change(netlink, names, changes),
    }
}

/// Returns the tunnels among the links, with their entries.
pub(crate) fn observe(
    netlink: &mut Netlink,
    links: &BTreeMap<IfName, NodeLink>,
) -> io::Result<BTreeMap<IfName, ObservedTunnel>> {
    let mut found = BTreeMap::new();
    for (name, link) in links {
        let is_ours = link.alias.as_deref() == Some(TUNNEL_ALIAS);
        if !is_ours || !TUNNEL_LINKS.contains(&name.as_str()) {
            continue;
        }
        let message = find_message(netlink, name)?;
        if let Some(mut tunnel) = message.as_ref().and_then(device) {
            tunnel.entries = entries(netlink, link.index)?;
            found.insert(name.clone(), tunnel);
        }
    }
    Ok(found)
}

/// Returns the properties of a VXLAN device, without entries; `None` for another link.
fn device(message: &LinkMessage) -> Option<ObservedTunnel> {
    let data = (message.attributes.iter()).find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
            _ => None,
        }),
        _ => None,
    })?;
    let mut tunnel = ObservedTunnel::default();
    for attribute in data {
        match attribute {
            InfoVxlan::Id(vni) => tunnel.vni = *vni,
            InfoVxlan::Port(port) => tunnel.port = *port,
            InfoVxlan::Learning(on) => tunnel.learns = *on,
            _ => {}
        }
    }
    tunnel.ipv6 = message_name(message) == Some(TUNNEL_LINKS[1]);
    Some(tunnel)
}

/// The kernel does not report the outer family of a device without addresses: the name has it.
fn message_name(message: &LinkMessage) -> Option<&str> {
    (message.attributes.iter()).find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Creates a device. An identical one that exists, or a half-made one, is completed.
fn create(netlink: &mut Netlink, spec: &TunnelSpec) -> Result<(), Failed> {
    let call = || format!("create tunnel {}", spec.name);
    match netlink.change(
        Message::NewLink(new_device(spec)),
        NLM_F_CREATE | NLM_F_EXCL,
    ) {
        Ok(()) => {}
        Err(error) if is(&error, Errno::EEXIST) => {
            let found = find_message(netlink, &spec.name).attempt(call)?;
            if !found.is_some_and(|message| is_half_made(spec, &message)) {
                return Err(Failed::new(call(), error));
            }
        }
        Err(error) => return Err(Failed::new(call(), error)),
    }
    crash::point();
    finish(netlink, spec).map_err(|error| {
        undo_creation(netlink, &spec.name);
        Failed::new(
            format!("set alias and MTU {} of tunnel {}", spec.mtu, spec.name),
            error,
        )
    })
}

fn new_device(spec: &TunnelSpec) -> LinkMessage {
    let mut create = LinkMessageBuilder::<LinkVxlan>::new(spec.name.as_str())
        .address(spec.mac.0.to_vec())
        .id(spec.vni)
        .append_info_data(InfoVxlan::Port(spec.port))
        .append_info_data(InfoVxlan::Learning(false));
    if spec.ipv6 {
        // Any address of the node, of this family.
        create = create.append_info_data(InfoVxlan::Local6(Ipv6Addr::UNSPECIFIED));
    }
    create.build()
}

/// Returns whether this agent has made the device: it has no alias yet, or all that it gets.
fn is_half_made(spec: &TunnelSpec, message: &LinkMessage) -> bool {
    let is_as_wanted = device(message)
        .is_some_and(|found| (found.vni, found.port, found.learns) == (spec.vni, spec.port, false));
    let link = link(message);
    let alias = link.alias.as_deref();
    is_as_wanted && link.mac == Some(spec.mac) && alias.is_none_or(|alias| alias == TUNNEL_ALIAS)
}

/// Sets the alias, which the kernel ignores in the message that creates, and the MTU. Turns off
/// link-local addresses: nothing answers router solicitations there.
fn finish(netlink: &mut Netlink, spec: &TunnelSpec) -> io::Result<()> {
    let own = || named(&spec.name).alias(TUNNEL_ALIAS).mtu(spec.mtu);
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let no_addresses = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
    let both = own().append_extra_attribute(no_addresses).build();
    match netlink.change(Message::SetLink(both), 0) {
        // The kernel or this link has no IPv6.
        Err(error) if is(&error, Errno::EAFNOSUPPORT) => {
            netlink.change(Message::SetLink(own().build()), 0)
        }
        result => result,
    }
}

/// Deletes a device. Fails with `EPERM` if it is not ours by its alias.
fn delete(netlink: &mut Netlink, name: &IfName) -> Result<(), Failed> {
    let call = || format!("delete tunnel {name}");
    let Some(message) = find_message(netlink, name).attempt(call)? else {
        return Ok(());
    };
    let link = link(&message);
    if device(&message).is_none() || link.alias.as_deref() != Some(TUNNEL_ALIAS) {
        let call = format!("delete {name}, which is not ours by its alias");
        return Err(Failed::new(call, Errno::EPERM));
    }
    link_removal::delete(link.index).attempt(call)
}

/// Executes all changes. The error has the first failure, and the number of failures.
fn change(netlink: &mut Netlink, names: &Names, changes: &[TunnelChange]) -> Result<(), Failed> {
    let mut failures = Vec::new();
    for chunk in changes.chunks(CHUNK) {
        let mut sent = Vec::with_capacity(chunk.len());
        let mut requests = Vec::with_capacity(chunk.len());
        for change in chunk {
            match names.find(&change.link) {
                Ok(Some(index)) => {
                    sent.push(change);
                    requests.push(request(index, change));
                }
                // The entries are gone with the device.
                Ok(None) if !change.add => {}
                Ok(None) => failures.push((change, Errno::ENODEV.into())),
                Err(error) => failures.push((change, error)),
            }
        }
        let answers = netlink
            .request_all(requests)
            .attempt(|| "change tunnels".to_owned())?;
        for (change, answer) in sent.into_iter().zip(answers) {
            match answer {
                Err(error) if change.add || !is_gone(&error) => failures.push((change, error)),
                Ok(_) | Err(_) => {}
            }
        }
    }
    Failed::first_of("entries of tunnels", changes.len(), failures)
}

fn request(index: u32, change: &TunnelChange) -> Request {
    let message = message(index, &change.entry);
    if change.add {
        Request::change(Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    } else {
        Request::change(Message::DelNeighbour(message), 0)
    }
}

fn message(index: u32, entry: &TunnelEntry) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    let (destination, mac) = match entry {
        TunnelEntry::Neighbour { gateway, mac } => {
            message.header.family = family(*gateway);
            message.header.state = NeighbourState::Permanent;
            (gateway, mac)
        }
        TunnelEntry::Forwarding { mac, remote } => {
            message.header.family = AddressFamily::Bridge;
            message.header.state = NeighbourState::from(STATIC);
            message.header.flags = NeighbourFlags::Own;
            (remote, mac)
        }
    };
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::from(*destination)),
        NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
    ];
    message
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

/// Returns the permanent entries of a device. Neighbours that the kernel itself has tried to
/// resolve are left out.
fn entries(netlink: &mut Netlink, index: u32) -> io::Result<BTreeSet<TunnelEntry>> {
    let mut all = BTreeSet::new();
    for family in [
        AddressFamily::Inet,
        AddressFamily::Inet6,
        AddressFamily::Bridge,
    ] {
        let mut query = NeighbourMessage::default();
        query.header.family = family;
        if family == AddressFamily::Bridge {
            query.header.ifindex = index;
        } else {
            query.attributes.push(NeighbourAttribute::IfIndex(index));
        }
        let found = netlink.dump_as(&Message::GetNeighbour(query), |message, entries| {
            if let Message::NewNeighbour(found) = message
                && found.header.ifindex == index
            {
                entries.extend(entry(&found));
            }
        })?;
        all.extend(found);
    }
    Ok(all)
}

fn entry(message: &NeighbourMessage) -> Option<TunnelEntry> {
    let state = u16::from(message.header.state);
    if state & u16::from(NeighbourState::Permanent) == 0 {
        return None;
    }
    let mut mac = None;
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac);
            }
            NeighbourAttribute::Destination(found) => address = ip(found),
            _ => {}
        }
    }
    let (mac, address) = (mac?, address?);
    Some(match message.header.family {
        AddressFamily::Bridge => TunnelEntry::Forwarding {
            mac,
            remote: address,
        },
        _ => TunnelEntry::Neighbour {
            gateway: address,
            mac,
        },
    })
}

fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        NeighbourAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        // Of a forwarding entry, whose family does not say that of its destination.
        NeighbourAddress::Other(bytes) => {
            let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
            let v6 = <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from);
            v4.or(v6).ok()
        }
        _ => None,
    }
}
