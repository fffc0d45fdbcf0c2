//! Byte layouts that the eBPF datapath and the agent agree on, each written once.
//!
//! Knows nothing: no aya, no std, no policy. Addresses and ports are kept in network byte order behind
//! constructors, so that the order cannot be got wrong; every layout is `repr(C)` with explicit padding, which
//! zerocopy's derives check at compile time, and its size is asserted beside it.
//!
//! Changing any layout, map type or capacity means a new [`ABI_VERSION`]: it is part of the pin path, so an agent
//! of another version never opens maps it would misread.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod address;
mod counter;
mod dialled;
mod egress;
mod flow;
mod hostport;
pub mod maps;
mod network;
mod pod;
mod prefix;
mod reason;
mod settings;
mod shape;
mod swept;
mod uplink;

pub use address::{Address, Family, Mac, Port};
pub use counter::{Counters, Direction, DropCount};
pub use dialled::{Dialled, DialledKey, HOLDER_MARK};
pub use egress::Egress;
pub use flow::{Flow, FlowFlags, FragmentKey, FragmentPorts, PendingCounters, Seen, Tuple, ClockEntry};
pub use hostport::{Hostport, HostportKey};
pub use network::Network;
pub use pod::{Endpoint, EndpointFlags, Interface, Pod};
pub use prefix::{PrefixClass, PrefixKey};
pub use reason::DropReason;
pub use settings::{Settings, SettingsFlags, Timeouts};
pub use shape::{Bucket, FLOWS_OF_BUCKET, Limit, LimitFlags, SUBNETS_OF_POD, ShapedSubnetKey, Shaped, TICKS};
pub use swept::Swept;
pub use uplink::{SOURCES, Source, Uplink, UplinkFlags};

/// Version of every layout, map type and capacity in this crate; part of the path under which they are pinned.
pub const ABI_VERSION: u32 = 1;

/// IP protocol numbers that the datapath tells apart (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
}
