//! The node as observed: the copy of the tables, links, names of pods, and lookups in the kernel.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use abi::{Address, Mac, Tuple};
use steps::{
    DatapathTables, FilterTable, ForwardTables, FoundRoute, FoundSocket, RouteDecision,
    RoutedPacket, TableState,
};
use verdict::Socket;
use verdict::simulator::{EgressRoute, KernelLookups};

/// What an explanation is made of.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The datapath's tables.
    pub tables: DatapathTables,
    /// The links of the node by interface index.
    pub links: BTreeMap<u32, LinkFacts>,
    /// Names of the pods by slot.
    pub pods: BTreeMap<u32, String>,
    /// Names of the network policies of the pods by slot; pods without any are left out.
    pub policies: BTreeMap<u32, Vec<String>>,
    /// Addresses of the pods by slot, with the prefix lengths of their subnets in bits of their own
    /// family: other addresses of them are on the pod's link.
    pub subnets: BTreeMap<u32, Vec<(Address, u32)>>,
    /// The filter tables that forwarded packets pass; `None` where they could not be read.
    pub filters: Option<ForwardTables>,
    /// The tables of other software that translate the destinations of new connections; `None`
    /// where they could not be read.
    pub translations: Option<BTreeMap<FilterTable, TableState>>,
    /// Lookups in the kernel.
    pub lookups: Arc<dyn Lookups>,
}

/// A link of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Name.
    pub name: String,
    /// MAC address; zeros where it has none.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
}

/// Answers of the kernel about single packets.
pub trait Lookups: Debug + Send + Sync {
    /// Returns the route of a packet.
    fn route(&self, packet: &RoutedPacket) -> FoundRoute;

    /// Returns the node's socket that a packet would reach; TCP and UDP only.
    fn socket(&self, protocol: u8, source: SocketAddr, destination: SocketAddr) -> FoundSocket;
}

/// Returns the route of a packet that came in by the link `from`.
pub(crate) fn route(lookups: &dyn Lookups, from: Option<u32>, tuple: &Tuple) -> FoundRoute {
    lookups.route(&RoutedPacket {
        from,
        source: socket_address(&tuple.source, tuple.source_port),
        destination: socket_address(&tuple.destination, tuple.destination_port),
        protocol: tuple.protocol,
    })
}

pub(crate) fn ip(address: &Address) -> IpAddr {
    IpAddr::from(address.bytes()).to_canonical()
}

pub(crate) fn socket_address(address: &Address, port: abi::Port) -> SocketAddr {
    SocketAddr::new(ip(address), port.number())
}

pub(crate) fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// The kernel's helpers, as programs use them, by [`Lookups`].
#[derive(Clone, Debug)]
pub(crate) struct Helpers(pub(crate) Arc<dyn Lookups>);

impl KernelLookups for Helpers {
    /// `bpf_fib_lookup` does not check the source address, which the kernel does in every other
    /// lookup of received packets. There the route of the node's own packets to the destination is
    /// used.
    fn egress_route(&self, from: u32, tuple: &Tuple) -> Option<EgressRoute> {
        let received = route(&*self.0, Some(from), tuple);
        let found = match received.decision {
            RouteDecision::SourceRefused => route(&*self.0, None, tuple),
            RouteDecision::Leaves { .. } | RouteDecision::Local | RouteDecision::Unreachable => {
                received
            }
        };
        match found.decision {
            RouteDecision::Leaves { link, gateway, mtu } => Some(EgressRoute {
                link,
                hop: gateway.map_or(tuple.destination, address),
                mtu: mtu.unwrap_or(0),
            }),
            RouteDecision::Local | RouteDecision::Unreachable | RouteDecision::SourceRefused => {
                None
            }
        }
    }

    fn socket(&self, incoming: &Tuple) -> Socket {
        let source = socket_address(&incoming.source, incoming.source_port);
        let destination = socket_address(&incoming.destination, incoming.destination_port);
        match self.0.socket(incoming.protocol, source, destination) {
            FoundSocket::None => Socket::None,
            FoundSocket::Open => Socket::Open,
            FoundSocket::Connected => Socket::Connected,
        }
    }
}
