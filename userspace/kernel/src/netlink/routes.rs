//! Reads routes: all of a namespace, and those of one link.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Cidr, Route, RouteOptions};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::Nla as _;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
    RouteVia,
};
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use steps::RouteEntry;

use crate::netlink::socket::Netlink;

/// Routes and the properties of routing that the datapath depends on.
#[derive(Default)]
pub(crate) struct Routing {
    /// Unicast routes of all tables and both families, one entry for each next hop of a multipath
    /// route.
    pub(crate) entries: Vec<RouteEntry>,
    /// Descriptions of rules and routes that match the TOS (RFC 791) or DSCP: the datapath's route
    /// lookups ignore it.
    pub(crate) by_tos: BTreeSet<String>,
    /// Whether ports or protocols may select a route: by a rule, or by a multipath hash.
    pub(crate) by_port: bool,
}

/// Reads all routes and rules.
pub(crate) fn all(netlink: &mut Netlink) -> io::Result<Routing> {
    let mut routing = Routing::default();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut query = RouteMessage::default();
        query.header.address_family = family;
        let (mut by_tos, mut multipath) = (false, false);
        let entries = netlink.dump_as(&Message::GetRoute(query), |message, entries| {
            let Message::NewRoute(route) = message else {
                return;
            };
            by_tos |= route.header.tos != 0;
            multipath |= may_be_multipath(&route);
            if is_unicast(&route) {
                entries.extend(next_hops(&route));
            }
        })?;
        if by_tos {
            let words = "routing: a route matches the TOS";
            routing.by_tos.insert(words.to_owned());
        }
        routing.entries.extend(entries);
        let rules = rules(netlink, family)?;
        if rules.iter().any(matches_tos) {
            let words = "routing: a rule matches the TOS or DSCP";
            routing.by_tos.insert(words.to_owned());
        }
        routing.by_port |= multipath || rules.iter().any(matches_ports);
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

fn matches_tos(rule: &RuleMessage) -> bool {
    /// `FRA_DSCP` and `FRA_FLOWLABEL`.
    const WORDS: [u16; 2] = [25, 26];
    rule.header.tos != 0 || has_any(rule, &WORDS)
}

fn matches_ports(rule: &RuleMessage) -> bool {
    /// `FRA_IP_PROTO`, `FRA_SPORT_RANGE`, `FRA_DPORT_RANGE`.
    const WORDS: [u16; 3] = [22, 23, 24];
    has_any(rule, &WORDS)
}

fn has_any(rule: &RuleMessage, words: &[u16]) -> bool {
    let mut attributes = rule.attributes.iter();
    attributes.any(|attribute| words.contains(&attribute.kind()))
}

/// Whether a route has several next hops, or a next hop object, which may be a group.
fn may_be_multipath(route: &RouteMessage) -> bool {
    /// `RTA_NH_ID`.
    const OBJECT: u16 = 30;
    let mut attributes = route.attributes.iter();
    attributes.any(|attribute| {
        matches!(attribute, RouteAttribute::MultiPath(_)) || attribute.kind() == OBJECT
    })
}

/// Returns the routes of all tables through one link, without those that the kernel added for the
/// link's addresses.
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
            next_hops(message)
                .into_iter()
                .filter(|hop| hop.link == index)
                .map(|hop| Route {
                    destination: hop.destination,
                    gateway: hop.gateway,
                    options: options(message, hop.table, hop.gateway.is_some()),
                })
        }));
    }
    Ok(found)
}

/// Returns the link and the gateway of each route of the main table with this protocol number.
pub(crate) fn with_protocol(
    netlink: &mut Netlink,
    protocol: u8,
) -> io::Result<BTreeMap<Cidr, (u32, IpAddr)>> {
    let mut found = BTreeMap::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut query = RouteMessage::default();
        query.header.address_family = family;
        let all = routes(netlink, query)?;
        let own = all
            .iter()
            .flat_map(next_hops)
            .filter(|route| route.protocol == protocol && route.table == RouteOptions::MAIN);
        found.extend(own.filter_map(|route| {
            let gateway = route.gateway?;
            Some((route.destination, (route.link, gateway)))
        }));
    }
    Ok(found)
}

/// Returns the options of a route, without the kernel's defaults.
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

/// Makes the message about a route through a link. The gateway need not be in a subnet of the link.
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

/// `RT_TABLE_LOCAL`: the kernel's routes to the node's own addresses.
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

/// Returns one entry for each next hop; a route without any (a blackhole) has none.
fn next_hops(message: &RouteMessage) -> Vec<RouteEntry> {
    let Some(destination) = destination(message) else {
        return Vec::new();
    };
    let mut table = u32::from(message.header.table);
    let mut next_hops = Vec::new();
    let (mut link, mut mtu) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Metrics(metrics) => mtu = metrics.iter().find_map(mtu_of),
            RouteAttribute::MultiPath(hops) => next_hops.extend(
                hops.iter()
                    .map(|hop| (hop.interface_index, gateway(&hop.attributes))),
            ),
            _ => {}
        }
    }
    next_hops.extend(link.map(|link| (link, gateway(&message.attributes))));
    let entry = |(link, gateway)| RouteEntry {
        destination,
        gateway,
        link,
        table,
        mtu,
        protocol: message.header.protocol.into(),
    };
    next_hops.into_iter().map(entry).collect()
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(route: &RouteMessage) {
    let _ = (next_hops(route), may_be_multipath(route), is_unicast(route));
    let _ = options(route, 254, gateway(&route.attributes).is_some());
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
