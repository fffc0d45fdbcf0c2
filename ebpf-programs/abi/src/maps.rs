//! Names and capacities of all BPF maps, and names of the programs.
//!
//! A map's name is that of its static in the BPF object and of its file in the pin directory. The
//! kernel keeps 15 characters of it.

/// Maps whose layout has changed: name and the ABI version of the last change. On an upgrade from
/// an older version, the agent migrates all other maps with their contents. A change that keeps
/// type, sizes and capacity must rename the map.
#[cfg(not(feature = "next-layout"))]
pub const CHANGED: [(&str, u32); 3] = [(FLOWS, 2), (LIVE, 2), (FRAGMENTS, 2)];
/// Maps whose layout has changed: here [`EGRESS`], which the feature `next-layout` changes.
#[cfg(feature = "next-layout")]
pub const CHANGED: [(&str, u32); 4] = [
    (FLOWS, 2),
    (LIVE, 2),
    (FRAGMENTS, 2),
    (EGRESS, crate::ABI_VERSION),
];

/// Flow table: hash, [`crate::Tuple`] → [`crate::Flow`], preallocated, never LRU: live flows are
/// not evicted.
pub const FLOWS: &str = "FLOWS";
/// Default capacity of [`FLOWS`], which the agent can change; a flow has two entries.
pub const FLOWS_CAPACITY: u32 = 131_072;

/// Eviction clock: queue of [`crate::ClockEntry`], one per flow. Every new flow checks the two
/// oldest entries, so that dead flows are removed even while no agent sweeps. Its capacity is that
/// of [`FLOWS`].
pub const TURNS: &str = "TURNS";

/// Number of flows of each account ([`crate::Flow::account`]): array, account → `u64`, updated
/// atomically. A pod has two accounts: its slot counts the flows that it opens, and its slot plus
/// [`OUTSIDE_ACCOUNTS`] those that are opened from outside to it. Account 0 is the node's.
pub const LIVE: &str = "LIVE";
/// Capacity of [`LIVE`].
pub const LIVE_CAPACITY: u32 = 2 * PODS_CAPACITY;
/// The first account of flows that are opened from outside, that of slot 0.
pub const OUTSIDE_ACCOUNTS: u32 = PODS_CAPACITY;

/// Fixed egress addresses: hash, interface index of the bridge → [`crate::Egress`].
pub const EGRESS: &str = "EGRESS";
/// Capacity of [`EGRESS`].
pub const EGRESS_CAPACITY: u32 = 64;

/// Fragmented datagrams: hash, [`crate::FragmentKey`] → [`crate::Datagram`]. Not preallocated: most
/// nodes have no fragments.
pub const FRAGMENTS: &str = "FRAGMENTS";
/// Capacity of [`FRAGMENTS`]: the share of each pod.
pub const FRAGMENTS_CAPACITY: u32 = PODS_CAPACITY * crate::RING;

/// The last datagrams of each [`crate::Share`]: hash, share → [`crate::DatagramRing`]. Not
/// preallocated.
pub const DATAGRAMS: &str = "DATAGRAMS";
/// Capacity of [`DATAGRAMS`]: the pods, and the shares of other senders.
pub const DATAGRAMS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// Fragments that wait for the first one of their datagram: hash, [`crate::HeldKey`] →
/// [`crate::HeldFragment`]. Not preallocated.
pub const HELD: &str = "HELD";
/// Capacity of [`HELD`], 2 KiB each: the shares of 256 senders.
pub const HELD_CAPACITY: u32 = 256 * crate::RING;

/// Identifications of fragmented datagrams that have left the node: array of `u64`, by a hash of
/// source, destination, protocol and identification. The lower half is the time in seconds of
/// `CLOCK_MONOTONIC`, the upper half a hash of the datagram's key; 0 is free.
pub const IDENTIFICATIONS: &str = "IDENTIFICATIONS";
/// Capacity of [`IDENTIFICATIONS`], a power of two.
pub const IDENTIFICATIONS_CAPACITY: u32 = 65_536;

/// Cache epochs: array of `u64`, which only grow. A flow cache entry is valid only while its epochs
/// are unchanged.
pub const EPOCHS: &str = "EPOCHS";
/// Index in [`EPOCHS`] of the epoch that the agent advances after every change of a map.
pub const EPOCH_OF_TABLES: u32 = 0;
/// Index in [`EPOCHS`] of the first epoch that programs advance after changes of flows.
pub const EPOCHS_OF_FLOWS: u32 = 1;
/// Number of flow epochs, a power of two. Flows are hashed to them, so that a change of one flow
/// invalidates few cache entries.
pub const SHARDS: u32 = 256;

/// Event table: array of one [`crate::Events`].
pub const EVENTS: &str = "EVENTS";

/// Offload table: hash, [`crate::Tuple`] as netfilter sees it → [`crate::Offloaded`]. Not
/// preallocated. A connection has an entry per direction.
pub const OFFLOADED: &str = "OFFLOADED";
/// Capacity of [`OFFLOADED`].
pub const OFFLOADED_CAPACITY: u32 = 131_072;

/// Ring buffer of [`crate::OffloadCandidate`], which the agent empties.
pub const CANDIDATES: &str = "CANDIDATES";
/// Size of [`CANDIDATES`] in bytes: some thousand records.
pub const CANDIDATES_SIZE: u32 = 65_536;

/// Counters of the flow cache that are not yet in the flow table: array of
/// [`crate::PendingCounters`]. Each CPU has a part of its own, as long as its flow cache, and is
/// the only one that writes it. The loader sets the capacity.
pub const PENDING: &str = "PENDING";
/// Flow cache entries of all CPUs, where the loader sets no other number.
pub const CACHE_CAPACITY: u32 = 131_072;
/// Flow cache entries of a CPU, where the loader sets no other number: a power of two.
pub const CACHE_CAPACITY_OF_CPU: u32 = 2_048;
/// Flow cache entries of a bucket, whose tags are one element of the map of tags.
pub const CACHE_WAYS: u32 = 4;
/// Most flow cache entries of a CPU.
pub const MAX_CACHE_CAPACITY_OF_CPU: u32 = 65_536;

/// Pod table: array, slot → [`crate::Pod`].
pub const PODS: &str = "PODS";
/// Number of slots of [`PODS`], including slot 0, which is never used.
pub const PODS_CAPACITY: u32 = 2_048;

/// Interface table: hash, interface index → [`crate::Interface`].
pub const INTERFACES: &str = "INTERFACES";
/// Capacity of [`INTERFACES`].
pub const INTERFACES_CAPACITY: u32 = PODS_CAPACITY;

/// Endpoint table: hash, [`crate::Address`] → [`crate::Endpoint`].
pub const ENDPOINTS: &str = "ENDPOINTS";
/// Capacity of [`ENDPOINTS`]: two address families for each pod.
pub const ENDPOINTS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// Hostport table: hash, [`crate::HostportKey`] → [`crate::Hostport`].
pub const HOSTPORTS: &str = "HOSTPORTS";
/// Capacity of [`HOSTPORTS`].
pub const HOSTPORTS_CAPACITY: u32 = 32_768;

/// Network table: hash, interface index of the bridge → [`crate::Network`].
pub const NETWORKS: &str = "NETWORKS";
/// Capacity of [`NETWORKS`].
pub const NETWORKS_CAPACITY: u32 = 1_024;

/// Hostports that node sockets have connected to: LRU hash, [`crate::DialledKey`] →
/// [`crate::Dialled`].
pub const DIALLED: &str = "DIALLED";
/// Capacity of [`DIALLED`].
pub const DIALLED_CAPACITY: u32 = 16_384;

/// Uplink table: hash, interface index → [`crate::Uplink`].
pub const UPLINKS: &str = "UPLINKS";
/// Capacity of [`UPLINKS`].
pub const UPLINKS_CAPACITY: u32 = 64;

/// The node's own addresses: hash, [`crate::Address`] → `u32` (1).
pub const LOCALS: &str = "LOCALS";
/// Capacity of [`LOCALS`].
pub const LOCALS_CAPACITY: u32 = 1_024;

/// Prefix table: longest-prefix trie, [`crate::PrefixKey`] → [`crate::PrefixClass`] bits.
pub const PREFIXES: &str = "PREFIXES";
/// Capacity of [`PREFIXES`].
pub const PREFIXES_CAPACITY: u32 = 1_024;

/// Pod counters: per-CPU array, `slot * 2 + direction` → [`crate::Counters`].
pub const COUNTERS: &str = "COUNTERS";
/// Capacity of [`COUNTERS`].
pub const COUNTERS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// Drop counters: per-CPU array, [`crate::DropReason`] → [`crate::DropCount`].
pub const DROPS: &str = "DROPS";
/// Capacity of [`DROPS`]: room for reasons of later versions.
pub const DROP_REASONS: u32 = 64;

/// Drop counters by pod: hash, slot → [`crate::PodDrops`]; slot 0 is for packets of which no pod is
/// known. Not preallocated: only pods that have lost packets have an entry.
pub const POD_DROPS: &str = "POD_DROPS";
/// Capacity of [`POD_DROPS`].
pub const POD_DROPS_CAPACITY: u32 = PODS_CAPACITY;

/// Reports of dropped packets: ring buffer of [`crate::DropRecord`].
pub const DROP_RECORDS: &str = "DROP_RECORDS";
/// Size of [`DROP_RECORDS`] in bytes: some 960 reports.
pub const DROP_RECORDS_BYTES: u32 = 128 * 1024;
/// Whether and how often drops are reported: array of one [`crate::DropSampling`].
pub const DROP_SAMPLING: &str = "DROP_SAMPLING";

/// Bandwidth limits of pods: array, `slot * 2 + direction` → [`crate::Limit`].
pub const LIMITS: &str = "LIMITS";
/// Token buckets of pods: array, `slot * 2 + direction` → [`crate::Bucket`].
pub const BUCKETS: &str = "BUCKETS";
/// Counters of limited traffic: per-CPU array, `slot * 2 + direction` → [`crate::Shaped`].
pub const SHAPED: &str = "SHAPED";
/// Capacity of [`LIMITS`], [`BUCKETS`] and [`SHAPED`].
pub const LIMITS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// Shaped subnets of pods: longest-prefix trie, [`crate::ShapedSubnetKey`] → generation of the pod.
pub const PEERS: &str = "PEERS";
/// Capacity of [`PEERS`].
pub const PEERS_CAPACITY: u32 = crate::SUBNETS_OF_POD * PODS_CAPACITY;

/// Paced sockets: LRU hash, socket cookie → `SO_MAX_PACING_RATE` that was set, in bytes per second.
pub const PACED: &str = "PACED";
/// Capacity of [`PACED`].
pub const PACED_CAPACITY: u32 = 16_384;

/// Sockets with a clamped TCP window: LRU hash, socket cookie → clamp that was set, in bytes.
pub const BOUNDED: &str = "BOUNDED";
/// Capacity of [`BOUNDED`].
pub const BOUNDED_CAPACITY: u32 = 16_384;

/// Settings: array of one [`crate::Settings`].
pub const SETTINGS: &str = "SETTINGS";

/// Result of the last sweep: array of one [`crate::Swept`].
pub const SWEPT: &str = "SWEPT";

/// Names of the programs in the BPF object.
pub mod programs {
    /// TC, host end of a pod's veth: packets from the pod.
    pub const FROM_POD: &str = "from_pod";
    /// TCX fast path, before [`FROM_POD`] on the veth of a high-traffic pod: packets of established
    /// flows.
    pub const FROM_BUSY_POD: &str = "from_busy_pod";
    /// TC, host end of a pod's veth: packets to the pod.
    pub const TO_POD: &str = "to_pod";
    /// TC, uplink: incoming packets.
    pub const UPLINK_IN: &str = "uplink_in";
    /// TC, uplink: outgoing packets.
    pub const UPLINK_OUT: &str = "uplink_out";
    /// XDP, uplink: the optional prefilter, which drops invalid frames in the driver.
    pub const XDP_GUARD: &str = "xdp_guard";
    /// Not attached: the agent runs it to remove expired flows.
    pub const SWEEP: &str = "sweep";

    /// cgroup, TCP connection established: sets the socket's pacing rate to its pod's limits.
    pub const PACE: &str = "pace";
    /// cgroup, before `connect` of an IPv4 socket.
    pub const CONNECT4: &str = "connect4";
    /// cgroup, before `connect` of an IPv6 socket.
    pub const CONNECT6: &str = "connect6";
    /// cgroup, before `sendmsg` of an unconnected UDP socket to an IPv4 address.
    pub const SENDMSG4: &str = "sendmsg4";
    /// cgroup, before `sendmsg` of an unconnected UDP socket to an IPv6 address.
    pub const SENDMSG6: &str = "sendmsg6";
    /// cgroup, before `recvmsg` returns the IPv4 source address of a datagram.
    pub const RECVMSG4: &str = "recvmsg4";
    /// cgroup, before `recvmsg` returns the IPv6 source address of a datagram.
    pub const RECVMSG6: &str = "recvmsg6";
    /// cgroup, before `getpeername` returns an IPv4 address.
    pub const GETPEERNAME4: &str = "getpeername4";
    /// cgroup, before `getpeername` returns an IPv6 address.
    pub const GETPEERNAME6: &str = "getpeername6";
    /// cgroup, before `bind` to an IPv4 address.
    pub const BIND4: &str = "bind4";
    /// cgroup, before `bind` to an IPv6 address.
    pub const BIND6: &str = "bind6";
}
