//! Reads, adds and removes addresses of links.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{IfName, InterfaceAddress};
use nix::errno::Errno;
use rtnetlink::AddressMessageBuilder;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::error::{Attempt as _, Failed, is, is_gone};
use crate::netlink::links;
use crate::netlink::socket::Netlink;

/// An address with its link.
pub(crate) struct LinkAddress {
    /// Index of the link.
    pub(crate) link: u32,
    /// Address and prefix length.
    pub(crate) own: InterfaceAddress,
    /// Whether the kernel uses it as a source address only if it has no other.
    pub(crate) is_avoided: bool,
}

/// Returns the addresses of all links, in the kernel's order.
pub(crate) fn all(netlink: &mut Netlink) -> io::Result<Vec<LinkAddress>> {
    list(netlink, AddressMessage::default())
}

/// Returns the addresses of one link, in the kernel's order.
pub(crate) fn of_link(netlink: &mut Netlink, index: u32) -> io::Result<Vec<InterfaceAddress>> {
    let mut message = AddressMessage::default();
    message.header.index = index;
    let listed = list(netlink, message)?;
    // A kernel without strict checking ignores the filter and dumps the addresses of all links.
    let own = listed.into_iter().filter(|seen| seen.link == index);
    Ok(own.map(|seen| seen.own).collect())
}

fn list(netlink: &mut Netlink, message: AddressMessage) -> io::Result<Vec<LinkAddress>> {
    let messages = netlink.dump(&Message::GetAddress(message))?;
    let seen = messages.iter().filter_map(|message| match message {
        Message::NewAddress(message) => Some(LinkAddress {
            link: message.header.index,
            own: address(message)?,
            is_avoided: is_avoided(message),
        }),
        _ => None,
    });
    Ok(seen.collect())
}

/// Whether source address selection avoids the address, as `ipv6_dev_get_saddr` does; IPv4 has no
/// such rule. Link-scope addresses are never SNAT sources, so their flags do not matter.
fn is_avoided(message: &AddressMessage) -> bool {
    let avoided = AddressHeaderFlags::Deprecated
        | AddressHeaderFlags::Tentative
        | AddressHeaderFlags::Dadfailed;
    message.header.family == AddressFamily::Inet6
        && message.header.scope != AddressScope::Link
        && message.header.flags.intersects(avoided)
}

/// Returns the address of a message. On a point-to-point link `IFA_ADDRESS` is the peer's;
/// `IFA_LOCAL` is always our own, where present.
fn address(message: &AddressMessage) -> Option<InterfaceAddress> {
    let attributes = || message.attributes.iter();
    let local = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let any = attributes().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some(InterfaceAddress {
        address: local.or(any)?,
        prefix_len: message.header.prefix_len,
    })
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(message: &AddressMessage) {
    let _ = (address(message), is_avoided(message));
}

/// Adds an address without duplicate address detection. An address that is present is success.
pub(crate) fn add(
    netlink: &mut Netlink,
    link: &IfName,
    address: InterfaceAddress,
) -> Result<(), Failed> {
    let call = || format!("add address {address} to {link}");
    let index = links::get(netlink, link).attempt(call)?.index;
    match netlink.change(new_message(index, address, true), NLM_F_CREATE | NLM_F_EXCL) {
        // IPv6 also returns `EEXIST` for the same address with another prefix length.
        Err(error) if is(&error, Errno::EEXIST) => {
            let present = of_link(netlink, index).attempt(call)?;
            if present.contains(&address) {
                Ok(())
            } else {
                Err(Failed::new(call(), error))
            }
        }
        result => result.attempt(call),
    }
}

/// Makes the message that adds an address. `is_sure` turns duplicate address detection off.
pub(crate) fn new_message(index: u32, address: InterfaceAddress, is_sure: bool) -> Message {
    let mut message = message(index, address);
    if is_sure {
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    if address.address.is_loopback() {
        message.header.scope = AddressScope::Host;
    }
    Message::NewAddress(message)
}

/// Returns the link-local address that derives from a link's MAC address; `None` where the kernel
/// would generate none at all.
pub(crate) fn link_local(link: &LinkMessage) -> Option<InterfaceAddress> {
    let is_made = has_mode(link, &[In6AddrGenMode::Eui64]) || generates_other_link_local(link);
    let mac = links::link(link).mac.filter(|_| is_made)?;
    Some(mac.link_local())
}

/// Returns whether the kernel would generate a link-local address that does not derive from the MAC
/// address: a stable one of the namespace (RFC 7217), or a random one.
pub(crate) fn generates_other_link_local(link: &LinkMessage) -> bool {
    has_mode(
        link,
        &[In6AddrGenMode::StablePrivacy, In6AddrGenMode::Random],
    )
}

fn has_mode(link: &LinkMessage, modes: &[In6AddrGenMode]) -> bool {
    of_ipv6(link).any(|known| match known {
        AfSpecInet6::AddrGenMode(mode) => modes.contains(mode),
        _ => false,
    })
}

/// Returns the message that makes the kernel derive the link-local address of a link from its MAC
/// address.
pub(crate) fn derive_link_local(index: u32) -> LinkMessage {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::Eui64);
    let mode = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
    links::indexed(index).append_extra_attribute(mode).build()
}

/// Returns the IPv6 attributes of a link; empty where it has no IPv6.
fn of_ipv6(link: &LinkMessage) -> impl Iterator<Item = &AfSpecInet6> {
    link.attributes
        .iter()
        .flat_map(|attribute| match attribute {
            LinkAttribute::AfSpecUnspec(families) => families.as_slice(),
            _ => &[],
        })
        .flat_map(|family| match family {
            AfSpecUnspec::Inet6(known) => known.as_slice(),
            _ => &[],
        })
}

/// State of duplicate address detection on a link.
pub(crate) enum Detection {
    /// Finished: no address is a duplicate.
    Done,
    /// Running: an address is tentative.
    Pending,
    /// Finished: this address is a duplicate.
    Duplicate(IpAddr),
}

/// Returns the state of duplicate address detection on a link.
pub(crate) fn detection(netlink: &mut Netlink, index: u32) -> io::Result<Detection> {
    let mut query = AddressMessage::default();
    query.header.family = AddressFamily::Inet6;
    query.header.index = index;
    let messages = netlink.dump(&Message::GetAddress(query))?;
    let own = messages.iter().filter_map(|message| match message {
        Message::NewAddress(message) if message.header.index == index => Some(message),
        _ => None,
    });
    let mut detection = Detection::Done;
    for message in own {
        let flags = message.header.flags;
        if flags.contains(AddressHeaderFlags::Dadfailed)
            && let Some(own) = address(message)
        {
            return Ok(Detection::Duplicate(own.address));
        }
        if flags.contains(AddressHeaderFlags::Tentative) {
            detection = Detection::Pending;
        }
    }
    Ok(detection)
}

/// Removes an address. An address or a link that is gone is success.
pub(crate) fn remove(
    netlink: &mut Netlink,
    link: &IfName,
    address: InterfaceAddress,
) -> Result<(), Failed> {
    let call = || format!("remove address {address} from {link}");
    let Some(found) = links::find(netlink, link).attempt(call)? else {
        return Ok(());
    };
    let before = of_link(netlink, found.index).attempt(call)?;
    if !before.contains(&address) {
        return Ok(());
    }
    match netlink.change(Message::DelAddress(message(found.index, address)), 0) {
        Err(error) if !is_gone(&error) => return Err(Failed::new(call(), error)),
        _ => {}
    }
    restore_secondaries(netlink, found.index, address, &before).attempt(call)
}

/// Adds foreign addresses again that the kernel removed with the primary IPv4 address. It does so
/// unless `promote_secondaries` is set on the link.
fn restore_secondaries(
    netlink: &mut Netlink,
    index: u32,
    removed: InterfaceAddress,
    before: &[InterfaceAddress],
) -> io::Result<()> {
    let after = of_link(netlink, index)?;
    let lost = |address: &&InterfaceAddress| **address != removed && !after.contains(address);
    for address in before.iter().filter(lost) {
        netlink.change(new_message(index, *address, true), NLM_F_CREATE)?;
    }
    Ok(())
}

/// Makes the message about an address.
pub(crate) fn message(index: u32, address: InterfaceAddress) -> AddressMessage {
    match address.address {
        IpAddr::V4(v4) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(v4, address.prefix_len)
            .build(),
        IpAddr::V6(v6) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(index)
            .address(v6, address.prefix_len)
            .build(),
    }
}
