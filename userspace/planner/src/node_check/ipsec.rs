//! IPsec policies (XFRM) that drop packets of pods, or encrypt them before they are masqueraded.

use std::fmt;

use model::Cidr;

use super::{CheckFacts, Condition, PolicyEffect, RoutedNetwork};
use crate::NodeIntent;

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

/// What a policy sees of a network: packets of its pods, or to them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    FromPods,
    ToPods,
}

pub(super) fn conditions(
    network: &RoutedNetwork<'_>,
    intent: &NodeIntent,
    facts: &CheckFacts,
) -> Vec<Condition> {
    let Ipsec { blocked, policies } = &facts.ipsec;
    if blocked.is_empty() && policies.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for subnet in network.network.subnets() {
        for direction in [IpsecDirection::Forward, IpsecDirection::Out] {
            for flow in [Flow::FromPods, Flow::ToPods] {
                let dropped = dropped(&facts.ipsec, direction, flow, subnet);
                found.extend(dropped.map(|selector| Condition::Ipsec {
                    network: network.network.name.clone(),
                    direction,
                    selector,
                    effect: PolicyEffect::Blocks,
                }));
            }
        }
        let bypassing = policies.iter().filter(|policy| {
            network.network.masquerade && bypasses_masquerade(policy, subnet, intent)
        });
        found.extend(bypassing.map(|policy| Condition::Ipsec {
            network: network.network.name.clone(),
            direction: policy.direction,
            selector: Some((policy.source, policy.destination)),
            effect: PolicyEffect::BypassesMasquerade,
        }));
    }
    found
}

/// Returns the selector of the policy that drops packets of the flow, `Some(None)` where the
/// default does. Policies apply in the order of their priorities, until one applies to all packets
/// of the flow.
fn dropped(
    ipsec: &Ipsec,
    direction: IpsecDirection,
    flow: Flow,
    subnet: Cidr,
) -> Option<Option<(Cidr, Cidr)>> {
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
            return Some(Some((policy.source, policy.destination)));
        }
        let own = own_side(policy, flow);
        if is_within(subnet, own) {
            return None;
        }
    }
    ipsec.blocked.contains(&direction).then_some(None)
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

impl fmt::Display for IpsecDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Forward => "fwd",
        })
    }
}
