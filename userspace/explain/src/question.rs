//! The packet that is explained, and its sender.

use abi::{Address, Mac, Port, Tuple, protocol};
use steps::DatapathTables;

use crate::shape::{FORGED, Shape};

/// A packet that the node would receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Sender of the packet.
    pub sender: Sender,
    /// Addresses, ports and protocol of the packet. For ICMP, the identifier is the source port of
    /// a request.
    pub tuple: Tuple,
    /// Length of the packet in bytes from the IP header on; the least possible one where it is
    /// less.
    pub length: usize,
    /// Type and code of an ICMP message; `None` for an echo request or reply.
    pub icmp: Option<(u8, u8)>,
    /// Addresses, ports and protocol of the packet that an ICMP error quotes.
    pub quoted: Option<Tuple>,
    /// What the packet has besides.
    pub shape: Shape,
}

/// Sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The pod in this slot.
    Pod(u32),
    /// A process of the node.
    Node,
    /// Another machine.
    World,
}

/// Returns the sender that has an address: a pod, the node, or another machine.
pub fn sender_of(tables: &DatapathTables, address: &Address) -> Sender {
    let is_current = |slot: u32, generation: u32| {
        tables
            .pods
            .get(&slot)
            .is_some_and(|pod| pod.generation == generation && pod.interface != 0)
    };
    if tables.locals.contains(address) || is_loopback(address) {
        return Sender::Node;
    }
    match tables.endpoints.get(address) {
        Some(endpoint) if is_current(endpoint.pod, endpoint.generation) => {
            Sender::Pod(endpoint.pod)
        }
        _ => Sender::World,
    }
}

impl Question {
    /// Returns the packet of a sender with correct headers, of the least length.
    pub const fn plain(sender: Sender, tuple: Tuple) -> Self {
        Self {
            sender,
            tuple,
            length: 0,
            icmp: None,
            quoted: None,
            shape: Shape::Plain,
        }
    }

    /// Returns the source MAC address of its frame, from a sender that has `own`.
    pub(crate) fn source_mac(&self, own: Mac) -> Mac {
        if self.shape == Shape::ForgedMac {
            FORGED
        } else {
            own
        }
    }

    /// Returns the tuple of the answers to a packet with this tuple: an echo reply has the
    /// identifier in its destination port.
    pub(crate) fn answer(tuple: &Tuple) -> Tuple {
        tuple.reverse()
    }
}

/// Returns whether the address is one of 127.0.0.0/8, or `::1`.
pub(crate) const fn is_loopback(address: &Address) -> bool {
    match address.bytes() {
        [.., first, _, _, _] if address.is_v4() => first == 127,
        [start @ .., last] => {
            last == 1 && matches!(start, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        }
    }
}

/// Returns whether a protocol has ports that packets are built with.
pub(crate) const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Returns whether the tuple is of an ICMP message, and whether that is a reply: it has no source
/// port.
pub(crate) fn is_echo_reply(tuple: &Tuple) -> bool {
    matches!(tuple.protocol, protocol::ICMP | protocol::ICMPV6)
        && tuple.source_port == Port::NONE
        && tuple.destination_port != Port::NONE
}
