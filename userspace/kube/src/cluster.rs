//! What the Nodes of a cluster mean for one node: its own pod CIDRs, its peers, and what is wrong.
//!
//! Pure: independent of Kubernetes' client, of the agent and of clocks. The order of peers is that
//! of their age, since the agent gives a prefix that two peers have to the newer one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Cidr, InvalidPeer, Peer, PeerName, Peers};

mod problem;

pub(crate) use problem::Problem;

/// What a Node of the API says, as far as it concerns other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// Time of creation in milliseconds since 1970.
    pub(crate) created: i64,
    /// `spec.podCIDRs`, in their order.
    pub(crate) pod_cidrs: Box<[Cidr]>,
    /// `status.addresses` of the type `InternalIP`, in their order.
    pub(crate) addresses: Box<[IpAddr]>,
    /// Texts of CIDRs and addresses that cannot be used.
    pub(crate) unusable: Box<[Box<str>]>,
    /// Whether the condition `NetworkUnavailable` is set; `None` without that condition.
    pub(crate) network_unavailable: Option<bool>,
}

/// All Nodes by name.
pub(crate) type Nodes = BTreeMap<Box<str>, NodeFacts>;

/// The list of Nodes as the API has it, before it is validated.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTexts {
    pub(crate) created: i64,
    pub(crate) pod_cidrs: Vec<String>,
    pub(crate) internal_ips: Vec<String>,
    pub(crate) network_unavailable: Option<bool>,
}

impl NodeFacts {
    /// Parses the texts of a Node. Host bits of CIDRs are ignored, as kubelet does.
    pub(crate) fn parse(texts: NodeTexts) -> Self {
        let mut unusable = Vec::new();
        let mut pod_cidrs = Vec::new();
        for text in texts.pod_cidrs {
            match Cidr::masked(&text).ok().filter(is_of_pods) {
                Some(cidr) => pod_cidrs.push(cidr),
                None => unusable.push(text.into_boxed_str()),
            }
        }
        let mut addresses = Vec::new();
        for text in texts.internal_ips {
            match text.parse().ok().filter(is_of_node) {
                Some(address) => addresses.push(address),
                None => unusable.push(text.into_boxed_str()),
            }
        }
        Self {
            created: texts.created,
            pod_cidrs: pod_cidrs.into(),
            addresses: addresses.into(),
            unusable: unusable.into(),
            network_unavailable: texts.network_unavailable,
        }
    }
}

/// Returns whether the agent accepts the prefix as that of pods.
fn is_of_pods(cidr: &Cidr) -> bool {
    accepts([*cidr], [])
}

/// Returns whether the agent accepts the address as that of a node.
fn is_of_node(address: &IpAddr) -> bool {
    accepts([], [*address])
}

fn accepts(
    prefixes: impl IntoIterator<Item = Cidr>,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> bool {
    let name = "any".parse::<PeerName>();
    name.is_ok_and(|name| Peer::new(name, prefixes, addresses).is_ok())
}

/// What the agent of a node is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// The node's own pod CIDRs; empty if Kubernetes has assigned none yet.
    pub(crate) own: Box<[Cidr]>,
    /// All other nodes with pod CIDRs, the newest last.
    pub(crate) peers: Peers,
    /// What is wrong with the Nodes, in a fixed order.
    pub(crate) problems: Vec<Problem>,
}

/// Why nothing is sent to the agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Withheld {
    /// The list lacks the node itself: it may be that of another cluster, or of an empty store.
    #[error("the list of {0} Nodes does not contain this node: nothing is changed")]
    OwnNode(usize),
    /// The agent would refuse the list.
    #[error("{0}: nothing is changed")]
    Refused(#[from] InvalidPeer),
}

/// Returns what the agent of the node `own` is given.
///
/// The prefixes to which pods keep their own addresses are those of the peers: the agent derives
/// them.
pub(crate) fn plan(nodes: &Nodes, own: &str) -> Result<Desired, Withheld> {
    let Some(own_facts) = nodes.get(own) else {
        return Err(Withheld::OwnNode(nodes.len()));
    };
    let mut problems = Vec::new();
    if own_facts.pod_cidrs.is_empty() {
        problems.push(Problem::OwnWithoutCidr);
    }
    for (name, facts) in nodes {
        problem::of_node(name, facts, &mut problems);
    }
    let by_age = by_age(nodes);
    problem::of_prefixes(own, &by_age, &mut problems);
    let peers = by_age
        .iter()
        .filter(|(name, facts)| *name != own && !facts.pod_cidrs.is_empty())
        .filter_map(|(name, facts)| peer(name, facts));
    Ok(Desired {
        own: own_facts.pod_cidrs.clone(),
        peers: Peers::new(peers)?,
        problems,
    })
}

/// Returns the Nodes from the oldest to the newest.
fn by_age(nodes: &Nodes) -> Vec<(&str, &NodeFacts)> {
    let mut sorted: Vec<(&str, &NodeFacts)> = nodes
        .iter()
        .map(|(name, facts)| (name.as_ref(), facts))
        .collect();
    // Stable, so that Nodes of one second are in the order of their names.
    sorted.sort_by_key(|(_, facts)| facts.created);
    sorted
}

/// Returns the peer; `None` if its name is none that the agent accepts, which is reported.
fn peer(name: &str, facts: &NodeFacts) -> Option<Peer> {
    let name: PeerName = name.parse().ok()?;
    let (prefixes, addresses) = (facts.pod_cidrs.iter(), facts.addresses.iter());
    Peer::new(name, prefixes.copied(), addresses.copied()).ok()
}

#[cfg(test)]
mod tests;
