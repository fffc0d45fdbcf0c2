//! What is known about the cluster, and which lists the policies need.

use kube::runtime::watcher::Event;

use api::PoliciesSetting;

use super::compile::{Policies, compile};
use super::objects::{Namespace, NetworkPolicy, PolicyPod};
use super::pods::{Namespaces, PodFacts, Templates};
use super::policy::{Peer, Policy, PortNumber};
use super::selector::Labels;
use super::store::{ObjectKey, Store};

/// The pods that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodScope {
    /// Those of this node.
    Node,
    /// All.
    Cluster,
}

/// The lists without which policies cannot be compiled. Lists of large clusters take memory, and
/// load of the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(super) pods: Option<PodScope>,
    pub(super) has_namespaces: bool,
}

/// Policies, Namespaces and Pods.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// Name of this node.
    own: String,
    policies: Store<ObjectKey, Policy>,
    namespaces: Store<Box<str>, Labels>,
    pods: Store<ObjectKey, PodFacts>,
    /// The pods that are being listed or followed.
    scope: Option<PodScope>,
    templates: Templates,
}

impl Cluster {
    /// Returns a cluster of which nothing is known.
    pub(super) fn new(own: &str) -> Self {
        Self {
            own: own.to_owned(),
            ..Self::default()
        }
    }

    /// Applies an event of a policy, and returns whether anything has changed.
    pub(super) fn apply_policy(&mut self, event: Event<NetworkPolicy>) -> bool {
        self.policies.apply(event, |policy| {
            let (key, policy) = policy.into_policy()?;
            Some((key, Some(policy)))
        })
    }

    /// As above, of a Namespace.
    pub(super) fn apply_namespace(&mut self, event: Event<Namespace>) -> bool {
        self.namespaces.apply(event, |namespace| {
            let (name, labels) = namespace.into_labels()?;
            Some((name, Some(labels)))
        })
    }

    /// As above, of a Pod.
    pub(super) fn apply_pod(&mut self, event: Event<PolicyPod>) -> bool {
        let (own, templates) = (&self.own, &mut self.templates);
        self.pods.apply(event, |pod| pod.into_facts(own, templates))
    }

    /// Forgets all pods: those of the scope are listed from now on.
    pub(super) fn begin_pods(&mut self, scope: Option<PodScope>) {
        self.pods = Store::default();
        self.templates = Templates::default();
        self.scope = scope;
    }

    /// Forgets all Namespaces.
    pub(super) fn begin_namespaces(&mut self) {
        self.namespaces = Store::default();
    }

    /// Returns the policies; `None` before the first complete list.
    pub(super) fn policies(&self) -> Option<&Policies> {
        self.policies.objects()
    }

    /// Returns the lists that the policies need: none without a policy, all pods if a rule selects
    /// pods or names a port of them, and Namespaces if a rule selects those.
    pub(super) fn needs(&self) -> Needs {
        let Some(policies) = self.policies().filter(|policies| !policies.is_empty()) else {
            return Needs::default();
        };
        let rules = || policies.values().flat_map(Policy::rules);
        let peers = || rules().flat_map(|rule| rule.peers.iter().flatten());
        let has_selector = peers().any(|peer| matches!(peer, Peer::Pods { .. }));
        let selects_namespace = |peer| {
            matches!(
                peer,
                &Peer::Pods {
                    namespaces: Some(_),
                    ..
                }
            )
        };
        let has_named_egress = policies.values().any(has_named_egress);
        let scope = if has_selector || has_named_egress {
            PodScope::Cluster
        } else {
            PodScope::Node
        };
        Needs {
            pods: Some(scope),
            has_namespaces: peers().any(selects_namespace),
        }
    }

    /// Returns what the agent should have; `None` while a list that the policies need is missing or
    /// incomplete.
    pub(super) fn setting(&self) -> Option<PoliciesSetting> {
        let policies = self.policies()?;
        let needs = self.needs();
        let Some(scope) = needs.pods else {
            return Some(PoliciesSetting::default());
        };
        let pods = self.pods.objects()?;
        if self.scope != Some(scope) {
            return None;
        }
        let none = Namespaces::new();
        let namespaces = if needs.has_namespaces {
            self.namespaces.objects()?
        } else {
            &none
        };
        Some(compile(policies, namespaces, pods))
    }

    /// Returns the number of different templates of pods.
    #[cfg(test)]
    pub(super) fn templates(&self) -> usize {
        self.templates.len()
    }
}

fn has_named_egress(policy: &Policy) -> bool {
    let rules = policy.egress.iter().flatten();
    let mut ports = rules.flat_map(|rule| rule.ports.iter().flatten());
    ports.any(|port| matches!(port.number, PortNumber::Named(_)))
}
