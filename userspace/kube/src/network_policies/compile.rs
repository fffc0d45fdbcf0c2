//! From policies, Namespaces and Pods to what the agent enforces on this node. A pure function.
//!
//! * The agent gets each policy that selects a pod of this node, with the names of those pods.
//! * Peers that are selected by labels become groups of addresses. A group without an address
//!   matches nothing.
//! * Named ports become numbers. Those of ingress depend on the selected pod, so a policy is split
//!   by the numbers that its pods have. Those of egress depend on the peer, so groups are split. A
//!   name that no pod has allows nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::{
    EgressRuleSetting, IngressRuleSetting, PoliciesSetting, PolicyPeerSetting, PolicyPortSetting,
    PolicySetting,
};
use model::Protocol;

use super::peers::{Peers, bounded, group_name};
use super::pods::{Namespaces, PodFacts, Pods};
use super::policy::{Peer, Policy, Port, PortNumber, Rule};
use super::store::ObjectKey;

/// The policies of all namespaces.
pub(crate) type Policies = BTreeMap<ObjectKey, Policy>;

/// Name and protocol of a port.
pub(super) type PortName<'a> = (&'a str, Protocol);
/// Numbers of the ports that a pod has under each name that a policy uses: none, one, or several of
/// different containers.
type Resolved<'a> = BTreeMap<PortName<'a>, BTreeSet<u16>>;

/// Compiles the policies for this node, whose pods are local ones of `pods`.
pub(crate) fn compile(
    policies: &Policies,
    namespaces: &Namespaces,
    pods: &Pods,
) -> PoliciesSetting {
    let mut compiler = Compiler {
        peers: Peers { namespaces, pods },
        groups: BTreeMap::new(),
    };
    let settings = policies
        .iter()
        .flat_map(|(key, policy)| compiler.policy(key, policy))
        .collect();
    let texts = |addresses: BTreeSet<IpAddr>| addresses.iter().map(ToString::to_string).collect();
    let groups = compiler.groups.into_iter();
    PoliciesSetting {
        policies: settings,
        groups: groups
            .map(|(name, addresses)| (name, texts(addresses)))
            .collect(),
    }
}

struct Compiler<'a> {
    peers: Peers<'a>,
    groups: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Compiler<'_> {
    /// Returns the policy once for each different resolution of its ports of ingress; not at all if
    /// it selects no pod of this node.
    fn policy(&mut self, key: &ObjectKey, policy: &Policy) -> Vec<PolicySetting> {
        let names = ingress_names(policy);
        let mut parts: BTreeMap<Resolved<'_>, Vec<String>> = BTreeMap::new();
        for (pod, facts) in self.peers.in_namespace(&key.namespace) {
            if facts.is_local && policy.pods.matches(&facts.template.labels) {
                let resolved = resolve(&names, facts);
                parts.entry(resolved).or_default().push(pod.to_string());
            }
        }
        if parts.is_empty() {
            return Vec::new();
        }
        let namespace = &key.namespace;
        let egress = policy.egress.as_ref().map(|rules| {
            let compiled = rules.iter().map(|rule| self.egress(namespace, rule));
            compiled.flatten().collect::<Vec<_>>()
        });
        let is_split = parts.len() > 1;
        let mut settings = Vec::new();
        for (resolved, pods) in parts {
            let ingress = policy.ingress.as_ref().map(|rules| {
                let compiled = rules
                    .iter()
                    .filter_map(|rule| self.ingress(namespace, rule, &resolved));
                compiled.collect()
            });
            settings.push(PolicySetting {
                name: policy_name(key, is_split, &resolved),
                pods,
                ingress,
                egress: egress.clone(),
            });
        }
        settings
    }

    /// Returns `None` for a rule that allows nothing, since no pod has its named ports.
    fn ingress(
        &mut self,
        namespace: &str,
        rule: &Rule,
        resolved: &Resolved<'_>,
    ) -> Option<IngressRuleSetting> {
        let ports = match &rule.ports {
            None => Vec::new(),
            Some(ports) => {
                let numbered = ports.iter().flat_map(|port| ingress_ports(port, resolved));
                Some(numbered.collect::<Vec<_>>()).filter(|ports| !ports.is_empty())?
            }
        };
        Some(IngressRuleSetting {
            from: self.peers_of(namespace, rule),
            ports,
        })
    }

    /// Returns a rule for the numbered ports, and one for each number that peers have under the
    /// names.
    fn egress(&mut self, namespace: &str, rule: &Rule) -> Vec<EgressRuleSetting> {
        let Some(ports) = &rule.ports else {
            return vec![EgressRuleSetting {
                to: self.peers_of(namespace, rule),
                ports: Vec::new(),
            }];
        };
        let mut rules = Vec::new();
        let numbered: Vec<PolicyPortSetting> = ports.iter().filter_map(numbered).collect();
        if !numbered.is_empty() {
            rules.push(EgressRuleSetting {
                to: self.peers_of(namespace, rule),
                ports: numbered,
            });
        }
        for name in ports.iter().filter_map(named) {
            let by_number = self.peers_with_port(namespace, rule, name);
            rules.extend(by_number.into_iter().map(|(number, to)| EgressRuleSetting {
                to,
                ports: vec![one_port(name.1, number)],
            }));
        }
        rules
    }

    /// Returns the peers of a rule; empty for all.
    fn peers_of(&mut self, namespace: &str, rule: &Rule) -> Vec<PolicyPeerSetting> {
        let peers = rule.peers.iter().flatten();
        peers.map(|peer| self.peer(namespace, peer)).collect()
    }

    fn peer(&mut self, namespace: &str, peer: &Peer) -> PolicyPeerSetting {
        match peer {
            Peer::Block { cidr, except } => PolicyPeerSetting {
                cidr: Some(cidr.to_string()),
                except: except.iter().map(ToString::to_string).collect(),
                group: None,
            },
            Peer::Pods { .. } => {
                let name = bounded(group_name(namespace, Some(peer)));
                if !self.groups.contains_key(&name) {
                    let addresses = self
                        .peers
                        .selected(namespace, Some(peer))
                        .flat_map(|(facts, addresses)| addresses.of(facts))
                        .collect();
                    self.groups.insert(name.clone(), addresses);
                }
                of_group(name)
            }
        }
    }

    /// Returns groups of the pods among the peers that have a port of the name, by its number.
    fn peers_with_port(
        &mut self,
        namespace: &str,
        rule: &Rule,
        name: PortName<'_>,
    ) -> BTreeMap<u16, Vec<PolicyPeerSetting>> {
        let peers: Vec<Option<&Peer>> = match &rule.peers {
            None => vec![None],
            Some(peers) => peers.iter().map(Some).collect(),
        };
        let mut found: BTreeMap<u16, Vec<PolicyPeerSetting>> = BTreeMap::new();
        for peer in peers {
            let mut by_number: BTreeMap<u16, BTreeSet<IpAddr>> = BTreeMap::new();
            for (facts, addresses) in self.peers.selected(namespace, peer) {
                for number in numbers(facts, name) {
                    let group = by_number.entry(number).or_default();
                    group.extend(addresses.of(facts));
                }
            }
            for (number, addresses) in by_number {
                let pods = group_name(namespace, peer);
                let group = bounded(format!("{pods} with port {}", port_text(name, number)));
                self.groups.insert(group.clone(), addresses);
                found.entry(number).or_default().push(of_group(group));
            }
        }
        found
    }
}

fn of_group(name: String) -> PolicyPeerSetting {
    PolicyPeerSetting {
        group: Some(name),
        ..PolicyPeerSetting::default()
    }
}

/// Returns the names of ports in rules of ingress.
fn ingress_names(policy: &Policy) -> BTreeSet<PortName<'_>> {
    let rules = policy.ingress.iter().flatten();
    let ports = rules.flat_map(|rule| rule.ports.iter().flatten());
    ports.filter_map(named).collect()
}

fn resolve<'a>(names: &BTreeSet<PortName<'a>>, pod: &PodFacts) -> Resolved<'a> {
    let resolved = names
        .iter()
        .map(|name| (*name, numbers(pod, *name).collect()));
    resolved.collect()
}

/// Returns the numbers of a pod's ports with a name.
fn numbers(pod: &PodFacts, (name, protocol): PortName<'_>) -> impl Iterator<Item = u16> {
    let ports = pod.template.ports.iter();
    ports
        .filter(move |port| *port.name == *name && port.protocol == protocol)
        .map(|port| port.number)
}

/// Returns the name of a policy: `namespace/name`. If its pods have different numbers of a named
/// port, those follow, since names are unique: `default/web (http/tcp=8080)`.
fn policy_name(key: &ObjectKey, is_split: bool, resolved: &Resolved<'_>) -> String {
    if !is_split {
        return key.to_string();
    }
    let ports = resolved.iter().map(|((name, protocol), numbers)| {
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let texts = if texts.is_empty() {
            "none".to_owned()
        } else {
            texts.join("+")
        };
        format!("{name}/{protocol}={texts}")
    });
    bounded(format!("{key} ({})", ports.collect::<Vec<_>>().join(",")))
}

fn port_text((name, protocol): PortName<'_>, number: u16) -> String {
    format!("{name}/{protocol}={number}")
}

fn ingress_ports(port: &Port, resolved: &Resolved<'_>) -> Vec<PolicyPortSetting> {
    match named(port).map(|name| resolved.get(&name)) {
        None => numbered(port).into_iter().collect(),
        Some(numbers) => numbers
            .into_iter()
            .flatten()
            .map(|number| one_port(port.protocol, *number))
            .collect(),
    }
}

fn named(port: &Port) -> Option<PortName<'_>> {
    match &port.number {
        PortNumber::Named(name) => Some((name, port.protocol)),
        PortNumber::All | PortNumber::One(_) | PortNumber::Range(..) => None,
    }
}

/// Returns the ports; `None` for a named one.
fn numbered(port: &Port) -> Option<PolicyPortSetting> {
    let (first, last) = match port.number {
        PortNumber::All => (None, None),
        PortNumber::One(number) => (Some(number), None),
        PortNumber::Range(first, last) => (Some(first), Some(last)),
        PortNumber::Named(_) => return None,
    };
    Some(PolicyPortSetting {
        protocol: port.protocol.to_string(),
        port: first,
        last_port: last,
    })
}

fn one_port(protocol: Protocol, number: u16) -> PolicyPortSetting {
    PolicyPortSetting {
        protocol: protocol.to_string(),
        port: Some(number),
        last_port: None,
    }
}
