//! Network policies as the datapath evaluates them: by two lookups in tries.
//!
//! * An **identity** stands for a set of addresses that the same peers of rules contain. The
//!   longest prefix of an address has its identity; 0 is that of addresses that no rule names.
//! * A **rule set** is what all policies of a pod allow in one direction. It has a key for each
//!   identity and range of ports; those of identity 0 apply to every address.
//!
//! Both are numbered by their contents, so that a number never changes its meaning while tables are
//! written one entry after the other. Identities follow from the list of policies alone: they are
//! compiled once for each list ([`PolicyIndex`]), and a new pod has only its rule sets to add.

mod classes;
mod entries;
mod index;
mod port_ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{NetworkPolicy, PodName, PolicyDirection};

pub(crate) use self::entries::policy_entries;
pub use self::entries::{is_selected_by, plan_policies_of};
pub use self::index::{PolicyIndex, PolicyLimit};

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
    fn set(&mut self, direction: PolicyDirection, number: u32) {
        match direction {
            PolicyDirection::Ingress => self.ingress = number,
            PolicyDirection::Egress => self.egress = number,
        }
    }
}

/// The rules that apply together, as places in the list of different rules: in order, and each one
/// once.
type RuleSet = Vec<usize>;

/// The rule sets of some pods.
#[derive(Debug, Default)]
struct AssignedSets {
    /// Number of each rule set.
    numbers: BTreeMap<RuleSet, u32>,
    /// Numbers of each pod that has any, by slot.
    pods: BTreeMap<u32, PodRuleSets>,
}

fn is_selecting(policy: &NetworkPolicy, pod: &SelectablePod<'_>) -> bool {
    let mut selectors = policy.pods.iter();
    selectors.any(|selector| selector.selects(pod.name, pod.addresses))
}

/// Gives out numbers by contents: the same contents have the same number, as long as no others have
/// the same hash. Never 0.
#[derive(Debug, Default)]
struct Numbers(BTreeSet<u32>);

impl Numbers {
    fn of(&mut self, contents: &[u8]) -> u32 {
        let mut number = fnv1a(contents);
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
