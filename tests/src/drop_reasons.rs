//! Which drop reasons a test ties to their explanation, and which not.

use abi::DropReason;

/// Reasons that the test `drop_reasons` provokes: event and explanation name the same reason.
pub const PROVOKED: [DropReason; 18] = [
    DropReason::Malformed,
    DropReason::SpoofedMac,
    DropReason::SpoofedAddress,
    DropReason::Martian,
    DropReason::NatClash,
    DropReason::UnknownPod,
    DropReason::TooManyHeaders,
    DropReason::SpoofedFromOutside,
    DropReason::NoFlow,
    DropReason::IngressPolicy,
    DropReason::TinyFragment,
    DropReason::TaggedTwice,
    DropReason::UnknownVlan,
    DropReason::ForeignFrame,
    DropReason::RogueRouter,
    DropReason::RogueDhcp,
    DropReason::DirectAccess,
    DropReason::ErrorWithoutFlow,
];

/// The other reasons, and why no single packet there and its explanation have them.
pub const UNPROVOKED: [(DropReason, &str); 16] = [
    (
        DropReason::NoEgressAddress,
        "needs an egress address that the node does not have: unit tests of `verdict`",
    ),
    (
        DropReason::UnknownUplink,
        "needs a link to the world without programs: unit tests of `verdict`",
    ),
    (
        DropReason::InternalNetwork,
        "needs an internal network: `closed_networks` provokes it",
    ),
    (
        DropReason::NoPort,
        "needs flows that use all ports of an address: `nat_load` provokes it",
    ),
    (
        DropReason::FlowTableFull,
        "needs a full flow table: `fair_shares` provokes it",
    ),
    (
        DropReason::FlowQuota,
        "needs a thousand answered flows: unit tests of `verdict` provoke it",
    ),
    (
        DropReason::FragmentWithoutFirst,
        "depends on fragments before it, and on time: explanations are about whole packets",
    ),
    (
        DropReason::OverlappingFragment,
        "depends on fragments before it: explanations are about whole packets",
    ),
    (
        DropReason::NoSourceAddress,
        "needs an uplink and a gateway without an address of a family: unit tests of `verdict`",
    ),
    (
        DropReason::RewriteFailed,
        "only the kernel refuses a write to a packet",
    ),
    (
        DropReason::StaleGeneration,
        "lasts for the moment between two table writes of a DEL: unit tests of `verdict`",
    ),
    (
        DropReason::Duplicate,
        "needs the packet before it: `hairpin` provokes it",
    ),
    (
        DropReason::RateLimit,
        "depends on the tokens at the time of the packet: `shaping` provokes it",
    ),
    (
        DropReason::TunnelStranger,
        "needs a tunnel and its peers: `tunnels` provokes it",
    ),
    (
        DropReason::TunnelSource,
        "needs a tunnel and its peers: `tunnels` provokes it",
    ),
    (
        DropReason::TunnelDestination,
        "needs a tunnel and its peers: `tunnels` provokes it",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drop_reason_is_provoked_by_a_test_or_has_a_reason_why_not() {
        for reason in DropReason::ALL {
            let provoked = PROVOKED.iter().filter(|it| **it == reason).count();
            let listed = UNPROVOKED.iter().filter(|(it, _)| *it == reason).count();
            assert_eq!(provoked + listed, 1, "{}", reason.name());
        }
    }
}
