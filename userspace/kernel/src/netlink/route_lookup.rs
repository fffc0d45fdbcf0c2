//! Queries the kernel for the routes of sample packets (`ip route get … from … iif …`).
//!
//! For a packet that a link receives, the kernel makes the same lookup as for a real one, with its
//! policy rules and the reverse path filter.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use steps::{RouteAnswer, RouteQuery};

use crate::error::is;
use crate::netlink::ifindex::Names;
use crate::netlink::socket::{Netlink, Request};

/// Returns the answers; a query about a link that is gone has none.
pub(crate) fn all(
    netlink: &mut Netlink,
    names: &Names,
    queries: &BTreeSet<RouteQuery>,
) -> io::Result<BTreeMap<RouteQuery, RouteAnswer>> {
    let mut sent = Vec::new();
    let mut requests = Vec::new();
    for query in queries {
        if let Some(message) = message(query, names)? {
            sent.push(query);
            requests.push(Request::get(Message::GetRoute(message)));
        }
    }
    let answers = netlink.request_all(requests)?;
    let mut found = BTreeMap::new();
    for (query, answer) in sent.into_iter().zip(answers) {
        let answer = match answer {
            Ok(Some(Message::NewRoute(route))) => answered(&route),
            Ok(_) => None,
            Err(error) if is_unreachable(&error) => Some(RouteAnswer::Unreachable),
            Err(error) if is(&error, Errno::ENODEV) => None,
            Err(error) => return Err(error),
        };
        found.extend(answer.map(|answer| (query.clone(), answer)));
    }
    Ok(found)
}

/// Returns those of `addresses` that the node receives packets for itself, or will: a new IPv6
/// address has no route yet. One that the kernel has no answer for is not among them.
pub(crate) fn own(
    netlink: &mut Netlink,
    addresses: &BTreeSet<IpAddr>,
) -> io::Result<BTreeSet<IpAddr>> {
    let routes = addresses
        .iter()
        .map(|address| (*address, Message::GetRoute(route_to(*address))));
    let new = addresses
        .iter()
        .filter_map(|address| Some((*address, address_of(*address)?)));
    let (asked, queries): (Vec<IpAddr>, Vec<Message>) = routes.chain(new).unzip();
    let requests = queries.into_iter().map(Request::get).collect();
    let answers = netlink.request_all(requests)?;
    let is_own = |answer: &io::Result<Option<Message>>| match answer {
        Ok(Some(Message::NewRoute(route))) => answered(route) == Some(RouteAnswer::Local),
        Ok(Some(Message::NewAddress(_))) => true,
        _ => false,
    };
    let answered = asked.into_iter().zip(answers);
    Ok(answered
        .filter(|(_, answer)| is_own(answer))
        .map(|(address, _)| address)
        .collect())
}

/// Returns the query for an IPv6 address of any link (`inet6_rtm_getaddr`).
fn address_of(address: IpAddr) -> Option<Message> {
    let IpAddr::V6(_) = address else {
        return None;
    };
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.attributes.push(AddressAttribute::Address(address));
    Some(Message::GetAddress(message))
}

fn message(query: &RouteQuery, names: &Names) -> io::Result<Option<RouteMessage>> {
    let mut message = route_to(query.to);
    if let Some((source, link)) = &query.received {
        let Some(index) = names.find(link)? else {
            return Ok(None);
        };
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Source(plain(*source)));
        attributes.push(RouteAttribute::Iif(index));
        message.header.source_prefix_length = message.header.destination_prefix_length;
    }
    Ok(Some(message))
}

/// Returns the query for a packet that the node sends to `to`.
fn route_to(to: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, length) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = length;
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Destination(plain(to)));
    message
}

fn plain(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

fn answered(route: &RouteMessage) -> Option<RouteAnswer> {
    let link = || {
        route
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(link) => Some(*link),
                _ => None,
            })
    };
    match route.header.kind {
        RouteType::Unicast => link().map(RouteAnswer::Leaves),
        RouteType::Local | RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast => {
            Some(RouteAnswer::Local)
        }
        _ => Some(RouteAnswer::Unreachable),
    }
}

/// Whether the error is that of a missing, dropping or rejecting route, or of the reverse path
/// filter (`EXDEV` before Linux 6.13). `EINVAL` is a blackhole's, `EACCES` that of `prohibit`,
/// `EAGAIN` that of `throw` in the last table.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(route: &RouteMessage) {
    let _ = answered(route);
}

fn is_unreachable(error: &io::Error) -> bool {
    let errors = [
        Errno::EXDEV,
        Errno::ENETUNREACH,
        Errno::EHOSTUNREACH,
        Errno::EINVAL,
        Errno::EACCES,
        Errno::ESRCH,
        Errno::EAGAIN,
    ];
    errors.into_iter().any(|errno| is(error, errno))
}
