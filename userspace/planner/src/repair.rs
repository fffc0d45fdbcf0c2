//! All attachments against the kernel: after a start, and after anything happened behind our back.
//!
//! What is on record decides. The policy, and why:
//!
//! * **A record of another boot** is released without a step: no link and no table survives a reboot.
//! * **An unfinished ADD or DEL** is removed. The engine is the only writer and does one thing at a time, so a record
//!   that is neither attached nor gone was left by an agent that died; the runtime got no answer and will ask again.
//! * **An attachment whose host link is gone** (or is a stranger's now) is released: a veth goes only with its peer,
//!   that is, when the pod's namespace is gone or someone deleted the interface. The runtime may never tell.
//! * **A live attachment** gets back what it lacks. The inside of the pod is not looked at: it belongs to the pod.
//! * **A table entry that belongs to no record** is removed. The tables are ours alone, and an address or port
//!   without a record may be given to another pod at any time: to leave it would be to misdeliver later.
//! * **A port that no record claims** is let go of; one that is claimed and not held is held again, if nobody has taken
//!   it meanwhile. If somebody has, its entry stays: packets go where they did, and the next look tries again.
//! * **A link that looks like ours but is in no record** is reported and left alone. Names and aliases can be chosen
//!   by anyone, and behind it may be a living pod; without a record nothing proves otherwise.
//!
//! Knows nothing of the node's own tables ([`crate::plan_node`]), which is executed first, so that bridges are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::{Attachment, AttachmentKey, IfName, NetworkName, Record, State};

use crate::check::{POD_HOOKS, check_host};
use crate::claim::{hold, missing};
use crate::detach::{plan_detach, remove};
use crate::tables::attachment_entries;
use crate::{
    Claim, Difference, Entry, EntryKey, Hook, Link, LinkKind, Observed, Plan, Records, Step,
};

/// What is to become of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// All is as decided.
    Healthy,
    /// The pod lives, something is missing: execute the plan, keep the record.
    Mend {
        /// What is missing.
        differences: Vec<Difference>,
        /// What puts it back.
        plan: Plan,
    },
    /// The pod is gone or was never finished: execute the plan, then release addresses and record.
    Detach {
        /// Why.
        reason: Reason,
        /// What removes the rest; may be empty.
        plan: Plan,
    },
}

/// Why an attachment is to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It was made before the last reboot.
    OtherBoot,
    /// Its ADD was never finished.
    Unfinished,
    /// Its DEL was never finished.
    HalfRemoved,
    /// The host's end of the veth is gone, and with it the pod's end or its whole namespace.
    LinkGone,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherBoot => "it was made before the last reboot",
            Self::Unfinished => "its ADD was never finished",
            Self::HalfRemoved => "its DEL was never finished",
            Self::LinkGone => "its link is gone",
        })
    }
}

/// A link that looks like ours but is in no record: reported, never touched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The link.
    pub link: IfName,
    /// Its alias.
    pub alias: String,
}

/// What a look at everything has found. To be executed in this order: what detaches, what mends, what is stale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Each attachment that is on record.
    pub attachments: BTreeMap<AttachmentKey, Finding>,
    /// Removes the table entries that belong to nobody.
    pub stale: Plan,
    /// Links that look like ours.
    pub strays: BTreeSet<Stray>,
}

impl Repair {
    /// Whether all is well: nothing to do and nothing to release.
    pub fn is_empty(&self) -> bool {
        let healthy = |finding: &Finding| *finding == Finding::Healthy;
        self.attachments.values().all(healthy) && self.stale.is_empty()
    }
}

/// Compares all records with the node. `observed` is of [`crate::Scope::Node`], after [`crate::plan_node`] was
/// executed; `boot_id` is the running kernel's.
pub fn plan_repair(records: &Records, observed: &Observed, boot_id: &str) -> Repair {
    let attachments: BTreeMap<AttachmentKey, Finding> = records
        .iter()
        .map(|(key, record)| (key.clone(), find(record, observed, boot_id)))
        .collect();
    let owned = owned(records, &attachments);
    Repair {
        stale: stale(&owned, observed),
        strays: strays(records, observed),
        attachments,
    }
}

fn find(record: &Record, observed: &Observed, boot_id: &str) -> Finding {
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
        State::Linked | State::Attached if !is_there(attachment, observed) => {
            Some(Reason::LinkGone)
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
        Finding::Mend {
            plan: mend(attachment, &differences, observed),
            differences,
        }
    }
}

/// Whether the host's end of an attachment is still there: without it the pod's end is gone as well, or the whole pod.
pub fn is_there(attachment: &Attachment, observed: &Observed) -> bool {
    let link = observed.links.get(attachment.host_link().name());
    link.is_some_and(|link| link.is_host_end_of(attachment))
}

/// In the order of an ADD: what holds ports, tables, programs, bridge, and the ports' entries last. What needs a bridge
/// that is not there waits for the next look.
fn mend(attachment: &Attachment, differences: &[Difference], observed: &Observed) -> Plan {
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
    let mut plan = Plan::of(hold(attachment, missing(attachment, &observed.held)));
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
        && differences.iter().any(is_of_port)
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

fn is_of_port(difference: &Difference) -> bool {
    matches!(
        difference,
        Difference::HostLinkDown(_)
            | Difference::NotInBridge { .. }
            | Difference::Hairpin { .. }
            | Difference::Isolation { .. }
            | Difference::Vlans(_)
    )
}

/// The keys that a live attachment has, and those that a detach plan already deals with.
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
    let of_pod = |entry: &Entry| match entry {
        Entry::Pod { .. }
        | Entry::Limit { .. }
        | Entry::Interface { .. }
        | Entry::Endpoint { .. }
        | Entry::Hostport { .. } => true,
        Entry::FreePod { .. }
        | Entry::Network { .. }
        | Entry::Egress { .. }
        | Entry::Uplink { .. }
        | Entry::Local
        | Entry::Prefix { .. }
        | Entry::Settings(_) => false,
    };
    let stale = observed
        .entries
        .iter()
        .rev()
        .filter(|(key, entry)| of_pod(entry) && !owned.contains(*key));
    let mut plan = Plan::of(stale.map(|(key, entry)| remove(key, entry)));
    // By key alone, as entries: what a live attachment lacks, or its detach plan lets go of, is not stale.
    let claimed: BTreeSet<Claim> = owned.iter().filter_map(Claim::of).collect();
    let nobodys = observed
        .held
        .iter()
        .filter(|(claim, _)| !claimed.contains(*claim));
    plan.append(Plan::of(nobodys.map(|(claim, held)| Step::ReleasePort {
        claim: *claim,
        generation: held.generation,
    })));
    plan
}

fn strays(records: &Records, observed: &Observed) -> BTreeSet<Stray> {
    let known: BTreeSet<IfName> = records
        .values()
        .map(|record| &record.attachment)
        .map(|attachment| attachment.host_link().name().clone())
        .collect();
    let unknown = observed
        .links
        .iter()
        .filter(|(name, link)| !known.contains(*name) && looks_like_ours(name, link));
    let stray = |(name, link): (&IfName, &Link)| Stray {
        link: name.clone(),
        alias: link.alias.clone().unwrap_or_default(),
    };
    unknown.map(stray).collect()
}

/// Links of pods that look like ours, whatever is on record: where there is one, an agent without records would give
/// its addresses away.
pub fn living(observed: &Observed) -> BTreeSet<Stray> {
    strays(&Records::new(), observed)
}

/// A veth with a name and an alias such as we give: `veth` and eight digits, `network who ifname`.
fn looks_like_ours(name: &IfName, link: &Link) -> bool {
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
