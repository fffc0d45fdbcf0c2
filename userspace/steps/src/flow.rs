//! The flow table for people: both directions of a flow in one value, and its state by name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use abi::{Address, Flow, FlowFlags, Offloaded, Seen, Tuple, protocol};

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
    /// Slot of the pod; 0 for a flow of the node itself.
    pub pod: u32,
    /// Generation of the pod when the flow was created.
    pub generation: u32,
    /// Kind of translation.
    pub kind: FlowKind,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination of the first packet, before translation.
    pub original: FlowEndpoints,
    /// Source and destination of the first packet, after translation.
    pub translated: FlowEndpoints,
    /// State, which decides the idle timeout.
    pub state: FlowState,
    /// How its packets get through the node.
    pub path: FlowPath,
    /// Seconds since the first packet.
    pub age: u32,
    /// Seconds since the last packet of either direction.
    pub idle: u32,
    /// Traffic in the original direction, that of the first packet.
    pub sent: Traffic,
    /// Traffic in the reply direction.
    pub replied: Traffic,
}

/// Source and destination of a flow. For ICMP echo, the requester's port is the echo identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Number of bytes, IP header included.
    pub bytes: u64,
}

/// Kind of translation of a flow.
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
}

impl FlowKind {
    /// Returns the name in the API and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Masqueraded => "masqueraded",
            Self::Published => "published",
            Self::Direct => "direct",
            Self::Node => "node",
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

/// State of a flow, which decides its idle timeout.
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
    /// Returns all flows that have both entries, in the order of their tuples.
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
            kind: FlowKind::of(flow.flags),
            protocol: key.protocol,
            original: FlowEndpoints::of(key),
            translated: FlowEndpoints::of(&flow.translated),
            state: FlowState::of(flow.seen, reply.seen, key.protocol),
            path: self.path([key, &flow.translated]),
            age: self.now.saturating_sub(flow.created),
            idle: self.now.saturating_sub(last_seen),
            sent: Traffic::of(flow),
            replied: Traffic::of(reply),
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
}

impl FlowEndpoints {
    fn of(tuple: &Tuple) -> Self {
        let end = |address: &Address, port: abi::Port| SocketAddr::new(ip(address), port.number());
        Self {
            source: end(&tuple.source, tuple.source_port),
            destination: end(&tuple.destination, tuple.destination_port),
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
    /// Returns whether the flow meets all criteria.
    pub fn matches(&self, flow: &LiveFlow) -> bool {
        let pod = (flow.pod, flow.generation);
        self.pods.as_ref().is_none_or(|pods| pods.contains(&pod))
            && self.peer.is_none_or(|peer| flow.peer() == peer)
            && self.port.is_none_or(|port| flow.has_port(port))
            && (self.protocols.as_ref()).is_none_or(|it| it.contains(&flow.protocol))
    }
}

impl LiveFlow {
    /// Returns the address of the peer: the endpoint that is not the pod or the node.
    pub fn peer(&self) -> IpAddr {
        match self.kind {
            FlowKind::Masqueraded | FlowKind::Node => self.original.destination.ip(),
            FlowKind::Published | FlowKind::Direct => self.original.source.ip(),
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
