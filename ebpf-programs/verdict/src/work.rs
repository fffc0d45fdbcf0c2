//! The scratch memory of one packet, which stages pass to each other. Data only.
//!
//! In the kernel this is one element of a per-CPU array: it is too large for the stack of 512
//! bytes, and every kernel accepts pointers into a map's value as map keys. All-zero bytes are a
//! valid value of every type in here.

use abi::{
    Address, ClockEntry, Direction, Endpoint, Family, Flow, Hostport, Limit, OffloadCandidate,
    Offloaded, Tuple,
};

use crate::eviction::ClockHand;
use crate::flow_cache::{CacheEntry, CacheRecorder, CacheRing};
use crate::fragment::FragmentWork;
use crate::network_policy::PolicyWork;
use crate::outcome::code_of_variants;
use crate::row_cache::RowCache;

/// The scratch memory of one packet.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Work {
    /// The packet's parsed headers.
    pub headers: Headers,
    /// The headers of the packet that an ICMP error quotes.
    pub embedded: Headers,
    /// The tuple to write into the packet.
    pub translated: Tuple,
    /// Difference that the translation of a quote makes to the checksum of the error, folded.
    pub quote_difference: u32,
    /// The flow to insert.
    pub pair: Pair,
    /// The source address to write: the masquerade address, or what a pod sees as the source of a
    /// hostport connection.
    pub source: Address,
    /// The hostport that the packet is for.
    pub hostport: Hostport,
    /// The pod that the packet is for or from.
    pub endpoint: Endpoint,
    /// The next hop of a packet that leaves past the stack.
    pub hop: Address,
    /// The limit that the packet is charged to.
    pub limit: Limit,
    /// The connection that is reported to the agent.
    pub candidate: OffloadCandidate,
    /// The agent's decision about the packet's connection.
    pub offloaded: Offloaded,
    /// State of the sampling of delivered packets.
    pub sampling: Sampling,
    /// Whether, in this second, the kernel has confirmed the reverse path: replies would leave by
    /// the link that the packet came in by. 0 or 1.
    pub reverse_path_ok: u32,
    /// Interface index of the hook.
    pub interface: u32,
    /// Slot of the pod that the packet is counted for; 0 for none.
    pub pod: u32,
    /// [`abi::EndpointFlags::LIMITED`] if the sending pod has a limit, else 0.
    pub limited: u32,
    /// 1 if a pod's packet must take the stack, because no router forwards it or its source is an
    /// address of the node; else 0.
    pub stack_only: u32,
    /// Whether [`Work::clock_entry`] did not fit into the clock. 0 or 1.
    pub clock_full: u32,
    /// Seconds of `CLOCK_MONOTONIC`; at uplinks only.
    pub now: u32,
    /// The random number that port candidates are derived from.
    pub random: u32,
    /// The clock entry of the inserted flow.
    pub clock_entry: ClockEntry,
    /// What the stages of a fragment pass to each other.
    pub fragment: FragmentWork,
    /// What the checks of network policies pass to each other.
    pub policy: PolicyWork,
    /// How much of its quota the new flow's account has used: one of [`QuotaUsage`].
    pub quota_usage: u32,
    /// The search for acknowledgment numbers of all CPUs.
    pub pending: PendingSearch,
    /// Rows that earlier packets on this CPU have read.
    pub rows: RowCache,
    /// What a cache entry of this packet needs.
    pub recorder: CacheRecorder,
    /// The cache entry being built.
    pub cache_entry: CacheEntry,
    /// Which cache entry is used next. Stays from packet to packet.
    pub cache_ring: CacheRing,
    /// State of the clock hand. Stays from packet to packet.
    pub hand: ClockHand,
}

/// Sampling of the packets that a CPU delivers to pods through the stack, and reports of their
/// connections.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sampling {
    /// [`crate::flow_cache::FlowCache::jiffies`] of the last report.
    pub jiffies: u64,
    /// Reports in that jiffy, by a hash of the source address.
    pub reports: [u8; Self::ACCOUNTS],
    /// Packets, the sampled ones included.
    pub packets: u32,
    /// Padding.
    pub reserved: u32,
}

impl Sampling {
    /// Number of the accounts that share the reports of a CPU.
    pub const ACCOUNTS: usize = 16;
}

/// A search for the acknowledgment numbers that CPUs have stored with their pending counters.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PendingSearch {
    /// The bucket, by `CachePlace::within`: the same on each CPU.
    pub bucket: u32,
    /// [`abi::Flow::flow_id`] of the flow.
    pub flow_id: u32,
    /// The sequence number that is compared.
    pub sequence: u32,
    /// The least distance so far.
    pub least: u32,
}

/// The parsed headers of a packet.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Headers {
    /// Addresses, ports, protocol.
    pub tuple: Tuple,
    /// Offset of the IP header.
    pub l3: u32,
    /// Offset of the transport header.
    pub l4: u32,
    /// Bytes from the IP header on.
    pub length: u32,
    /// The fragment identification, as in [`abi::FragmentKey`].
    pub identification: u32,
    /// Offset of the packet's end: link-layer padding may follow.
    pub end: u32,
    /// Offset of the IPv6 fragment header.
    pub fragment_header: u32,
    /// The first unit of 8 bytes of a fragment's data in its datagram's payload.
    pub fragment_start: u32,
    /// [`abi::Seen`] bits of this packet.
    pub seen: u32,
    /// TCP: the sequence number.
    pub sequence: u32,
    /// TCP: the sequence number behind the packet's last one.
    pub next_sequence: u32,
    /// TCP: the acknowledgment number.
    pub acknowledgment: u32,
    /// IP version: 4 or 6; 0 where the packet is not IP.
    pub version: u8,
    /// ICMP type, for ICMP only.
    pub icmp_type: u8,
    /// Kind of the transport header.
    pub transport: Transport,
    /// Whether the packet is a fragment, and which.
    pub fragment: Fragment,
    /// Whether the fragment is the last one of its datagram; 0 or 1.
    pub fragment_is_last: u8,
}

impl Headers {
    /// Returns the IP version.
    #[inline(always)]
    pub const fn family(&self) -> Family {
        if self.version == 6 {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Returns whether the packet may open a flow. Replies, errors and neighbour discovery never
    /// do.
    #[inline(always)]
    pub const fn may_open(&self) -> bool {
        match self.transport {
            Transport::Tcp
            | Transport::Udp
            | Transport::Sctp
            | Transport::EchoRequest
            | Transport::Portless => true,
            Transport::None
            | Transport::EchoReply
            | Transport::IcmpError
            | Transport::IcmpOther => false,
        }
    }
}

/// Kind of the transport header.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// Nothing was parsed.
    #[default]
    None = 0,
    /// TCP.
    Tcp = 1,
    /// UDP.
    Udp = 2,
    /// SCTP.
    Sctp = 3,
    /// An ICMP echo request of the packet's family, or another ICMP query with an identifier.
    EchoRequest = 4,
    /// An ICMP echo reply of the packet's family, or another ICMP reply with an identifier.
    EchoReply = 5,
    /// An ICMP error, with the packet it complains of inside.
    IcmpError = 6,
    /// Any other ICMP: neighbour discovery, router advertisements.
    IcmpOther = 7,
    /// A protocol without ports, or one whose ports are not parsed.
    Portless = 8,
}

impl Transport {
    /// Returns whether the header has ports, so that the packet can be of a hostport, and its
    /// source port can be replaced.
    #[inline(always)]
    pub(crate) const fn has_ports(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp | Self::Sctp)
    }
}

/// Whether a packet is a fragment, and which.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fragment {
    /// Not a fragment.
    #[default]
    Whole = 0,
    /// The first one: its transport header is there, but its payload is not all.
    First = 1,
    /// A later one: no transport header.
    Later = 2,
}

/// One direction of a flow, with its key.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Tracked {
    /// The tuple as seen in packets.
    pub key: Tuple,
    /// The entry.
    pub flow: Flow,
}

/// Both directions of a flow: see [`abi::Flow`] for what holds between them.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Pair {
    /// The direction of the first packet.
    pub original: Tracked,
    /// The direction of its replies.
    pub reply: Tracked,
}

/// Result of parsing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Neither IP nor ARP, or not for this hook: passed unchanged.
    Foreign,
    /// ARP for IPv4.
    Arp,
    /// IP, with the tuple filled in.
    Ip,
    /// A later fragment whose first one has not been seen: the tuple's ports are missing.
    LostFragment,
    /// An ICMP error.
    IcmpError,
    /// IP, and the packet's flow was found.
    FlowFound,
    /// A fragment that was not looked up yet.
    Fragment,
    /// A later fragment that must wait for the first one.
    EarlyFragment,
    /// A first fragment that later ones wait for.
    AwaitedFragment,
}

code_of_variants!(
    Content: Arp, Ip, LostFragment, IcmpError, FlowFound, Fragment, EarlyFragment, AwaitedFragment;
    else Foreign
);

/// How much of its quota an account has used: values of [`Work::quota_usage`].
#[derive(Clone, Copy, Debug)]
pub struct QuotaUsage;

impl QuotaUsage {
    /// Less than half.
    pub const LOW: u32 = 0;
    /// Half or more.
    pub const HIGH: u32 = 1;
    /// All: a flow of the account must be evicted first.
    pub const FULL: u32 = 2;
    /// A flow of the account was evicted for this packet: the next insertion takes its place. Not
    /// compared with the quota again, so that no other CPU can take the place meanwhile.
    pub const EVICTED: u32 = 3;
}

/// What a new flow lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A place: the table is full, or the quota of its account is used up.
    Place,
    /// A source port: other flows have the tuple of its replies.
    Port,
}

code_of_variants!(Lack: Port; else Place);

/// Origin of a packet that leaves the node without a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Neither a masqueraded pod's nor in conflict with one.
    Elsewhere,
    /// A pod, and the packet is masqueraded.
    Pod,
    /// The node itself, with a source port that a pod's flow has in use.
    Collision,
    /// The node's address, but no socket of the node: another NAT, or a protocol without ports.
    Untranslated,
    /// A pod of a closed network, without translation: replies may enter by a flow only.
    Tracked,
}

code_of_variants!(Origin: Pod, Collision, Untranslated, Tracked; else Elsewhere);

/// Destination of a packet without a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostportMatch {
    /// No hostport.
    None,
    /// A hostport; the packet is for its pod.
    Pod,
    /// A hostport, but the packet is for a connected socket of the node.
    Socket,
    /// No hostport: a pod's own address, and no flow is needed.
    Direct,
}

code_of_variants!(HostportMatch: Pod, Socket, Direct; else None);

/// Whether a packet to a hostport, or its reply, fits the link of the receiving pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It fits, or is not redirected.
    Fits,
    /// It does not. The stack forwards it with the tuple [`Work::translated`].
    ForwardTranslated,
    /// It does not. The stack forwards it unchanged.
    ForwardUnchanged,
}

code_of_variants!(Fit: ForwardTranslated, ForwardUnchanged; else Fits);

/// A hook at which flows apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Ingress of an uplink.
    UplinkIn,
    /// Egress of an uplink.
    UplinkOut,
    /// Ingress from a pod's veth, for flows between pods.
    FromPod,
}

impl Hook {
    /// Returns the [`abi::FlowFlags`] bit of entries that apply at this hook.
    #[inline(always)]
    pub const fn flag(self) -> u32 {
        match self {
            Self::UplinkIn => abi::FlowFlags::UPLINK_IN,
            Self::UplinkOut => abi::FlowFlags::UPLINK_OUT,
            Self::FromPod => abi::FlowFlags::FROM_POD,
        }
    }

    /// Returns the direction of packets at this hook, as seen from the pod that they are counted
    /// for.
    #[inline(always)]
    pub(crate) const fn direction(self) -> Direction {
        match self {
            Self::UplinkIn => Direction::Ingress,
            Self::UplinkOut | Self::FromPod => Direction::Egress,
        }
    }
}

code_of_variants!(Hook: UplinkIn, FromPod; else UplinkOut);
