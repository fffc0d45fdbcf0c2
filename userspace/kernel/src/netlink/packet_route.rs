//! Looks up the route of one packet, and which route that is (`ip route get … fibmatch`).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use rtnetlink::packet_core::DefaultNla;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType,
    RouteVia,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use steps::{FoundRoute, LinkRef, RouteDecision, RoutedPacket};

use crate::error::is;
use crate::netlink::ifindex::Names;
use crate::netlink::socket::{Netlink, Request};

/// `RTA_IP_PROTO`, `RTA_SPORT` and `RTA_DPORT`.
const PROTOCOL: u16 = 27;
const SOURCE_PORT: u16 = 28;
const DESTINATION_PORT: u16 = 29;
/// Protocols that the kernel accepts in a lookup.
const WITH_PROTOCOL: [u8; 4] = [1, 6, 17, 58];

/// Returns the kernel's route of a packet.
pub(crate) fn find(
    netlink: &mut Netlink,
    names: &Names,
    packet: &RoutedPacket,
) -> io::Result<FoundRoute> {
    let mut matching = message(packet);
    matching.header.flags |= RouteFlags::FibMatch;
    let requests = [message(packet), matching]
        .map(|message| Request::get(Message::GetRoute(message)))
        .into();
    let mut answers = netlink.request_all(requests)?.into_iter();
    let route = match answers.next() {
        Some(Ok(Some(Message::NewRoute(route)))) => route,
        Some(Err(error)) => return refusal(error),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let text = match answers.next() {
        Some(Ok(Some(Message::NewRoute(matching)))) => shown(names, &matching),
        _ => shown(names, &route),
    };
    Ok(FoundRoute {
        decision: decision(&route),
        route: text,
    })
}

fn message(packet: &RoutedPacket) -> RouteMessage {
    let destination = packet.destination.ip();
    let mut message = RouteMessage::default();
    let (family, length) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = length;
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Destination(destination.into()));
    if let Some(from) = packet.from {
        attributes.push(RouteAttribute::Source(packet.source.ip().into()));
        attributes.push(RouteAttribute::Iif(from));
        message.header.source_prefix_length = length;
    }
    if WITH_PROTOCOL.contains(&packet.protocol) {
        let mut add = |kind, value: &[u8]| {
            let other = DefaultNla::new(kind, value.to_vec());
            attributes.push(RouteAttribute::Other(other));
        };
        add(PROTOCOL, &[packet.protocol]);
        for (kind, end) in [
            (SOURCE_PORT, packet.source),
            (DESTINATION_PORT, packet.destination),
        ] {
            if end.port() != 0 {
                add(kind, &end.port().to_be_bytes());
            }
        }
    }
    message
}

/// Returns the kernel's refusal as a route: it is an answer, too.
fn refusal(error: io::Error) -> io::Result<FoundRoute> {
    let (decision, route) = if is(&error, Errno::EXDEV) || is(&error, Errno::EINVAL) {
        (RouteDecision::SourceRefused, "no valid source or route")
    } else if is(&error, Errno::EHOSTUNREACH) {
        (RouteDecision::Unreachable, "unreachable, or no forwarding")
    } else if is(&error, Errno::EACCES) {
        (RouteDecision::Unreachable, "a route prohibits it")
    } else if [Errno::ENETUNREACH, Errno::ESRCH, Errno::EAGAIN]
        .into_iter()
        .any(|errno| is(&error, errno))
    {
        (RouteDecision::Unreachable, "no route")
    } else {
        return Err(error);
    };
    Ok(FoundRoute {
        decision,
        route: format!("{route} ({error})"),
    })
}

fn decision(route: &RouteMessage) -> RouteDecision {
    let link = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Oif(link) => Some(*link),
        _ => None,
    });
    match (route.header.kind, link) {
        (RouteType::Unicast, Some(link)) => RouteDecision::Leaves {
            link,
            gateway: gateway(route),
            mtu: mtu(route),
        },
        (
            RouteType::Local | RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast,
            _,
        ) => RouteDecision::Local,
        _ => RouteDecision::Unreachable,
    }
}

fn gateway(route: &RouteMessage) -> Option<IpAddr> {
    route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Gateway(address) => plain(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

fn mtu(route: &RouteMessage) -> Option<u32> {
    let metrics = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    })?;
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

/// Shows a route as `ip route` does.
fn shown(names: &Names, route: &RouteMessage) -> String {
    let mut text = match route.header.kind {
        RouteType::Local => "local ".to_owned(),
        RouteType::Broadcast => "broadcast ".to_owned(),
        RouteType::Multicast => "multicast ".to_owned(),
        RouteType::Anycast => "anycast ".to_owned(),
        RouteType::BlackHole => "blackhole ".to_owned(),
        RouteType::Unreachable => "unreachable ".to_owned(),
        RouteType::Prohibit => "prohibit ".to_owned(),
        _ => String::new(),
    };
    let length = route.header.destination_prefix_length;
    let destination = route.attributes.iter().find_map(|it| match it {
        RouteAttribute::Destination(address) => plain(address),
        _ => None,
    });
    match destination {
        None => text.push_str("default"),
        Some(address) if length == if address.is_ipv4() { 32 } else { 128 } => {
            add(&mut text, format_args!("{address}"));
        }
        Some(address) => add(&mut text, format_args!("{address}/{length}")),
    }
    if let Some(gateway) = gateway(route) {
        add(&mut text, format_args!(" via {gateway}"));
    }
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(link) => match names.named(*link) {
                LinkRef::Name(name) => add(&mut text, format_args!(" dev {name}")),
                LinkRef::Gone(index) => add(&mut text, format_args!(" dev #{index}")),
            },
            RouteAttribute::Table(table) if *table != u32::from(RouteHeader::RT_TABLE_MAIN) => {
                add(&mut text, format_args!(" table {table}"));
            }
            _ => {}
        }
    }
    if let Some(mtu) = mtu(route) {
        add(&mut text, format_args!(" mtu {mtu}"));
    }
    text
}

fn add(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a String takes every text");
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(route: &RouteMessage) {
    let _ = (decision(route), gateway(route), mtu(route));
}
