//! Flows for people: both directions of a flow of the flow table in one value, and its state by
//! name. Flows that are read from sockets have the same type.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use abi::{Address, Flow, FlowFlags, Offloaded, Port, Seen, Tuple, protocol};

use crate::SocketState;

/// A snapshot of the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// Entries by the tuple of their packets, one per direction of a flow.
    pub entries: BTreeMap<Tuple, Flow>,
    /// Time of the snapshot on the clock of the entries, in seconds.
    pub now: u32,
    /// Decisions about connections beside rules of other software, by the tuple that netfilter sees
    /// first.
    pub offloaded: BTreeMap<Tuple, Offloaded>,
    /// Whether packets bypass the stack, whatever the connection.
    pub bypasses: bool,
}

/// How the packets of a flow get through the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowPath {
    /// Past bridge and netfilter, where their headers and the links allow it.
    Bypass,
    /// Past them too, because netfilter has accepted the connection.
    Offloaded,
    /// Through the stack: the number of the reason for this connection, [`Offloaded::decision`]; 0
    /// if nothing was decided about it.
    Stack(u32),
}

/// A flow with both its directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveFlow {
    /// Slot of the pod; 0 for a flow of the node itself. Of two pods, that which opened the flow;
    /// with a translation, that which the flow counts for.
    pub pod: u32,
    /// Generation of the pod when the flow was created.
    pub generation: u32,
    /// Slot and generation of the pod at the other end; `None` if there is none of this node.
    pub peer_pod: Option<(u32, u32)>,
    /// Kind of translation, or of the ends of a flow without one.
    pub kind: FlowKind,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination of the first packet, before translation.
    pub original: FlowEndpoints,
    /// Source and destination of the first packet, after translation.
    pub translated: FlowEndpoints,
    /// State, which decides the idle timeout of a flow of the flow table.
    pub state: FlowState,
    /// How its packets get through the node.
    pub path: FlowPath,
    /// Seconds since the first packet; `None` if it is read from sockets.
    pub age: Option<u32>,
    /// Seconds since the last packet of either direction; `None` for a UDP socket.
    pub idle: Option<u32>,
    /// Traffic in the original direction, that of the first packet; `None` for a UDP socket.
    pub sent: Option<Traffic>,
    /// Traffic in the reply direction; `None` for a UDP socket.
    pub replied: Option<Traffic>,
}

/// Source and destination of a flow. For ICMP echo, the requester's port is the echo identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEndpoints {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes: IP header included in the flow table, payload only of a TCP socket.
    pub bytes: u64,
}

/// Kind of translation of a flow of the flow table, or of the ends of a flow that is read from
/// sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// SNAT: a connection of a pod to the outside, with an address of the node as source.
    Masqueraded,
    /// DNAT: a connection to a published host port.
    Published,
    /// A connection to a pod's own address, not translated.
    Direct,
    /// A connection with the node's own address, without a socket of the node: that of another NAT,
    /// or one that was translated to another source port because a pod's flow uses its own.
    Node,
    /// A connection between two pods of this node, read from sockets.
    PodToPod,
    /// A connection that a pod opened to an address of the node, read from sockets.
    PodToNode,
    /// A connection that the node opened to a pod, read from sockets.
    NodeToPod,
}

impl FlowKind {
    /// Returns the name in the API and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Masqueraded => "masqueraded",
            Self::Published => "published",
            Self::Direct => "direct",
            Self::Node => "node",
            Self::PodToPod => "pod-to-pod",
            Self::PodToNode => "pod-to-node",
            Self::NodeToPod => "node-to-pod",
        }
    }

    /// Returns whether flows of this kind have entries in the flow table.
    pub const fn is_in_flow_table(self) -> bool {
        match self {
            Self::Masqueraded | Self::Published | Self::Direct | Self::Node => true,
            Self::PodToPod | Self::PodToNode | Self::NodeToPod => false,
        }
    }

    fn of(flags: u32) -> Self {
        if flags & FlowFlags::NODE != 0 {
            Self::Node
        } else if flags & FlowFlags::DNAT != 0 {
            Self::Published
        } else if flags & FlowFlags::SNAT != 0 {
            Self::Masqueraded
        } else {
            Self::Direct
        }
    }
}

/// State of a flow: of one in the flow table that which decides its idle timeout, of another one
/// that of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowState {
    /// TCP: one side has not acknowledged anything.
    Opening,
    /// TCP: both sides have sent an ACK.
    Established,
    /// TCP: one side has sent a FIN.
    Closing,
    /// TCP: one side has sent a RST.
    Reset,
    /// UDP: no reply so far.
    Single,
    /// UDP: packets in both directions.
    Stream,
    /// ICMP echo.
    Icmp,
    /// Any other protocol.
    Other,
    /// State of the socket from which the flow is read.
    Socket(SocketState),
}

impl FlowState {
    /// Returns the name in the API and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Established => "established",
            Self::Closing => "closing",
            Self::Reset => "reset",
            Self::Single => "single",
            Self::Stream => "stream",
            Self::Icmp => "icmp",
            Self::Other => "other",
            Self::Socket(state) => state.name(),
        }
    }

    /// Returns the state by the [`Seen`] flags of both directions and the IP protocol number.
    pub const fn of(one: u32, other: u32, protocol: u8) -> Self {
        let replied = one & other & Seen::PACKET != 0;
        let either = one | other;
        match protocol {
            protocol::TCP if either & Seen::RST != 0 => Self::Reset,
            protocol::TCP if either & (Seen::FIN | Seen::FIN_CONFIRMED) != 0 => Self::Closing,
            protocol::TCP if one & other & Seen::ACK != 0 => Self::Established,
            protocol::TCP => Self::Opening,
            protocol::UDP if replied => Self::Stream,
            protocol::UDP => Self::Single,
            protocol::ICMP | protocol::ICMPV6 => Self::Icmp,
            _ => Self::Other,
        }
    }
}

impl FlowTable {
    /// Returns all flows that have both entries, in the order of their tuples, without their peer
    /// pods.
    pub fn flows(&self) -> impl Iterator<Item = LiveFlow> + '_ {
        self.entries
            .iter()
            .filter_map(|(key, flow)| self.live(key, flow))
    }

    /// Returns the flow of an entry of the original direction. A flow with one entry is being
    /// created or removed.
    fn live(&self, key: &Tuple, flow: &Flow) -> Option<LiveFlow> {
        if flow.flags & FlowFlags::ORIGINAL == 0 {
            return None;
        }
        let reply = self.entries.get(&flow.translated.reverse())?;
        if reply.translated.reverse() != *key {
            return None;
        }
        let last_seen = flow.last_seen.max(reply.last_seen);
        Some(LiveFlow {
            pod: flow.pod,
            generation: flow.generation,
            peer_pod: None,
            kind: FlowKind::of(flow.flags),
            protocol: key.protocol,
            original: FlowEndpoints::of(key),
            translated: FlowEndpoints::of(&flow.translated),
            state: FlowState::of(flow.seen, reply.seen, key.protocol),
            path: self.path([key, &flow.translated]),
            age: Some(self.now.saturating_sub(flow.created)),
            idle: Some(self.now.saturating_sub(last_seen)),
            sent: Some(Traffic::of(flow)),
            replied: Some(Traffic::of(reply)),
        })
    }
}

impl FlowTable {
    /// Returns the path of a flow. netfilter sees flows from the inside before they are translated,
    /// and those from outside afterwards.
    fn path(&self, tuples: [&Tuple; 2]) -> FlowPath {
        if self.bypasses {
            return FlowPath::Bypass;
        }
        let mut decisions = tuples
            .into_iter()
            .filter_map(|tuple| self.offloaded.get(tuple))
            .filter(|it| it.decision != Offloaded::BEHIND_NAT && it.expires > self.now);
        match decisions.next().map(|it| it.decision) {
            Some(Offloaded::ACCEPTED | Offloaded::UNREPLIED) => FlowPath::Offloaded,
            reason => FlowPath::Stack(reason.unwrap_or(0)),
        }
    }

    /// Returns the path of a connection between two pods, which is not translated. Either end may
    /// have sent the packet that netfilter has seen first.
    pub(crate) fn path_between_pods(&self, ends: FlowEndpoints, protocol: u8) -> FlowPath {
        let tuple = ends.tuple(protocol);
        self.path([&tuple, &tuple.reverse()])
    }
}

impl FlowEndpoints {
    fn of(tuple: &Tuple) -> Self {
        let end = |address: &Address, port: Port| SocketAddr::new(ip(address), port.number());
        Self {
            source: end(&tuple.source, tuple.source_port),
            destination: end(&tuple.destination, tuple.destination_port),
        }
    }

    pub(crate) fn tuple(self, protocol: u8) -> Tuple {
        let address = |end: SocketAddr| match end.ip() {
            IpAddr::V4(address) => Address::v4(address.octets()),
            IpAddr::V6(address) => Address::v6(address.octets()),
        };
        Tuple {
            source: address(self.source),
            destination: address(self.destination),
            source_port: Port::new(self.source.port()),
            destination_port: Port::new(self.destination.port()),
            protocol,
            reserved: [0; 3],
        }
    }

    /// Returns the endpoints in the same order for both directions.
    pub(crate) fn undirected(self) -> Self {
        Self {
            source: self.source.min(self.destination),
            destination: self.source.max(self.destination),
        }
    }
}

impl Traffic {
    fn of(flow: &Flow) -> Self {
        Self {
            packets: flow.packets,
            bytes: flow.bytes,
        }
    }
}

fn ip(address: &Address) -> IpAddr {
    IpAddr::from(address.bytes()).to_canonical()
}

/// Selects flows; an absent criterion matches every flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Slot and generation of the selected pods.
    pub pods: Option<BTreeSet<(u32, u32)>>,
    /// Address of the peer: the endpoint that is not the pod.
    pub peer: Option<IpAddr>,
    /// A port of either endpoint, before or after translation.
    pub port: Option<u16>,
    /// IP protocol numbers.
    pub protocols: Option<BTreeSet<u8>>,
}

impl FlowFilter {
    /// Returns whether the flow meets all criteria. A flow between two pods is one of either, with
    /// the other as its peer.
    pub fn matches(&self, flow: &LiveFlow) -> bool {
        let is_of = |pod, peer| {
            self.pods.as_ref().is_none_or(|pods| pods.contains(&pod))
                && self.peer.is_none_or(|wanted| wanted == peer)
        };
        let is_of_peer = || (flow.peer_pod).is_some_and(|pod| is_of(pod, flow.own()));
        (is_of((flow.pod, flow.generation), flow.peer()) || is_of_peer())
            && self.port.is_none_or(|port| flow.has_port(port))
            && (self.protocols.as_ref()).is_none_or(|it| it.contains(&flow.protocol))
    }
}

impl LiveFlow {
    /// Returns the address of the peer: the endpoint that is not the pod or the node.
    pub fn peer(&self) -> IpAddr {
        match self.kind {
            FlowKind::Masqueraded | FlowKind::Node | FlowKind::PodToPod | FlowKind::PodToNode => {
                self.original.destination.ip()
            }
            FlowKind::Published | FlowKind::Direct | FlowKind::NodeToPod => {
                self.original.source.ip()
            }
        }
    }

    /// Returns the address of the pod or of the node: the endpoint that is not the peer.
    fn own(&self) -> IpAddr {
        match self.kind {
            FlowKind::Masqueraded | FlowKind::Node | FlowKind::PodToPod | FlowKind::PodToNode => {
                self.original.source.ip()
            }
            FlowKind::Published | FlowKind::Direct | FlowKind::NodeToPod => {
                self.translated.destination.ip()
            }
        }
    }

    fn has_port(&self, port: u16) -> bool {
        [self.original, self.translated]
            .iter()
            .any(|ends| [ends.source.port(), ends.destination.port()].contains(&port))
    }
}

#[cfg(test)]
mod tests;
