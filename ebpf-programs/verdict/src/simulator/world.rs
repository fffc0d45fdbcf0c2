//! The state of a simulated node: tables, kernel state and the current packet.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use abi::{
    Address, ClockEntry, Counters, Datagram, Direction, DropCount, DropReason, Flow, FragmentKey,
    HeldHeader, HeldKey, Limit, Mac, OffloadCandidate, Offloaded, Pod, PolicyFlow, PolicyRule,
    PrefixKey, Settings, Shaped, ShapedSubnetKey, Tuple,
};

use super::{KernelLookups, Memory, Ring, SharedBucket, frame};
use crate::node::{Lookups, Socket};

/// Declares the rows of each lookup in the list of maps.
macro_rules! tables {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        /// The tables that the agent writes and the stages look up.
        #[derive(Clone, Debug, Default)]
        pub struct Tables {
            $(
                #[doc = concat!("Rows of [`abi::maps::", stringify!($map), "`].")]
                pub $rows: BTreeMap<abi::layout!($key), abi::layout!($value)>,
            )*
        }

        impl Lookups for World {
            $(
                fn $lookup(&self, key: abi::lookup_key!($key)) -> Option<&abi::layout!($value)> {
                    self.tables.$rows.get(Borrow::borrow(&key))
                }
            )*
        }
    };
}
abi::for_each_lookup!(tables);

impl Deref for World {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        &self.tables
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }
}

/// The tables of a node, its kernel state as far as the datapath reads it, and the current packet.
#[derive(Clone, Debug)]
pub struct World {
    /// The current packet, from its first byte on the interface.
    pub packet: Vec<u8>,
    /// MAC address of the uplink, from which the packet type derives.
    pub mac: Mac,
    /// The clock in seconds, for flows.
    pub now: u32,
    /// State of the random number generator.
    pub random: u32,
    /// The settings table.
    pub settings: Settings,
    /// The tables of the lookups; the world dereferences to them.
    pub tables: Tables,
    /// The pod table, all slots of it.
    pub pods: Vec<Pod>,
    /// The node's own addresses.
    pub locals: BTreeSet<Address>,
    /// The prefix table.
    pub prefixes: BTreeMap<PrefixKey, u32>,
    /// Identities of addresses in network policies.
    pub identities: BTreeMap<PrefixKey, u32>,
    /// What network policies allow: keys with their lengths in bits.
    pub policy_rules: BTreeSet<(u32, PolicyRule)>,
    /// Which ends of connections have let packets pass, by the tuple of the answers.
    pub policy_flows: BTreeMap<Tuple, PolicyFlow>,
    /// The flow table.
    pub flows: BTreeMap<Tuple, Flow>,
    /// Capacity of the flow table in entries.
    pub flow_capacity: usize,
    /// Number of flows of each account.
    pub live: BTreeMap<u32, i64>,
    /// The eviction clock.
    pub turns: VecDeque<ClockEntry>,
    /// The fragment table.
    pub fragments: BTreeMap<FragmentKey, Datagram>,
    /// The rings of the shares.
    pub rings: BTreeMap<u32, Ring>,
    /// Held fragments: header and packet.
    pub held: BTreeMap<HeldKey, (HeldHeader, Vec<u8>)>,
    /// Packets that are sent through the hook again after the current one.
    pub reinjected: Vec<Vec<u8>>,
    /// The held fragment that has replaced the current packet.
    pub restored: Option<Vec<u8>>,
    /// The table of identifications, without free elements.
    pub identifications: BTreeMap<u32, u64>,
    /// The kernel that routes and sockets are looked up in; without one, in the following maps.
    pub kernel: Option<Arc<dyn KernelLookups>>,
    /// The node's sockets, by the tuple of packets that reach them.
    pub sockets: BTreeMap<Tuple, Socket>,
    /// Whether a socket of the node has sent the current packet.
    pub sent_by_socket: bool,
    /// Next hops that are not the destination itself.
    pub next_hops: BTreeMap<Address, Address>,
    /// Egress routes: interface index by destination.
    pub egress_routes: BTreeMap<Address, u32>,
    /// MTU of all egress routes in bytes, where the kernel reports it; 0 otherwise.
    pub route_mtu: u32,
    /// MTUs of interfaces in bytes; any packet fits the others.
    pub mtus: BTreeMap<u32, u32>,
    /// The clock in nanoseconds, for limits.
    pub clock: u64,
    /// Whether the current packet has a VLAN tag.
    pub tagged: bool,
    /// VLAN identifier of that tag.
    pub vlan_id: u32,
    /// Interface index of the link that the current packet has come in by.
    pub ingress_interface: u32,
    /// The interface of the current hook.
    pub interface: u32,
    /// `skb->mark` of the current packet, set by other software.
    pub mark: u32,
    /// Flow hash of the current packet.
    pub flow_hash: u32,
    /// GSO segmentation of the current packet: number and size of segments.
    pub segments: (u32, u32),
    /// Whether the current packet was marked with ECN Congestion Experienced.
    pub congested: bool,
    /// Departure time of the current packet, in nanoseconds.
    pub departure: Option<u64>,
    /// Limits by slot and direction.
    pub limits: BTreeMap<(u32, Direction), Limit>,
    /// Shaped subnets: prefixes and their lengths as in [`abi::maps::PEERS`], with the pods'
    /// generations.
    pub peers: BTreeMap<(ShapedSubnetKey, u32), u32>,
    /// Buckets by slot and direction.
    pub buckets: BTreeMap<(u32, Direction), Arc<SharedBucket>>,
    /// Counters of limited traffic by slot and direction.
    pub shaped: BTreeMap<(u32, Direction), Shaped>,
    /// Pod counters by slot and direction.
    pub counters: BTreeMap<(u32, Direction), Counters>,
    /// Drop counters.
    pub drops: BTreeMap<DropReason, DropCount>,
    /// Held fragments that were dropped, as reported.
    pub lost: Vec<HeldHeader>,
    /// The offload table.
    pub offloaded: BTreeMap<Tuple, Offloaded>,
    /// Connections that were reported to the agent.
    pub candidates: Vec<OffloadCandidate>,
    /// Dropped packets by slot and reason.
    pub pod_drops: BTreeMap<(u32, DropReason), u64>,
    /// Flow cache of the one CPU, and the epochs that it depends on.
    pub memory: Memory,
}

impl Default for World {
    fn default() -> Self {
        Self {
            packet: Vec::new(),
            mac: frame::TO,
            now: 1_000,
            random: 0,
            settings: Settings::default(),
            tables: Tables::default(),
            pods: vec![Pod::default(); abi::maps::PODS_CAPACITY as usize],
            locals: BTreeSet::new(),
            prefixes: BTreeMap::new(),
            identities: BTreeMap::new(),
            policy_rules: BTreeSet::new(),
            policy_flows: BTreeMap::new(),
            flows: BTreeMap::new(),
            flow_capacity: abi::maps::FLOWS_CAPACITY as usize,
            live: BTreeMap::new(),
            turns: VecDeque::new(),
            fragments: BTreeMap::new(),
            rings: BTreeMap::new(),
            held: BTreeMap::new(),
            reinjected: Vec::new(),
            restored: None,
            identifications: BTreeMap::new(),
            kernel: None,
            sockets: BTreeMap::new(),
            sent_by_socket: false,
            next_hops: BTreeMap::new(),
            egress_routes: BTreeMap::new(),
            route_mtu: 0,
            mtus: BTreeMap::new(),
            clock: 1_000_000_000_000,
            tagged: false,
            vlan_id: 0,
            ingress_interface: 0,
            interface: 0,
            mark: 0,
            flow_hash: 0,
            segments: (0, 0),
            congested: false,
            departure: None,
            limits: BTreeMap::new(),
            peers: BTreeMap::new(),
            buckets: BTreeMap::new(),
            shaped: BTreeMap::new(),
            counters: BTreeMap::new(),
            drops: BTreeMap::new(),
            lost: Vec::new(),
            offloaded: BTreeMap::new(),
            candidates: Vec::new(),
            pod_drops: BTreeMap::new(),
            memory: Memory::default(),
        }
    }
}
