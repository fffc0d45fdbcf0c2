//! Changes of links: bridges, veths and the properties of any link.

use std::io;

use model::{IfName, Mac, ManagedLink, PortOptions};
use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoBridgePort, InfoData, InfoPortData,
    InfoPortKind, InfoVeth, LinkAttribute, LinkMessage,
};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};
use steps::{BridgeSpec, Link, LinkKind, VethSpec};

use crate::error::{Attempt as _, Failed, is};
use crate::netlink::link_removal::undo_creation;
use crate::netlink::links::{QUEUES, find, get, indexed, link, named, query, without_statistics};
use crate::netlink::socket::{Netlink, Request};
use crate::netlink::{bridge_port, bridge_vlans, link_removal};
use crate::pod::interface;
use crate::pod::netns::OpenNetns;

/// Creates a bridge without STP. An identical bridge that exists is success.
pub(crate) fn create_bridge(netlink: &mut Netlink, spec: &BridgeSpec) -> Result<(), Failed> {
    // No IFLA_MTU here: the kernel keeps an MTU when ports come and go only if it is set on the
    // finished bridge.
    let mut create =
        LinkMessageBuilder::<LinkBridge>::new(spec.name.as_str()).address(spec.mac.0.to_vec());
    if spec.filters_vlans {
        let filtering = vec![InfoBridge::VlanFiltering(true)];
        create = create.set_info_data(InfoData::Bridge(filtering));
    }
    let create = create.build();
    let call = || format!("create bridge {}", spec.name);
    match netlink.change(Message::NewLink(create), NLM_F_CREATE | NLM_F_EXCL) {
        Ok(()) => {}
        Err(error) if is(&error, Errno::EEXIST) => {
            let link = get(netlink, &spec.name).attempt(call)?;
            if is_bridge_of(spec, &link) {
                return Ok(());
            }
            if !is_half_made(spec, &link) {
                return Err(Failed::new(call(), error));
            }
        }
        Err(error) => return Err(Failed::new(call(), error)),
    }
    let finish = named(&spec.name).alias(&spec.alias).mtu(spec.mtu).build();
    let finished = netlink.change(Message::SetLink(finish), 0);
    finished.map_err(|error| {
        undo_creation(netlink, &spec.name);
        let call = format!("set MTU {} and alias of bridge {}", spec.mtu, spec.name);
        Failed::new(call, error)
    })
}

fn is_bridge_of(spec: &BridgeSpec, link: &Link) -> bool {
    link.kind == LinkKind::Bridge
        && link.alias.as_ref() == Some(&spec.alias)
        && link.mac == Some(spec.mac)
        && link.mtu == spec.mtu
        && (link.switching.filters_vlans || !spec.filters_vlans)
}

/// Whether an agent was killed after it created the bridge and before it set the alias.
fn is_half_made(spec: &BridgeSpec, link: &Link) -> bool {
    link.kind == LinkKind::Bridge && link.alias.is_none() && link.mac == Some(spec.mac)
}

/// Creates a veth pair, with the pod's end in the pod's namespace from the start. An identical pair
/// that exists is success.
pub(crate) fn create_veth(netlink: &mut Netlink, spec: &VethSpec) -> Result<(), Failed> {
    let netns = OpenNetns::open(&spec.netns)
        .attempt(|| format!("open network namespace {}", spec.netns.path))?;
    let message = Message::NewLink(veth_message(spec, &netns));
    match netlink.change(message, NLM_F_CREATE | NLM_F_EXCL) {
        Ok(()) => {}
        Err(error) if is(&error, Errno::EEXIST) => {
            return check_existing_pair(netlink, spec, &netns, error);
        }
        Err(error) => {
            let call = format!(
                "create veth {} with {} in {}",
                spec.host, spec.pod, spec.netns.path
            );
            return Err(Failed::new(call, error));
        }
    }
    set_alias(netlink, spec).map_err(|error| {
        undo_creation(netlink, spec.host.name());
        Failed::new(format!("set alias of {}", spec.host), error)
    })
}

fn veth_message(spec: &VethSpec, netns: &OpenNetns) -> LinkMessage {
    let mut peer = LinkUnspec::new_with_name(spec.pod.as_str())
        .address(spec.pod_mac.0.to_vec())
        .mtu(spec.mtu)
        .setns_by_fd(netns.as_raw_fd())
        .build();
    peer.attributes.extend(QUEUES);
    let mut veth =
        LinkMessageBuilder::<LinkVeth>::new(spec.host.name().as_str(), spec.pod.as_str())
            .address(spec.host_mac.0.to_vec())
            .mtu(spec.mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
    veth.attributes.extend(QUEUES);
    veth
}

/// Sets the alias, which the kernel ignores in the message that creates. Also turns off IPv6
/// address generation for the future bridge port, so that it sends no router solicitation and runs
/// no duplicate address detection.
fn set_alias(netlink: &mut Netlink, spec: &VethSpec) -> io::Result<()> {
    let alias = named(spec.host.name()).alias(&spec.alias);
    let no_addresses =
        LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(
            In6AddrGenMode::None,
        )])]);
    let both = alias.append_extra_attribute(no_addresses).build();
    match netlink.change(Message::SetLink(both), 0) {
        // The kernel or this link has no IPv6.
        Err(error) if is(&error, Errno::EAFNOSUPPORT) => {
            let alias = named(spec.host.name()).alias(&spec.alias).build();
            netlink.change(Message::SetLink(alias), 0)
        }
        result => result,
    }
}

/// Handles `EEXIST` of a new veth: returns an error that says which name is taken, or success if
/// this pair exists already.
fn check_existing_pair(
    netlink: &mut Netlink,
    spec: &VethSpec,
    netns: &OpenNetns,
    error: io::Error,
) -> Result<(), Failed> {
    let host = find(netlink, spec.host.name()).attempt(|| format!("read {}", spec.host))?;
    let Some(host) = host else {
        let call = format!(
            "create {} in {}: the name is taken",
            spec.pod, spec.netns.path
        );
        return Err(Failed::new(call, error));
    };
    let pod = interface::interface(netns, &spec.pod)
        .attempt(|| format!("read {} in {}", spec.pod, spec.netns.path))?;
    let ours = host.kind == LinkKind::Veth
        && host.alias.as_ref() == Some(&spec.alias)
        && host.mac == Some(spec.host_mac)
        && pod.is_some_and(|pod| pod.mac == Some(spec.pod_mac) && pod.peer == Some(host.index));
    if ours {
        Ok(())
    } else {
        let call = format!("create veth {}: the name is taken", spec.host);
        Err(Failed::new(call, error))
    }
}

/// Deletes a veth. Fails with `EPERM` if it is not ours by its alias or Ethernet address.
pub(crate) fn delete_veth(
    netlink: &mut Netlink,
    name: &ManagedLink,
    alias: &str,
) -> Result<(), Failed> {
    let call = || format!("delete veth {name}");
    let Some(link) = find(netlink, name.name()).attempt(call)? else {
        return Ok(());
    };
    if link.kind != LinkKind::Veth || !link.is_signed(alias, name.mac()) {
        let call = format!("delete {name}, which is not ours by its alias");
        return Err(Failed::new(call, Errno::EPERM));
    }
    link_removal::delete(link.index).attempt(call)
}

/// Deletes a bridge. Fails with `EPERM` if it is not ours by its alias, and with `EBUSY` if it has
/// ports.
pub(crate) fn delete_bridge(
    netlink: &mut Netlink,
    name: &IfName,
    alias: &str,
) -> Result<(), Failed> {
    let call = || format!("delete bridge {name}");
    let Some(link) = find(netlink, name).attempt(call)? else {
        return Ok(());
    };
    if link.kind != LinkKind::Bridge || link.alias.as_deref() != Some(alias) {
        let call = format!("delete {name}, which is not ours by its alias");
        return Err(Failed::new(call, Errno::EPERM));
    }
    let ports = LinkUnspec::new_with_index(0).controller(link.index).build();
    let ports = Message::GetLink(without_statistics(ports));
    if !netlink.dump(&ports).attempt(call)?.is_empty() {
        let call = format!("delete bridge {name}, which has ports");
        return Err(Failed::new(call, Errno::EBUSY));
    }
    link_removal::delete(link.index).attempt(call)
}

/// Makes a link a port of a bridge, and sets it up. Returns when the port forwards, if the pod's
/// end is up. After a failure, the link has its previous bridge and state.
pub(crate) fn join_bridge(
    netlink: &mut Netlink,
    link: &ManagedLink,
    bridge: &IfName,
    hairpin: bool,
    options: &PortOptions,
) -> Result<(), Failed> {
    let call = || format!("make {link} a port of {bridge}");
    let [before, controller] = get_both(netlink, [link.name(), bridge]).attempt(call)?;
    if controller.kind != LinkKind::Bridge {
        let call = format!("make {link} a port of {bridge}, which is not a bridge");
        return Err(Failed::new(call, Errno::EOPNOTSUPP));
    }
    let join = Message::SetLink(indexed(before.index).controller(controller.index).build());
    let port = vec![
        InfoBridgePort::HairpinMode(hairpin),
        InfoBridgePort::Isolated(options.isolated),
    ];
    // The kernel accepts these settings only after the link is a port. It sends no notification for
    // a port that is not up yet.
    let port = indexed(before.index)
        .set_port_kind(InfoPortKind::Bridge)
        .set_port_data(InfoPortData::BridgePort(port))
        .build();
    let finish = || {
        // VLANs are set before the port is up: no frame may pass through the bridge's default VLAN.
        netlink.change_all([join, Message::NewLink(port)])?;
        bridge_vlans::set_vlans(netlink, before.index, &options.vlans)?;
        if before.up {
            return Ok(());
        }
        bridge_port::set_up(netlink, before.index)
    };
    finish().map_err(|error| {
        restore_port(netlink, &before);
        Failed::new(call(), error)
    })
}

fn restore_port(netlink: &mut Netlink, before: &Link) {
    let message = indexed(before.index).controller(before.controller.unwrap_or(0));
    let message = if before.up { message } else { message.down() };
    if let Err(error) = netlink.change(Message::SetLink(message.build()), 0) {
        tracing::error!(link = before.index, %error, "cannot restore a bridge port after a failed change");
    }
}

/// Sets the Ethernet address of a link. Returns its index.
pub(crate) fn set_mac(netlink: &mut Netlink, name: &IfName, mac: Mac) -> Result<u32, Failed> {
    let call = || format!("set Ethernet address {mac} of {name}");
    let index = get(netlink, name).attempt(call)?.index;
    let message = indexed(index).address(mac.0.to_vec()).build();
    netlink.change(Message::SetLink(message), 0).attempt(call)?;
    Ok(index)
}

/// Sets the MTU of a link.
pub(crate) fn set_mtu(netlink: &mut Netlink, name: &IfName, mtu: u32) -> Result<(), Failed> {
    let message = named(name).mtu(mtu).build();
    let done = netlink.change(Message::SetLink(message), 0);
    done.attempt(|| format!("set MTU {mtu} of {name}"))
}

/// Switches promiscuous mode of a link on or off.
pub(crate) fn set_promiscuous(
    netlink: &mut Netlink,
    name: &IfName,
    on: bool,
) -> Result<(), Failed> {
    let message = named(name).promiscuous(on).build();
    let done = netlink.change(Message::SetLink(message), 0);
    done.attempt(|| format!("set promiscuous mode of {name} to {on}"))
}

/// Sets a link up.
pub(crate) fn set_up(netlink: &mut Netlink, name: &IfName) -> Result<(), Failed> {
    let done = netlink.change(Message::SetLink(named(name).up().build()), 0);
    done.attempt(|| format!("set {name} up"))
}

/// Returns two links with one call.
fn get_both(netlink: &mut Netlink, names: [&IfName; 2]) -> io::Result<[Link; 2]> {
    let requests = names.map(|name| Request::get(query(name)));
    let mut answers = netlink.request_all(requests.into())?.into_iter();
    let mut next = || match answers.next() {
        Some(Ok(Some(Message::NewLink(message)))) => Ok(link(&message)),
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Err(io::Error::from(io::ErrorKind::InvalidData)),
    };
    Ok([next()?, next()?])
}
