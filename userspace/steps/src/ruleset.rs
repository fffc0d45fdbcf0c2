//! Netfilter rules of other software that forwarded packets meet, as far as their statements tell
//! whether they must see every packet of a connection.

use std::collections::BTreeMap;

use crate::Action;

/// Where in the stack a base chain is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathHook {
    /// Before the route is chosen; also the ingress of a link.
    Prerouting,
    /// Behind it.
    Forward,
    /// Before the packet leaves.
    Postrouting,
}

/// One table with chains that forwarded packets meet. Chains of type `nat` are left out: only the
/// first packet of a connection is evaluated there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathTable {
    /// The table in words: `nftables: table inet filter`, `iptables: table mangle`.
    pub name: String,
    /// Base chains by name.
    pub bases: BTreeMap<String, PathHook>,
    /// Rules of all chains of the table, in order.
    pub chains: BTreeMap<String, Vec<PathRule>>,
}

/// Statements of one rule, in order: conditions, actions, and at most one verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathRule {
    /// The statements.
    pub statements: Vec<Statement>,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// A condition on the state of the connection.
    State {
        /// Whether packets of established connections meet it.
        established: bool,
        /// Whether UDP packets of connections without a reply, which are new, may meet it.
        new: bool,
    },
    /// A verdict that depends on the state of the connection; `None` where the rule ends without
    /// one.
    Verdicts {
        /// That of packets of established connections.
        established: Option<Action>,
        /// That of UDP packets of connections without a reply.
        new: Option<Action>,
    },
    /// Any other condition or action, by name: nftables' word for the statement, or `match` or
    /// `target` and the name of the extension of iptables. Details that matter follow.
    Named(String),
    /// The verdict.
    Verdict(Action),
}
