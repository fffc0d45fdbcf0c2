//! Reads the node without an agent: links, addresses, routes, policies and filter tables. Loads no
//! program, opens no map and changes nothing, so it may run beside an agent.

use std::collections::{BTreeMap, BTreeSet};

use steps::{
    CheckFacts, CheckQuery, Entries, ForwardTables, ForwardingQuery, NetfilterState, NodeQuery,
    Observed, PortReservations,
};

use crate::error::{Attempt as _, Failed};
use crate::firewall::forwarding::FilterTables;
use crate::foreign::{ipsec_policies, netfilter};
use crate::netlink::ifindex::Names;
use crate::netlink::socket::Netlink;
use crate::netlink::{route_lookup, routes, tunnels};
use crate::{Observe, ObserveError, observe};

/// Reader of the network namespace of the thread that opened it; it must be used by that thread
/// only. Filter tables and IPsec policies need `CAP_NET_ADMIN`.
pub struct NodeReader {
    netlink: Netlink,
    names: Names,
    filters: FilterTables,
}

impl NodeReader {
    /// Opens the sockets.
    pub fn open() -> Result<Self, ObserveError> {
        let open = || -> Result<Self, Failed> {
            Ok(Self {
                netlink: Netlink::open().attempt(|| "open a netlink socket".to_owned())?,
                names: Names::open().attempt(|| "open a socket for interface names".to_owned())?,
                filters: FilterTables::default(),
            })
        };
        Ok(open()?)
    }

    fn node(&mut self, query: &NodeQuery) -> Result<Observed, Failed> {
        let links = observe::links_with_addresses(&mut self.netlink)?;
        let routing = routes::all(&mut self.netlink).attempt(|| "list the routes".to_owned())?;
        let tunnels = tunnels::observe(&mut self.netlink, &links)
            .attempt(|| "read the tunnels".to_owned())?;
        let listed = || "list foreign rules".to_owned();
        Ok(Observed {
            links,
            routes: routing.entries,
            tunnels,
            routes_by_port: routing.by_port,
            sysctls: observe::sysctls(&query.sysctls)?,
            foreign_rules: netfilter::foreign_rules().attempt(listed)?,
            conntrack_entries: netfilter::tracked()
                .attempt(|| "count tracked connections".to_owned())?,
            // What an agent has of its own, or decides its fast path from.
            entries: Entries::new(),
            socket_hooks: BTreeMap::new(),
            xdp_prefilters: BTreeMap::new(),
            heeds_departure: false,
            port_reservations: PortReservations::new(),
            flow_entries: 0,
            foreign_paths: BTreeSet::new(),
            path_tables: Vec::new(),
            netfilter: NetfilterState::default(),
            has_unseen_sockets: false,
        })
    }

    fn facts(&mut self, query: &CheckQuery) -> Result<CheckFacts, Failed> {
        let routes = route_lookup::all(&mut self.netlink, &self.names, &query.routes)
            .attempt(|| "query the routes of sample packets".to_owned())?;
        Ok(CheckFacts {
            routes,
            sysctls: observe::sysctls(&query.sysctls)?,
            ipsec: ipsec_policies::all().attempt(|| "list the IPsec policies".to_owned())?,
            ..CheckFacts::default()
        })
    }
}

/// Links, addresses, routes, sysctls and foreign rules; nothing of an agent's own.
impl Observe<NodeQuery> for NodeReader {
    fn observe(&mut self, question: &NodeQuery) -> Result<Observed, ObserveError> {
        Ok(self.node(question)?)
    }
}

/// Without the limits of an agent's process, and without its cgroup.
impl Observe<CheckQuery> for NodeReader {
    fn observe(&mut self, question: &CheckQuery) -> Result<CheckFacts, ObserveError> {
        Ok(self.facts(question)?)
    }
}

impl Observe<ForwardingQuery> for NodeReader {
    fn observe(&mut self, _: &ForwardingQuery) -> Result<ForwardTables, ObserveError> {
        Ok((self.filters.read()).attempt(|| "read the filter tables".to_owned())?)
    }
}
