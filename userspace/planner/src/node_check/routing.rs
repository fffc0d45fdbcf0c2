//! Reverse path filters and links that do not forward, where packets of pods meet them.
//!
//! For sample destinations of the ways out of the node, the kernel is queried for the routes of
//! three packets: a pod's request, its answer as the uplink receives it (translated back already),
//! and a request to the node's own address. IPv6 has neither a reverse path filter nor forwarding
//! of single links.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use model::{Cidr, IfName, is_link_local};
use steps::{CheckFacts, LinkKind, NodeLink, Observed, RouteAnswer, RouteQuery, SysctlKey};

use super::{
    FilteredTraffic, NodeCondition, OverlapEffect, RoutedNetwork, link_of, name_of, next,
    sample_pods,
};
use crate::Records;
use crate::own_links::LOCAL_TABLE;

/// Ways out of the node that are checked at most; those with the widest prefixes first.
const MAX_WAYS: usize = 16;

/// Destinations in the default route whose routes are queried. None of them is contacted.
const WORLD: [Ipv4Addr; 5] = [
    Ipv4Addr::new(198, 18, 0, 1),
    Ipv4Addr::new(203, 0, 113, 1),
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(9, 9, 9, 9),
    Ipv4Addr::new(1, 1, 1, 1),
];

/// A way out of the node: a link, and a destination behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WayOut {
    destination: IpAddr,
    link: IfName,
    index: u32,
    /// Address of the node on the link.
    own: Option<IpAddr>,
}

/// Returns the routes to query and the sysctls to read.
pub(super) fn queries(
    network: &RoutedNetwork<'_>,
    observed: &Observed,
) -> (BTreeSet<RouteQuery>, BTreeSet<SysctlKey>) {
    let Some(pod) = sample_pod(network) else {
        return Default::default();
    };
    let mut routes = BTreeSet::new();
    let read = |link: &IfName| rp_filter(link).into_iter().chain([forwarding(link)]);
    let mut sysctls: BTreeSet<SysctlKey> = read(&network.link).collect();
    for way in ways_out(network, observed) {
        routes.insert(request(network, pod, &way));
        routes.insert(answer(pod, &way));
        routes.extend(own_request(&way));
        sysctls.extend(read(&way.link));
    }
    (routes, sysctls)
}

pub(super) fn conditions(
    network: &RoutedNetwork<'_>,
    observed: &Observed,
    records: &Records,
    facts: &CheckFacts,
) -> Vec<NodeCondition> {
    let Some(pod) = sample_pod(network) else {
        return Vec::new();
    };
    let has_ports = records
        .values()
        .map(|record| &record.attachment)
        .any(|pod| pod.key.network == network.network.name && !pod.port_mappings.is_empty());
    let ways = ways_out(network, observed);
    let mut found = Vec::new();
    for way in &ways {
        let look_up = |query: &RouteQuery| facts.routes.get(query).copied();
        let answered = look_up(&answer(pod, way));
        match look_up(&request(network, pod, way)) {
            Some(RouteAnswer::Unreachable) => {
                let traffic = FilteredTraffic::FromPods(way.destination);
                found.extend(drops(network, &network.link, traffic, facts));
            }
            Some(RouteAnswer::Leaves(index)) if index == way.index => {
                found.extend(lost_answers(network, (pod, way), answered, observed, facts));
            }
            _elsewhere => {
                let reaches_node = own_request(way).and_then(|query| look_up(&query));
                let is_dropped = answered == Some(RouteAnswer::Unreachable);
                if has_ports && is_dropped && reaches_node == Some(RouteAnswer::Local) {
                    let traffic = FilteredTraffic::Requests(way.destination);
                    found.extend(drops(network, &way.link, traffic, facts));
                }
            }
        }
    }
    found
}

/// Returns why answers to the pod do not reach it: the uplink drops them, or policy rules for
/// packets that it receives lead them elsewhere.
fn lost_answers(
    network: &RoutedNetwork<'_>,
    (pod, way): (IpAddr, &WayOut),
    answered: Option<RouteAnswer>,
    observed: &Observed,
    facts: &CheckFacts,
) -> Option<NodeCondition> {
    let link = match answered? {
        RouteAnswer::Unreachable => {
            let drops = drops(network, &way.link, FilteredTraffic::Answers, facts);
            if drops.is_some() {
                return drops;
            }
            None
        }
        RouteAnswer::Leaves(index) if index == network.index => return None,
        RouteAnswer::Leaves(index) => Some(name_of(index, observed)?.clone()),
        RouteAnswer::Local => return None,
    };
    let subnets = network.network.subnets();
    Some(NodeCondition::SubnetOverlap {
        network: network.network.name.clone(),
        subnet: subnets.into_iter().find(|subnet| subnet.contains(pod))?,
        other: None,
        link,
        effect: OverlapEffect::AllPods,
    })
}

/// Returns why the link drops packets that it receives; `None` where neither its forwarding nor its
/// filter explains it.
fn drops(
    network: &RoutedNetwork<'_>,
    link: &IfName,
    traffic: FilteredTraffic,
    facts: &CheckFacts,
) -> Option<NodeCondition> {
    let network = network.network.name.clone();
    let link = link.clone();
    if number(&forwarding(&link), facts) == Some(0) {
        return Some(NodeCondition::ForwardingOff { network, link });
    }
    filters(&link, facts).then_some(NodeCondition::ReversePathFilter {
        network,
        link,
        traffic,
    })
}

/// Whether the link has a reverse path filter: the larger of the values of `all` and the link
/// applies, and 2 (loose) drops packets from sources without any route.
fn filters(link: &IfName, facts: &CheckFacts) -> bool {
    let values = rp_filter(link).map(|key| number(&key, facts).unwrap_or(0));
    values.into_iter().any(|value| value > 0)
}

fn number(key: &SysctlKey, facts: &CheckFacts) -> Option<u8> {
    facts.sysctls.get(key)?.as_ref()?.parse().ok()
}

fn rp_filter(link: &IfName) -> [SysctlKey; 2] {
    ["all", link.as_str()].map(|of| SysctlKey(format!("net/ipv4/conf/{of}/rp_filter")))
}

fn forwarding(link: &IfName) -> SysctlKey {
    SysctlKey(format!("net/ipv4/conf/{link}/forwarding"))
}

/// Returns a pod's packet to the destination.
fn request(network: &RoutedNetwork<'_>, pod: IpAddr, way: &WayOut) -> RouteQuery {
    RouteQuery {
        to: way.destination,
        received: Some((pod, network.link.clone())),
    }
}

/// Returns the answer of the destination, with the pod's address as the datapath writes it.
fn answer(pod: IpAddr, way: &WayOut) -> RouteQuery {
    RouteQuery {
        to: pod,
        received: Some((way.destination, way.link.clone())),
    }
}

/// Returns a packet of the destination to the node itself.
fn own_request(way: &WayOut) -> Option<RouteQuery> {
    Some(RouteQuery {
        to: way.own?,
        received: Some((way.destination, way.link.clone())),
    })
}

fn sample_pod(network: &RoutedNetwork<'_>) -> Option<IpAddr> {
    sample_pods(network.network)
        .into_iter()
        .find(IpAddr::is_ipv4)
}

/// Returns the ways out of the node: for each link with IPv4 routes that is not the network's, the
/// widest of them in each table.
fn ways_out(network: &RoutedNetwork<'_>, observed: &Observed) -> BTreeSet<WayOut> {
    let mut routes: Vec<_> = observed
        .routes
        .iter()
        .filter(|route| route.destination.is_ipv4() && route.table != LOCAL_TABLE)
        .filter(|route| !route.destination.network().is_multicast())
        .filter(|route| route.link != network.index)
        .collect();
    routes.sort_by_key(|route| route.destination.prefix_len());
    let mut seen = BTreeSet::new();
    let widest = routes
        .into_iter()
        .filter(|route| seen.insert((route.link, route.table)));
    let way = |route: &steps::RouteEntry| {
        let (link, found) = link_of(route, observed)?;
        let is_uplink = found.up && found.kind != LinkKind::Loopback;
        is_uplink.then_some(())?;
        Some(WayOut {
            destination: sample(route.destination, observed)?,
            link: link.clone(),
            index: found.index,
            own: own_address(found),
        })
    };
    widest.filter_map(way).take(MAX_WAYS).collect()
}

fn own_address(link: &NodeLink) -> Option<IpAddr> {
    let mut addresses = link.addresses.iter().map(|own| own.address);
    addresses.find(|address| address.is_ipv4() && !is_link_local(*address))
}

/// Returns an address of the prefix for which no narrower route exists, and that is not the node's.
fn sample(prefix: Cidr, observed: &Observed) -> Option<IpAddr> {
    let ends = [next(prefix.network(), 1), next(prefix.last(), -1)];
    let world = WORLD.into_iter().map(IpAddr::V4);
    let mut choices = world
        .chain(ends.into_iter().flatten())
        .chain((2..10).filter_map(|by| next(prefix.network(), by)));
    let narrower = |address: IpAddr| {
        let mut routes = observed.routes.iter();
        routes.any(|route| {
            route.destination.contains(address)
                && route.destination.prefix_len() > prefix.prefix_len()
        })
    };
    let is_own = |address: IpAddr| {
        let mut own = observed.links.values().flat_map(|link| &link.addresses);
        own.any(|own| own.address == address)
    };
    choices.find(|address| {
        prefix.contains(*address)
            && !is_never_remote(*address)
            && !narrower(*address)
            && !is_own(*address)
    })
}

/// Returns whether no remote host has the address: it is loopback, multicast or unspecified.
fn is_never_remote(address: IpAddr) -> bool {
    let IpAddr::V4(v4) = address else {
        return true;
    };
    let [first, ..] = v4.octets();
    first == 0 || first == 127 || first >= 224
}
