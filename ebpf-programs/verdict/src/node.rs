//! The node around a packet: its tables, sockets, routes, clock. Decides nothing.

use abi::{
    Address, Direction, DropReason, Egress, Endpoint, Flow, FragmentKey, FragmentPorts, Hostport,
    HostportKey, Interface, Network, Pod, Settings, Tuple, ClockEntry, Uplink,
};

/// What the stages may ask of the node and change in it.
pub trait Node {
    /// A place in the flow table, good until the packet is done with.
    type Entry: Copy;

    /// Seconds of `CLOCK_MONOTONIC`.
    fn now(&self) -> u32;

    /// A pseudo-random number.
    fn random(&mut self) -> u32;

    /// What the agent has set.
    fn settings(&self) -> Option<&Settings>;

    /// The pod in a slot.
    fn pod(&self, slot: u32) -> Option<&Pod>;

    /// Whose an interface is.
    fn interface(&self, interface: u32) -> Option<&Interface>;

    /// Who has an address.
    fn endpoint(&self, address: &Address) -> Option<&Endpoint>;

    /// Where a port of the node leads to.
    fn hostport(&self, key: &HostportKey) -> Option<&Hostport>;

    /// A network, by the interface index of its bridge.
    fn network(&self, bridge: u32) -> Option<&Network>;

    /// The fixed egress addresses of a network, by the interface index of its bridge.
    fn egress(&self, bridge: u32) -> Option<&Egress>;

    /// An uplink, by interface index.
    fn uplink(&self, interface: u32) -> Option<&Uplink>;

    /// Whether the node itself has the address.
    fn is_local(&self, address: &Address) -> bool;

    /// [`abi::PrefixClass`] bits of the longest prefix around the address.
    fn prefix_class(&self, address: &Address) -> u32;

    /// The entry of a tuple.
    fn flow(&self, key: &Tuple) -> Option<Self::Entry>;

    /// What an entry says now.
    fn read(&self, entry: Self::Entry) -> Flow;

    /// Notes a packet in an entry.
    fn touch(&mut self, entry: Self::Entry, touch: Touch);

    /// Adds packets that have passed to an entry.
    fn credit(&mut self, entry: Self::Entry, packets: u64, bytes: u64);

    /// Replaces the [`abi::FlowFlags`] of an entry.
    fn set_flags(&mut self, entry: Self::Entry, flags: u32);

    /// Forgets which packets an entry has seen.
    fn forget_seen(&mut self, entry: Self::Entry);

    /// Adds an entry unless the key has one.
    fn insert_flow(&mut self, key: &Tuple, flow: &Flow) -> Insertion;

    /// Begins another [epoch](crate::shortcut::Shortcuts::epoch) of a shard.
    fn begin_epoch(&mut self, shard: u32);

    /// Removes an entry, and begins another epoch of its shard; it may be gone already. With an entry of the original direction its pod has a flow less.
    fn remove_flow(&mut self, key: &Tuple);

    /// Counts a flow that is about to be made, and returns how many the pod had; a number below zero is none.
    fn reserve_flow(&mut self, pod: u32) -> i64;

    /// Takes back [`Node::reserve_flow`].
    fn release_flow(&mut self, pod: u32);

    /// How many flows a pod has.
    fn live_flows(&self, pod: u32) -> i64;

    /// The turn that has waited longest, which goes on waiting; false where none waits.
    fn peek_clock(&self, entry: &mut ClockEntry) -> bool;

    /// Takes the turn that has waited longest; false where none waits.
    fn pop_clock(&mut self, entry: &mut ClockEntry) -> bool;

    /// Lets a flow wait for its turn. Where too many wait, it never comes.
    fn push_clock(&mut self, entry: &ClockEntry);

    /// Counts a flow of a pod that had to make room.
    fn count_evicted(&mut self, pod: u32);

    /// Ports that the first fragment has left.
    fn fragment_ports(&self, key: &FragmentKey) -> Option<FragmentPorts>;

    /// Leaves a first fragment's ports.
    fn keep_fragment_ports(&mut self, key: &FragmentKey, ports: &FragmentPorts);

    /// The socket of the node that a packet with this tuple would reach if it came in; TCP and UDP only.
    fn socket(&mut self, incoming: &Tuple) -> Socket;

    /// The next hop of an IPv4 packet that came by the bridge `from` and leaves by `interface`, by the route that the
    /// kernel took: its destination, if that is on the link or unknown.
    fn next_hop(&mut self, from: u32, interface: u32, tuple: &Tuple) -> Address;

    /// The link that the kernel would send a packet out by that came in by the link `from`; 0 where it would not. And the
    /// next hop there, and how many bytes from the IP header on the kernel says that the way takes, 0 where it does not say.
    fn egress_route(&mut self, from: u32, tuple: &Tuple, hop: &mut Address, mtu: &mut u32) -> u32;

    /// Counts a flow made for a pod.
    fn count_flow(&mut self, pod: u32);

    /// Counts a packet that passed, for a pod; for slot 0 nothing is counted.
    fn count_passed(&mut self, pod: u32, direction: Direction, bytes: u32);

    /// Counts a packet that was dropped, by reason, and for a pod unless its slot is 0.
    fn count_dropped(&mut self, reason: DropReason, pod: u32, direction: Direction, bytes: u32);
}

/// What a packet leaves in its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// [`abi::Seen`] bits to add.
    pub seen: u32,
    /// Seconds of `CLOCK_MONOTONIC`.
    pub now: u32,
    /// Bytes from the IP header on.
    pub bytes: u32,
}

/// What became of an entry to insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// It is in the table.
    Done,
    /// The key has an entry already.
    Exists,
    /// The table has no room.
    Full,
}

/// A socket of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// None.
    None,
    /// One that takes packets from anybody: listening, or not connected.
    Open,
    /// One that belongs to exactly this peer.
    Connected,
}
