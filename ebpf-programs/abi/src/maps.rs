//! Names and capacities of every map, once.
//!
//! Names are the statics of the BPF object and the files under the pin directory (the kernel keeps 15 characters).

/// Maps whose layout is not that of all versions before: by name, the ABI version that changed it last. Of an older version
/// the next agent takes over the others, with all that is in them.
pub const CHANGED: [(&str, u32); 0] = [];

/// Flow table: hash, [`crate::Tuple`] → [`crate::Flow`], preallocated, never LRU: live flows are not evicted.
pub const FLOWS: &str = "FLOWS";
/// Entries of [`FLOWS`] unless the agent asks for another number; a flow is two.
pub const FLOWS_CAPACITY: u32 = 131_072;

/// The clock hand: queue of [`crate::ClockEntry`], one for each flow. Every new flow looks at the two that have waited
/// longest, so that dead flows go even while no agent sweeps. As long as [`FLOWS`] is.
pub const TURNS: &str = "TURNS";

/// How many flows each pod has: array, slot → `u64`, added to atomically.
pub const LIVE: &str = "LIVE";
/// Entries of [`LIVE`].
pub const LIVE_CAPACITY: u32 = PODS_CAPACITY;

/// Fixed egress addresses: hash, interface index of the bridge → [`crate::Egress`].
pub const EGRESS: &str = "EGRESS";
/// Entries of [`EGRESS`].
pub const EGRESS_CAPACITY: u32 = 64;

/// Fragments under way: LRU hash, [`crate::FragmentKey`] → [`crate::FragmentPorts`].
pub const FRAGMENTS: &str = "FRAGMENTS";
/// Entries of [`FRAGMENTS`].
pub const FRAGMENTS_CAPACITY: u32 = 8_192;

/// What shortcuts rest on: array of `u64`, which only grow.
pub const EPOCHS: &str = "EPOCHS";
/// Index in [`EPOCHS`] of the number that the agent changes behind every change of a table.
pub const EPOCH_OF_TABLES: u32 = 0;
/// Index in [`EPOCHS`] of the first of the numbers that programs add to behind changes of flows.
pub const EPOCHS_OF_FLOWS: u32 = 1;
/// How many of those there are, a power of two: flows are spread over them, so that few shortcuts end with each.
pub const SHARDS: u32 = 256;

/// What has passed by shortcuts and is not yet in the flow table: per-CPU array of [`crate::PendingCounters`].
pub const NOTED: &str = "NOTED";
/// Entries of [`NOTED`], a power of two: as many shortcuts a CPU has.
pub const NOTED_CAPACITY: u32 = 2_048;

/// Pod table: array, slot → [`crate::Pod`].
pub const PODS: &str = "PODS";
/// Slots of [`PODS`], the never used slot 0 among them.
pub const PODS_CAPACITY: u32 = 2_048;

/// Interface table: hash, interface index → [`crate::Interface`].
pub const INTERFACES: &str = "INTERFACES";
/// Entries of [`INTERFACES`].
pub const INTERFACES_CAPACITY: u32 = PODS_CAPACITY;

/// Endpoint table: hash, [`crate::Address`] → [`crate::Endpoint`].
pub const ENDPOINTS: &str = "ENDPOINTS";
/// Entries of [`ENDPOINTS`]: two families for each pod.
pub const ENDPOINTS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// Hostport table: hash, [`crate::HostportKey`] → [`crate::Hostport`].
pub const HOSTPORTS: &str = "HOSTPORTS";
/// Entries of [`HOSTPORTS`].
pub const HOSTPORTS_CAPACITY: u32 = 32_768;

/// Network table: hash, interface index of the bridge → [`crate::Network`].
pub const NETWORKS: &str = "NETWORKS";
/// Entries of [`NETWORKS`].
pub const NETWORKS_CAPACITY: u32 = 1_024;

/// What sockets of the node have dialled: LRU hash, [`crate::DialledKey`] → [`crate::Dialled`].
pub const DIALLED: &str = "DIALLED";
/// Entries of [`DIALLED`].
pub const DIALLED_CAPACITY: u32 = 16_384;

/// Uplink table: hash, interface index → [`crate::Uplink`].
pub const UPLINKS: &str = "UPLINKS";
/// Entries of [`UPLINKS`].
pub const UPLINKS_CAPACITY: u32 = 64;

/// The node's own addresses: hash, [`crate::Address`] → `u32` (1).
pub const LOCALS: &str = "LOCALS";
/// Entries of [`LOCALS`].
pub const LOCALS_CAPACITY: u32 = 1_024;

/// Prefix table: longest-prefix trie, [`crate::PrefixKey`] → [`crate::PrefixClass`] bits.
pub const PREFIXES: &str = "PREFIXES";
/// Entries of [`PREFIXES`].
pub const PREFIXES_CAPACITY: u32 = 1_024;

/// Pod counters: per-CPU array, `slot * 2 + direction` → [`crate::Counters`].
pub const COUNTERS: &str = "COUNTERS";
/// Entries of [`COUNTERS`].
pub const COUNTERS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// Drop counters: per-CPU array, [`crate::DropReason`] → [`crate::DropCount`].
pub const DROPS: &str = "DROPS";
/// Entries of [`DROPS`].
pub const DROP_REASONS: u32 = 64;

/// Limits of pods: array, `slot * 2 + direction` → [`crate::Limit`].
pub const LIMITS: &str = "LIMITS";
/// Buckets of pods: array, `slot * 2 + direction` → [`crate::Bucket`].
pub const BUCKETS: &str = "BUCKETS";
/// Counters of limited traffic: per-CPU array, `slot * 2 + direction` → [`crate::Shaped`].
pub const SHAPED: &str = "SHAPED";
/// Entries of [`LIMITS`], [`BUCKETS`] and [`SHAPED`].
pub const LIMITS_CAPACITY: u32 = 2 * PODS_CAPACITY;

/// With whom pods' limits count: longest-prefix trie, [`crate::ShapedSubnetKey`] behind its pod → generation of the pod.
pub const PEERS: &str = "PEERS";
/// Entries of [`PEERS`].
pub const PEERS_CAPACITY: u32 = crate::SUBNETS_OF_POD * PODS_CAPACITY;

/// Sockets that are paced: LRU hash, socket cookie → the pace that they were told, in bytes per second.
pub const PACED: &str = "PACED";
/// Entries of [`PACED`].
pub const PACED_CAPACITY: u32 = 16_384;

/// Sockets whose windows are bounded: LRU hash, socket cookie → the bound that they were told, in bytes.
pub const BOUNDED: &str = "BOUNDED";
/// Entries of [`BOUNDED`].
pub const BOUNDED_CAPACITY: u32 = 16_384;

/// Settings: array of one [`crate::Settings`].
pub const SETTINGS: &str = "SETTINGS";

/// What the last sweep did: array of one [`crate::Swept`].
pub const SWEPT: &str = "SWEPT";

/// Names of the programs, as in the BPF object.
pub mod programs {
    /// On the host's end of a pod's veth, what comes from the pod.
    pub const FROM_POD: &str = "from_pod";
    /// In front of it on the veth of a busy pod: packets of connections under way.
    pub const FROM_BUSY_POD: &str = "from_busy_pod";
    /// On the host's end of a pod's veth, what goes to the pod.
    pub const TO_POD: &str = "to_pod";
    /// On an uplink, what comes in.
    pub const UPLINK_IN: &str = "uplink_in";
    /// On an uplink, what goes out.
    pub const UPLINK_OUT: &str = "uplink_out";
    /// On an uplink, before the kernel makes packets of frames, where the operator asks for it.
    pub const XDP_GUARD: &str = "xdp_guard";
    /// Not attached: run by the agent to forget flows that have timed out.
    pub const SWEEP: &str = "sweep";

    /// On a cgroup, when a TCP connection is made: paces it by its pod's limits.
    pub const PACE: &str = "pace";
    /// On a cgroup, before a socket connects by IPv4.
    pub const CONNECT4: &str = "connect4";
    /// On a cgroup, before a socket connects by IPv6.
    pub const CONNECT6: &str = "connect6";
    /// On a cgroup, before a UDP socket that is not connected sends by IPv4.
    pub const SENDMSG4: &str = "sendmsg4";
    /// On a cgroup, before a UDP socket that is not connected sends by IPv6.
    pub const SENDMSG6: &str = "sendmsg6";
    /// On a cgroup, before a UDP socket is told whom an IPv4 datagram came from.
    pub const RECVMSG4: &str = "recvmsg4";
    /// On a cgroup, before a UDP socket is told whom an IPv6 datagram came from.
    pub const RECVMSG6: &str = "recvmsg6";
    /// On a cgroup, before a socket is told its IPv4 peer.
    pub const GETPEERNAME4: &str = "getpeername4";
    /// On a cgroup, before a socket is told its IPv6 peer.
    pub const GETPEERNAME6: &str = "getpeername6";
    /// On a cgroup, before a socket is bound to an IPv4 address.
    pub const BIND4: &str = "bind4";
    /// On a cgroup, before a socket is bound to an IPv6 address.
    pub const BIND6: &str = "bind6";
}
