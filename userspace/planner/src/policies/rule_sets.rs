//! Rule sets of pods, and pods as policies select them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{NetworkPolicy, PodName, PolicyDirection};

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
    /// Sets the number of a direction.
    pub(super) fn set(&mut self, direction: PolicyDirection, number: u32) {
        match direction {
            PolicyDirection::Ingress => self.ingress = number,
            PolicyDirection::Egress => self.egress = number,
        }
    }
}

/// The rules that apply together, as places in the list of different rules: in order, and each one
/// once.
pub(super) type RuleSet = Vec<usize>;

/// The rule sets of some pods.
#[derive(Debug, Default)]
pub(super) struct AssignedSets {
    /// Number of each rule set.
    pub(super) numbers: BTreeMap<RuleSet, u32>,
    /// Numbers of each pod that has any, by slot.
    pub(super) pods: BTreeMap<u32, PodRuleSets>,
}

/// Returns whether a policy selects a pod.
pub(super) fn is_selecting(policy: &NetworkPolicy, pod: &SelectablePod<'_>) -> bool {
    let mut selectors = policy.pods.iter();
    selectors.any(|selector| selector.selects(pod.name, pod.addresses))
}
