//! All BPF maps, each declared once in [`for_each_map!`](crate::for_each_map), and the names of the
//! programs.
//!
//! A map's name is that of its static in the BPF object and of its file in the pin directory. The
//! kernel keeps 15 characters of it. From the list come the typed definitions below, the statics of
//! the BPF object, the lookups of `verdict` and of its simulator, and the handles and checks of the
//! agent.

use core::marker::PhantomData;

pub mod programs;

/// The layouts of keys and values, which the crate's root exports.
pub(crate) mod layouts {
    mod counter;
    mod dialled;
    mod drop_record;
    mod egress;
    mod events;
    mod flow;
    mod fragment;
    mod hostport;
    mod network;
    mod offload;
    mod pod;
    mod policy;
    mod prefix;
    mod settings;
    mod shape;
    mod swept;
    mod trusted_link;
    mod uplink;

    pub use counter::{Counters, Direction, DropCount, PodDropCount, PodDrops};
    pub use dialled::{Dialled, DialledKey, HOLDER_MARK};
    pub use drop_record::{DropHook, DropRecord, DropSampling, DroppedPacket, DroppedPacketFlags};
    pub use egress::Egress;
    pub use events::Events;
    pub use flow::{ClockEntry, Flow, FlowFlags, PendingCounters, Seen, Tuple};
    pub use fragment::{
        Datagram, DatagramFlags, DatagramRing, FragmentKey, FragmentRange, HELD_PART, HELD_PARTS,
        HeldFragment, HeldHeader, HeldKey, LONGEST_HELD, RANGES, RING, Share,
    };
    pub use hostport::{Hostport, HostportKey};
    pub use network::Network;
    pub use offload::{OffloadCandidate, Offloaded};
    pub use pod::{Endpoint, EndpointFlags, Interface, Pod};
    pub use policy::{PolicyFlow, PolicyRule, RuleSets};
    pub use prefix::{PrefixClass, PrefixKey};
    pub use settings::{Settings, SettingsFlags, Timeouts};
    pub use shape::{
        Bucket, FLOWS_OF_BUCKET, Limit, LimitFlags, SUBNETS_OF_POD, Shaped, ShapedSubnetKey, TICKS,
    };
    pub use swept::Swept;
    pub use trusted_link::TrustedLinkKey;
    pub use uplink::{SOURCES, Source, Uplink, UplinkFlags};
}

/// Calls the macro `$then` with the list of all maps. Each line is
///
/// ```text
/// NAME = Kind<Key, Value>[capacity] | OPTION => lookup in rows;
/// ```
///
/// * `Kind`: one of [`MapKind`]. Keys of arrays are `u32`; that of a trie is the part behind the
///   prefix length. Ring buffers have neither keys nor values, and their capacity is in bytes.
/// * `Key`, `Value`: types of this crate, see [`layout!`](crate::layout).
/// * `OPTION`: none or several [`MapOption`]s.
/// * `lookup in rows`: only for a hash that the agent writes and `verdict` reads. `lookup` becomes
///   the method that reads it, `rows` the field that holds its entries in the simulator.
#[macro_export]
macro_rules! for_each_map {
    ([$($with:tt)*] $($then:tt)+) => {
        $($then)+! {
            $($with)*

            /// Flow table, never LRU: live flows are not evicted. A flow has two entries.
            FLOWS = Hash<Tuple, Flow>[$crate::maps::FLOWS_CAPACITY] | BY_LOADER;

            /// Eviction clock: one entry per flow. Every new flow checks the two oldest entries, so
            /// that dead flows are removed even while no agent sweeps. Its capacity is that of
            /// [`FLOWS`].
            TURNS = Queue<(), ClockEntry>[$crate::maps::FLOWS_CAPACITY] | BY_LOADER;

            /// Number of flows of each account ([`crate::Flow::account`]), updated atomically. A
            /// pod has two accounts: its slot counts the flows that it opens, and its slot plus
            /// [`OUTSIDE_ACCOUNTS`] those that are opened from outside to it. Account 0 is the
            /// node's.
            LIVE = Array<u32, u64>[2 * $crate::maps::PODS_CAPACITY];

            /// Fixed egress addresses, by the interface index of the bridge.
            EGRESS = Hash<u32, Egress>[64] => egress in egress;

            /// Fragmented datagrams. Not preallocated: most nodes have no fragments. The capacity
            /// is the share of each pod.
            FRAGMENTS = Hash<FragmentKey, Datagram>[$crate::maps::PODS_CAPACITY * $crate::RING]
                | NO_PREALLOC;

            /// The last datagrams of each [`crate::Share`]: the pods', and those of other senders.
            DATAGRAMS = Hash<u32, DatagramRing>[2 * $crate::maps::PODS_CAPACITY] | NO_PREALLOC;

            /// Fragments that wait for the first one of their datagram, 2 KiB each: the shares of
            /// 256 senders.
            HELD = Hash<HeldKey, HeldFragment>[256 * $crate::RING] | NO_PREALLOC;

            /// Identifications of fragmented datagrams that have left the node, by a hash of
            /// source, destination, protocol and identification. The lower half is the time in
            /// seconds of `CLOCK_MONOTONIC`, the upper half a hash of the datagram's key; 0 is
            /// free. The capacity is a power of two.
            IDENTIFICATIONS = Array<u32, u64>[65_536];

            /// Cache epochs, which only grow. A flow cache entry is valid only while its epochs are
            /// unchanged.
            EPOCHS = Array<u32, u64>[$crate::maps::EPOCHS_OF_FLOWS + $crate::maps::SHARDS];

            /// Event table: one element. `BPF_F_MMAPABLE` aligns it to a cache line.
            EVENTS = Array<u32, Events>[1] | MMAPABLE;

            /// Offload table, by the tuple as netfilter sees it. A connection has an entry per
            /// direction.
            OFFLOADED = Hash<Tuple, Offloaded>[131_072] | NO_PREALLOC;

            /// [`crate::OffloadCandidate`]s, which the agent empties: some thousand records.
            CANDIDATES = RingBuf<(), ()>[65_536];

            /// Counters of the flow cache that are not yet in the flow table. Each CPU has a part
            /// of its own, as long as its flow cache, and is the only one that writes it.
            PENDING = Array<u32, PendingCounters>[$crate::maps::CACHE_CAPACITY]
                | MMAPABLE | BY_LOADER;

            /// Pod table, by slot.
            PODS = Array<u32, Pod>[$crate::maps::PODS_CAPACITY];

            /// Interface table, by interface index.
            INTERFACES = Hash<u32, Interface>[$crate::maps::PODS_CAPACITY]
                => interface in interfaces;

            /// Endpoint table: two address families for each pod.
            ENDPOINTS = Hash<Address, Endpoint>[2 * $crate::maps::PODS_CAPACITY]
                => endpoint in endpoints;

            /// Hostport table.
            HOSTPORTS = Hash<HostportKey, Hostport>[32_768] => hostport in hostports;

            /// Network table, by the interface index of the bridge.
            NETWORKS = Hash<u32, Network>[1_024] => network in networks;

            /// Uplinks by which every port of a network's pods is reached from outside, with the
            /// value 1 (`trusted_host_interfaces` of Docker).
            TRUSTED_LINKS = Hash<TrustedLinkKey, u32>[1_024] => trusted_link in trusted_links;

            /// Hostports that node sockets have connected to.
            DIALLED = LruHash<DialledKey, Dialled>[16_384];

            /// Uplink table, by interface index.
            UPLINKS = Hash<u32, Uplink>[64] => uplink in uplinks;

            /// The node's own addresses, with the value 1.
            LOCALS = Hash<Address, u32>[1_024];

            /// Prefix table: [`crate::PrefixClass`] bits.
            PREFIXES = LpmTrie<Address, u32>[$crate::maps::PREFIXES_CAPACITY];

            /// Rule sets of network policies, by slot. Not preallocated: only pods with policies
            /// have an entry.
            RULE_SETS = Hash<u32, RuleSets>[$crate::maps::PODS_CAPACITY] | NO_PREALLOC
                => rule_sets in rule_sets;

            /// Identities of addresses in network policies. An address that no prefix contains has
            /// none, and one of a prefix with 0 neither.
            IDENTITIES = LpmTrie<Address, u32>[$crate::maps::IDENTITIES_CAPACITY];

            /// What rule sets of network policies allow, with the value 1.
            POLICY_RULES = LpmTrie<PolicyRule, u32>[$crate::maps::POLICY_RULES_CAPACITY];

            /// Packets by which pods with network policies have opened or accepted connections, by
            /// the tuple of their answers.
            POLICY_FLOWS = LruHash<Tuple, PolicyFlow>[65_536];

            /// Addresses of the nodes whose tunnelled packets this node accepts, with the value 1:
            /// three of each of 5,000 nodes fit twice. Not preallocated: most nodes have no tunnel.
            TUNNEL_PEERS = Hash<Address, u32>[32_768] | NO_PREALLOC
                => tunnel_peer in tunnel_peers;

            /// Pod counters, by `slot * 2 + direction`.
            COUNTERS = PerCpuArray<u32, Counters>[2 * $crate::maps::PODS_CAPACITY];

            /// Drop counters, by [`crate::DropReason`].
            DROPS = PerCpuArray<u32, DropCount>[$crate::maps::DROP_REASONS];

            /// Drop counters by slot; slot 0 is for packets of which no pod is known. Not
            /// preallocated: only pods that have lost packets have an entry.
            POD_DROPS = Hash<u32, PodDrops>[$crate::maps::PODS_CAPACITY] | NO_PREALLOC;

            /// Reports of dropped packets ([`crate::DropRecord`]): some 960.
            DROP_RECORDS = RingBuf<(), ()>[128 * 1024];

            /// Whether and how often drops are reported: one element.
            DROP_SAMPLING = Array<u32, DropSampling>[1];

            /// Bandwidth limits of pods, by `slot * 2 + direction`.
            LIMITS = Array<u32, Limit>[2 * $crate::maps::PODS_CAPACITY];

            /// Shaped subnets of pods: generation of the pod.
            PEERS = LpmTrie<ShapedSubnetKey, u32>[
                $crate::SUBNETS_OF_POD * $crate::maps::PODS_CAPACITY
            ];

            /// Token buckets of pods, by `slot * 2 + direction`.
            BUCKETS = Array<u32, Bucket>[2 * $crate::maps::PODS_CAPACITY];

            /// Counters of limited traffic, by `slot * 2 + direction`.
            SHAPED = PerCpuArray<u32, Shaped>[2 * $crate::maps::PODS_CAPACITY];

            /// Paced sockets: socket cookie → `SO_MAX_PACING_RATE` that was set, in bytes per
            /// second.
            PACED = LruHash<u64, u32>[16_384];

            /// Sockets with a clamped TCP window: socket cookie → clamp that was set, in bytes.
            BOUNDED = LruHash<u64, u32>[16_384];

            /// Settings: one element.
            SETTINGS = Array<u32, Settings>[1];

            /// Result of the last sweep: one element.
            SWEPT = Array<u32, Swept>[1];
        }
    };
    ($($then:tt)+) => {
        $crate::for_each_map! { [] $($then)+ }
    };
}

/// Calls the macro `$then` with a line `NAME: Key, Value, lookup, rows;` for each map that
/// `verdict` reads by a lookup, see [`for_each_map!`](crate::for_each_map).
#[macro_export]
macro_rules! for_each_lookup {
    ($($then:tt)+) => {
        $crate::for_each_map! { [[$($then)+]] $crate::lookups_of }
    };
}

/// Second half of [`for_each_lookup!`](crate::for_each_lookup).
#[doc(hidden)]
#[macro_export]
macro_rules! lookups_of {
    ([$($then:tt)+] $(
        $(#[$doc:meta])*
        $name:ident = $kind:ident<$key:tt, $value:tt>[$capacity:expr] $(| $option:ident)*
            $(=> $lookup:ident in $rows:ident)?;
    )*) => {
        $($then)+! { $($($name: $key, $value, $lookup, $rows;)?)* }
    };
}

/// Type of a key or value in the list of maps: a number, nothing, or a type of this crate.
#[macro_export]
macro_rules! layout {
    (u32) => {
        u32
    };
    (u64) => {
        u64
    };
    (()) => {
        ()
    };
    ($layout:ident) => {
        $crate::$layout
    };
}

/// Type of the key that a lookup takes: a number, or a reference to a type of this crate.
#[macro_export]
macro_rules! lookup_key {
    (u32) => {
        u32
    };
    ($layout:ident) => {
        &$crate::$layout
    };
}

/// Type of a map (`enum bpf_map_type` in `include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Hash, preallocated unless [`NO_PREALLOC`] is set.
    Hash,
    /// Hash that evicts the least recently used entry where it is full.
    LruHash,
    /// Array; all elements exist, and are zeros at first.
    Array,
    /// Array with a value for each CPU.
    PerCpuArray,
    /// Longest-prefix trie.
    LpmTrie,
    /// Queue without keys.
    Queue,
    /// Ring buffer of records.
    RingBuf,
}

/// Option of a map in the list.
#[derive(Clone, Copy, Debug)]
pub struct MapOption {
    /// Flag of the map (`BPF_F_*` in `include/uapi/linux/bpf.h`), or 0.
    flag: u32,
    is_sized_by_loader: bool,
}

/// `BPF_F_NO_PREALLOC`: entries take memory only while they exist.
pub const NO_PREALLOC: MapOption = MapOption::of_flag(1);
/// `BPF_F_MMAPABLE`: the kernel aligns the first element to a page, so that an element of 64 bytes
/// lies in one cache line.
pub const MMAPABLE: MapOption = MapOption::of_flag(1 << 10);
/// The loader may choose another capacity.
pub const BY_LOADER: MapOption = MapOption {
    flag: 0,
    is_sized_by_loader: true,
};

impl MapOption {
    const fn of_flag(flag: u32) -> Self {
        Self {
            flag,
            is_sized_by_loader: false,
        }
    }

    /// Returns the flag of the map, or 0.
    #[must_use]
    pub const fn flag(self) -> u32 {
        self.flag
    }
}

/// Definition of a map from `K` to `V`.
#[derive(Debug)]
pub struct MapDef<K, V> {
    /// Name of the static in the BPF object, and of the pin.
    pub name: &'static str,
    /// Type of the map.
    pub kind: MapKind,
    /// Number of entries, or bytes of a ring buffer; the default where the loader chooses it.
    pub capacity: u32,
    /// Flags of the map (`BPF_F_*`).
    pub flags: u32,
    is_sized_by_loader: bool,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> MapDef<K, V> {
    /// Returns the definition without its types.
    #[must_use]
    pub const fn shape(&self) -> MapShape {
        let prefix_len = if matches!(self.kind, MapKind::LpmTrie) {
            size_of::<u32>()
        } else {
            0
        };
        MapShape {
            name: self.name,
            kind: self.kind,
            key: prefix_len + size_of::<K>(),
            value: size_of::<V>(),
            capacity: self.capacity,
            is_sized_by_loader: self.is_sized_by_loader,
        }
    }
}

/// What the kernel reports of a map, as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape {
    /// Name of the static in the BPF object, and of the pin.
    pub name: &'static str,
    /// Type of the map.
    pub kind: MapKind,
    /// Size of a key in bytes, with the prefix length of a trie.
    pub key: usize,
    /// Size of a value in bytes.
    pub value: usize,
    /// Number of entries, or bytes of a ring buffer.
    pub capacity: u32,
    /// Whether the map may have another capacity, which the agent that created it has chosen.
    pub is_sized_by_loader: bool,
}

macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:ident<$key:tt, $value:tt>[$capacity:expr] $(| $option:ident)*
            $(=> $lookup:ident in $rows:ident)?;
    )*) => {
        $(
            $(#[$doc])*
            pub const $name: MapDef<$crate::layout!($key), $crate::layout!($value)> = MapDef {
                name: stringify!($name),
                kind: MapKind::$kind,
                capacity: $capacity,
                flags: 0 $(| $option.flag)*,
                is_sized_by_loader: false $(|| $option.is_sized_by_loader)*,
                types: PhantomData,
            };
        )*

        /// The shapes of all maps.
        pub const ALL: &[MapShape] = &[$($name.shape()),*];
    };
}
for_each_map!(define);

/// Maps whose layout has changed: name and the ABI version of the last change. On an upgrade from
/// an older version, the agent migrates all other maps with their contents. A change that keeps
/// type, sizes and capacity must rename the map.
#[cfg(not(feature = "next-layout"))]
pub const CHANGED: [(&str, u32); 5] = [
    (FLOWS.name, 2),
    (LIVE.name, 2),
    (FRAGMENTS.name, 2),
    (PREFIXES.name, 3),
    (POLICY_FLOWS.name, 4),
];
/// Maps whose layout has changed: here [`EGRESS`], which the feature `next-layout` changes.
#[cfg(feature = "next-layout")]
pub const CHANGED: [(&str, u32); 6] = [
    (FLOWS.name, 2),
    (LIVE.name, 2),
    (FRAGMENTS.name, 2),
    (PREFIXES.name, 3),
    (POLICY_FLOWS.name, 4),
    (EGRESS.name, crate::ABI_VERSION),
];

/// Default capacity of [`FLOWS`], which the agent can change.
pub const FLOWS_CAPACITY: u32 = 131_072;
/// Capacity of [`PREFIXES`], of which peers may have half. A trie takes memory only for its
/// entries.
pub const PREFIXES_CAPACITY: u32 = 32_768;
/// Capacity of [`IDENTITIES`], in prefixes. A trie takes memory only for its entries.
pub const IDENTITIES_CAPACITY: u32 = 131_072;
/// Capacity of [`POLICY_RULES`], in keys. A trie takes memory only for its entries.
pub const POLICY_RULES_CAPACITY: u32 = 262_144;
/// Number of slots of [`PODS`], including slot 0, which is never used.
pub const PODS_CAPACITY: u32 = 2_048;
/// The first account of flows that are opened from outside, that of slot 0.
pub const OUTSIDE_ACCOUNTS: u32 = PODS_CAPACITY;
/// Capacity of [`DROPS`]: room for reasons of later versions.
pub const DROP_REASONS: u32 = 64;

/// Index in [`EPOCHS`] of the epoch that the agent advances after every change of a map.
pub const EPOCH_OF_TABLES: u32 = 0;
/// Index in [`EPOCHS`] of the first epoch that programs advance after changes of flows.
pub const EPOCHS_OF_FLOWS: u32 = 1;
/// Number of flow epochs, a power of two. Flows are hashed to them, so that a change of one flow
/// invalidates few cache entries.
pub const SHARDS: u32 = 256;

/// Flow cache entries of all CPUs, where the loader sets no other number.
pub const CACHE_CAPACITY: u32 = 131_072;
/// Flow cache entries of a CPU, where the loader sets no other number: a power of two.
pub const CACHE_CAPACITY_OF_CPU: u32 = 2_048;
/// Flow cache entries of a bucket, whose tags are one element of the map of tags.
pub const CACHE_WAYS: u32 = 4;
/// Most flow cache entries of a CPU.
pub const MAX_CACHE_CAPACITY_OF_CPU: u32 = 65_536;
