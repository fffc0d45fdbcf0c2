//! Where packets from the pods of peers arrive: the links, and the source prefixes.

use std::collections::{BTreeMap, BTreeSet};

use model::{Cidr, IfName};
use steps::{Observed, TUNNEL_LINKS};

use super::{Decided, aggregate, own_routes, tunnels};
use crate::NodeIntent;

/// Returns the links by which packets from the pods of peers arrive, with the source prefixes.
///
/// These are the links on which a peer has an address, else the links of the routes to its pods. A
/// tunnel has no prefix: the datapath drops sources there that are in no prefix of a peer. Without
/// a list, the routes and tunnels of an earlier agent stay, and so do their links.
pub(crate) fn arrivals(
    intent: &NodeIntent,
    observed: &Observed,
) -> BTreeSet<(IfName, Option<Cidr>)> {
    let mut prefixes: BTreeMap<IfName, BTreeSet<Cidr>> = BTreeMap::new();
    for (prefix, hops) in own_routes(observed) {
        for hop in hops {
            prefixes.entry(hop.link).or_default().insert(prefix);
        }
    }
    let mut devices: BTreeSet<IfName> = observed.tunnels.keys().cloned().collect();
    if let Some(decided) = Decided::of(intent, observed) {
        devices.extend(decided.devices());
        for (prefix, link) in (0..decided.peers.len()).flat_map(|peer| decided.arrivals_of(peer)) {
            prefixes.entry(link).or_default().insert(prefix);
        }
    }
    let on_links = prefixes
        .into_iter()
        .filter(|(link, _)| !devices.contains(link))
        .flat_map(|(link, prefixes)| {
            let all = aggregate(&prefixes).into_iter();
            all.map(move |prefix| (link.clone(), Some(prefix)))
        });
    let mut arrivals: BTreeSet<_> = on_links.collect();
    arrivals.extend(devices.into_iter().map(|device| (device, None)));
    arrivals
}

impl Decided<'_> {
    /// Returns the tunnel devices that are to be there.
    fn devices(&self) -> impl Iterator<Item = IfName> {
        let needs = |ipv6: bool| self.tunnelled.iter().any(|it| it.outer.is_ipv6() == ipv6);
        let families = [false, true].into_iter();
        families
            .filter(move |ipv6| needs(*ipv6) && !self.tunnels.is_taken(*ipv6))
            .map(tunnels::link_name)
    }

    /// Returns the used prefixes of the peer at this place in the list, each with the links of its
    /// packets. Those that wait for a tunnel have none.
    fn arrivals_of(&self, index: usize) -> impl Iterator<Item = (Cidr, IfName)> {
        let prefixes = self.admission.prefixes_of(index).iter();
        prefixes
            .filter(|prefix| !self.pending.contains(prefix))
            .flat_map(move |prefix| {
                let links = self.links_of(index, prefix).into_iter();
                links.map(move |link| (*prefix, link))
            })
    }

    fn links_of(&self, index: usize, prefix: &Cidr) -> BTreeSet<IfName> {
        let neighbours = &self.routing.neighbours;
        let Some(hop) = self.routes.get(prefix) else {
            return neighbours.links_to(prefix.network());
        };
        let mut links = BTreeSet::from([hop.link.clone()]);
        if TUNNEL_LINKS.contains(&hop.link.as_str()) {
            return links;
        }
        // A peer with addresses on several links may send by any of them.
        let addresses = self.admission.addresses_of(index).iter();
        let of_family = addresses.filter(|address| address.is_ipv4() == prefix.is_ipv4());
        links.extend(of_family.filter_map(|address| Some(neighbours.next_hop(*address)?.link)));
        links
    }
}
