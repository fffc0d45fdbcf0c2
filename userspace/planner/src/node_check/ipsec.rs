//! IPsec policies (XFRM) that drop packets of pods, or encrypt them before they are masqueraded.

use model::Cidr;
use steps::{CheckFacts, Ipsec, IpsecDirection, IpsecPolicy};

use super::{NodeCondition, PolicyEffect, RoutedNetwork};
use crate::NodeIntent;

/// What a policy sees of a network: packets of its pods, or to them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    FromPods,
    ToPods,
}

/// What drops packets of a flow.
#[derive(Clone, Copy)]
enum Dropping {
    /// The policy with this source and destination.
    Policy(Cidr, Cidr),
    /// The default for packets without a policy.
    Default,
}

impl Dropping {
    fn selector(self) -> Option<(Cidr, Cidr)> {
        match self {
            Self::Policy(source, destination) => Some((source, destination)),
            Self::Default => None,
        }
    }
}

pub(super) fn conditions(
    network: &RoutedNetwork<'_>,
    intent: &NodeIntent,
    facts: &CheckFacts,
) -> Vec<NodeCondition> {
    let Ipsec { blocked, policies } = &facts.ipsec;
    if blocked.is_empty() && policies.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for subnet in network.network.subnets() {
        for direction in [IpsecDirection::Forward, IpsecDirection::Out] {
            for flow in [Flow::FromPods, Flow::ToPods] {
                let dropped = dropped(&facts.ipsec, direction, flow, subnet);
                found.extend(dropped.map(|dropping| NodeCondition::Ipsec {
                    network: network.network.name.clone(),
                    direction,
                    selector: dropping.selector(),
                    effect: PolicyEffect::Blocks,
                }));
            }
        }
        let bypassing = policies.iter().filter(|policy| {
            network.network.masquerade && bypasses_masquerade(policy, subnet, intent)
        });
        found.extend(bypassing.map(|policy| NodeCondition::Ipsec {
            network: network.network.name.clone(),
            direction: policy.direction,
            selector: Some((policy.source, policy.destination)),
            effect: PolicyEffect::BypassesMasquerade,
        }));
    }
    found
}

/// Returns what drops packets of the flow. Policies apply in the order of their priorities, until
/// one applies to all packets of the flow.
fn dropped(ipsec: &Ipsec, direction: IpsecDirection, flow: Flow, subnet: Cidr) -> Option<Dropping> {
    let mut policies: Vec<&IpsecPolicy> = ipsec
        .policies
        .iter()
        .filter(|policy| policy.direction == direction)
        .filter(|policy| policy.source.is_ipv4() == subnet.is_ipv4())
        .filter(|policy| own_side(policy, flow).overlaps(&subnet))
        // A policy for some remote hosts or ports is a choice of the operator.
        .filter(|policy| other_side(policy, flow).prefix_len() == 0)
        .collect();
    policies.sort_by_key(|policy| policy.priority);
    for policy in policies.into_iter().filter(|policy| !policy.is_narrowed) {
        if policy.blocks {
            return Some(Dropping::Policy(policy.source, policy.destination));
        }
        let own = own_side(policy, flow);
        if is_within(subnet, own) {
            return None;
        }
    }
    let is_blocked = ipsec.blocked.contains(&direction);
    is_blocked.then_some(Dropping::Default)
}

/// Whether the policy encrypts packets of pods with their own addresses although they should be
/// masqueraded: XFRM comes before the uplink's egress hook. A policy that names the pods' subnet
/// means their own addresses.
fn bypasses_masquerade(policy: &IpsecPolicy, subnet: Cidr, intent: &NodeIntent) -> bool {
    let IpsecPolicy {
        direction,
        source,
        destination,
        transforms,
        ..
    } = policy;
    let is_wider = source.prefix_len() < subnet.prefix_len() && source.overlaps(&subnet);
    let mut kept = intent.non_masquerade.iter();
    let is_kept = kept.any(|kept| is_within(*destination, *kept));
    *direction == IpsecDirection::Out && *transforms && is_wider && !is_kept
}

fn is_within(inner: Cidr, outer: Cidr) -> bool {
    outer.contains(inner.network()) && outer.contains(inner.last())
}

fn own_side(policy: &IpsecPolicy, flow: Flow) -> Cidr {
    match flow {
        Flow::FromPods => policy.source,
        Flow::ToPods => policy.destination,
    }
}

fn other_side(policy: &IpsecPolicy, flow: Flow) -> Cidr {
    match flow {
        Flow::FromPods => policy.destination,
        Flow::ToPods => policy.source,
    }
}
