//! Ways to a peer: by a route where it is on a link of this node, by a tunnel elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, Peer};
use steps::NextHop;

use super::neighbours::Neighbours;
use super::tunnels::{self, TunnelledPeer, Tunnels};
use super::{PeerProblem, PeerState, PeerStatus};
use crate::BetweenNodes;

impl PeerStatus {
    pub(super) fn without_routes(state: PeerState) -> Self {
        Self {
            state,
            next_hops: Box::default(),
            tunnel: None,
        }
    }
}

/// Finds the ways to peers.
pub(super) struct Routing<'a> {
    pub(super) mode: BetweenNodes,
    pub(super) neighbours: Neighbours<'a>,
    /// Prefixes to which other software has a route, with its number.
    pub(super) foreign: BTreeMap<Cidr, u8>,
    /// Routes of ours that the kernel has, with their next hops.
    pub(super) present: BTreeMap<Cidr, BTreeSet<NextHop>>,
}

/// How one peer is reached.
pub(super) struct Routed {
    pub(super) status: PeerStatus,
    /// Routes, each with whether its link may be used by now.
    pub(super) routes: Vec<(Cidr, NextHop, bool)>,
    pub(super) tunnelled: Option<TunnelledPeer>,
    pub(super) problems: Vec<PeerProblem>,
}

impl Routed {
    pub(super) fn without_routes(state: PeerState) -> Self {
        Self {
            status: PeerStatus::without_routes(state),
            routes: Vec::new(),
            tunnelled: None,
            problems: Vec::new(),
        }
    }
}

impl Routing<'_> {
    /// Decides for a peer with these used prefixes and addresses.
    pub(super) fn plan(
        &self,
        peer: &Peer,
        (prefixes, addresses): (&[Cidr], &[IpAddr]),
        tunnels: &Tunnels<'_>,
    ) -> Routed {
        if prefixes.is_empty() {
            let state = if peer.prefixes().is_empty() {
                PeerState::Unrouted
            } else {
                PeerState::Refused
            };
            return Routed::without_routes(state);
        }
        if self.mode == BetweenNodes::None {
            return Routed::without_routes(PeerState::Unrouted);
        }
        let mut routed = Routed::without_routes(PeerState::Unreachable);
        let mut tunnelled = self.tunnelled(peer, addresses);
        let mut next_hops = Vec::new();
        for ipv4 in [true, false] {
            let of_family = || prefixes.iter().filter(move |one| one.is_ipv4() == ipv4);
            let Some(first) = of_family().next() else {
                continue;
            };
            let direct = self.neighbour(addresses, ipv4).map(|hop| (hop, true));
            let found = direct.or_else(|| through(tunnelled.as_mut()?, first.network(), tunnels));
            let Some((hop, is_ready)) = found else {
                routed
                    .problems
                    .extend(self.unreached(peer, ipv4, tunnelled.is_some()));
                continue;
            };
            for prefix in of_family() {
                match self.foreign.get(prefix) {
                    None => routed.routes.push((*prefix, hop.clone(), is_ready)),
                    Some(protocol) => routed.problems.push(PeerProblem::RouteTaken {
                        peer: peer.name().clone(),
                        prefix: *prefix,
                        protocol: *protocol,
                    }),
                }
            }
            next_hops.push(hop);
        }
        routed.problems.dedup();
        routed.tunnelled = tunnelled.filter(|it| !it.gateways.is_empty());
        // By the routes that are there, not by those that are to be: the kernel may refuse one.
        let present = routed.routes.iter().filter(|route| self.has(route)).count();
        routed.status = PeerStatus {
            state: match present {
                0 => PeerState::Unreachable,
                all if all == peer.prefixes().len() => PeerState::Routed,
                _ => PeerState::Partial,
            },
            next_hops: next_hops.into(),
            tunnel: routed.tunnelled.as_ref().map(|it| it.outer),
        };
        routed
    }

    /// Returns whether the kernel has a route. One that waits for its tunnel may lead to another
    /// next hop until then.
    fn has(&self, (prefix, hop, is_ready): &(Cidr, NextHop, bool)) -> bool {
        let present = self.present.get(prefix);
        present.is_some_and(|hops| hops.contains(hop) || !is_ready && !hops.is_empty())
    }

    /// Returns the first of the addresses of a family that is on a link of this node, if routes may
    /// lead there without a tunnel.
    fn neighbour(&self, addresses: &[IpAddr], ipv4: bool) -> Option<NextHop> {
        if self.mode == BetweenNodes::Tunnel {
            return None;
        }
        let mut of_family = addresses.iter().filter(|one| one.is_ipv4() == ipv4);
        of_family.find_map(|one| self.neighbours.next_hop(*one))
    }

    /// Returns the peer as the far end of a tunnel, without gateways: by its first address to which
    /// this node has a route, IPv4 first.
    fn tunnelled(&self, peer: &Peer, addresses: &[IpAddr]) -> Option<TunnelledPeer> {
        if !self.mode.has_tunnels() {
            return None;
        }
        let mut ordered: Vec<IpAddr> = addresses.to_vec();
        ordered.sort_by_key(IpAddr::is_ipv6);
        let mut reached = ordered.into_iter();
        let (outer, mtu) =
            reached.find_map(|address| Some((address, self.neighbours.mtu_to(address)?)))?;
        Some(TunnelledPeer {
            mac: tunnels::mac_of(peer.name()),
            outer,
            mtu,
            gateways: Vec::new(),
        })
    }

    /// Returns why no route leads to a peer's prefixes of a family; `None` where the tunnel cannot
    /// be made, which is reported once for all peers.
    fn unreached(&self, peer: &Peer, ipv4: bool, has_tunnel: bool) -> Option<PeerProblem> {
        let peer = peer.name().clone();
        if !self.mode.has_tunnels() {
            return Some(PeerProblem::NotOnLink { peer, ipv4 });
        }
        (!has_tunnel).then_some(PeerProblem::NoRoute { peer })
    }
}

/// Returns the next hop through the tunnel to a peer, and whether it may be used by now; `None`
/// where other software has a link of that name. The gateway is in a prefix of the peer, so no
/// other peer has it.
fn through(
    peer: &mut TunnelledPeer,
    gateway: IpAddr,
    tunnels: &Tunnels<'_>,
) -> Option<(NextHop, bool)> {
    let ipv6 = peer.outer.is_ipv6();
    peer.gateways.push(gateway);
    if tunnels.is_taken(ipv6) {
        return None;
    }
    let link = tunnels::link_name(ipv6);
    Some((NextHop { gateway, link }, tunnels.is_ready(ipv6)))
}
