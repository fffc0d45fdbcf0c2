//! Network policies as the datapath evaluates them: by two lookups in tries.
//!
//! * An **identity** stands for a set of addresses that the same peers of rules contain. The
//!   longest prefix of an address has its identity; 0 is that of addresses that no rule names.
//! * A **rule set** is what all policies of a pod allow in one direction. It has a key for each
//!   identity and range of ports; those of identity 0 apply to every address.
//!
//! Both are numbered by their contents, so that a number never changes its meaning while tables are
//! written one entry after the other.

mod classes;
mod entries;
mod port_ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{
    Cidr, NetworkPolicies, NetworkPolicy, PodName, PolicyDirection, PolicyPeer, PolicyPort,
    PolicyRule,
};
use steps::{AllowedKey, AllowedPorts};

use self::classes::Classes;
pub(crate) use self::entries::policy_entries;
pub use self::entries::{is_selected_by, plan_policies_of};
use self::port_ranges::blocks;

/// A pod of this node, as policies select it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectablePod<'a> {
    /// Slot in the pod table.
    pub slot: u32,
    /// Name in Kubernetes.
    pub name: Option<&'a PodName>,
    /// All addresses.
    pub addresses: &'a [IpAddr],
}

/// Numbers of a pod's rule sets; 0 where no policy says anything, so that everything is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodRuleSets {
    /// For connections to the pod.
    pub ingress: u32,
    /// For connections of the pod.
    pub egress: u32,
}

impl PodRuleSets {
    /// Returns the number of a direction.
    #[cfg(test)]
    pub(crate) fn of(self, direction: PolicyDirection) -> u32 {
        match direction {
            PolicyDirection::Ingress => self.ingress,
            PolicyDirection::Egress => self.egress,
        }
    }
}

/// What the datapath's tables contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompiledPolicies {
    /// Identity of the addresses of each prefix, unless a longer one contains them.
    pub identities: BTreeMap<Cidr, u32>,
    /// The keys of all rule sets.
    pub allowed: BTreeSet<AllowedKey>,
    /// Rule sets of each pod that has any, by slot.
    pub pods: BTreeMap<u32, PodRuleSets>,
}

/// Compiles policies for the pods of this node. A group that does not exist has no address.
pub(crate) fn compile<'a>(
    list: &NetworkPolicies,
    pods: impl IntoIterator<Item = SelectablePod<'a>>,
) -> CompiledPolicies {
    let mut sets: BTreeMap<RuleSet<'_>, Vec<(u32, PolicyDirection)>> = BTreeMap::new();
    for pod in pods {
        let selecting: Vec<&NetworkPolicy> = selecting(list, &pod).collect();
        for direction in PolicyDirection::ALL {
            if let Some(rules) = RuleSet::of(&selecting, direction) {
                sets.entry(rules).or_default().push((pod.slot, direction));
            }
        }
    }
    let peers = sets.keys().flat_map(|set| set.0.iter()).flat_map(named);
    let classes = Classes::of(&peers.collect(), &list.groups);
    let mut compiled = CompiledPolicies {
        identities: classes.identities(),
        ..CompiledPolicies::default()
    };
    let mut numbers = Numbers::default();
    for (set, users) in &sets {
        let number = numbers.of(&format!("{set:?}"));
        compiled.allowed.extend(keys(set, number, &classes));
        for (slot, direction) in users {
            let own = compiled.pods.entry(*slot).or_default();
            match direction {
                PolicyDirection::Ingress => own.ingress = number,
                PolicyDirection::Egress => own.egress = number,
            }
        }
    }
    compiled
}

fn selecting<'a>(
    list: &'a NetworkPolicies,
    pod: &SelectablePod<'a>,
) -> impl Iterator<Item = &'a NetworkPolicy> {
    let pod = *pod;
    let is_selecting = move |policy: &&NetworkPolicy| is_selecting(policy, &pod);
    list.policies.iter().filter(is_selecting)
}

fn is_selecting(policy: &NetworkPolicy, pod: &SelectablePod<'_>) -> bool {
    let mut selectors = policy.pods.iter();
    selectors.any(|selector| selector.selects(pod.name, pod.addresses))
}

/// The different rules that apply together.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RuleSet<'a>(BTreeSet<&'a PolicyRule>);

impl<'a> RuleSet<'a> {
    /// Returns `None` if no policy says anything about the direction.
    fn of(policies: &[&'a NetworkPolicy], direction: PolicyDirection) -> Option<Self> {
        let mut isolating = policies
            .iter()
            .filter_map(|policy| policy.rules(direction))
            .peekable();
        isolating.peek()?;
        Some(Self(isolating.flatten().collect()))
    }
}

fn named<'a>(rule: &&'a PolicyRule) -> impl Iterator<Item = &'a PolicyPeer> {
    rule.peers.iter().flatten()
}

/// Returns the keys of a rule set.
fn keys(set: &RuleSet<'_>, number: u32, classes: &Classes<'_>) -> BTreeSet<AllowedKey> {
    let mut found = BTreeSet::new();
    for rule in &set.0 {
        let identities = match &rule.peers {
            None => BTreeSet::from([0]),
            Some(peers) => classes.containing(peers),
        };
        let ports = allowed_ports(&rule.ports);
        for identity in identities {
            found.extend(ports.iter().map(|ports| AllowedKey {
                rules: number,
                identity,
                ports: *ports,
            }));
        }
    }
    found
}

fn allowed_ports(ports: &[PolicyPort]) -> BTreeSet<AllowedPorts> {
    if ports.is_empty() {
        return BTreeSet::from([AllowedPorts::All]);
    }
    let blocks_of = |port: &PolicyPort| {
        let protocol = port.protocol;
        let (first, last) = port.ports.unwrap_or((0, u16::MAX));
        blocks(first, last).map(move |(port, bits)| AllowedPorts::Block {
            protocol,
            port,
            bits,
        })
    };
    ports.iter().flat_map(blocks_of).collect()
}

/// Gives out numbers by contents: the same text has the same number, as long as no other one has
/// the same hash. Never 0.
#[derive(Debug, Default)]
struct Numbers(BTreeSet<u32>);

impl Numbers {
    fn of(&mut self, contents: &str) -> u32 {
        let mut number = fnv1a(contents.as_bytes());
        while number == 0 || !self.0.insert(number) {
            number = number.wrapping_add(1);
        }
        number
    }
}

/// FNV-1a hash of 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests;
