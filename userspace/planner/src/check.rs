//! What of an attachment is not as it was decided.

use model::Attachment;

use crate::{EntryKey, Hook, Observed};

/// One thing that is not as decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// The host's end of the veth is gone.
    HostLinkGone,
    /// A program is not attached.
    HookMissing(Hook),
    /// A table entry is missing.
    EntryMissing(EntryKey),
}

/// Every difference between what was decided and what was seen; empty when all is well.
pub fn check(_attachment: &Attachment, _observed: &Observed) -> Vec<Difference> {
    Vec::new()
}
