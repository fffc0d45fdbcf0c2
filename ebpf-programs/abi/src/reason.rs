//! Every drop has a name.

/// Why a packet was dropped. The number is the index in the drop counters and the same everywhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum DropReason {
    /// A header is cut short or contradicts itself.
    Malformed = 1,
    /// The frame's source MAC is not the pod's.
    SpoofedMac = 2,
    /// The packet's source address (or ARP sender) is not the pod's.
    SpoofedAddress = 3,
    /// A source or destination that can never be on a wire, for example 127.0.0.0/8.
    Martian = 4,
    /// No free port to masquerade with, in the tries allowed.
    NoPort = 5,
    /// The flow table is full.
    FlowTableFull = 6,
    /// A fragment came before the first one of its packet.
    FragmentWithoutFirst = 7,
    /// A second pod talks to the same peer by a protocol without ports, so replies could not be told apart.
    NatClash = 8,
    /// Leaves the node with a pod address that no pod has (any more).
    UnknownPod = 9,
    /// The uplink has no address of the packet's family to masquerade with.
    NoSourceAddress = 10,
    /// More IPv6 extension headers than the parser walks.
    TooManyHeaders = 11,
    /// The kernel refused to change the packet.
    RewriteFailed = 12,
    /// Came in by an uplink with a source address that belongs to this node's pods, or with its bridge's Ethernet address.
    SpoofedFromOutside = 13,
    /// Belongs to a hostport or flow whose pod is gone.
    StaleGeneration = 14,
    /// A promiscuous bridge has delivered the same packet already.
    Duplicate = 15,
    /// The pod has as many flows as it may have.
    FlowQuota = 16,
    /// The node does not have the address that the pod's network is to leave with.
    NoEgressAddress = 17,
    /// An answer or an error of a pod that belongs to no flow: it would leave with the pod's own address.
    NoFlow = 18,
    /// Would leave, with the pod's own address, by a link on which nothing is translated (yet).
    UnknownUplink = 19,
    /// The pod has sent or received as much as it may.
    RateLimit = 20,
    /// From one pod to another, and the firewall of either network keeps them apart.
    IngressPolicy = 21,
}

impl DropReason {
    /// All reasons, by number.
    pub const ALL: [Self; 21] = [
        Self::Malformed,
        Self::SpoofedMac,
        Self::SpoofedAddress,
        Self::Martian,
        Self::NoPort,
        Self::FlowTableFull,
        Self::FragmentWithoutFirst,
        Self::NatClash,
        Self::UnknownPod,
        Self::NoSourceAddress,
        Self::TooManyHeaders,
        Self::RewriteFailed,
        Self::SpoofedFromOutside,
        Self::StaleGeneration,
        Self::Duplicate,
        Self::FlowQuota,
        Self::NoEgressAddress,
        Self::NoFlow,
        Self::UnknownUplink,
        Self::RateLimit,
        Self::IngressPolicy,
    ];

    /// The reason with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|reason| *reason as u32 == number)
    }

    /// Name for people, counters and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::SpoofedMac => "spoofed-mac",
            Self::SpoofedAddress => "spoofed-address",
            Self::Martian => "martian",
            Self::NoPort => "no-port",
            Self::FlowTableFull => "flow-table-full",
            Self::FragmentWithoutFirst => "fragment-without-first",
            Self::NatClash => "nat-clash",
            Self::UnknownPod => "unknown-pod",
            Self::NoSourceAddress => "no-source-address",
            Self::TooManyHeaders => "too-many-headers",
            Self::RewriteFailed => "rewrite-failed",
            Self::SpoofedFromOutside => "spoofed-from-outside",
            Self::StaleGeneration => "stale-generation",
            Self::Duplicate => "duplicate",
            Self::FlowQuota => "flow-quota",
            Self::NoEgressAddress => "no-egress-address",
            Self::NoFlow => "no-flow",
            Self::UnknownUplink => "unknown-uplink",
            Self::RateLimit => "rate-limit",
            Self::IngressPolicy => "ingress-policy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_found_by_its_number_and_fits_the_table() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index + 1);
            assert_eq!(DropReason::from_number(reason as u32), Some(reason));
            assert!((reason as u32) < crate::maps::DROP_REASONS);
        }
    }
}
