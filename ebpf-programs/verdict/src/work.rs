//! The notes about one packet that go from stage to stage. Data only.
//!
//! In the kernel this is one element of a per-CPU array: too large for the stack of 512 bytes, and the pointers of
//! a map's value may be map keys on every kernel. All-zero bytes are a valid value of every type in here.

use abi::{Address, Direction, Endpoint, Family, Flow, Hostport, Limit, Tuple, Turn};

use crate::known::Known;
use crate::outcome::Code;
use crate::shortcut::{Shortcut, Trail};

/// The notes about one packet.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Work {
    /// What the packet says.
    pub headers: Headers,
    /// What an ICMP error says about the packet it complains of.
    pub embedded: Headers,
    /// What to write into the packet.
    pub translated: Tuple,
    /// The flow being made.
    pub pair: Pair,
    /// The address to masquerade with.
    pub source: Address,
    /// The hostport that the packet is for.
    pub hostport: Hostport,
    /// The pod that the packet is for or from.
    pub endpoint: Endpoint,
    /// The next hop of a packet that leaves past the stack.
    pub hop: Address,
    /// The limit that the packet is charged to.
    pub limit: Limit,
    /// Whether the kernel has said in this second that answers go back by the link that the packet came by.
    pub way_back: u32,
    /// Interface index of the hook.
    pub interface: u32,
    /// The pod that is billed: its slot, 0 for nobody.
    pub pod: u32,
    /// [`abi::EndpointFlags::LIMITED`], if what the pod sends is.
    pub limited: u32,
    /// Seconds of `CLOCK_MONOTONIC`; at uplinks only.
    pub now: u32,
    /// The random number that ports are tried from.
    pub random: u32,
    /// The turn of the flow that was made.
    pub turn: Turn,
    /// Whether its pod has half the flows that it may have, or more.
    pub crowded: u32,
    /// What packets before it have asked for.
    pub known: Known,
    /// What others like the packet may be spared.
    pub trail: Trail,
    /// The shortcut that is being made.
    pub shortcut: Shortcut,
}

/// What a packet says about itself.
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
    /// [`abi::Seen`] bits of this packet.
    pub seen: u32,
    /// 4 or 6; 0 for what is not IP.
    pub version: u8,
    /// ICMP type, for ICMP only.
    pub icmp_type: u8,
    /// What stands behind the IP header.
    pub transport: Transport,
    /// Whether the packet is a fragment.
    pub fragment: Fragment,
}

impl Headers {
    /// The IP version.
    #[inline(always)]
    pub const fn family(&self) -> Family {
        if self.version == 6 {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Whether the packet may be the first of a flow. A reply, an error or neighbour discovery never is.
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

/// What stands behind the IP header.
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
    /// An ICMP echo request of the packet's family, or another question with an identifier.
    EchoRequest = 4,
    /// An ICMP echo reply of the packet's family, or another answer with an identifier.
    EchoReply = 5,
    /// An ICMP error, with the packet it complains of inside.
    IcmpError = 6,
    /// Any other ICMP: neighbour discovery, router advertisements.
    IcmpOther = 7,
    /// A protocol without ports, or one whose ports are not known.
    Portless = 8,
}

/// Whether a packet is a fragment.
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

/// What was read from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Not IP and not ARP, or not for this hook: none of our business.
    Foreign,
    /// ARP for IPv4.
    Arp,
    /// IP, with the tuple filled in.
    Ip,
    /// A later fragment whose first one has not been seen: the tuple's ports are missing.
    LostFragment,
    /// An ICMP error.
    IcmpError,
    /// As [`Content::Ip`], and its flow was found.
    Known,
}

impl Code for Content {
    #[inline(always)]
    fn code(self) -> u64 {
        self as u64
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        match code {
            1 => Self::Arp,
            2 => Self::Ip,
            3 => Self::LostFragment,
            4 => Self::IcmpError,
            5 => Self::Known,
            _ => Self::Foreign,
        }
    }
}

/// Whose a packet is that leaves the node without a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody's that we translate for.
    Elsewhere,
    /// A pod's, and it is masqueraded.
    Pod,
    /// The node's own, but a pod's flow holds the port.
    Collision,
}

impl Code for Origin {
    #[inline(always)]
    fn code(self) -> u64 {
        self as u64
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        match code {
            1 => Self::Pod,
            2 => Self::Collision,
            _ => Self::Elsewhere,
        }
    }
}

/// Whom a packet without a flow is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostportMatch {
    /// No hostport.
    None,
    /// A hostport, and the pod gets the packet.
    Pod,
    /// A hostport, but a socket of the node was there before.
    Socket,
}

impl Code for HostportMatch {
    #[inline(always)]
    fn code(self) -> u64 {
        self as u64
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        match code {
            1 => Self::Pod,
            2 => Self::Socket,
            _ => Self::None,
        }
    }
}

/// Where a packet's flow applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It enters the node by an uplink.
    In,
    /// It leaves the node by an uplink.
    Out,
    /// It comes from a pod, and goes to one.
    Pod,
}

impl Way {
    /// The [`abi::FlowFlags`] bit of entries that apply here.
    #[inline(always)]
    pub const fn flag(self) -> u32 {
        match self {
            Self::In => abi::FlowFlags::UPLINK_IN,
            Self::Out => abi::FlowFlags::UPLINK_OUT,
            Self::Pod => abi::FlowFlags::FROM_POD,
        }
    }

    /// The direction that packets have for the pod that is billed.
    #[inline(always)]
    pub(crate) const fn direction(self) -> Direction {
        match self {
            Self::In => Direction::Ingress,
            Self::Out | Self::Pod => Direction::Egress,
        }
    }
}

impl Code for Way {
    #[inline(always)]
    fn code(self) -> u64 {
        self as u64
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        match code {
            0 => Self::In,
            2 => Self::Pod,
            _ => Self::Out,
        }
    }
}
