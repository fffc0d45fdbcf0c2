//! Neighbours: which addresses are on a link of this node, by its routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, IfName, RouteOptions};
use steps::{LinkKind, NextHop, Observed, PEER_ROUTE_PROTOCOL, RouteEntry};

use crate::own_links::OwnLinks;

/// Returns the routes of the main table.
pub(super) fn main_routes(observed: &Observed) -> impl Iterator<Item = &RouteEntry> {
    let routes = observed.routes.iter();
    routes.filter(|route| route.table == RouteOptions::MAIN)
}

/// Routes of the main table by prefix, without ours, and the links that lead to neighbours, with
/// their MTU.
pub(super) struct Neighbours<'a> {
    routes: BTreeMap<Cidr, Vec<&'a RouteEntry>>,
    /// Lengths of the prefixes, of IPv4 and of IPv6, the longest first.
    lengths: [Vec<u8>; 2],
    links: BTreeMap<u32, (&'a IfName, u32)>,
}

impl<'a> Neighbours<'a> {
    /// Collects them. Links that lead to pods are left out.
    pub(super) fn find(observed: &'a Observed, ours: &OwnLinks) -> Self {
        let mut routes: BTreeMap<Cidr, Vec<&RouteEntry>> = BTreeMap::new();
        for route in main_routes(observed).filter(|one| one.protocol != PEER_ROUTE_PROTOCOL) {
            // The kernel lists the preferred route to a prefix first.
            routes.entry(route.destination).or_default().push(route);
        }
        let lengths = [true, false].map(|ipv4| {
            let of_family = routes.keys().filter(|prefix| prefix.is_ipv4() == ipv4);
            let mut lengths: Vec<u8> = of_family.map(Cidr::prefix_len).collect();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
            lengths
        });
        let links = observed.links.iter();
        let outside = links
            .filter(|(name, link)| link.up && link.kind != LinkKind::Loopback && !ours.has(name));
        Self {
            routes,
            lengths,
            links: (outside.map(|(name, link)| (link.index, (name, link.mtu)))).collect(),
        }
    }

    /// Returns the next hop to an address that is on a link: the longest route to it has no
    /// gateway. A default route proves nothing.
    pub(super) fn next_hop(&self, address: IpAddr) -> Option<NextHop> {
        let longest = self.route_to(address)?;
        if longest.gateway.is_some() || longest.destination.prefix_len() == 0 {
            return None;
        }
        let (link, _) = self.links.get(&longest.link)?;
        let link = (*link).clone();
        Some(NextHop {
            gateway: address,
            link,
        })
    }

    /// Returns the MTU in bytes of the way to an address; `None` where no route leads to it from
    /// this node.
    pub(super) fn mtu_to(&self, address: IpAddr) -> Option<u32> {
        let route = self.route_to(address)?;
        let (_, mtu) = self.links.get(&route.link)?;
        Some(route.mtu.map_or(*mtu, |of_route| of_route.min(*mtu)))
    }

    /// Returns the links of all routes to the longest prefix with an address.
    pub(super) fn links_to(&self, address: IpAddr) -> BTreeSet<IfName> {
        let routes = self.routes_to(address).unwrap_or_default();
        let links = routes.iter().filter_map(|one| self.links.get(&one.link));
        links.map(|(name, _)| (*name).clone()).collect()
    }

    fn route_to(&self, address: IpAddr) -> Option<&RouteEntry> {
        self.routes_to(address)?.first().copied()
    }

    fn routes_to(&self, address: IpAddr) -> Option<&[&RouteEntry]> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let mut longest = lengths.iter();
        longest.find_map(|length| {
            let routes = self.routes.get(&Cidr::containing(address, *length)?)?;
            Some(routes.as_slice())
        })
    }
}
