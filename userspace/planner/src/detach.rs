//! Removing an attachment: what is there of it, and nothing else.
//!
//! What is already gone is not a step. An entry is ours only if it carries our slot and our generation: the slot,
//! the addresses and the ports may have another owner by now. Knows nothing of leases and records.

use std::collections::BTreeSet;

use model::{Attachment, HostLink};

use crate::claim::release;
use crate::{Entries, Entry, EntryKey, Hook, Link, LinkRef, Observed, Plan, Step};

/// Plans the removal of `attachment`: ports first, so that nothing new is let in; then the link, and what holds the
/// ports last, when nothing leads to the pod any more. `observed` is of
/// [`crate::Scope::Outside`] or wider; an attachment of which nothing is left gets an empty plan.
pub fn plan_detach(attachment: &Attachment, observed: &Observed) -> Plan {
    let mut removals: Entries = observed
        .entries
        .iter()
        .filter(|(key, entry)| belongs(attachment, observed, key, entry))
        .map(|(key, entry)| (key.clone(), entry.clone()))
        .collect();
    removals.extend(unseen_interface(attachment, observed));
    // Ports, addresses, interface, row: the reverse of the order in which the keys are declared.
    let mut plan = Plan::of(removals.iter().rev().map(|(key, entry)| remove(key, entry)));
    let host = attachment.host_link();
    let link = observed.links.get(host.name());
    if let Some(link) = link.filter(|link| link.is_host_end_of(attachment)) {
        plan.append(Plan::of(leave(attachment, &host, link)));
    }
    plan.append(Plan::of(release(attachment, &observed.held)));
    plan
}

/// A link of ours goes; one of another plugin's loses our programs.
fn leave(attachment: &Attachment, host: &HostLink, link: &Link) -> Option<Step> {
    match host {
        HostLink::Managed(managed) => Some(Step::DeleteVeth {
            link: managed.clone(),
            alias: attachment.alias(),
        }),
        HostLink::Adopted(name) => {
            let hooks: BTreeSet<Hook> = link
                .hooks
                .iter()
                .copied()
                .filter(|hook| hook.is_of_pods())
                .collect();
            let link = name.clone();
            (!hooks.is_empty()).then_some(Step::Detach { link, hooks })
        }
    }
}

/// The interface's entry when the link is gone: its key is an index that only our row of the pod table remembers, so
/// a look at the attachment alone does not find it.
fn unseen_interface(attachment: &Attachment, observed: &Observed) -> Option<(EntryKey, Entry)> {
    let row = observed.entries.get(&EntryKey::Pod(attachment.slot))?;
    let Entry::Pod {
        link: link @ LinkRef::Gone(_),
        generation,
        ..
    } = row
    else {
        return None;
    };
    let entry = Entry::Interface {
        slot: attachment.slot,
        limited: !attachment.bandwidth.is_unlimited(),
    };
    (*generation == attachment.generation).then(|| (EntryKey::Interface(link.clone()), entry))
}

/// Whether an entry that was seen is of this attachment and of no other owner of the same slot, address or port.
fn belongs(attachment: &Attachment, observed: &Observed, key: &EntryKey, entry: &Entry) -> bool {
    let mine = (attachment.slot, attachment.generation);
    match (key, entry) {
        (EntryKey::Pod(slot), Entry::Pod { generation, .. })
        | (
            _,
            Entry::Endpoint {
                slot, generation, ..
            }
            | Entry::Hostport {
                slot, generation, ..
            },
        )
        | (EntryKey::Limit(slot), Entry::Limit { generation, .. }) => (*slot, *generation) == mine,
        (EntryKey::Interface(LinkRef::Name(name)), Entry::Interface { slot, .. }) => {
            name == attachment.host_link().name() && *slot == attachment.slot
        }
        (EntryKey::Interface(LinkRef::Gone(_)), Entry::Interface { slot, .. }) => {
            *slot == attachment.slot && owns_row(attachment, observed)
        }
        _ => false,
    }
}

/// Whether nobody had the attachment's row of the pod table after it.
fn owns_row(attachment: &Attachment, observed: &Observed) -> bool {
    match observed.entries.get(&EntryKey::Pod(attachment.slot)) {
        Some(Entry::Pod { generation, .. } | Entry::FreePod { generation }) => {
            *generation == attachment.generation
        }
        _ => false,
    }
}

/// The step that takes an entry away; a row of the pod table stays behind as a free one.
pub(crate) fn remove(key: &EntryKey, entry: &Entry) -> Step {
    let Entry::Pod { generation, .. } = entry else {
        return Step::RemoveEntry {
            key: key.clone(),
            previous: entry.clone(),
        };
    };
    Step::PutEntry {
        key: key.clone(),
        entry: Entry::FreePod {
            generation: *generation,
        },
        previous: Some(entry.clone()),
    }
}

#[cfg(test)]
mod tests;
