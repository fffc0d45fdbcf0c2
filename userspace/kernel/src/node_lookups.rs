//! Lookups of single packets in the kernel, for explanations: links, routes, sockets and filter
//! tables. Changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use model::IfName;
use steps::{FilterTable, ForwardTables, FoundRoute, FoundSocket, Link, RoutedPacket, TableState};

use crate::ObserveError;
use crate::error::Attempt as _;
use crate::firewall::forwarding::FilterTables;
use crate::netlink::ifindex::Names;
use crate::netlink::socket::Netlink;
use crate::netlink::{links, packet_route};
use crate::ports::socket_list::SocketList;

/// Looks up packets in the network namespace of the thread that opened it.
pub struct NodeLookups {
    netlink: Netlink,
    names: Names,
    sockets: SocketList,
}

impl NodeLookups {
    /// Opens sockets to the kernel, and reads the list of the node's sockets.
    pub fn open() -> Result<Self, ObserveError> {
        let opened = || {
            io::Result::Ok(Self {
                netlink: Netlink::open()?,
                names: Names::open()?,
                sockets: SocketList::read()?,
            })
        };
        Ok(opened().attempt(|| "read the node's links, routes and sockets".to_owned())?)
    }

    /// Returns all links with their names.
    pub fn links(&mut self) -> Result<Vec<(IfName, Link)>, ObserveError> {
        let links = links::all(&mut self.netlink);
        Ok(links.attempt(|| "list the links".to_owned())?)
    }

    /// Returns the kernel's route of a packet.
    pub fn route(&mut self, packet: &RoutedPacket) -> Result<FoundRoute, ObserveError> {
        let route = packet_route::find(&mut self.netlink, &self.names, packet);
        Ok(route.attempt(|| format!("look up the route to {}", packet.destination.ip()))?)
    }

    /// Returns the node's socket that a packet would reach; TCP and UDP only.
    pub fn socket(&self, protocol: u8, source: SocketAddr, destination: SocketAddr) -> FoundSocket {
        self.sockets.find(protocol, source, destination)
    }

    /// Reads the filter tables that forwarded packets pass, in the namespace of the calling thread.
    pub fn filters(&self) -> Result<ForwardTables, ObserveError> {
        let tables = FilterTables::default().read();
        Ok(tables.attempt(|| "read the filter tables of netfilter".to_owned())?)
    }

    /// Reads the tables of netfilter that translate the destinations of new connections, in the
    /// namespace of the calling thread.
    pub fn translations(&self) -> Result<BTreeMap<FilterTable, TableState>, ObserveError> {
        let tables = FilterTables::translations();
        Ok(tables.attempt(|| "read the nat tables of netfilter".to_owned())?)
    }
}
