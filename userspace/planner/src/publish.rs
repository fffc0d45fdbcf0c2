//! Changes hostports and limits of an existing attachment: the work of portmap and bandwidth in a
//! plugin chain.
//!
//! Ports are reserved before entries redirect them, and released after the entries are removed, as
//! in an ADD and a DEL.

use std::collections::BTreeSet;

use model::{Attachment, PortMapping};
use steps::{Entries, ObservedHostSide, PortReservation, Step};

use crate::attach::ports;
use crate::detach::remove;
use crate::port_reservation::{attachment_reservations, reserve};
use crate::tables::attachment_entries;
use crate::{Plan, Records, Refusal};

/// Returns the attachment with `mappings` in place of its ports, or a refusal where another
/// container owns one.
pub fn with_ports(
    attachment: &Attachment,
    mappings: &[PortMapping],
    records: &Records,
) -> Result<Attachment, Refusal> {
    let mut others = records.clone();
    others.remove(&attachment.key);
    let container = &attachment.key.container_id;
    let (port_mappings, standby) = ports(container, mappings, &attachment.addresses, &others)?;
    Ok(Attachment {
        port_mappings,
        standby,
        ..attachment.clone()
    })
}

/// Returns an attachment whose observation covers both the old and the new ports, and limits where
/// either has any.
pub fn with_both_ports(before: &Attachment, after: &Attachment) -> Attachment {
    let mut both = before.clone();
    let seen: BTreeSet<PortMapping> = before.port_mappings.iter().copied().collect();
    let new = after
        .port_mappings
        .iter()
        .filter(|mapping| !seen.contains(mapping));
    both.port_mappings.extend(new);
    // A port that either serves is observed.
    both.standby.retain(|port| {
        after.standby.contains(port) || !after.port_mappings.contains(&port.mapping)
    });
    if both.bandwidth.is_unlimited() {
        both.bandwidth = after.bandwidth;
    }
    both
}

/// Plans the change from `before` to `after`, which differ in ports or limits. `observed` is of
/// [`with_both_ports`].
pub fn plan_publish(before: &Attachment, after: &Attachment, observed: &ObservedHostSide) -> Plan {
    let (old, new) = (attachment_entries(before), attachment_entries(after));
    let (old_reservations, new_reservations) = (
        attachment_reservations(before),
        attachment_reservations(after),
    );
    let added = new_reservations.difference(&old_reservations).copied();
    let mut plan = Plan::of(reserve(after, added));
    // Old hostports are removed before new ones appear; the new entries replace the shared ones in
    // place.
    plan.append(Plan::of(unpublish(&old, &new, observed)));
    plan.append(Plan::of(put(&new, observed)));
    let gone = old_reservations.difference(&new_reservations);
    let generation = before.generation;
    plan.append(Plan::of(gone.map(|reservation: &PortReservation| {
        Step::ReleasePort {
            reservation: *reservation,
            generation,
        }
    })));
    plan
}

fn unpublish(old: &Entries, new: &Entries, observed: &ObservedHostSide) -> Vec<Step> {
    old.iter()
        .filter(|(key, _)| !new.contains_key(*key))
        .filter(|(key, entry)| observed.entries.get(*key) == Some(*entry))
        .map(|(key, entry)| remove(key, entry))
        .collect()
}

/// Returns the steps that write missing entries: pods and addresses first, hostports last.
fn put(new: &Entries, observed: &ObservedHostSide) -> Vec<Step> {
    let (mut ports, mut others): (Vec<_>, Vec<_>) = new
        .iter()
        .filter(|(key, entry)| observed.entries.get(*key) != Some(*entry))
        .map(|(key, entry)| Step::PutEntry {
            previous: observed.entries.get(key).cloned(),
            key: key.clone(),
            entry: entry.clone(),
        })
        .partition(Step::publishes);
    others.append(&mut ports);
    others
}
