//! Entries of network policies in the datapath's tables.

use std::net::IpAddr;

use model::{Attachment, NetworkPolicies, NetworkPolicy};
use steps::{Entries, Entry, EntryKey, Step};

use super::{CompiledPolicies, SelectablePod, compile, is_selecting};
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
    list: &NetworkPolicies,
    attachments: impl Iterator<Item = &'a Attachment> + Clone,
) -> [Entries; 3] {
    if list.policies.is_empty() {
        return [const { Entries::new() }; 3];
    }
    let pods: Vec<OwnedPod<'_>> = attachments.map(OwnedPod::of).collect();
    let CompiledPolicies {
        identities,
        allowed,
        pods: sets,
    } = compile(list, pods.iter().map(OwnedPod::selectable));
    let of_pod = |pod: &OwnedPod<'_>| {
        let own = sets.get(&pod.attachment.slot)?;
        let entry = Entry::RuleSets {
            generation: pod.attachment.generation,
            ingress: own.ingress,
            egress: own.egress,
        };
        Some((EntryKey::RuleSets(pod.attachment.slot), entry))
    };
    let rule = |key| (EntryKey::PolicyRule(key), Entry::PolicyRule);
    let identity = |(prefix, identity)| (EntryKey::Identity(prefix), Entry::Identity(identity));
    [
        allowed.into_iter().map(rule).collect(),
        identities.into_iter().map(identity).collect(),
        pods.iter().filter_map(of_pod).collect(),
    ]
}

/// Plans the entries that an attachment needs which is new, or whose addresses are, beside those of
/// the existing ones. Entries that are not needed any longer stay until the next plan of the node.
pub fn plan_policies_of(
    attachment: &Attachment,
    list: &NetworkPolicies,
    records: &Records,
) -> Plan {
    let mut policies = list.policies.iter();
    if !policies.any(|policy| is_selected_by(attachment, policy)) {
        return Plan::default();
    }
    let existing = records.values().map(|record| &record.attachment);
    let others = existing.clone().filter(|other| other.key != attachment.key);
    let before = policy_entries(list, existing);
    let after = policy_entries(list, others.chain([attachment]));
    let changed = before.iter().zip(after).flat_map(|(before, after)| {
        let missing = after
            .into_iter()
            .filter(|(key, entry)| before.get(key) != Some(entry));
        missing.map(|(key, entry)| Step::PutEntry {
            previous: before.get(&key).cloned(),
            key,
            entry,
        })
    });
    Plan::of(changed)
}

#[cfg(test)]
mod tests;
