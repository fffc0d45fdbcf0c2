//! Routes: all of a namespace, and those by one link.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's vocabulary is open: what we do not know is skipped"
)]

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Cidr, Route, RouteOptions};
use planner::RouteEntry;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::Nla as _;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
    RouteVia,
};
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::netlink::Netlink;

/// How packets find their way.
#[derive(Default)]
pub(crate) struct Routing {
    /// Routes to other hosts of all tables and both families, one entry for each leg of a multipath route.
    pub(crate) entries: Vec<RouteEntry>,
    /// In words, what asks packets for the kind of service (the TOS of RFC 791, or the DSCP): our programs find routes
    /// without it.
    pub(crate) by_service: BTreeSet<String>,
    /// Whether ports or protocols may decide: by a rule, or because a route has several legs.
    pub(crate) by_port: bool,
}

/// Asks for all routes and rules.
pub(crate) fn all(netlink: &mut Netlink) -> io::Result<Routing> {
    let mut routing = Routing::default();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut query = RouteMessage::default();
        query.header.address_family = family;
        let routes = routes(netlink, query)?;
        if routes.iter().any(|route| route.header.tos != 0) {
            let words = "routing: a route is for one kind of service";
            routing.by_service.insert(words.to_owned());
        }
        let unicast = routes.iter().filter(|route| is_unicast(route));
        routing.entries.extend(unicast.flat_map(legs));
        let rules = rules(netlink, family)?;
        if rules.iter().any(asks_for_service) {
            let words = "routing: a rule asks for the kind of service";
            routing.by_service.insert(words.to_owned());
        }
        routing.by_port |= routes.iter().any(may_fork) || rules.iter().any(asks_for_ports);
    }
    Ok(routing)
}

fn rules(netlink: &mut Netlink, family: AddressFamily) -> io::Result<Vec<RuleMessage>> {
    let mut query = RuleMessage::default();
    query.header.family = family;
    let messages = netlink.dump(&Message::GetRule(query))?;
    let rules = messages.into_iter().filter_map(|message| match message {
        Message::NewRule(rule) => Some(rule),
        _ => None,
    });
    Ok(rules.collect())
}

fn asks_for_service(rule: &RuleMessage) -> bool {
    /// `FRA_DSCP` and `FRA_FLOWLABEL`.
    const WORDS: [u16; 2] = [25, 26];
    rule.header.tos != 0 || has_any(rule, &WORDS)
}

fn asks_for_ports(rule: &RuleMessage) -> bool {
    /// `FRA_IP_PROTO`, `FRA_SPORT_RANGE`, `FRA_DPORT_RANGE`.
    const WORDS: [u16; 3] = [22, 23, 24];
    has_any(rule, &WORDS)
}

fn has_any(rule: &RuleMessage, words: &[u16]) -> bool {
    let mut attributes = rule.attributes.iter();
    attributes.any(|attribute| words.contains(&attribute.kind()))
}

/// Whether a route has several legs, or a next hop that is an object of its own, which may stand for several.
fn may_fork(route: &RouteMessage) -> bool {
    /// `RTA_NH_ID`.
    const OBJECT: u16 = 30;
    let mut attributes = route.attributes.iter();
    attributes.any(|attribute| {
        matches!(attribute, RouteAttribute::MultiPath(_)) || attribute.kind() == OBJECT
    })
}

/// Routes of all tables by one link, without those that the kernel made for the link's addresses.
pub(crate) fn of_link(netlink: &mut Netlink, index: u32) -> io::Result<Vec<Route>> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut query = RouteMessage::default();
        query.header.address_family = family;
        query.attributes.push(RouteAttribute::Oif(index));
        let all = routes(netlink, query)?;
        let own = all
            .iter()
            .filter(|route| is_unicast(route))
            .filter(|message| message.header.protocol != RouteProtocol::Kernel)
            .filter(|message| message.header.table != LOCAL);
        found.extend(own.flat_map(|message| {
            legs(message)
                .into_iter()
                .filter(|leg| leg.link == index)
                .map(|leg| Route {
                    destination: leg.destination,
                    gateway: leg.gateway,
                    options: options(message, leg.table, leg.gateway.is_some()),
                })
        }));
    }
    Ok(found)
}

/// What is particular about a route, without what the kernel does by itself.
fn options(message: &RouteMessage, table: u32, has_gateway: bool) -> RouteOptions {
    let is_ipv4 = message.header.address_family == AddressFamily::Inet;
    let mut options = RouteOptions {
        table: Some(table),
        scope: Some(message.header.scope.into()),
        ..RouteOptions::default()
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => options.priority = Some(*priority),
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => options.mtu = Some(*mtu),
                        RouteMetric::Advmss(advmss) => options.advmss = Some(*advmss),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    options.normal(is_ipv4, has_gateway)
}

/// The message about a route by a link; the gateway need not be of a subnet of the link's.
pub(crate) fn message(index: u32, route: &Route) -> io::Result<RouteMessage> {
    let destination = route.destination;
    let builder = RouteMessageBuilder::<IpAddr>::new()
        .output_interface(index)
        .destination_prefix(destination.network(), destination.prefix_len())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    let builder = match route.gateway {
        Some(gateway) => builder
            .gateway(gateway)
            .map_err(|_| io::ErrorKind::InvalidInput)?
            .onlink(),
        None => builder.scope(RouteScope::Link),
    };
    Ok(with_options(builder, &route.options).build())
}

fn with_options(
    mut builder: RouteMessageBuilder<IpAddr>,
    options: &RouteOptions,
) -> RouteMessageBuilder<IpAddr> {
    if let Some(priority) = options.priority {
        builder = builder.priority(priority);
    }
    if let Some(table) = options.table {
        builder = builder.table_id(table);
    }
    if let Some(scope) = options.scope {
        builder = builder.scope(scope.into());
    }
    let metrics: Vec<RouteMetric> = [
        options.mtu.map(RouteMetric::Mtu),
        options.advmss.map(RouteMetric::Advmss),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !metrics.is_empty() {
        let attributes = &mut builder.get_mut().attributes;
        attributes.push(RouteAttribute::Metrics(metrics));
    }
    builder
}

/// The table of what the kernel does for the node's own addresses.
const LOCAL: u8 = 255;

fn routes(netlink: &mut Netlink, query: RouteMessage) -> io::Result<Vec<RouteMessage>> {
    let messages = netlink.dump(&Message::GetRoute(query))?;
    let routes = messages.into_iter().filter_map(|message| match message {
        Message::NewRoute(route) => Some(route),
        _ => None,
    });
    Ok(routes.collect())
}

fn is_unicast(message: &RouteMessage) -> bool {
    message.header.kind == RouteType::Unicast
}

/// One entry for each way out; a route without any (a blackhole) has none.
fn legs(message: &RouteMessage) -> Vec<RouteEntry> {
    let Some(destination) = destination(message) else {
        return Vec::new();
    };
    let mut table = u32::from(message.header.table);
    let mut legs = Vec::new();
    let (mut link, mut mtu) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Metrics(metrics) => mtu = metrics.iter().find_map(mtu_of),
            RouteAttribute::MultiPath(hops) => legs.extend(
                hops.iter()
                    .map(|hop| (hop.interface_index, gateway(&hop.attributes))),
            ),
            _ => {}
        }
    }
    legs.extend(link.map(|link| (link, gateway(&message.attributes))));
    let entry = |(link, gateway)| RouteEntry {
        destination,
        gateway,
        link,
        table,
        mtu,
    };
    legs.into_iter().map(entry).collect()
}

const fn mtu_of(metric: &RouteMetric) -> Option<u32> {
    match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    }
}

fn destination(message: &RouteMessage) -> Option<Cidr> {
    let given = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(address) => plain(address),
            _ => None,
        });
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Cidr::containing(
        given.unwrap_or(any),
        message.header.destination_prefix_length,
    )
}

fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => plain(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}
