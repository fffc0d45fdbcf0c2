//! State of the rules in filter tables that forwarded packets pass.

use std::collections::BTreeSet;

use planner::{DroppingDefault, ForwardingIntent};

/// Rules that are in force, and the defaults that drop.
#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    /// Intent of the last plan.
    pub(crate) intent: ForwardingIntent,
    /// Whether a table has rules of ours.
    pub(crate) has_rules: bool,
    /// Defaults that drop, with the state of pods' packets there.
    pub(crate) defaults: BTreeSet<DroppingDefault>,
}
