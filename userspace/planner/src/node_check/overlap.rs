//! Overlaps of a network's subnets with subnets and routes of other links.
//!
//! Two connected routes to one prefix are possible: the kernel uses the first that was added. So
//! for each overlap, the kernel is queried for the way of a packet to a pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Cidr, HostLink, IfName, InterfaceAddress, Range, RangeSet, is_link_local};
use steps::{CheckFacts, LinkKind, NodeLink, Observed, RouteAnswer, RouteQuery};

use super::{
    MAIN_TABLE, NodeCondition, OverlapEffect, RoutedNetwork, link_of, name_of, next, sample_pods,
};
use crate::Records;
use crate::own_links::LOCAL_TABLE;

/// Conditions that are reported for one network at most: a VPN or a router may add a thousand
/// routes.
const MAX_REPORTED: usize = 8;
/// Prefixes that are queried for one network at most.
const MAX_QUERIED: usize = 64;

/// A prefix of another link that shares addresses with a network's subnet.
struct Foreign<'a> {
    subnet: Cidr,
    prefix: Cidr,
    link: &'a IfName,
    /// Whether the kernel surely uses it for something: an address of a link, or a route of the
    /// main table. Other tables need a rule.
    is_in_use: bool,
}

pub(super) fn queries(
    network: &RoutedNetwork<'_>,
    observed: &Observed,
    records: &Records,
) -> BTreeSet<RouteQuery> {
    let shared = foreign(network, observed, records);
    let of_prefixes = shared.iter().filter_map(|one| sample(network, one));
    let samples = sample_pods(network.network);
    samples
        .into_iter()
        .chain(of_prefixes)
        .map(sent_to)
        .collect()
}

pub(super) fn conditions(
    network: &RoutedNetwork<'_>,
    observed: &Observed,
    records: &Records,
    facts: &CheckFacts,
) -> Vec<NodeCondition> {
    let mut found: Vec<NodeCondition> = foreign(network, observed, records)
        .iter()
        .filter_map(|one| overlap(network, one, facts))
        .collect();
    if found.is_empty() {
        found.extend(by_rule(network, observed, facts));
    }
    // Those that cut pods off come first.
    found.sort_by_key(|condition| {
        let NodeCondition::SubnetOverlap { effect, .. } = condition else {
            return None;
        };
        Some(*effect)
    });
    found.truncate(MAX_REPORTED);
    found
}

fn sent_to(to: IpAddr) -> RouteQuery {
    RouteQuery { to, received: None }
}

fn overlap(
    network: &RoutedNetwork<'_>,
    one: &Foreign<'_>,
    facts: &CheckFacts,
) -> Option<NodeCondition> {
    let answer = sample(network, one).and_then(|address| facts.routes.get(&sent_to(address)));
    let leads_here = match answer {
        Some(RouteAnswer::Leaves(index)) => *index == network.index,
        Some(RouteAnswer::Local | RouteAnswer::Unreachable) => false,
        None => true,
    };
    if leads_here && !one.is_in_use {
        return None;
    }
    let effect = match (leads_here, has_all_of_a_set(network, one.prefix)) {
        (true, _) => OverlapEffect::Others,
        (false, true) => OverlapEffect::AllPods,
        (false, false) => OverlapEffect::SomePods,
    };
    Some(NodeCondition::SubnetOverlap {
        network: network.network.name.clone(),
        subnet: one.subnet,
        other: Some(one.prefix),
        link: Some(one.link.clone()),
        effect,
    })
}

/// Returns the condition that routing sends packets for pods elsewhere, without a prefix that
/// explains it: a policy rule, or a route that drops.
fn by_rule(
    network: &RoutedNetwork<'_>,
    observed: &Observed,
    facts: &CheckFacts,
) -> Option<NodeCondition> {
    sample_pods(network.network).into_iter().find_map(|pod| {
        let link = match facts.routes.get(&sent_to(pod))? {
            RouteAnswer::Leaves(index) if *index == network.index => return None,
            RouteAnswer::Leaves(index) => Some(name_of(*index, observed)?.clone()),
            RouteAnswer::Unreachable => None,
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
    })
}

/// Whether each address of one of the network's range sets is in `prefix`: a pod gets one address
/// of each set.
fn has_all_of_a_set(network: &RoutedNetwork<'_>, prefix: Cidr) -> bool {
    let within = |range: &Range| prefix.contains(range.first()) && prefix.contains(range.last());
    let mut sets = network.network.ranges.iter();
    sets.any(|set: &RangeSet| set.ranges().iter().all(within))
}

/// Returns an address that the prefix and the network share, where a pod could have it.
fn sample(network: &RoutedNetwork<'_>, one: &Foreign<'_>) -> Option<IpAddr> {
    let ranges = network.network.ranges.iter().flat_map(RangeSet::ranges);
    let mut shared = ranges.filter_map(|range| {
        let (prefix, subnet) = (one.prefix, range.subnet());
        if !prefix.overlaps(&subnet) {
            return None;
        }
        let first = prefix.network().max(range.first());
        let last = prefix.last().min(range.last());
        let beside = [next(first, 1), next(first, 2), next(last, -1)];
        [Some(first), Some(last)]
            .into_iter()
            .chain(beside)
            .flatten()
            .find(|address| prefix.contains(*address) && range.offers(*address))
    });
    shared.next()
}

/// Returns the prefixes of other links that share addresses with the network's subnets: subnets of
/// addresses, and routes that are no wider than the network's.
fn foreign<'a>(
    network: &RoutedNetwork<'_>,
    observed: &'a Observed,
    records: &Records,
) -> Vec<Foreign<'a>> {
    let own = own_links(network, records);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for subnet in network.network.subnets() {
        let addresses = connected(observed)
            .filter(|(_, link, prefix)| link.up && prefix.overlaps(&subnet))
            .map(|(name, _, prefix)| (name, prefix, true));
        let routes = observed.routes.iter().filter_map(|route| {
            let prefix = route.destination;
            let is_inside = prefix.overlaps(&subnet) && prefix.prefix_len() >= subnet.prefix_len();
            let (name, _) = link_of(route, observed).filter(|_| route.table != LOCAL_TABLE)?;
            is_inside.then_some((name, prefix, route.table == MAIN_TABLE))
        });
        let shared = addresses
            .chain(routes)
            // The gateways are on our tunnels as well.
            .filter(|(name, _, _)| !observed.tunnels.contains_key(*name))
            .filter(|(name, prefix, _)| !own.contains(*name) && !is_link_local(prefix.network()));
        for (link, prefix, is_in_use) in shared {
            if seen.insert((link, prefix)) {
                found.push(Foreign {
                    subnet,
                    prefix,
                    link,
                    is_in_use,
                });
            }
        }
    }
    found.truncate(MAX_QUERIED);
    found
}

fn connected(observed: &Observed) -> impl Iterator<Item = (&IfName, &NodeLink, Cidr)> {
    let links = observed.links.iter();
    links
        .filter(|(_, link)| link.kind != LinkKind::Loopback)
        .flat_map(|(name, link)| {
            let subnets = link.addresses.iter().filter_map(InterfaceAddress::subnet);
            subnets.map(move |subnet| (name, link, subnet))
        })
}

/// Returns the links of the network itself: bridge, gateway link, and the host links of its pods.
fn own_links(network: &RoutedNetwork<'_>, records: &Records) -> BTreeSet<IfName> {
    let name = |link: HostLink| link.name().clone();
    let of_pods = records
        .values()
        .map(|record| &record.attachment)
        .filter(|attachment| attachment.key.network == network.network.name)
        .flat_map(|attachment| [name(attachment.host_link()), attachment.bridge.clone()]);
    let bridge = [network.network.bridge.clone(), network.link.clone()];
    bridge.into_iter().chain(of_pods).collect()
}
