//! All attachments against the kernel: after a start, and after anything happened behind our back.

use std::collections::{BTreeMap, BTreeSet};

use model::{AttachmentKey, IfName};

use crate::{Difference, Observed, Plan, Records};

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

/// A link that looks like ours but is in no record: reported, never touched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// The link.
    pub link: IfName,
    /// Its alias.
    pub alias: String,
}

/// What a look at everything has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Each attachment that is on record.
    pub attachments: BTreeMap<AttachmentKey, Finding>,
    /// Removes the table entries that belong to nobody.
    pub stale: Plan,
    /// Links that look like ours.
    pub strays: BTreeSet<Stray>,
}

/// Compares all records with the node.
pub fn plan_repair(_records: &Records, _observed: &Observed, _boot_id: &str) -> Repair {
    Repair::default()
}
