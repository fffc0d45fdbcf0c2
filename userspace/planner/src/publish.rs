//! Other ports and limits for an attachment that is there: what portmap and bandwidth do behind a bridge plugin.
//!
//! Ports of the node are held before anything leads to them and let go of when nothing does any more, as in an ADD and a
//! DEL. Knows nothing of chains.

use std::collections::BTreeSet;

use model::{Attachment, PortMapping};

use crate::attach::{Records, ports};
use crate::claim::{attachment_claims, hold};
use crate::detach::remove;
use crate::tables::attachment_entries;
use crate::{Claim, Entries, Observed, Plan, Refusal, Step};

/// The attachment with `mappings` in place of its ports, once it is certain that each is its own.
pub fn with_ports(
    attachment: &Attachment,
    mappings: &[PortMapping],
    records: &Records,
) -> Result<Attachment, Refusal> {
    let mut others = records.clone();
    others.remove(&attachment.key);
    Ok(Attachment {
        port_mappings: ports(mappings, &attachment.addresses, &others)?,
        ..attachment.clone()
    })
}

/// What to observe, so that the old ports and the new ones are seen, and limits where there are or will be any.
pub fn with_both_ports(before: &Attachment, after: &Attachment) -> Attachment {
    let mut both = before.clone();
    let seen: BTreeSet<PortMapping> = before.port_mappings.iter().copied().collect();
    let new = after
        .port_mappings
        .iter()
        .filter(|mapping| !seen.contains(mapping));
    both.port_mappings.extend(new);
    if both.bandwidth.is_unlimited() {
        both.bandwidth = after.bandwidth;
    }
    both
}

/// What makes `before` into `after`, which has other ports or limits. `observed` is of [`with_both_ports`].
pub fn plan_publish(before: &Attachment, after: &Attachment, observed: &Observed) -> Plan {
    let (old, new) = (attachment_entries(before), attachment_entries(after));
    let (old_claims, new_claims) = (attachment_claims(before), attachment_claims(after));
    let added = new_claims.difference(&old_claims).copied();
    let mut plan = Plan::of(hold(after, added));
    plan.append(Plan::of(unpublish(&old, &new, observed)));
    plan.append(Plan::of(put(&new, observed)));
    let gone = old_claims.difference(&new_claims);
    let generation = before.generation;
    plan.append(Plan::of(gone.map(|claim: &Claim| Step::ReleasePort {
        claim: *claim,
        generation,
    })));
    plan
}

fn unpublish(old: &Entries, new: &Entries, observed: &Observed) -> Vec<Step> {
    old.iter()
        .filter(|(key, _)| !new.contains_key(*key))
        .filter(|(key, entry)| observed.entries.get(*key) == Some(*entry))
        .map(|(key, entry)| remove(key, entry))
        .collect()
}

/// Pods and addresses first, ports last.
fn put(new: &Entries, observed: &Observed) -> Vec<Step> {
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
