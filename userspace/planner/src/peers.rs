//! Peers: the routes and tunnels to their pods, and the prefixes to which pods keep their own
//! addresses.
//!
//! Only routes with our protocol number and tunnels with our alias are changed or removed. Without
//! a list of peers nothing is: what an earlier agent has added stays until the first list.

mod admission;
mod aggregate;
mod arrivals;
mod neighbours;
mod problem;
mod routing;
mod tunnels;

use std::collections::{BTreeMap, BTreeSet};

use std::net::IpAddr;

use model::{Cidr, Peer, PeerName};
use steps::{NextHop, Observed, PEER_ROUTE_PROTOCOL, RouteChange, RouteEntry, Step};

use crate::own_links::OwnLinks;
use crate::{NodeIntent, Plan};

use self::admission::Admission;
use self::neighbours::{Neighbours, main_routes};
use self::routing::{Routed, Routing};
use self::tunnels::{TunnelledPeer, Tunnels};

pub(crate) use aggregate::aggregate;
pub(crate) use arrivals::arrivals;
pub use problem::{PeerProblem, PeerProblemKind};
pub(crate) use tunnels::{TunnelTables, remove_tunnels};

/// Most prefixes of the prefix table that are of peers and routes. The rest of the table is for the
/// node's own networks and the non-masquerade CIDRs.
const MAX_PREFIXES: usize = abi::maps::PREFIXES_CAPACITY as usize - 4_096;

/// State of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerState {
    /// The entry is this node's own.
    ThisNode,
    /// The kernel has routes to all prefixes.
    Routed,
    /// The kernel has routes to some prefixes.
    Partial,
    /// The kernel has a route to no prefix: the peer is not reached, other software has the routes,
    /// or the kernel has refused them.
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
    /// Address to which tunnelled packets are sent, where a tunnel leads to the peer.
    pub tunnel: Option<IpAddr>,
}

/// Plan of the routes to peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerPlan {
    /// The changes.
    pub plan: Plan,
    /// State of each peer before the changes, in the order of the list.
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
    let Some(decided) = Decided::of(intent, observed) else {
        return planned;
    };
    let tunnels = decided.tunnels.plan(&decided.tunnelled);
    planned.plan.append(Plan::of(tunnels.before));
    let present = &decided.routing.present;
    let changes = changes(&decided.routes, &decided.pending, present);
    if !changes.is_empty() {
        planned.plan.push(Step::ChangeRoutes(changes));
    }
    planned.plan.append(Plan::of(tunnels.after));
    planned.peers = decided.peers;
    planned.problems.extend(decided.problems);
    planned.problems.extend(decided.admission.problems);
    planned
}

/// Returns what the datapath knows of the tunnels. Without a list of peers, that stays as it is.
pub(crate) fn tunnel_tables(intent: &NodeIntent, observed: &Observed) -> TunnelTables {
    let Some(decided) = Decided::of(intent, observed) else {
        return TunnelTables::kept(observed);
    };
    if decided.tunnelled.is_empty() && observed.tunnels.is_empty() {
        return TunnelTables::default();
    }
    let admission = &decided.admission;
    let addresses = (0..decided.peers.len()).flat_map(|index| admission.addresses_of(index));
    TunnelTables {
        addresses: addresses.copied().collect(),
        prefixes: aggregate(&admission.prefixes().collect()),
        port: intent.peers.options.tunnel.port,
    }
}

/// How each peer is reached.
struct Decided<'a> {
    admission: Admission<'a>,
    routing: Routing<'a>,
    tunnels: Tunnels<'a>,
    peers: Vec<PeerStatus>,
    routes: BTreeMap<Cidr, NextHop>,
    /// Prefixes whose routes wait for a tunnel: those that they have now stay.
    pending: BTreeSet<Cidr>,
    tunnelled: Vec<TunnelledPeer>,
    problems: Vec<PeerProblem>,
}

impl<'a> Decided<'a> {
    /// Decides; `None` without a list.
    fn of(intent: &'a NodeIntent, observed: &'a Observed) -> Option<Self> {
        let peers = intent.peers.peers.as_deref()?;
        let admission = Admission::of(peers, intent, observed);
        let own = own_name(peers.list(), &admission);
        let mode = intent.peers.options.between_nodes;
        let tunnels = Tunnels::of(intent, observed, own);
        let ours = OwnLinks::of_networks(&intent.networks, observed);
        let routing = Routing {
            mode,
            neighbours: Neighbours::find(observed, &ours),
            foreign: foreign_routes(observed, &admission),
            present: own_routes(observed),
        };
        let mut decided = Self {
            peers: Vec::with_capacity(peers.list().len()),
            routes: BTreeMap::new(),
            pending: BTreeSet::new(),
            tunnelled: Vec::new(),
            problems: Vec::new(),
            admission,
            routing,
            tunnels,
        };
        for (index, peer) in peers.list().iter().enumerate() {
            let routed = if decided.admission.is_this_node(index) {
                Routed::without_routes(PeerState::ThisNode)
            } else {
                let prefixes = decided.admission.prefixes_of(index);
                let addresses = decided.admission.addresses_of(index);
                let routing = &decided.routing;
                routing.plan(peer, (prefixes, addresses), &decided.tunnels)
            };
            decided.add(routed);
        }
        decided.check_tunnels(own, intent.peers.options.tunnel.node.as_ref());
        Some(decided)
    }

    fn add(&mut self, routed: Routed) {
        self.peers.push(routed.status);
        self.problems.extend(routed.problems);
        self.tunnelled.extend(routed.tunnelled);
        for (prefix, hop, is_ready) in routed.routes {
            if is_ready {
                self.routes.insert(prefix, hop);
            } else {
                self.pending.insert(prefix);
            }
        }
    }

    /// Reports what prevents tunnels: a device of other software, and a name by which the others do
    /// not know this node.
    fn check_tunnels(&mut self, own: Option<&PeerName>, node: Option<&PeerName>) {
        let needs = |ipv6: bool| self.tunnelled.iter().any(|it| it.outer.is_ipv6() == ipv6);
        let taken: Vec<PeerProblem> = [false, true]
            .into_iter()
            .filter(|ipv6| needs(*ipv6) && self.tunnels.is_taken(*ipv6))
            .map(|ipv6| PeerProblem::TunnelTaken {
                link: tunnels::link_name(ipv6),
            })
            .collect();
        self.problems.extend(taken);
        if let (Some(peer), Some(node)) = (own, node)
            && !self.tunnelled.is_empty()
            && tunnels::mac_of(peer) != tunnels::mac_of(node)
        {
            let (peer, node) = (peer.clone(), node.clone());
            self.problems.push(PeerProblem::OwnName { peer, node });
        }
    }
}

/// Returns the name of this node's own entry.
fn own_name<'a>(peers: &'a [Peer], admission: &Admission<'_>) -> Option<&'a PeerName> {
    let mut all = peers.iter().enumerate();
    let (_, own) = all.find(|(index, _)| admission.is_this_node(*index))?;
    Some(own.name())
}

/// Plans to remove all routes of ours.
pub(crate) fn remove_routes(observed: &Observed) -> Plan {
    let changes = changes(&BTreeMap::new(), &BTreeSet::new(), &own_routes(observed));
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

/// Returns the changes from the present routes to the wanted ones; those to `pending` prefixes
/// stay. Removals are last.
fn changes(
    wanted: &BTreeMap<Cidr, NextHop>,
    pending: &BTreeSet<Cidr>,
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
        .filter(|(prefix, _)| !wanted.contains_key(prefix) && !pending.contains(prefix));
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
