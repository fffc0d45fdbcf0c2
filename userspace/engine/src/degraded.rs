//! Degradations: what does not work on this node, why, and what that means for an ADD.

use std::fmt;
use std::net::IpAddr;

use model::{DegradedReason, IfName, NetworkName, Range};
use planner::{NodeCondition, PeerProblem, PeerProblemKind};

use crate::{NODE, StalePeers, StuckOperation};

/// What remains in effect while a source cannot be read.
const PEERS_KEPT: &str = "the list of peers cannot be read, so the last one stays";
const POLICIES_KEPT: &str = "the network policies cannot be read, so the last ones stay";
const POLICIES_LOST: &str = "the stored network policies cannot be read, so none is in effect";

/// Degradation: one function that does not work on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// The default network has no range.
    NoPodCidr,
    /// The node has no uplink.
    NoUplink,
    /// Programs are missing on an uplink.
    ProgramsMissing(IfName),
    /// The bridge of a network is refused.
    NetworkRefused {
        /// The network.
        network: NetworkName,
        /// The refusal.
        why: String,
    },
    /// A configured uplink does not exist.
    UplinkMissing(IfName),
    /// At most a tenth of the addresses of a range are free.
    PoolNearlyExhausted {
        /// The network.
        network: NetworkName,
        /// The range.
        range: Range,
        /// Number of free addresses.
        left: u64,
    },
    /// No address of a range is free.
    PoolExhausted {
        /// The network.
        network: NetworkName,
        /// The range.
        range: Range,
    },
    /// No link of the node has a configured egress address.
    NoEgressAddress(IpAddr),
    /// A default of another software's filter table drops pods' packets.
    ForwardingDropped {
        /// The default.
        what: String,
        /// Why no rule of ours accepts the packets, and what to do.
        why: String,
    },
    /// The kernel refuses the netfilter table that serves hostports to containers of other
    /// software.
    NoNftables,
    /// Other software or the operator has configured the node so that packets of pods die.
    Node(NodeCondition),
    /// Peers of a list cannot be connected.
    Peers {
        /// Kind of the problems.
        kind: PeerProblemKind,
        /// The first problems.
        problems: Vec<PeerProblem>,
        /// Number of further ones.
        more: usize,
    },
    /// The list of peers cannot be read.
    PeersUnreadable(String),
    /// The program that sends the list of peers has lost its source.
    PeersStale(StalePeers),
    /// The list of network policies cannot be read.
    PoliciesUnreadable(String),
    /// The stored network policies cannot be read, so none is in effect.
    PoliciesLost(String),
    /// The engine's thread does not end its work.
    EngineStuck(StuckOperation),
    /// A repair of the last reconciliation failed.
    RepairFailed {
        /// Attachment key, link name, `tables` or `node`.
        subject: String,
        /// Difference and error.
        why: String,
    },
}

/// What a degradation means for an ADD to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddEffect {
    /// An ADD gives a working pod.
    Works,
    /// An ADD fails, or gives a pod without connectivity: CNI STATUS is 50.
    Fails,
    /// As [`AddEffect::Fails`], and running pods may have lost connectivity: CNI STATUS is 51.
    FailsAndPodsSuffer,
}

impl Degraded {
    /// Returns the reason, with its word and advice.
    pub fn reason(&self) -> DegradedReason {
        match self {
            Self::NoPodCidr => DegradedReason::NoPodCidr,
            Self::NoUplink => DegradedReason::NoUplink,
            Self::ProgramsMissing(_) => DegradedReason::ProgramsMissing,
            Self::NetworkRefused { .. } => DegradedReason::NetworkRefused,
            Self::UplinkMissing(_) => DegradedReason::UplinkMissing,
            Self::PoolNearlyExhausted { .. } => DegradedReason::PoolNearlyExhausted,
            Self::PoolExhausted { .. } => DegradedReason::PoolExhausted,
            Self::NoEgressAddress(_) => DegradedReason::NoEgressAddress,
            Self::ForwardingDropped { .. } => DegradedReason::ForwardingDropped,
            Self::NoNftables => DegradedReason::NoNftables,
            Self::Node(condition) => condition.reason(),
            Self::Peers { kind, .. } => kind.reason(),
            Self::PeersUnreadable(_) => DegradedReason::PeersUnreadable,
            Self::PeersStale(_) => DegradedReason::PeersStale,
            Self::PoliciesUnreadable(_) => DegradedReason::PoliciesUnreadable,
            Self::PoliciesLost(_) => DegradedReason::PoliciesLost,
            Self::EngineStuck(_) => DegradedReason::EngineStuck,
            Self::RepairFailed { .. } => DegradedReason::RepairFailed,
        }
    }

    /// Returns what the degradation means for an ADD to `network` (behaviour S13). `has_pods`
    /// states whether the network has attachments.
    pub fn effect_on_add(&self, network: &NetworkName) -> AddEffect {
        match self {
            Self::ProgramsMissing(_) => AddEffect::FailsAndPodsSuffer,
            Self::RepairFailed { subject, .. } if subject == NODE => AddEffect::FailsAndPodsSuffer,
            Self::NetworkRefused { network: name, .. }
            | Self::PoolExhausted { network: name, .. }
                if name == network =>
            {
                AddEffect::Fails
            }
            Self::ForwardingDropped { .. } | Self::EngineStuck(_) => AddEffect::Fails,
            Self::Node(condition) if condition.prevents_add(network) => AddEffect::Fails,
            Self::Node(_)
            | Self::Peers { .. }
            | Self::PeersUnreadable(_)
            | Self::PeersStale(_)
            | Self::PoliciesUnreadable(_)
            | Self::PoliciesLost(_)
            | Self::NetworkRefused { .. }
            | Self::PoolExhausted { .. }
            | Self::RepairFailed { .. }
            | Self::NoPodCidr
            | Self::NoUplink
            | Self::UplinkMissing(_)
            | Self::NoEgressAddress(_)
            | Self::NoNftables
            | Self::PoolNearlyExhausted { .. } => AddEffect::Works,
        }
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPodCidr => {
                f.write_str("the default network has no address range: give the agent a pod CIDR")
            }
            Self::NoUplink => {
                f.write_str("the node has no uplink: pods reach only each other and the node")
            }
            Self::ProgramsMissing(link) => write!(
                f,
                "BPF programs are missing on uplink {link}: no masquerading and no hostports there"
            ),
            Self::NetworkRefused { network, why } => {
                write!(f, "network {network} cannot be used: {why}")
            }
            Self::UplinkMissing(link) => write!(
                f,
                "configured uplink {link} does not exist: no pod traffic leaves the node through it"
            ),
            Self::PoolNearlyExhausted {
                network,
                range,
                left,
            } => write!(
                f,
                "network {network} has {left} free addresses between {} and {}",
                range.first(),
                range.last()
            ),
            Self::PoolExhausted { network, range } => write!(
                f,
                "network {network} has no free address between {} and {}",
                range.first(),
                range.last()
            ),
            Self::NoEgressAddress(address) => write!(
                f,
                "no link of the node has the egress address {address}: pods of the network that uses it cannot send outside the node"
            ),
            Self::ForwardingDropped { what, why } => {
                write!(f, "{what} drops the packets of pods: {why}")
            }
            Self::NoNftables => f.write_str(
                "the kernel has no nftables: containers of other software do not reach hostports",
            ),
            Self::Node(condition) => condition.fmt(f),
            Self::Peers { problems, more, .. } => write_problems(problems, *more, f),
            Self::PeersUnreadable(why) => write!(f, "{PEERS_KEPT}: {why}"),
            Self::PeersStale(stale) => stale.fmt(f),
            Self::PoliciesUnreadable(why) => write!(f, "{POLICIES_KEPT}: {why}"),
            Self::PoliciesLost(why) => write!(f, "{POLICIES_LOST}: {why}"),
            Self::EngineStuck(stuck) => stuck.fmt(f),
            Self::RepairFailed { subject, why } => {
                write!(f, "repair of {subject} failed: {why}")
            }
        }
    }
}

/// Writes the named problems, and the number of further ones.
fn write_problems(
    problems: &[PeerProblem],
    more: usize,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    f.write_str(&texts.join("; "))?;
    if more > 0 {
        write!(f, "; and {more} more: viaductctl peers")?;
    }
    Ok(())
}

impl fmt::Display for StalePeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            since,
            error,
        } = self;
        write!(
            f,
            "the list of peers is that of {since}, when {program} lost its source: {error}"
        )
    }
}

impl fmt::Display for StuckOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb)?;
        if let Some(key) = &self.key {
            write!(f, " of {key}")?;
        }
        write!(f, " has not ended for {} s", self.since.as_secs())?;
        if let Some(function) = &self.waits_in {
            write!(f, " and waits in the kernel ({function})")?;
        }
        f.write_str(": all other requests wait")
    }
}
