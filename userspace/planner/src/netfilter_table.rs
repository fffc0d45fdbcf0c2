//! The netfilter table of ours, `inet viaduct`: what our programs do at uplinks, for packets that
//! enter by other links; and what the cgroup programs do, for sockets that they do not see.
//!
//! Containers of other software reach hostports through it: netfilter translates for them, in one
//! order with the other software's own rules. So do sockets of the node that the cgroup programs do
//! not see: those of processes outside of the cgroup, raw sockets and SCTP. The table exists only
//! while there are such links or sockets, and has NAT chains only while there are hostports,
//! because they turn connection tracking on for all packets of the node. See decisions 81 and 99.

use std::collections::BTreeSet;
use std::fmt;

use model::{Attachment, Cidr, IfName, Network, NetworkAccess, Protocol};

use crate::tables::hostport_keys;
use crate::uplink::{OwnLinks, candidates};
use crate::{ContainerLinks, Observed, Records, Step};

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

impl NetfilterTable {
    /// Returns the table with everything that `attachment` needs.
    fn with(mut self, attachment: &Attachment) -> Self {
        if hostport_keys(attachment).next().is_none() {
            return self;
        }
        self.hostports = true;
        let mut mappings = attachment.port_mappings.iter();
        // No cgroup program sees SCTP sockets.
        self.output |= mappings.any(|mapping| mapping.protocol == Protocol::Sctp);
        if attachment.adopted.is_some() {
            let addresses = attachment.addresses.iter();
            let subnets = addresses.filter_map(|assigned| assigned.address.subnet());
            self.hairpin.extend(subnets);
        }
        self
    }

    fn is_needed(&self) -> bool {
        let translates = !self.links.is_empty() || self.output;
        (self.hostports && translates) || !self.pods.is_empty() || !self.closed.is_empty()
    }
}

/// Returns the table that a node with these links and sockets needs, without hostports. Nothing is
/// written of it while it has neither subnets nor hostports.
pub(crate) fn base(
    observed: &Observed,
    ours: &OwnLinks,
    networks: &[&Network],
    (uplinks, containers): (&BTreeSet<IfName>, &ContainerLinks),
) -> NetfilterTable {
    let mut others = candidates(observed, ours).filter(|(name, _)| !uplinks.contains(*name));
    // The veth of an adopted pod without a bridge is one of ours, and none of these.
    if others.next().is_none() {
        return NetfilterTable {
            output: observed.has_unseen_sockets,
            ..NetfilterTable::default()
        };
    }
    let bridges = networks.iter().flat_map(|network| {
        let links = [Some(network.bridge.clone()), network.gateway_link()];
        links.into_iter().flatten()
    });
    let loopbacks = observed
        .links
        .iter()
        .filter(|(_, link)| link.kind == crate::LinkKind::Loopback)
        .map(|(name, _)| name.clone());
    // The kernel's route to a subnet that two bridges have leads to one of them only.
    let is_exclusive = |subnet: &Cidr| {
        let mut overlaps = containers.overlaps.iter();
        !overlaps.any(|overlap| !overlap.is_host() && overlap.prefix.overlaps(subnet))
    };
    let subnets = networks
        .iter()
        .filter(|network| network.options.gateway)
        .flat_map(|network| network.subnets());
    NetfilterTable {
        links: bridges
            .chain(loopbacks)
            .chain(uplinks.iter().cloned())
            .collect(),
        pods: subnets.filter(is_exclusive).collect(),
        closed: networks
            .iter()
            .filter(|network| network.options.port.access != NetworkAccess::Direct)
            .flat_map(|network| network.subnets())
            .collect(),
        // Connections are tracked anyway, so raw sockets are served as well.
        output: true,
        ..NetfilterTable::default()
    }
}

/// Returns the table for all attachments; `None` where none is needed.
pub(crate) fn wanted(base: &NetfilterTable, records: &Records) -> Option<NetfilterTable> {
    let attachments = records.values().map(|record| &record.attachment);
    let mut table = attachments.fold(base.clone(), NetfilterTable::with);
    table.output &= table.hostports;
    table.is_needed().then_some(table)
}

/// Plans the table before `attachment`'s first hostport is published. `base` is
/// [`crate::NodePlan::netfilter`], `now` the state after the last step.
pub fn plan_netfilter_for(
    attachment: &Attachment,
    base: &NetfilterTable,
    now: &NetfilterState,
) -> Option<Step> {
    let before = match now {
        NetfilterState::Present(table) => table,
        NetfilterState::Absent => base,
        NetfilterState::Damaged | NetfilterState::Unsupported => return None,
    };
    let mut table = before.clone().with(attachment);
    table.output = table.hostports && (table.output || base.output);
    (table.hostports && table.is_needed() && table != *before).then(|| {
        Step::Netfilter(Box::new(NetfilterStep::Put {
            table,
            previous: now.clone(),
        }))
    })
}

/// Plans to write the table where it differs from the wanted one.
pub(crate) fn put(wanted: Option<&NetfilterTable>, observed: &Observed) -> Option<Step> {
    let (table, now) = (wanted?, &observed.netfilter);
    let differs = match now {
        NetfilterState::Present(present) => present != table,
        NetfilterState::Absent | NetfilterState::Damaged => true,
        NetfilterState::Unsupported => false,
    };
    differs.then(|| {
        Step::Netfilter(Box::new(NetfilterStep::Put {
            table: table.clone(),
            previous: now.clone(),
        }))
    })
}

/// Plans to remove the table where it is not wanted.
pub(crate) fn remove(wanted: Option<&NetfilterTable>, observed: &Observed) -> Option<Step> {
    let is_there = matches!(
        observed.netfilter,
        NetfilterState::Present(_) | NetfilterState::Damaged
    );
    (wanted.is_none() && is_there).then(|| {
        Step::Netfilter(Box::new(NetfilterStep::Remove {
            previous: observed.netfilter.clone(),
        }))
    })
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

#[cfg(test)]
mod tests;
