//! The flow table as people think of it: both directions of a flow in one place, its state by name. Knows nothing of
//! pods' names and of how the table is read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use abi::{Address, Flow, FlowFlags, Seen, Tuple, protocol};

/// The flow table at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// Entries by the tuple as seen in packets.
    pub entries: BTreeMap<Tuple, Flow>,
    /// The clock of the entries, in seconds.
    pub now: u32,
}

/// A flow that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveFlow {
    /// The pod's slot; 0 for a flow of the node itself.
    pub pod: u32,
    /// The pod's generation when the flow was made.
    pub generation: u32,
    /// What is done to it.
    pub kind: FlowKind,
    /// Protocol number.
    pub protocol: u8,
    /// The first packet's source and destination, as it came.
    pub seen: Ends,
    /// The same, as it went on.
    pub translated: Ends,
    /// Where it stands.
    pub state: FlowState,
    /// Seconds since the first packet.
    pub age: u32,
    /// Seconds since the last packet of either direction.
    pub idle: u32,
    /// In the direction of the first packet.
    pub sent: Traffic,
    /// In the other direction.
    pub answered: Traffic,
}

/// Source and destination. Of ICMP the port is the echo identifier, on the side of whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
}

/// What was counted in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes, from the IP header on.
    pub bytes: u64,
}

/// What is done to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// A pod called out, and its address becomes the node's.
    Masqueraded,
    /// Somebody called a published port.
    Published,
    /// Somebody called a pod by its own address; nothing is translated.
    Direct,
    /// The node's own, moved off a port that a pod's flow holds.
    Node,
}

impl FlowKind {
    /// A word for people and machines.
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

/// Where a flow stands, which decides how long it is kept in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowState {
    /// TCP: one side has not acknowledged anything yet.
    Opening,
    /// TCP: both sides have acknowledged what they heard.
    Established,
    /// TCP: one side has said that it is done.
    Closing,
    /// TCP: one side has broken it off.
    Reset,
    /// UDP: nothing has come back yet.
    Single,
    /// UDP: both sides have been heard.
    Stream,
    /// ICMP echo.
    Icmp,
    /// Any other protocol.
    Other,
}

impl FlowState {
    /// A word for people and machines.
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

    /// The state of a flow whose directions have seen these.
    pub const fn of(one: u32, other: u32, protocol: u8) -> Self {
        let replied = one & other & Seen::PACKET != 0;
        let either = one | other;
        match protocol {
            protocol::TCP if either & Seen::RST != 0 => Self::Reset,
            protocol::TCP if either & Seen::FIN != 0 => Self::Closing,
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
    /// All flows that have both their entries, in the order of their addresses.
    pub fn flows(&self) -> impl Iterator<Item = LiveFlow> + '_ {
        self.entries
            .iter()
            .filter_map(|(key, flow)| self.live(key, flow))
    }

    /// The flow whose original direction this is. Half a flow is one that is being made or forgotten.
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
            seen: Ends::of(key),
            translated: Ends::of(&flow.translated),
            state: FlowState::of(flow.seen, reply.seen, key.protocol),
            age: self.now.saturating_sub(flow.created),
            idle: self.now.saturating_sub(last_seen),
            sent: Traffic::of(flow),
            answered: Traffic::of(reply),
        })
    }
}

impl Ends {
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

/// Which flows are asked for; what is not given, all have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Slot and generation of the pods.
    pub pods: Option<BTreeSet<(u32, u32)>>,
    /// The address of the other side.
    pub peer: Option<IpAddr>,
    /// A port of either side, before or after translation.
    pub port: Option<u16>,
}

impl FlowFilter {
    /// Whether this is one of them.
    pub fn takes(&self, flow: &LiveFlow) -> bool {
        let pod = (flow.pod, flow.generation);
        self.pods.as_ref().is_none_or(|pods| pods.contains(&pod))
            && self.peer.is_none_or(|peer| flow.peer() == peer)
            && self.port.is_none_or(|port| flow.has_port(port))
    }
}

impl LiveFlow {
    /// The address of the other side.
    pub fn peer(&self) -> IpAddr {
        match self.kind {
            FlowKind::Masqueraded | FlowKind::Node => self.seen.destination.ip(),
            FlowKind::Published | FlowKind::Direct => self.seen.source.ip(),
        }
    }

    fn has_port(&self, port: u16) -> bool {
        [self.seen, self.translated]
            .iter()
            .any(|ends| [ends.source.port(), ends.destination.port()].contains(&port))
    }
}

#[cfg(test)]
mod tests;
