//! Entries of network policies in the datapath's tables.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Attachment, NetworkPolicy};
use steps::{AllowedKey, Entries, Entry, EntryKey, Step};

use super::index::PolicyIndex;
use super::rule_sets::{AssignedSets, SelectablePod, is_selecting};
use crate::{Plan, Records};

/// The interface that a runtime makes in each pod. Policies that select pods by name apply to it:
/// those of Kubernetes do not know of others.
const IFNAME: &str = "eth0";

/// An attachment with its addresses.
struct OwnedPod<'a> {
    attachment: &'a Attachment,
    addresses: Vec<IpAddr>,
}

impl<'a> OwnedPod<'a> {
    fn of(attachment: &'a Attachment) -> Self {
        let addresses = attachment.addresses.iter();
        Self {
            attachment,
            addresses: addresses.map(|own| own.address.address).collect(),
        }
    }

    fn selectable(&self) -> SelectablePod<'_> {
        let is_first = self.attachment.key.ifname.as_str() == IFNAME;
        SelectablePod {
            slot: self.attachment.slot,
            name: self.attachment.pod.as_ref().filter(|_| is_first),
            addresses: &self.addresses,
        }
    }
}

/// Returns whether a policy selects the attachment.
pub fn is_selected_by(attachment: &Attachment, policy: &NetworkPolicy) -> bool {
    let pod = OwnedPod::of(attachment);
    is_selecting(policy, &pod.selectable())
}

/// Returns the entries for these attachments, in the order in which they must be written: what a
/// rule set allows, then identities, then the pods' rule sets.
pub(crate) fn policy_entries<'a>(
    policies: &PolicyIndex,
    attachments: impl Iterator<Item = &'a Attachment>,
) -> [Entries; 3] {
    let assigned = Assigned::of(policies, attachments);
    // One that has no room in the table fails, and is reported: connections that it would allow are
    // refused.
    let allowed = policies.keys(assigned.sets.numbers.iter()).into_iter();
    let rule = |key| (EntryKey::PolicyRule(key), Entry::PolicyRule);
    let identity =
        |(prefix, identity): (&_, &_)| (EntryKey::Identity(*prefix), Entry::Identity(*identity));
    [
        allowed.map(rule).collect(),
        policies.identities.iter().map(identity).collect(),
        assigned.pod_entries(),
    ]
}

/// Attachments with their rule sets.
struct Assigned<'a> {
    attachments: Vec<&'a Attachment>,
    sets: AssignedSets,
}

impl<'a> Assigned<'a> {
    fn of(policies: &PolicyIndex, attachments: impl Iterator<Item = &'a Attachment>) -> Self {
        let attachments: Vec<&Attachment> = attachments.collect();
        let pods: Vec<OwnedPod<'_>> = attachments.iter().copied().map(OwnedPod::of).collect();
        Self {
            sets: policies.assign(pods.iter().map(OwnedPod::selectable)),
            attachments,
        }
    }

    fn pod_entries(&self) -> Entries {
        let of_pod = |attachment: &&Attachment| {
            let own = self.sets.pods.get(&attachment.slot)?;
            let entry = Entry::RuleSets {
                generation: attachment.generation,
                ingress: own.ingress,
                egress: own.egress,
            };
            Some((EntryKey::RuleSets(attachment.slot), entry))
        };
        self.attachments.iter().filter_map(of_pod).collect()
    }

    /// Returns the keys of the rule sets that `other` has not, or with another number.
    fn keys_beside(&self, other: &Self, policies: &PolicyIndex) -> BTreeSet<AllowedKey> {
        let numbers = self.sets.numbers.iter();
        let differing =
            numbers.filter(|(set, number)| other.sets.numbers.get(*set) != Some(number));
        policies.keys(differing)
    }
}

/// Plans the entries that an attachment needs which is new, or whose addresses are, beside those of
/// the existing ones. Identities are those of the list, so they are there. Entries that are not
/// needed any longer stay until the next plan of the node.
pub fn plan_policies_of(
    attachment: &Attachment,
    policies: &PolicyIndex,
    records: &Records,
) -> Plan {
    let pod = OwnedPod::of(attachment);
    if policies.selecting(&pod.selectable()).is_empty() {
        return Plan::default();
    }
    let existing = records.values().map(|record| &record.attachment);
    let others = existing.clone().filter(|other| other.key != attachment.key);
    let before = Assigned::of(policies, existing);
    let after = Assigned::of(policies, others.chain([attachment]));
    let old = before.keys_beside(&after, policies);
    let new = after.keys_beside(&before, policies).into_iter();
    let rules = new
        .filter(|key| !old.contains(key))
        .map(|key| Step::PutEntry {
            key: EntryKey::PolicyRule(key),
            entry: Entry::PolicyRule,
            previous: None,
        });
    let pods_before = before.pod_entries();
    let pods = after.pod_entries().into_iter();
    let changed = pods.filter(|(key, entry)| pods_before.get(key) != Some(entry));
    let pods = changed.map(|(key, entry)| Step::PutEntry {
        previous: pods_before.get(&key).cloned(),
        key,
        entry,
    });
    Plan::of(rules.chain(pods))
}

#[cfg(test)]
mod tests;
