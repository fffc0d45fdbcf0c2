//! Plans the removal of an attachment: its table entries, its link, its port reservations.
//!
//! State that is already gone is not a step. An entry belongs to the attachment only if it carries
//! its slot and generation: the slot, the addresses and the ports may have another owner by now.
//! Leases and records are the engine's.

use model::{Attachment, HostLink};
use steps::{Entries, Entry, EntryKey, LinkRef, Step};

use crate::port_reservation::release;
use crate::{HostSide, Plan};

/// Plans the removal of `attachment`. Hostport entries go first, so that no new flow is accepted.
/// Then the port goes down: without its interface entry, `from_pod` drops all that the pod sends,
/// so that no other entry is missing while packets are checked. The link follows behind the
/// entries, and the port reservations last, when no entry leads to the pod.
///
/// An adopted link stays, with what its own plugins do: our programs are detached before its
/// entries are removed.
///
/// An attachment that has left nothing behind gets an empty plan.
pub fn plan_detach(attachment: &Attachment, observed: &impl HostSide) -> Plan {
    let entries = observed.entries();
    let mut removals: Entries = entries
        .iter()
        .filter(|(key, entry)| belongs(attachment, entries, key, entry))
        .map(|(key, entry)| (key.clone(), entry.clone()))
        .collect();
    removals.extend(gone_interface(attachment, entries));
    let host = attachment.host_link();
    let link = observed.host_link(attachment);
    let gone = link
        .filter(|link| link.is_host_end_of(attachment))
        .and_then(|_| remove_link(attachment, &host, observed));
    let (detach, delete) = if attachment.adopted.is_some() {
        (gone, None)
    } else {
        (None, gone)
    };
    let [ports, interface, others] = in_order(&removals);
    let mut plan = Plan::of(ports);
    plan.append(Plan::of(detach));
    plan.append(Plan::of(interface.chain(others).chain(delete)));
    // Last: another process may bind the ports only when no entry redirects them.
    plan.append(Plan::of(release(attachment, observed.port_reservations())));
    plan
}

/// Returns the steps that remove hostports, the interface, and all others: the pod row comes last,
/// since [`owns_row`] reads it.
fn in_order(removals: &Entries) -> [impl Iterator<Item = Step>; 3] {
    let of = |class: usize| {
        let is_of = move |key: &EntryKey| {
            let is_port = matches!(key, EntryKey::Hostport { .. });
            let is_interface = matches!(key, EntryKey::Interface(_));
            [is_port, is_interface, !is_port && !is_interface][class]
        };
        // The reverse of the order in which `EntryKey` declares them.
        removals
            .iter()
            .rev()
            .filter(move |(key, _)| is_of(key))
            .map(|(key, entry)| remove(key, entry))
    };
    [of(0), of(1), of(2)]
}

/// Returns the step that deletes our link, or detaches our programs from another plugin's link.
fn remove_link(attachment: &Attachment, host: &HostLink, observed: &impl HostSide) -> Option<Step> {
    match host {
        HostLink::Managed(managed) => Some(Step::DeleteVeth {
            link: managed.clone(),
            alias: attachment.alias(),
        }),
        HostLink::Adopted(name) => {
            let hooks = observed.pod_hooks(attachment);
            let link = name.clone();
            (!hooks.is_empty()).then_some(Step::Detach { link, hooks })
        }
    }
}

/// Returns the interface entry of a link that is gone. Its key is the link's index, which only the
/// pod's row still contains, so an observation of the attachment alone does not find it.
fn gone_interface(attachment: &Attachment, entries: &Entries) -> Option<(EntryKey, Entry)> {
    let row = entries.get(&EntryKey::Pod(attachment.slot))?;
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

/// Returns whether an observed entry belongs to this attachment, not to another owner of the same
/// slot, address or port.
fn belongs(attachment: &Attachment, entries: &Entries, key: &EntryKey, entry: &Entry) -> bool {
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
        | (EntryKey::Limit(slot), Entry::Limit { generation, .. })
        | (EntryKey::RuleSets(slot), Entry::RuleSets { generation, .. }) => {
            (*slot, *generation) == mine
        }
        (EntryKey::Interface(LinkRef::Name(name)), Entry::Interface { slot, .. }) => {
            name == attachment.host_link().name() && *slot == attachment.slot
        }
        (EntryKey::Interface(LinkRef::Gone(_)), Entry::Interface { slot, .. }) => {
            *slot == attachment.slot && owns_row(attachment, entries)
        }
        _ => false,
    }
}

/// Returns whether the attachment is the last owner of its row of the pod table.
fn owns_row(attachment: &Attachment, entries: &Entries) -> bool {
    match entries.get(&EntryKey::Pod(attachment.slot)) {
        Some(Entry::Pod { generation, .. } | Entry::FreePod { generation }) => {
            *generation == attachment.generation
        }
        _ => false,
    }
}

/// Returns the step that removes an entry; a row of the pod table becomes a free row instead.
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
