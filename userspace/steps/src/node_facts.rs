//! Facts beyond our own objects that decide whether packets of pods die: routes of sample packets,
//! IPsec policies, and the limits of the node and of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use model::{Cidr, IfName};

use crate::SysctlKey;

/// What to observe for the conditions of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckQuery {
    /// Routes of sample packets.
    pub routes: BTreeSet<RouteQuery>,
    /// Sysctls to read.
    pub sysctls: BTreeSet<SysctlKey>,
}

/// A sample packet whose route is queried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteQuery {
    /// Destination address.
    pub to: IpAddr,
    /// Source address and receiving link of a packet that is forwarded or delivered; `None` for a
    /// packet that the node sends. IPv4 only: the kernel's answer for IPv6 does not depend on it.
    pub received: Option<(IpAddr, IfName)>,
}

/// The kernel's answer to a [`RouteQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteAnswer {
    /// The packet leaves through the link with this interface index.
    Leaves(u32),
    /// The packet is delivered to the node itself.
    Local,
    /// There is no route, the receiving link does not forward, or its reverse path filter drops the
    /// packet. Linux 6.13 and later do not say which.
    Unreachable,
}

/// Answers to a [`CheckQuery`], and the limits of the node and of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckFacts {
    /// Answers to the route queries.
    pub routes: BTreeMap<RouteQuery, RouteAnswer>,
    /// Values of the queried sysctls; `None` for one that the kernel does not have.
    pub sysctls: BTreeMap<SysctlKey, Option<String>>,
    /// IPsec policies of other software.
    pub ipsec: Ipsec,
    /// Which of the node's processes the cgroup programs see; `None` without a cgroup.
    pub cgroup: Option<CgroupCoverage>,
    /// File descriptors of the agent.
    pub open_files: Option<Usage>,
    /// Entries of netfilter's conntrack table; `None` where the node does not track connections.
    pub conntrack: Option<Usage>,
    /// Whether the neighbour table of IPv4 and that of IPv6 has overflowed in the last minute.
    pub neighbours_overflow: [bool; 2],
}

/// IPsec policies of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipsec {
    /// Directions whose packets are dropped where no policy applies.
    pub blocked: Vec<IpsecDirection>,
    /// Policies of interfaces and the node, without those of single sockets.
    pub policies: Vec<IpsecPolicy>,
}

/// Direction of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpsecDirection {
    /// Packets to the node.
    In,
    /// Packets of the node, and forwarded ones when they leave.
    Out,
    /// Forwarded packets.
    Forward,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecPolicy {
    /// Its direction.
    pub direction: IpsecDirection,
    /// Source prefix of its packets.
    pub source: Cidr,
    /// Destination prefix of its packets.
    pub destination: Cidr,
    /// Whether it applies to one protocol, port, mark or link only.
    pub is_narrowed: bool,
    /// Whether it drops the packets.
    pub blocks: bool,
    /// Whether it encrypts or authenticates the packets.
    pub transforms: bool,
    /// Priority: of two policies, the lower number applies.
    pub priority: u32,
}

impl fmt::Display for IpsecDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Forward => "fwd",
        })
    }
}

/// Use of a limited resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usage {
    /// Amount in use.
    pub used: u64,
    /// Largest amount.
    pub limit: u64,
}

impl Usage {
    /// Returns whether nothing is left.
    pub const fn is_full(self) -> bool {
        self.used >= self.limit
    }

    /// Returns whether less than a twentieth is left.
    pub const fn is_nearly_full(self) -> bool {
        self.limit.saturating_sub(self.used) < self.limit.div_ceil(20)
    }
}

/// Which of the node's processes the cgroup programs see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupCoverage {
    /// Whether it is the root of the hierarchy, which contains all processes.
    pub is_root: bool,
    /// Whether the operator has chosen it; else it is the mounted root, or that of a cgroup
    /// namespace, which looks like it.
    pub is_configured: bool,
    /// Names of processes of the agent's network namespace that it does not contain, some of them.
    pub outside: BTreeSet<String>,
}

impl CgroupCoverage {
    /// Returns whether processes of the node are outside of the cgroup. A cgroup namespace shows
    /// its own root as that of the hierarchy, so no process outside of it is visible.
    pub fn is_partial(&self) -> bool {
        !self.is_root && (!self.is_configured || !self.outside.is_empty())
    }
}
