//! Reconciles all attachments with the kernel: after a start, and after changes by other software.
//!
//! The record decides. The policy, with reasons:
//!
//! * **A record of another boot** is released without a step: no link and no table survives a
//!   reboot.
//! * **An unfinished ADD or DEL** is removed. The engine is the only writer and runs one operation
//!   at a time, so a record that is neither attached nor gone was left by an agent that died. The
//!   runtime got no answer and retries.
//! * **An attachment whose host link is gone**, or now belongs to other software, is released. A
//!   veth disappears only with its peer: the pod's namespace is gone or the interface was deleted.
//!   The runtime may never send a DEL.
//! * **An attachment whose pod's end the runtime has never moved** out of the node's namespace is
//!   released ten minutes after its ADD: the runtime has died in between, and knows nothing of it.
//! * **A live attachment** gets its missing parts back. The inside of the pod is not inspected: it
//!   belongs to the pod.
//! * **A table entry without a record** is removed. The tables are ours alone, and its address or
//!   port may be given to another pod at any time: a leftover entry would misdeliver packets later.
//! * **A port reservation without a record** is released. A missing one is made again, unless
//!   another process has bound the port meanwhile: then the hostport entry stays in force, and the
//!   next reconciliation retries.
//! * **A link that looks like ours but is in no record** is reported and left alone. Any software
//!   can choose such names and aliases, and a live pod may be behind the link.
//!
//! The node's own tables are [`crate::plan_node`]'s. That plan is executed first, so that bridges
//! exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::{Attachment, AttachmentKey, IfName, NetworkName, Record, State};
use steps::{EntryKey, Hook, LinkKind, NodeLink, Observed, PortReservation, Step};

use crate::check::check_host;
use crate::detach::{plan_detach, remove};
use crate::hooks::POD_HOOKS;
use crate::port_reservation::{missing, reserve};
use crate::tables::attachment_entries;
use crate::{Difference, HostSide, Plan, Records};

/// Seconds after which an attachment counts as unclaimed, if its runtime has not moved the pod's
/// end. Runtimes need less than a second.
const UNCLAIMED_AFTER: u64 = 600;

/// Result of comparing one attachment with the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Everything matches the record.
    Healthy,
    /// The pod is alive and parts are missing: execute the plan, keep the record.
    Repair {
        /// Missing or differing parts.
        differences: Vec<Difference>,
        /// Steps that restore them.
        plan: Plan,
    },
    /// The pod is gone or was never finished: execute the plan, then release addresses and record.
    Detach {
        /// Reason of the removal, for logs and events.
        reason: Reason,
        /// Steps that remove the remains; may be empty.
        plan: Plan,
    },
}

/// Reason why an attachment is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The record is of a boot before the last reboot.
    OtherBoot,
    /// The ADD was never finished.
    Unfinished,
    /// The DEL was never finished.
    HalfRemoved,
    /// The host's end of the veth is gone, and with it the pod's end or its whole namespace.
    LinkGone,
    /// The runtime has not moved the pod's end into a container for a long time.
    Unclaimed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherBoot => "it was made before the last reboot",
            Self::Unfinished => "its ADD was never finished",
            Self::HalfRemoved => "its DEL was never finished",
            Self::LinkGone => "its link is gone",
            Self::Unclaimed => "its runtime has not moved its interface into a container",
        })
    }
}

/// A link that looks like ours but is in no record: reported, never changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrphanedLink {
    /// Interface name.
    pub link: IfName,
    /// Alias of the link; empty where it has none.
    pub alias: String,
}

/// Result of reconciling all attachments. Execute the plans in this order: detach plans, repair
/// plans, `stale`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Finding of each recorded attachment.
    pub attachments: BTreeMap<AttachmentKey, Finding>,
    /// Removes table entries and port reservations without a record.
    pub stale: Plan,
    /// Links that look like ours and are in no record.
    pub orphaned_links: BTreeSet<OrphanedLink>,
}

impl Repair {
    /// Returns whether there is nothing to repair and nothing to release.
    pub fn is_empty(&self) -> bool {
        let healthy = |finding: &Finding| *finding == Finding::Healthy;
        self.attachments.values().all(healthy) && self.stale.is_empty()
    }
}

/// Compares all records with the node, as observed after [`crate::plan_node`] was executed.
/// `boot_id` is the running kernel's, `now` the time in seconds since 1970.
pub fn plan_repair(records: &Records, observed: &Observed, boot_id: &str, now: u64) -> Repair {
    let attachments: BTreeMap<AttachmentKey, Finding> = records
        .iter()
        .map(|(key, record)| (key.clone(), find(record, observed, boot_id, now)))
        .collect();
    let owned = owned(records, &attachments);
    Repair {
        stale: stale(&owned, observed),
        orphaned_links: orphaned_links(records, observed),
        attachments,
    }
}

fn find(record: &Record, observed: &Observed, boot_id: &str, now: u64) -> Finding {
    let attachment = &record.attachment;
    if record.boot_id != boot_id {
        return Finding::Detach {
            reason: Reason::OtherBoot,
            plan: Plan::default(),
        };
    }
    let reason = match record.state {
        State::Pending => Some(Reason::Unfinished),
        State::Removing => Some(Reason::HalfRemoved),
        State::Linked | State::Attached if !is_host_link_present(attachment, observed) => {
            Some(Reason::LinkGone)
        }
        State::Linked | State::Attached if is_unclaimed(record, observed, now) => {
            Some(Reason::Unclaimed)
        }
        State::Linked | State::Attached => None,
    };
    if let Some(reason) = reason {
        return Finding::Detach {
            reason,
            plan: plan_detach(attachment, observed),
        };
    }
    let differences = check_host(attachment, observed);
    if differences.is_empty() {
        Finding::Healthy
    } else {
        Finding::Repair {
            plan: repair(attachment, &differences, observed),
            differences,
        }
    }
}

/// Returns whether the host's end of an attachment still exists. Without it the pod's end, or the
/// whole pod, is gone.
pub fn is_host_link_present(attachment: &Attachment, observed: &impl HostSide) -> bool {
    let link = observed.host_link(attachment);
    link.is_some_and(|link| link.is_host_end_of(attachment))
}

/// Returns whether the pod's end has been in the node's namespace for too long.
fn is_unclaimed(record: &Record, observed: &Observed, now: u64) -> bool {
    let attachment = &record.attachment;
    attachment.is_moved_by_runtime()
        && now.saturating_sub(record.created_at) > UNCLAIMED_AFTER
        && observed.links.contains_key(&attachment.key.ifname)
}

/// Plans the repair in the order of an ADD: port reservations, tables, programs, bridge port,
/// hostport entries last. Steps that need a bridge that is missing wait for the next
/// reconciliation.
fn repair(attachment: &Attachment, differences: &[Difference], observed: &Observed) -> Plan {
    let bridge = observed.links.get(&attachment.bridge);
    let bridged = bridge.is_some_and(|bridge| bridge.kind == LinkKind::Bridge);
    let (ports, others): (Vec<_>, Vec<_>) = attachment_entries(attachment)
        .into_iter()
        .filter(|(key, entry)| observed.entries.get(key) != Some(entry))
        .filter(|(key, _)| bridged || !matches!(key, EntryKey::Pod(_)))
        .map(|(key, entry)| Step::PutEntry {
            previous: observed.entries.get(&key).cloned(),
            key,
            entry,
        })
        .partition(Step::publishes);
    let mut plan = Plan::of(reserve(
        attachment,
        missing(attachment, &observed.port_reservations),
    ));
    plan.append(Plan::of(others));
    let hooks: BTreeSet<Hook> = POD_HOOKS
        .into_iter()
        .filter(|hook| {
            let missing = |one: &Difference| matches!(one, Difference::HookMissing { hook: h, .. } if h == hook);
            differences.iter().any(missing)
        })
        .collect();
    if !hooks.is_empty() {
        plan.push(Step::Attach {
            link: attachment.host_link().name().clone(),
            hooks,
        });
    }
    if let Some(link) = attachment.host_link().managed()
        && bridged
        && differences.iter().any(is_of_bridge_port)
    {
        plan.push(Step::JoinBridge {
            link: link.clone(),
            bridge: attachment.bridge.clone(),
            hairpin: attachment.hairpin,
            options: attachment.port.clone(),
        });
    }
    plan.append(Plan::of(ports));
    plan
}

fn is_of_bridge_port(difference: &Difference) -> bool {
    matches!(
        difference,
        Difference::HostLinkDown(_)
            | Difference::NotInBridge { .. }
            | Difference::Hairpin { .. }
            | Difference::Isolation { .. }
            | Difference::Vlans(_)
    )
}

/// Returns the keys of live attachments, and those that a detach plan already removes.
fn owned(records: &Records, findings: &BTreeMap<AttachmentKey, Finding>) -> BTreeSet<EntryKey> {
    let mut owned = BTreeSet::new();
    for (key, finding) in findings {
        match (finding, records.get(key)) {
            (Finding::Detach { plan, .. }, _) => owned.extend(plan.keys().cloned()),
            (_, Some(record)) => owned.extend(attachment_entries(&record.attachment).into_keys()),
            (_, None) => {}
        }
    }
    owned
}

fn stale(owned: &BTreeSet<EntryKey>, observed: &Observed) -> Plan {
    let stale = observed
        .entries
        .iter()
        .rev()
        .filter(|(key, entry)| entry.is_of_pod() && !owned.contains(*key));
    let mut plan = Plan::of(stale.map(|(key, entry)| remove(key, entry)));
    // By key alone, as with entries: neither the reservations of live attachments nor those that a
    // detach plan releases are stale.
    let owned: BTreeSet<PortReservation> = owned.iter().filter_map(PortReservation::of).collect();
    let unowned = observed
        .port_reservations
        .iter()
        .filter(|(reservation, _)| !owned.contains(*reservation));
    plan.append(Plan::of(unowned.map(|(reservation, owner)| {
        Step::ReleasePort {
            reservation: *reservation,
            generation: owner.generation,
        }
    })));
    plan
}

fn orphaned_links(records: &Records, observed: &Observed) -> BTreeSet<OrphanedLink> {
    let known: BTreeSet<IfName> = records
        .values()
        .map(|record| &record.attachment)
        .map(|attachment| attachment.host_link().name().clone())
        .collect();
    let unknown = observed
        .links
        .iter()
        .filter(|(name, link)| !known.contains(*name) && looks_like_ours(name, link));
    let orphan = |(name, link): (&IfName, &NodeLink)| OrphanedLink {
        link: name.clone(),
        alias: link.alias.clone().unwrap_or_default(),
    };
    unknown.map(orphan).collect()
}

/// Returns all links that look like those of our pods, regardless of records. Where there is one,
/// an agent without records would give the pod's addresses to other pods.
pub fn live_pod_links(observed: &Observed) -> BTreeSet<OrphanedLink> {
    orphaned_links(&Records::new(), observed)
}

/// Returns whether a veth has a name and an alias as we give them: `veth` and eight hexadecimal
/// digits, and `network pod-or-container ifname`.
fn looks_like_ours(name: &IfName, link: &NodeLink) -> bool {
    let digits = name.as_str().strip_prefix("veth").unwrap_or_default();
    let named = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let alias = link.alias.as_deref().unwrap_or_default();
    let words: Vec<&str> = alias.split(' ').collect();
    let [network, _, ifname] = words[..] else {
        return false;
    };
    link.kind == LinkKind::Veth
        && named
        && network.parse::<NetworkName>().is_ok()
        && ifname.parse::<IfName>().is_ok()
}

#[cfg(test)]
mod tests;
