//! The node's tables, sockets, routes and clock as a trait. Decides nothing.

use abi::{
    Address, ClockEntry, Direction, DropReason, Flow, HeldHeader, Pod, PolicyFlow, PolicyRule,
    Settings, Tuple,
};

use crate::work::{Headers, Hook};

/// Declares a method for each lookup in the list of maps.
macro_rules! lookups {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        /// Lookups in the tables that the agent writes.
        pub trait Lookups {
            $(
                #[doc = concat!("Returns the value of a key in [`abi::maps::", stringify!($map), "`].")]
                fn $lookup(&self, key: abi::lookup_key!($key)) -> Option<&abi::layout!($value)>;
            )*
        }
    };
}
abi::for_each_lookup!(lookups);

/// Lookups and changes that the stages use.
pub trait Node: Lookups {
    /// A reference to a flow table entry, valid until the packet is finished.
    type Entry: Copy;

    /// Returns seconds of `CLOCK_MONOTONIC`.
    fn now(&self) -> u32;

    /// Returns a pseudo-random number.
    fn random(&mut self) -> u32;

    /// Returns the agent's settings.
    fn settings(&self) -> Option<&Settings>;

    /// Returns the pod in a slot.
    fn pod(&self, slot: u32) -> Option<&Pod>;

    /// Returns whether the address is one of the node's own.
    fn is_local(&self, address: &Address) -> bool;

    /// Returns the [`abi::PrefixClass`] bits of the longest matching prefix.
    fn prefix_class(&self, address: &Address) -> u32;

    /// Returns the identity of an address in network policies; 0 where it has none.
    fn identity(&self, address: &Address) -> u32;

    /// Returns whether network policies allow what the key says.
    fn policy_rule(&self, key: &PolicyRule) -> bool;

    /// Returns what is recorded about answers with this tuple.
    fn policy_flow(&self, answer: &Tuple) -> Option<PolicyFlow>;

    /// Records answers that pods may send or receive.
    fn record_policy_flow(&mut self, answer: &Tuple, flow: &PolicyFlow);

    /// Returns the entry of a tuple.
    fn flow(&self, key: &Tuple) -> Option<Self::Entry>;

    /// Returns a copy of an entry.
    fn read(&self, entry: Self::Entry) -> Flow;

    /// Counts a packet in an entry, and updates what the entry has seen.
    fn touch(&mut self, entry: Self::Entry, touch: Touch);

    /// Adds packets that were counted elsewhere to an entry.
    fn credit(&mut self, entry: Self::Entry, packets: u64, bytes: u64);

    /// Replaces the [`abi::FlowFlags`] of an entry.
    fn set_flags(&mut self, entry: Self::Entry, flags: u32);

    /// Replaces the [`abi::Seen`] bits of an entry.
    fn set_seen(&mut self, entry: Self::Entry, seen: u32);

    /// Replaces [`Flow::acknowledged`] of an entry.
    fn set_acknowledged(&mut self, entry: Self::Entry, acknowledged: u32);

    /// Replaces [`Flow::awaited`] of an entry.
    fn set_awaited(&mut self, entry: Self::Entry, awaited: u32);

    /// Inserts an entry unless the key has one.
    fn insert_flow(&mut self, key: &Tuple, flow: &Flow) -> Insertion;

    /// Starts another [epoch](crate::flow_cache::FlowCache::epoch) of a shard.
    fn start_epoch(&mut self, shard: u32);

    /// Removes an entry, if it still exists, and starts another epoch of its shard. Removing an
    /// original direction decrements the count of the flow's account.
    fn remove_flow(&mut self, key: &Tuple);

    /// Counts a flow that is about to be inserted, and returns how many its account
    /// ([`Flow::account`]) had before. A negative number counts as zero.
    fn reserve_flow(&mut self, account: u32) -> i64;

    /// Undoes [`Node::reserve_flow`].
    fn release_flow(&mut self, account: u32);

    /// Returns how many flows an account has.
    fn live_flows(&self, account: u32) -> i64;

    /// Copies the entry at the head of the clock, which stays there; returns false where the clock
    /// is empty.
    fn peek_clock(&self, entry: &mut ClockEntry) -> bool;

    /// Removes the entry at the head of the clock; returns false where the clock is empty.
    fn pop_clock(&mut self, entry: &mut ClockEntry) -> bool;

    /// Appends an entry to the clock; returns false where the clock is full.
    fn push_clock(&mut self, entry: &ClockEntry) -> bool;

    /// Counts an evicted flow of a pod.
    fn count_evicted(&mut self, pod: u32);

    /// Writes the verdict of a packet without a cache entry, given as its code, into the datapath
    /// log, if there is one.
    #[inline(always)]
    fn log_verdict(&self, _hook: Hook, _number: u64) {}

    /// Returns which socket of the node a packet with this tuple would reach if it came in; TCP and
    /// UDP only.
    fn socket(&mut self, incoming: &Tuple) -> Socket;

    /// Returns whether a socket of the node has sent the current packet with this tuple. False also
    /// where the kernel does not say; TCP and UDP only.
    fn is_sent_by_socket(&self, tuple: &Tuple) -> bool;

    /// Returns the next hop, by the kernel's routes, of an IPv4 packet that came by the bridge
    /// `from` and leaves by `interface`. Returns the destination where that is on the link or no
    /// route is known.
    fn next_hop(&mut self, from: u32, interface: u32, tuple: &Tuple) -> Address;

    /// Returns the link by which the kernel would forward a packet that came in by the link `from`;
    /// 0 where it would not. Writes the next hop to `hop`, and the route's MTU in bytes from the IP
    /// header on to `mtu`, 0 where the kernel does not report one.
    fn egress_route(&mut self, from: u32, tuple: &Tuple, hop: &mut Address, mtu: &mut u32) -> u32;

    /// Counts a new flow of a pod.
    fn count_flow(&mut self, pod: u32);

    /// Counts a packet that passed, for a pod; counts nothing for slot 0.
    fn count_passed(&mut self, pod: u32, direction: Direction, bytes: u32);

    /// Counts a dropped packet by reason, and by pod and reason. Slot 0 is for packets of which no
    /// pod is known.
    fn count_dropped(&mut self, reason: DropReason, pod: u32, direction: Direction, bytes: u32);

    /// Reports the drop of a fragment that had been held, after it was counted. Drops of packets
    /// are reported at the end of their program.
    fn report_lost(&mut self, held: &HeldHeader, reason: DropReason);
}

/// The update that a packet makes to its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// [`abi::Seen`] bits to add.
    pub seen: u32,
    /// Seconds of `CLOCK_MONOTONIC`.
    pub now: u32,
    /// Bytes from the IP header on.
    pub bytes: u32,
}

/// Result of inserting an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The entry is in the table.
    Done,
    /// The key has an entry already.
    Exists,
    /// The table is full.
    Full,
}

/// Which kind of socket of the node has a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// No socket.
    None,
    /// A listening or unconnected socket, which accepts packets from any peer.
    Open,
    /// A socket that is connected to this peer.
    Connected,
}

/// Returns the slot of the pod that a dropped packet is from (egress) or for (ingress), by its
/// address; 0 where no pod has the address, or the packet was not parsed.
#[inline(always)]
pub(crate) fn pod_of<E: Node>(node: &E, headers: &Headers, direction: Direction) -> u32 {
    if headers.version == 0 {
        return 0;
    }
    let address = match direction {
        Direction::Egress => &headers.tuple.source,
        Direction::Ingress => &headers.tuple.destination,
    };
    node.endpoint(address).map_or(0, |endpoint| endpoint.pod)
}
