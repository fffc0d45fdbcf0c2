//! What of a list of policies does not depend on the pods of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{
    Cidr, NetworkPolicies, NetworkPolicy, PodName, PodSelector, PolicyDirection, PolicyPort,
    PolicyRule,
};
use steps::{AllowedKey, AllowedPorts};

use super::classes::Classes;
use super::port_ranges::blocks;
use super::{AssignedSets, Numbers, RuleSet, SelectablePod, fnv1a};

/// Network policies, compiled but for the pods of the node, which come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyIndex {
    list: Arc<NetworkPolicies>,
    /// Places of the policies that select a pod by its name.
    by_name: BTreeMap<PodName, Vec<usize>>,
    /// Places of the policies that select pods by a prefix.
    by_prefix: BTreeMap<Cidr, Vec<usize>>,
    /// The lengths of those prefixes.
    lengths: BTreeSet<u8>,
    /// Rules of each policy, in the order of the list.
    of_policies: Vec<RulesOfPolicy>,
    /// The different rules, in their order.
    rules: Vec<CompiledRule>,
    /// Identity of the addresses of each prefix, unless a longer one contains them.
    pub(super) identities: BTreeMap<Cidr, u32>,
}

/// Places of a policy's rules in the list of different rules; `None` where the policy says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RulesOfPolicy {
    ingress: Option<Vec<usize>>,
    egress: Option<Vec<usize>>,
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CompiledRule {
    /// Hash of the rule itself.
    hash: u32,
    /// Identities of its peers; 0 for every address.
    identities: BTreeSet<u32>,
    ports: BTreeSet<AllowedPorts>,
}

impl From<NetworkPolicies> for PolicyIndex {
    /// Compiles a list. A group that does not exist has no address.
    fn from(list: NetworkPolicies) -> Self {
        let all = list.policies.iter().flat_map(rules_of);
        let different: BTreeSet<&PolicyRule> = all.collect();
        let peers = different
            .iter()
            .flat_map(|rule| rule.peers.iter().flatten());
        let classes = Classes::of(&peers.collect(), &list.groups);
        let places: BTreeMap<&PolicyRule, usize> = different.iter().copied().zip(0..).collect();
        let of_policy = |policy: &NetworkPolicy| {
            let places = |rules: &Vec<PolicyRule>| {
                let known = rules.iter().filter_map(|rule| places.get(rule));
                known.copied().collect()
            };
            RulesOfPolicy {
                ingress: policy.ingress.as_ref().map(places),
                egress: policy.egress.as_ref().map(places),
            }
        };
        let mut by_name: BTreeMap<PodName, Vec<usize>> = BTreeMap::new();
        let mut by_prefix: BTreeMap<Cidr, Vec<usize>> = BTreeMap::new();
        for (place, policy) in list.policies.iter().enumerate() {
            for selector in &policy.pods {
                let places = match selector {
                    PodSelector::Name(name) => by_name.entry(name.clone()).or_default(),
                    PodSelector::Prefix(prefix) => by_prefix.entry(*prefix).or_default(),
                };
                places.push(place);
            }
        }
        Self {
            by_name,
            lengths: by_prefix.keys().map(Cidr::prefix_len).collect(),
            by_prefix,
            of_policies: list.policies.iter().map(of_policy).collect(),
            rules: different
                .iter()
                .map(|rule| CompiledRule::of(rule, &classes))
                .collect(),
            identities: classes.identities(),
            list: Arc::new(list),
        }
    }
}

impl PolicyIndex {
    /// Returns the policies.
    pub fn list(&self) -> &Arc<NetworkPolicies> {
        &self.list
    }

    /// Returns the rule sets of these pods.
    pub(super) fn assign<'a>(
        &self,
        pods: impl IntoIterator<Item = SelectablePod<'a>>,
    ) -> AssignedSets {
        let mut selected: BTreeMap<Vec<usize>, Vec<u32>> = BTreeMap::new();
        for pod in pods {
            let selecting = self.selecting(&pod);
            selected.entry(selecting).or_default().push(pod.slot);
        }
        let mut users: BTreeMap<RuleSet, Vec<(u32, PolicyDirection)>> = BTreeMap::new();
        for (policies, slots) in selected {
            for direction in PolicyDirection::ALL {
                if let Some(set) = self.rule_set(&policies, direction) {
                    let own = slots.iter().map(|slot| (*slot, direction));
                    users.entry(set).or_default().extend(own);
                }
            }
        }
        let mut assigned = AssignedSets::default();
        let mut numbers = Numbers::default();
        for (set, users) in users {
            let hashes = set.iter().filter_map(|place| self.rules.get(*place));
            let contents: Vec<u8> = hashes.flat_map(|rule| rule.hash.to_be_bytes()).collect();
            let number = numbers.of(&contents);
            assigned.numbers.insert(set, number);
            for (slot, direction) in users {
                let own = assigned.pods.entry(slot).or_default();
                own.set(direction, number);
            }
        }
        assigned
    }

    /// Returns the keys of a rule set.
    pub(super) fn keys(&self, set: &RuleSet, number: u32) -> BTreeSet<AllowedKey> {
        let rules = set.iter().filter_map(|place| self.rules.get(*place));
        let keys_of = |rule: &CompiledRule| {
            let pairs = rule.identities.iter().flat_map(|identity| {
                let ports = rule.ports.iter();
                ports.map(move |ports| (*identity, *ports))
            });
            let key = |(identity, ports)| AllowedKey {
                rules: number,
                identity,
                ports,
            };
            pairs.map(key).collect::<Vec<_>>()
        };
        rules.flat_map(keys_of).collect()
    }

    /// Returns the places of the policies that select a pod, in order.
    pub(super) fn selecting(&self, pod: &SelectablePod<'_>) -> Vec<usize> {
        let named = pod.name.and_then(|name| self.by_name.get(name));
        let around = pod.addresses.iter().flat_map(|own| {
            let lengths = self.lengths.iter();
            lengths.filter_map(|length| Cidr::containing(*own, *length))
        });
        let by_prefix = around.filter_map(|prefix| self.by_prefix.get(&prefix));
        let all = named.into_iter().chain(by_prefix);
        let places: BTreeSet<usize> = all.flatten().copied().collect();
        places.into_iter().collect()
    }

    /// Returns the rules of these policies; `None` if none of them says anything about the
    /// direction.
    fn rule_set(&self, policies: &[usize], direction: PolicyDirection) -> Option<RuleSet> {
        let all = policies
            .iter()
            .filter_map(|place| self.of_policies.get(*place));
        let mut isolating = all
            .filter_map(|rules| match direction {
                PolicyDirection::Ingress => rules.ingress.as_ref(),
                PolicyDirection::Egress => rules.egress.as_ref(),
            })
            .peekable();
        isolating.peek()?;
        let mut set: RuleSet = isolating.flatten().copied().collect();
        set.sort_unstable();
        set.dedup();
        Some(set)
    }
}

impl CompiledRule {
    fn of(rule: &PolicyRule, classes: &Classes<'_>) -> Self {
        Self {
            hash: fnv1a(format!("{rule:?}").as_bytes()),
            identities: match &rule.peers {
                None => BTreeSet::from([0]),
                Some(peers) => classes.containing(peers),
            },
            ports: allowed_ports(&rule.ports),
        }
    }
}

fn rules_of(policy: &NetworkPolicy) -> impl Iterator<Item = &PolicyRule> {
    let directions = PolicyDirection::ALL.into_iter();
    directions.flat_map(|direction| policy.rules(direction).unwrap_or_default())
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
