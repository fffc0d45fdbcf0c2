//! Conditions of the node that make packets of pods die, as values and as sentences.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use model::{AttachmentKey, Cidr, DegradedReason, IfName, NetworkName};

use steps::{IpsecDirection, Usage};

/// A condition of the node that makes packets of pods die, or will.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeCondition {
    /// Addresses of a network belong to another link or route as well.
    SubnetOverlap {
        /// The network.
        network: NetworkName,
        /// Its subnet.
        subnet: Cidr,
        /// The other subnet or route; `None` for a routing rule without a visible route.
        other: Option<Cidr>,
        /// Link of the other subnet or route; `None` where the route drops.
        link: Option<IfName>,
        /// What dies.
        effect: OverlapEffect,
    },
    /// The node has an address of a pod.
    AddressOfNode {
        /// The attachment.
        key: AttachmentKey,
        /// The address.
        address: IpAddr,
        /// Link of the node that has the address, or the route that makes it the node's.
        link: IfName,
    },
    /// A reverse path filter drops packets of pods.
    ReversePathFilter {
        /// The network.
        network: NetworkName,
        /// Link with the filter.
        link: IfName,
        /// What it drops.
        traffic: FilteredTraffic,
    },
    /// A link does not forward.
    ForwardingOff {
        /// The network.
        network: NetworkName,
        /// The link.
        link: IfName,
    },
    /// Other software sets a sysctl back whenever the agent has set it.
    SysctlContested {
        /// Path below `/proc/sys`.
        sysctl: String,
        /// Value that the agent sets.
        value: String,
    },
    /// IPsec policies drop packets of pods, or encrypt them without masquerading.
    Ipsec {
        /// The network.
        network: NetworkName,
        /// Direction of the policy.
        direction: IpsecDirection,
        /// Source and destination of the policy; `None` for the default of the direction.
        selector: Option<(Cidr, Cidr)>,
        /// What the policy does.
        effect: PolicyEffect,
    },
    /// The MTU of a network is larger than that of the way out of the node.
    MtuAboveUplink {
        /// The network.
        network: NetworkName,
        /// Its MTU in bytes.
        mtu: u32,
        /// Link of the default route.
        link: IfName,
        /// MTU of the link or of the route, in bytes.
        link_mtu: u32,
    },
    /// The MTU of a bridge is smaller than that of its pods.
    MtuOfBridge {
        /// The bridge.
        bridge: IfName,
        /// Its MTU in bytes.
        mtu: u32,
        /// Largest MTU of a pod on it, in bytes.
        pods: u32,
    },
    /// The cgroup does not contain all processes of the node.
    CgroupUncovered {
        /// Names of some processes that it does not contain.
        outside: BTreeSet<String>,
    },
    /// The agent is short of file descriptors.
    FileLimit(Usage),
    /// Netfilter's conntrack table is full, or nearly.
    ConntrackFull(Usage),
    /// A neighbour table has overflowed.
    NeighboursFull {
        /// Whether it is that of IPv4 (ARP).
        ipv4: bool,
    },
    /// Runtimes choose another network configuration before one of Viaduct's.
    ConflistShadowed {
        /// The sentence.
        why: String,
    },
    /// Runtimes find no valid configuration of Viaduct's.
    ConflistUnusable {
        /// The sentence.
        why: String,
    },
    /// A plugin of a network configuration is not installed.
    PluginMissing {
        /// Name of the network.
        network: String,
        /// The sentence.
        why: String,
    },
}

/// What an overlap of subnets makes unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverlapEffect {
    /// Every pod that the network can have.
    AllPods,
    /// Pods with addresses of the other subnet or route.
    SomePods,
    /// What is behind the other link.
    Others,
}

/// What a reverse path filter drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilteredTraffic {
    /// Packets that pods send to this address and others of its route.
    FromPods(IpAddr),
    /// Answers to pods.
    Answers,
    /// Requests to published ports, from this address and others of its route.
    Requests(IpAddr),
}

/// What an IPsec policy does to packets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyEffect {
    /// Drops them.
    Blocks,
    /// Encrypts them with the pod's own source address: they have not been masqueraded before.
    BypassesMasquerade,
}

impl NodeCondition {
    /// Returns the reason, with its word and advice.
    pub fn reason(&self) -> DegradedReason {
        match self {
            Self::SubnetOverlap { .. } => DegradedReason::SubnetOverlap,
            Self::AddressOfNode { .. } => DegradedReason::AddressOfNode,
            Self::ReversePathFilter { .. } => DegradedReason::ReversePathFilter,
            Self::ForwardingOff { .. } => DegradedReason::ForwardingOff,
            Self::SysctlContested { .. } => DegradedReason::SysctlContested,
            Self::Ipsec { .. } => DegradedReason::IpsecPolicy,
            Self::MtuAboveUplink { .. } | Self::MtuOfBridge { .. } => DegradedReason::MtuMismatch,
            Self::CgroupUncovered { .. } => DegradedReason::CgroupUncovered,
            Self::FileLimit(_) => DegradedReason::FileLimit,
            Self::ConntrackFull(_) => DegradedReason::ConntrackFull,
            Self::NeighboursFull { .. } => DegradedReason::NeighboursFull,
            Self::ConflistShadowed { .. } => DegradedReason::ConflistShadowed,
            Self::ConflistUnusable { .. } => DegradedReason::ConflistUnusable,
            Self::PluginMissing { .. } => DegradedReason::PluginMissing,
        }
    }

    /// Returns whether a pod that an ADD to this network makes now would have no connectivity.
    pub fn prevents_add(&self, to: &NetworkName) -> bool {
        match self {
            Self::SubnetOverlap {
                network, effect, ..
            } => network == to && *effect == OverlapEffect::AllPods,
            Self::ReversePathFilter {
                network, traffic, ..
            } => network == to && !matches!(traffic, FilteredTraffic::Requests(_)),
            Self::ForwardingOff { network, .. } | Self::Ipsec { network, .. } => network == to,
            Self::PluginMissing { network, .. } => network == to.as_str(),
            Self::ConntrackFull(usage) => usage.is_full(),
            Self::AddressOfNode { .. }
            | Self::SysctlContested { .. }
            | Self::MtuAboveUplink { .. }
            | Self::MtuOfBridge { .. }
            | Self::CgroupUncovered { .. }
            | Self::FileLimit(_)
            | Self::NeighboursFull { .. }
            | Self::ConflistShadowed { .. }
            | Self::ConflistUnusable { .. } => false,
        }
    }

    /// Returns whether no packet reaches any pod of the network.
    pub(super) fn cuts_off(&self) -> bool {
        matches!(
            self,
            Self::SubnetOverlap {
                effect: OverlapEffect::AllPods,
                ..
            }
        )
    }
}

impl NodeCondition {
    /// Formats the conditions of MTUs.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller matches all others"
    )]
    fn fmt_mtu(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MtuAboveUplink {
                network,
                mtu,
                link,
                link_mtu,
            } => write!(
                f,
                "network {network} has MTU {mtu}, but the default route through {link} has {link_mtu}: larger packets of \
                 pods depend on path MTU discovery"
            ),
            Self::MtuOfBridge { bridge, mtu, pods } => write!(
                f,
                "bridge {bridge} has MTU {mtu}, but its pods have {pods}: larger packets to the pods depend on path MTU \
                 discovery"
            ),
            _ => Ok(()),
        }
    }

    /// Formats the conditions of limited resources.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the caller matches all others"
    )]
    fn fmt_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CgroupUncovered { outside } => cgroup(f, outside),
            Self::FileLimit(usage) => write!(
                f,
                "the agent may open {} files and has opened {}: ports cannot be published beyond that",
                usage.limit, usage.used
            ),
            Self::ConntrackFull(usage) => write!(
                f,
                "netfilter tracks {} of at most {} connections: packets of further ones are dropped",
                usage.used, usage.limit
            ),
            Self::NeighboursFull { ipv4 } => write!(
                f,
                "the {} neighbour table is full: packets to new neighbours are dropped",
                if *ipv4 { "IPv4" } else { "IPv6" }
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SubnetOverlap {
                network,
                subnet,
                other,
                link,
                effect,
            } => {
                write!(f, "subnet {subnet} of network {network} overlaps with ")?;
                overlap(f, *other, link.as_ref(), *effect)
            }
            Self::AddressOfNode { key, address, link } => of_node(f, key, *address, link),
            Self::ReversePathFilter {
                network,
                link,
                traffic,
            } => {
                write!(f, "the reverse path filter of {link} (rp_filter) drops ")?;
                filtered(f, network, *traffic)
            }
            Self::Ipsec {
                network,
                direction,
                selector,
                effect,
            } => {
                policy(f, *direction, *selector, *effect)?;
                write!(f, " packets of pods of network {network}")
            }
            Self::ForwardingOff { network, link } => write!(
                f,
                "net.ipv4.conf.{link}.forwarding is 0: packets of network {network} that {link} receives are dropped"
            ),
            Self::SysctlContested { sysctl, value } => write!(
                f,
                "other software changes {sysctl} each time the agent sets it to {value}: in between, packets of pods are \
                 dropped"
            ),
            Self::MtuAboveUplink { .. } | Self::MtuOfBridge { .. } => self.fmt_mtu(f),
            Self::CgroupUncovered { .. }
            | Self::FileLimit(_)
            | Self::ConntrackFull(_)
            | Self::NeighboursFull { .. } => self.fmt_limit(f),
            Self::ConflistShadowed { why }
            | Self::ConflistUnusable { why }
            | Self::PluginMissing { why, .. } => f.write_str(why),
        }
    }
}

fn overlap(
    f: &mut fmt::Formatter<'_>,
    other: Option<Cidr>,
    link: Option<&IfName>,
    effect: OverlapEffect,
) -> fmt::Result {
    match (other, link) {
        (Some(other), Some(link)) => write!(f, "{other} of {link}")?,
        (None, Some(link)) => write!(f, "a routing rule to {link}")?,
        (_, None) => f.write_str("a route that drops")?,
    }
    f.write_str(match effect {
        OverlapEffect::AllPods => ": its pods are unreachable",
        OverlapEffect::SomePods => ": pods with these addresses are unreachable",
        OverlapEffect::Others => ": other hosts with these addresses are unreachable",
    })
}

fn of_node(
    f: &mut fmt::Formatter<'_>,
    key: &AttachmentKey,
    address: IpAddr,
    link: &IfName,
) -> fmt::Result {
    write!(f, "{link} of the node has {address}, the address of {key}")?;
    f.write_str(": packets for it reach the node, not the pod")
}

fn filtered(
    f: &mut fmt::Formatter<'_>,
    network: &NetworkName,
    traffic: FilteredTraffic,
) -> fmt::Result {
    match traffic {
        FilteredTraffic::FromPods(to) => {
            write!(
                f,
                "packets of pods of network {network}, for example to {to}"
            )
        }
        FilteredTraffic::Answers => write!(f, "answers to pods of network {network}"),
        FilteredTraffic::Requests(source) => write!(
            f,
            "requests to published ports of network {network}, for example of {source}"
        ),
    }
}

fn policy(
    f: &mut fmt::Formatter<'_>,
    direction: IpsecDirection,
    selector: Option<(Cidr, Cidr)>,
    effect: PolicyEffect,
) -> fmt::Result {
    match selector {
        Some((source, destination)) => {
            write!(f, "IPsec policy {direction} {source} -> {destination} ")?;
        }
        None => write!(f, "the IPsec default of direction {direction} ")?,
    }
    f.write_str(match effect {
        PolicyEffect::Blocks => "drops",
        PolicyEffect::BypassesMasquerade => "encrypts, without masquerading,",
    })
}

fn cgroup(f: &mut fmt::Formatter<'_>, outside: &BTreeSet<String>) -> fmt::Result {
    f.write_str("the agent's cgroup does not contain all processes of the node")?;
    if !outside.is_empty() {
        let names: Vec<&str> = outside.iter().map(String::as_str).collect();
        write!(f, " (not {})", names.join(", "))?;
    }
    f.write_str(": the others reach published ports by netfilter, and not by 127.0.0.1 and ::1")
}
