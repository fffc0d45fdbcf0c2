//! Checks of the node: what other software or the operator has configured so that packets of pods
//! die although Viaduct's own objects are as they should be.
//!
//! [`check_query`] says what to observe beyond [`Observed`], and
//! [`conditions`] decides from the answers. Routing is not simulated: policy rules, metrics and
//! reverse path filters decide together, so the kernel is queried for the routes of sample
//! packets.

mod addresses;
mod condition;
mod ipsec;
mod limits;
mod mtu;
mod overlap;
mod routing;

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{IfName, Network};
use steps::{CheckFacts, CheckQuery, NodeLink, Observed, RouteEntry};

use crate::bridge::families;
use crate::{NodeIntent, Records};

pub use condition::{FilteredTraffic, NodeCondition, OverlapEffect, PolicyEffect};
pub use limits::is_short_of_files;
pub(crate) use mtu::of_ports as mtu_of_ports;

/// Number of the main routing table.
const MAIN_TABLE: u32 = 254;

/// Returns what to observe. `observed` is the node after it was reconciled.
pub fn check_query(intent: &NodeIntent, observed: &Observed, records: &Records) -> CheckQuery {
    let mut query = CheckQuery::default();
    for network in routed(intent, observed) {
        query
            .routes
            .extend(overlap::queries(&network, observed, records));
        let (routes, sysctls) = routing::queries(&network, observed);
        query.routes.extend(routes);
        query.sysctls.extend(sysctls);
    }
    query
}

/// Returns what makes packets of pods die, in the order of the networks.
pub fn conditions(
    intent: &NodeIntent,
    observed: &Observed,
    records: &Records,
    facts: &CheckFacts,
) -> Vec<NodeCondition> {
    let bypass = intent.bypass.is_active(observed);
    let mut found = Vec::new();
    for network in routed(intent, observed) {
        let overlaps = overlap::conditions(&network, observed, records, facts);
        // Packets of pods whose addresses lead elsewhere are filtered for this reason.
        let cut_off = overlaps.iter().any(NodeCondition::cuts_off);
        found.extend(overlaps);
        if !cut_off {
            let dropped = routing::conditions(&network, observed, records, facts);
            let drops =
                |condition: &NodeCondition| !bypass || is_met_on_bypass(condition, &network);
            found.extend(dropped.into_iter().filter(drops));
        }
        found.extend(ipsec::conditions(&network, intent, facts));
        found.extend(mtu::of_uplinks(&network, observed));
    }
    found.extend(addresses::conditions(observed, records));
    found.extend(mtu::of_bridges(observed, records));
    found.extend(limits::conditions(records, facts, bypass));
    let mut seen = BTreeSet::new();
    found.retain(|condition| seen.insert(condition.clone()));
    found
}

/// Whether packets that bypass the stack meet the condition: their routes are looked up for the
/// bridge, so it must forward. Answers are delivered without the stack, and no filter
/// applies.
fn is_met_on_bypass(condition: &NodeCondition, network: &RoutedNetwork<'_>) -> bool {
    matches!(condition, NodeCondition::ForwardingOff { link, .. } if *link == network.link)
}

/// A network for whose pods the node routes.
struct RoutedNetwork<'a> {
    network: &'a Network,
    /// Link that has the gateway addresses.
    link: IfName,
    /// Its interface index.
    index: u32,
}

/// Returns the networks for whose pods the node routes, as far as their links exist.
fn routed<'a>(
    intent: &'a NodeIntent,
    observed: &'a Observed,
) -> impl Iterator<Item = RoutedNetwork<'a>> {
    let networks = intent.networks.iter();
    let of_node = networks.filter(|network| network.options.gateway);
    of_node.filter_map(|network| {
        let families = families(network);
        let link = network
            .gateway_link()
            .filter(|_| families.v4 || families.v6)?;
        let index = observed.links.get(&link).filter(|found| found.up)?.index;
        Some(RoutedNetwork {
            network,
            link,
            index,
        })
    })
}

/// Returns an address of each end of each range, without the gateways.
fn sample_pods(network: &Network) -> BTreeSet<IpAddr> {
    let ranges = network.ranges.iter().flat_map(model::RangeSet::ranges);
    ranges
        .flat_map(|range| {
            let ends = [range.first(), range.last()];
            let neighbours = [next(range.first(), 1), next(range.last(), -1)];
            let pairs = ends.into_iter().zip(neighbours);
            pairs.filter_map(|(end, beside)| {
                let choices = [Some(end), beside].into_iter().flatten();
                choices.into_iter().find(|address| range.offers(*address))
            })
        })
        .collect()
}

/// Returns the address `by` after `address`; `None` at the end of the address space.
fn next(address: IpAddr, by: i8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let bits = v4.to_bits().checked_add_signed(by.into());
            bits.map(|bits| IpAddr::V4(bits.into()))
        }
        IpAddr::V6(v6) => {
            let bits = v6.to_bits().checked_add_signed(by.into());
            bits.map(|bits| IpAddr::V6(bits.into()))
        }
    }
}

/// Returns the name of the link with this interface index.
fn name_of(index: u32, observed: &Observed) -> Option<&IfName> {
    let mut links = observed.links.iter();
    links
        .find(|(_, link)| link.index == index)
        .map(|(name, _)| name)
}

fn link_of<'a>(route: &RouteEntry, observed: &'a Observed) -> Option<(&'a IfName, &'a NodeLink)> {
    let mut links = observed.links.iter();
    links.find(|(_, link)| link.index == route.link)
}

#[cfg(test)]
mod tests;
