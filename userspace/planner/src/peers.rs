//! Peers: the routes to their pods, and the prefixes to which pods keep their own addresses.
//!
//! Only routes with our protocol number are changed or removed. Without a list of peers nothing is:
//! the routes of an earlier agent stay until the first list.

mod admission;
mod aggregate;
mod neighbours;
mod problem;

use std::collections::{BTreeMap, BTreeSet};

use model::{Cidr, Peer, RouteOptions};
use steps::{NextHop, Observed, PEER_ROUTE_PROTOCOL, RouteChange, RouteEntry, Step};

use crate::own_links::OwnLinks;
use crate::{BetweenNodes, NodeIntent, Plan};

use self::admission::Admission;
use self::neighbours::Neighbours;

pub(crate) use aggregate::aggregate;
pub use problem::{PeerProblem, PeerProblemKind};

/// Most prefixes of the prefix table that are of peers and routes. The rest of the table is for the
/// node's own networks and the non-masquerade CIDRs.
const MAX_PREFIXES: usize = abi::maps::PREFIXES_CAPACITY as usize - 4_096;

/// State of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerState {
    /// The entry is this node's own.
    ThisNode,
    /// All prefixes have routes.
    Routed,
    /// Some prefixes have routes.
    Partial,
    /// No prefix has a route, because the peer has no address on a link of this node, or other
    /// software has the routes.
    Unreachable,
    /// No prefix is used, because of conflicts.
    Refused,
    /// The agent adds no routes (`--between-nodes none`).
    Unrouted,
}

impl PeerState {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::ThisNode,
        Self::Routed,
        Self::Partial,
        Self::Unreachable,
        Self::Refused,
        Self::Unrouted,
    ];

    /// Returns the word in the API and the metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::ThisNode => "this-node",
            Self::Routed => "routed",
            Self::Partial => "partial",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Unrouted => "unrouted",
        }
    }
}

/// State of one peer, with the neighbours that its routes lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The state.
    pub state: PeerState,
    /// At most one next hop for each family.
    pub next_hops: Box<[NextHop]>,
}

/// Plan of the routes to peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerPlan {
    /// The changes.
    pub plan: Plan,
    /// State of each peer, in the order of the list.
    pub peers: Vec<PeerStatus>,
    /// What cannot be applied.
    pub problems: Vec<PeerProblem>,
}

/// Plans the routes to peers. A second plan is empty.
pub fn plan_peers(intent: &NodeIntent, observed: &Observed) -> PeerPlan {
    let mut planned = PeerPlan::default();
    if let Some(count) = unmasqueraded(intent, observed).ignored {
        planned.problems.push(PeerProblem::TooManyRoutes { count });
    }
    let Some(peers) = &intent.peers.peers else {
        return planned;
    };
    let admission = Admission::of(peers, intent, observed);
    let ours = OwnLinks::of_networks(&intent.networks, observed);
    let neighbours = Neighbours::find(observed, &ours);
    let foreign = foreign_routes(observed, &admission);
    let mut wanted = BTreeMap::new();
    for (index, peer) in peers.list().iter().enumerate() {
        let prefixes = admission.prefixes_of(index);
        let routing = Routing {
            mode: intent.peers.options.between_nodes,
            neighbours: &neighbours,
            foreign: &foreign,
        };
        let (status, routes, problems) = if admission.is_this_node(index) {
            (
                PeerStatus::without_routes(PeerState::ThisNode),
                vec![],
                vec![],
            )
        } else {
            routing.plan(peer, prefixes, admission.addresses_of(index))
        };
        planned.peers.push(status);
        wanted.extend(routes);
        planned.problems.extend(problems);
    }
    planned.problems.extend(admission.problems);
    let changes = changes(&wanted, &own_routes(observed));
    if !changes.is_empty() {
        planned.plan.push(Step::ChangeRoutes(changes));
    }
    planned
}

/// Plans to remove all routes of ours.
pub(crate) fn remove_routes(observed: &Observed) -> Plan {
    let changes = changes(&BTreeMap::new(), &own_routes(observed));
    Plan::of((!changes.is_empty()).then_some(Step::ChangeRoutes(changes)))
}

/// Prefixes of peers and routes to which pods keep their own addresses.
pub(crate) struct Unmasqueraded {
    /// The prefixes, aggregated.
    pub(crate) prefixes: BTreeSet<Cidr>,
    /// Number of prefixes of other software's routes that were left out because they are too many.
    ignored: Option<usize>,
}

/// Returns the prefixes of peers, of the routes to them, and of the routes of the configured other
/// software.
///
/// The prefix of a route of ours stays until the route is gone: no packet may leave by it with a
/// translated source.
pub(crate) fn unmasqueraded(intent: &NodeIntent, observed: &Observed) -> Unmasqueraded {
    let mut prefixes: BTreeSet<Cidr> = own_routes(observed).into_keys().collect();
    if let Some(peers) = &intent.peers.peers {
        let admission = Admission::of(peers, intent, observed);
        prefixes.extend(admission.prefixes());
    }
    let prefixes = aggregate(&prefixes);
    let protocols = &intent.peers.options.protocols;
    let is_followed = |route: &&RouteEntry| {
        protocols.contains(&route.protocol) && route.destination.prefix_len() > 0
    };
    let routed = main_routes(observed).filter(is_followed);
    let mut all: BTreeSet<Cidr> = routed.map(|route| route.destination).collect();
    if all.is_empty() {
        return Unmasqueraded {
            prefixes,
            ignored: None,
        };
    }
    all.extend(&prefixes);
    let all = aggregate(&all);
    if all.len() > MAX_PREFIXES {
        return Unmasqueraded {
            ignored: Some(all.len() - prefixes.len()),
            prefixes,
        };
    }
    Unmasqueraded {
        prefixes: all,
        ignored: None,
    }
}

/// What routes to a peer depend on.
struct Routing<'a> {
    mode: BetweenNodes,
    neighbours: &'a Neighbours<'a>,
    foreign: &'a BTreeMap<Cidr, u8>,
}

impl PeerStatus {
    fn without_routes(state: PeerState) -> Self {
        Self {
            state,
            next_hops: Box::default(),
        }
    }
}

type Planned = (PeerStatus, Vec<(Cidr, NextHop)>, Vec<PeerProblem>);

impl Routing<'_> {
    /// Returns the state of a peer, its routes, and what prevents others.
    fn plan(&self, peer: &Peer, prefixes: &[Cidr], addresses: &[std::net::IpAddr]) -> Planned {
        if prefixes.is_empty() {
            let state = if peer.prefixes().is_empty() {
                PeerState::Unrouted
            } else {
                PeerState::Refused
            };
            return (PeerStatus::without_routes(state), vec![], vec![]);
        }
        if self.mode == BetweenNodes::None {
            let status = PeerStatus::without_routes(PeerState::Unrouted);
            return (status, vec![], vec![]);
        }
        let (mut routes, mut problems, mut next_hops) = (Vec::new(), Vec::new(), Vec::new());
        for ipv4 in [true, false] {
            let mut of_family = prefixes
                .iter()
                .filter(|one| one.is_ipv4() == ipv4)
                .peekable();
            if of_family.peek().is_none() {
                continue;
            }
            let mut hops = addresses.iter().filter(|one| one.is_ipv4() == ipv4);
            let Some(hop) = hops.find_map(|one| self.neighbours.next_hop(*one)) else {
                let peer = peer.name().clone();
                problems.push(PeerProblem::NotOnLink { peer, ipv4 });
                continue;
            };
            for prefix in of_family {
                match self.foreign.get(prefix) {
                    None => routes.push((*prefix, hop.clone())),
                    Some(protocol) => problems.push(PeerProblem::RouteTaken {
                        peer: peer.name().clone(),
                        prefix: *prefix,
                        protocol: *protocol,
                    }),
                }
            }
            next_hops.push(hop);
        }
        let state = match routes.len() {
            0 => PeerState::Unreachable,
            all if all == peer.prefixes().len() => PeerState::Routed,
            _ => PeerState::Partial,
        };
        let next_hops = next_hops.into();
        (PeerStatus { state, next_hops }, routes, problems)
    }
}

/// Returns the routes of the main table.
fn main_routes(observed: &Observed) -> impl Iterator<Item = &RouteEntry> {
    let routes = observed.routes.iter();
    routes.filter(|route| route.table == RouteOptions::MAIN)
}

/// Returns the prefixes of peers to which other software has a route, with the number of that
/// software.
fn foreign_routes(observed: &Observed, admission: &Admission<'_>) -> BTreeMap<Cidr, u8> {
    main_routes(observed)
        .filter(|route| route.protocol != PEER_ROUTE_PROTOCOL)
        .filter(|route| admission.has_prefix(&route.destination))
        .map(|route| (route.destination, route.protocol))
        .collect()
}

/// Returns the next hops of our routes. A route through a link without a name is about to go with
/// it: it has none.
fn own_routes(observed: &Observed) -> BTreeMap<Cidr, BTreeSet<NextHop>> {
    let links = observed.links.iter();
    let names: BTreeMap<u32, _> = links.map(|(name, link)| (link.index, name)).collect();
    let mut routes: BTreeMap<Cidr, BTreeSet<NextHop>> = BTreeMap::new();
    for route in main_routes(observed).filter(|route| route.protocol == PEER_ROUTE_PROTOCOL) {
        let hops = routes.entry(route.destination).or_default();
        hops.extend(
            route
                .gateway
                .zip(names.get(&route.link))
                .map(|(gateway, link)| NextHop {
                    gateway,
                    link: (*link).clone(),
                }),
        );
    }
    routes
}

/// Returns the changes from the present routes to the wanted ones. Removals are last.
fn changes(
    wanted: &BTreeMap<Cidr, NextHop>,
    present: &BTreeMap<Cidr, BTreeSet<NextHop>>,
) -> Vec<RouteChange> {
    let none = BTreeSet::new();
    let (mut changes, mut removals) = (Vec::new(), Vec::new());
    for (prefix, hop) in wanted {
        let now = present.get(prefix).unwrap_or(&none);
        let replaced = if now.contains(hop) {
            Some(hop)
        } else {
            now.first()
        };
        if replaced != Some(hop) {
            changes.push(RouteChange {
                prefix: *prefix,
                from: replaced.cloned(),
                to: Some(hop.clone()),
            });
        }
        let others = now.iter().filter(|other| Some(*other) != replaced);
        removals.extend(others.map(|other| removal(*prefix, other)));
    }
    let stale = present
        .iter()
        .filter(|(prefix, _)| !wanted.contains_key(prefix));
    removals.extend(stale.flat_map(|(prefix, hops)| hops.iter().map(|hop| removal(*prefix, hop))));
    changes.extend(removals);
    changes
}

fn removal(prefix: Cidr, hop: &NextHop) -> RouteChange {
    RouteChange {
        prefix,
        from: Some(hop.clone()),
        to: None,
    }
}

#[cfg(test)]
mod tests;
