//! What of a list of policies does not depend on the pods of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{
    Cidr, NetworkPolicies, NetworkPolicy, PodName, PodSelector, PolicyDirection, PolicyPeer,
    PolicyPort, PolicyRule,
};
use steps::{AllowedKey, AllowedPorts};

use super::classes::Classes;
use super::limit::{MAX_NAMED, MOST_KEYS, PolicyLimit};
use super::numbers::{Numbers, fnv1a};
use super::port_ranges::blocks;
use super::rule_sets::{AssignedSets, RuleSet, SelectablePod};

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
    /// Identities of the addresses of each of the different peers.
    of_peers: Vec<BTreeSet<u32>>,
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
    /// Places of its peers; `None` for every address.
    peers: Option<Vec<usize>>,
    ports: BTreeSet<AllowedPorts>,
}

impl PolicyIndex {
    /// Compiles a list. A group that does not exist has no address.
    pub fn new(list: NetworkPolicies) -> Result<Self, PolicyLimit> {
        let all = list.policies.iter().flat_map(rules_of);
        let rules: BTreeSet<&PolicyRule> = all.collect();
        let named = rules.iter().flat_map(|rule| rule.peers.iter().flatten());
        let different: BTreeSet<&PolicyPeer> = named.collect();
        let peers: Vec<&PolicyPeer> = different.into_iter().collect();
        let classes = Classes::of(&peers, &list.groups)?;
        let (rule_places, peer_places) = (places(&rules), places(&peers));
        let (by_name, by_prefix) = selectors(&list);
        let index = Self {
            by_name,
            lengths: by_prefix.keys().map(Cidr::prefix_len).collect(),
            by_prefix,
            of_policies: (list.policies.iter())
                .map(|policy| RulesOfPolicy::of(policy, &rule_places))
                .collect(),
            rules: (rules.iter())
                .map(|rule| CompiledRule::of(rule, &peer_places))
                .collect(),
            of_peers: classes.of_peers,
            identities: classes.of_prefixes,
            list: Arc::new(list),
        };
        index.check_size()?;
        Ok(index)
    }

    /// Refuses rules that do not fit into the table together.
    fn check_size(&self) -> Result<(), PolicyLimit> {
        let of_peer = |place: &usize| self.of_peers.get(*place).map_or(0, BTreeSet::len);
        let of_rule = |rule: &CompiledRule| rule.peers.iter().flatten().map(of_peer).sum::<usize>();
        if self.rules.iter().map(of_rule).sum::<usize>() > MAX_NAMED {
            return Err(PolicyLimit::Peers);
        }
        let keys_of = |rule: &CompiledRule| self.identities_of(rule).len() * rule.ports.len();
        let keys: Vec<usize> = self.rules.iter().map(keys_of).collect();
        let all = keys.iter().sum();
        if all <= MOST_KEYS {
            return Ok(());
        }
        let largest = |(_, rules): &(_, &RulesOfPolicy)| {
            let places = rules.ingress.iter().chain(&rules.egress).flatten();
            places.filter_map(|place| keys.get(*place)).max()
        };
        let policies = self.list.policies.iter().zip(&self.of_policies);
        let policy = policies.max_by_key(largest);
        Err(PolicyLimit::Rules {
            keys: all,
            policy: policy
                .map(|(policy, _)| policy.name.clone())
                .unwrap_or_default(),
        })
    }

    /// Returns the identities of the peers of a rule; 0 for every address.
    fn identities_of(&self, rule: &CompiledRule) -> BTreeSet<u32> {
        match &rule.peers {
            None => BTreeSet::from([0]),
            Some(peers) => {
                let known = peers.iter().filter_map(|place| self.of_peers.get(*place));
                known.flatten().copied().collect()
            }
        }
    }

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

    /// Returns the keys of rule sets with their numbers, and no more than one that has no room.
    pub(super) fn keys<'a>(
        &self,
        sets: impl Iterator<Item = (&'a RuleSet, &'a u32)>,
    ) -> BTreeSet<AllowedKey> {
        let mut found = BTreeSet::new();
        for key in sets.flat_map(|(set, number)| self.keys_of(set, *number)) {
            found.insert(key);
            if found.len() > MOST_KEYS {
                break;
            }
        }
        found
    }

    fn keys_of(&self, set: &RuleSet, number: u32) -> impl Iterator<Item = AllowedKey> {
        let rules = set.iter().filter_map(|place| self.rules.get(*place));
        let keys_of = move |rule: &CompiledRule| {
            let identities = self.identities_of(rule).into_iter();
            let pairs = identities.flat_map(|identity| {
                let ports = rule.ports.iter();
                ports.map(move |ports| (identity, *ports))
            });
            let key = |(identity, ports)| AllowedKey {
                rules: number,
                identity,
                ports,
            };
            pairs.map(key).collect::<Vec<_>>()
        };
        rules.flat_map(keys_of)
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

impl RulesOfPolicy {
    fn of(policy: &NetworkPolicy, places: &BTreeMap<&PolicyRule, usize>) -> Self {
        let rules = |direction| {
            let rules = policy.rules(direction)?;
            Some(places_of(rules, places))
        };
        Self {
            ingress: rules(PolicyDirection::Ingress),
            egress: rules(PolicyDirection::Egress),
        }
    }
}

impl CompiledRule {
    fn of(rule: &PolicyRule, places: &BTreeMap<&PolicyPeer, usize>) -> Self {
        let peers = rule.peers.as_ref();
        Self {
            hash: fnv1a(format!("{rule:?}").as_bytes()),
            peers: peers.map(|peers| places_of(peers, places)),
            ports: allowed_ports(&rule.ports),
        }
    }
}

/// Returns the place of each item.
fn places<'a, T: Ord>(items: impl IntoIterator<Item = &'a &'a T>) -> BTreeMap<&'a T, usize> {
    items.into_iter().copied().zip(0..).collect()
}

/// Returns the places of these items.
fn places_of<T: Ord>(items: &[T], places: &BTreeMap<&T, usize>) -> Vec<usize> {
    let known = items.iter().filter_map(|item| places.get(item));
    known.copied().collect()
}

/// Places of policies, by what selects pods for them.
type Selectors = (BTreeMap<PodName, Vec<usize>>, BTreeMap<Cidr, Vec<usize>>);

/// Returns the places of the policies, by the names and the prefixes of their pods.
fn selectors(list: &NetworkPolicies) -> Selectors {
    let (mut by_name, mut by_prefix) = Selectors::default();
    for (place, policy) in list.policies.iter().enumerate() {
        for selector in &policy.pods {
            let places = match selector {
                PodSelector::Name(name) => by_name.entry(name.clone()).or_default(),
                PodSelector::Prefix(prefix) => by_prefix.entry(*prefix).or_default(),
            };
            places.push(place);
        }
    }
    (by_name, by_prefix)
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
