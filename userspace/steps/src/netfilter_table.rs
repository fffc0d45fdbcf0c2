//! Contents and state of the netfilter table of ours, `inet viaduct`, and the step that changes it.

use std::collections::BTreeSet;
use std::fmt;

use model::{Cidr, IfName};

/// Contents of the table. The hostports in it are those of the hostport table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetfilterTable {
    /// Links whose packets our programs translate and check: uplinks, our bridges, the loopback.
    /// Empty where packets enter by such links only.
    pub links: BTreeSet<IfName>,
    /// Subnets of pods: packets from other links with a source in one of them are dropped, unless
    /// the kernel's route to the source leads back by the link.
    pub pods: BTreeSet<Cidr>,
    /// Subnets of closed networks: from other links, packets to an address in one of them are
    /// dropped, unless they belong to a connection or are translated to it later.
    pub closed: BTreeSet<Cidr>,
    /// Those of them whose addresses are routed: echo requests to them pass, and packets to ports
    /// that are published at the address itself.
    pub routed: BTreeSet<Cidr>,
    /// Whether hostports are translated.
    pub hostports: bool,
    /// Whether hostports are translated for packets of the node itself, too.
    pub output: bool,
    /// Subnets of adopted pods: a client of the pod's own subnet is masqueraded, because the pod
    /// would answer it past the node.
    pub hairpin: BTreeSet<Cidr>,
}

/// State of the table in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetfilterState {
    /// There is no such table.
    #[default]
    Absent,
    /// It has these contents.
    Present(NetfilterTable),
    /// It lacks a chain, a rule or a hostport, or has others.
    Damaged,
    /// The kernel has no nftables, or not all that the table needs.
    Unsupported,
}

/// A change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetfilterStep {
    /// Writes the whole table in one transaction, with the hostports of the hostport table.
    Put {
        /// New contents.
        table: NetfilterTable,
        /// State before the step, for undo.
        previous: NetfilterState,
    },
    /// Removes the table.
    Remove {
        /// State before the step, for undo.
        previous: NetfilterState,
    },
}

impl NetfilterStep {
    /// Returns the step that restores the state before this one. A damaged table is not restored.
    pub(crate) fn undo(&self) -> Self {
        let now = match self {
            Self::Put { table, .. } => NetfilterState::Present(table.clone()),
            Self::Remove { .. } => NetfilterState::Absent,
        };
        let (Self::Put { previous, .. } | Self::Remove { previous }) = self;
        match previous {
            NetfilterState::Present(table) => Self::Put {
                table: table.clone(),
                previous: now,
            },
            NetfilterState::Absent | NetfilterState::Damaged | NetfilterState::Unsupported => {
                Self::Remove { previous: now }
            }
        }
    }
}

impl fmt::Display for NetfilterStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { table, .. } => write!(f, "write table inet viaduct: {table}"),
            Self::Remove { .. } => f.write_str("remove table inet viaduct"),
        }
    }
}

impl fmt::Display for NetfilterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.links.is_empty() {
            "for no link"
        } else {
            "not for packets from"
        })?;
        self.links
            .iter()
            .try_for_each(|link| write!(f, " {link}"))?;
        f.write_str(match (self.hostports, self.output) {
            (true, true) => ", hostports, also for the node",
            (true, false) => ", hostports",
            (false, _) => "",
        })?;
        for (word, prefixes) in [
            ("sources", &self.pods),
            ("closed", &self.closed),
            ("routed", &self.routed),
            ("hairpin", &self.hairpin),
        ] {
            if !prefixes.is_empty() {
                write!(f, ", {word}")?;
                prefixes
                    .iter()
                    .try_for_each(|prefix| write!(f, " {prefix}"))?;
            }
        }
        Ok(())
    }
}
