//! The change of our rules in one filter table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::accept_rule::AcceptRule;
use super::place::Place;
use super::table::{FilterTable, TableState};

/// Filter tables that forwarded packets pass, as observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardTables {
    /// The tables.
    pub tables: BTreeMap<FilterTable, TableState>,
    /// Whether tables of nftables can be created.
    pub has_nftables: bool,
}

/// Change of the rules of one table. What it does not name stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingStep {
    /// The table.
    pub table: FilterTable,
    /// State of the ruleset that the step was planned for: the step fails with another one.
    pub generation: u64,
    /// Jumps of ours to remove: chain and handle.
    pub stale_jumps: Vec<(String, u64)>,
    /// Base chain of the forward hook to create, of the filter table of iptables.
    pub creates_base: bool,
    /// Administrator's chains to create, without rules.
    pub creates: BTreeSet<String>,
    /// Chains of ours with all their rules, which replace the present ones.
    pub fills: BTreeMap<&'static str, Vec<AcceptRule>>,
    /// Jumps of ours to add: chain of ours, and where.
    pub jumps: Vec<(&'static str, Place)>,
    /// Chains of ours to delete.
    pub deletes: BTreeSet<&'static str>,
    /// Chains and base chain that an earlier step created and that are empty, to delete.
    pub deletes_created: BTreeSet<String>,
}

impl fmt::Display for ForwardingStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, jumps, .. } = self;
        if jumps.is_empty() {
            return write!(f, "remove the forwarding rules from {table}");
        }
        write!(f, "write the forwarding rules of {table}")
    }
}
