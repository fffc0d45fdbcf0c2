//! Which test ties each drop reason to its explanation.

use std::collections::BTreeSet;

use abi::DropReason;
use anyhow::{Context as _, Result, ensure};

/// The drop reasons by the test file in which traffic provokes them: event and explanation name the
/// same reason.
pub const PROVOKED: [(&str, &[DropReason]); 6] = [
    (
        "drop_reasons",
        &[
            DropReason::Malformed,
            DropReason::SpoofedMac,
            DropReason::SpoofedAddress,
            DropReason::Martian,
            DropReason::FragmentWithoutFirst,
            DropReason::NatClash,
            DropReason::UnknownPod,
            DropReason::TooManyHeaders,
            DropReason::RewriteFailed,
            DropReason::SpoofedFromOutside,
            DropReason::NoFlow,
            DropReason::RateLimit,
            DropReason::IngressPolicy,
            DropReason::TinyFragment,
            DropReason::OverlappingFragment,
            DropReason::TaggedTwice,
            DropReason::UnknownVlan,
            DropReason::ForeignFrame,
            DropReason::RogueRouter,
            DropReason::RogueDhcp,
            DropReason::DirectAccess,
            DropReason::InternalNetwork,
            DropReason::ErrorWithoutFlow,
        ],
    ),
    (
        "drop_reasons_of_nodes",
        &[
            DropReason::NoSourceAddress,
            DropReason::StaleGeneration,
            DropReason::Duplicate,
            DropReason::NoEgressAddress,
            DropReason::UnknownUplink,
        ],
    ),
    (
        "drop_reasons_of_tunnels",
        &[
            DropReason::TunnelForeignSender,
            DropReason::TunnelSource,
            DropReason::TunnelDestination,
        ],
    ),
    (
        "fair_shares",
        &[DropReason::FlowTableFull, DropReason::FlowQuota],
    ),
    ("nat_load", &[DropReason::NoPort]),
    ("network_policies", &[DropReason::NetworkPolicy]),
];

/// Fails unless a test file has provoked the reasons that [`PROVOKED`] lists for it.
pub fn are_all_provoked(test: &str, provoked: &BTreeSet<&'static str>) -> Result<()> {
    let mut tests = PROVOKED.into_iter();
    let (_, reasons) = tests
        .find(|(name, _)| *name == test)
        .context("the test is not listed")?;
    let listed: BTreeSet<&str> = reasons.iter().map(|reason| reason.name()).collect();
    ensure!(*provoked == listed, "{provoked:?}, but listed: {listed:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drop_reason_is_provoked_by_one_test_file() {
        for reason in DropReason::ALL {
            let tests = PROVOKED.iter().filter(|(_, of)| of.contains(&reason));
            assert_eq!(tests.count(), 1, "{}", reason.name());
        }
    }
}
