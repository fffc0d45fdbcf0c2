//! State before a change, to which a failed one returns.

use std::collections::BTreeSet;
use std::fmt;

use model::{AttachmentKey, Cidr, ContainerId, IfName, Network, NetworkName, Record};

/// State before a change, to which a failed one returns.
#[derive(Debug)]
pub(crate) enum Before {
    /// There was no attachment.
    Absent {
        /// Its key.
        key: AttachmentKey,
        /// Record of its network.
        network: Option<Network>,
    },
    /// The attachment had a link and no addresses. Such a link is removed.
    Linked {
        /// Its key.
        key: AttachmentKey,
        /// Record of its network.
        network: Option<Network>,
    },
    /// The attachment had this record.
    Attached(Box<Record>),
    /// A network had this record, or none, and maybe no bridge.
    Network {
        /// Its name.
        name: NetworkName,
        /// Its record.
        network: Option<Network>,
    },
    /// The default network was this one.
    DefaultNetwork(Box<Network>),
    /// These prefixes were not masqueraded.
    NonMasquerade(BTreeSet<Cidr>),
    /// Settings of an interface in a pod, which the steps alone restore.
    Settings(IfName),
}

/// What is compared with the record after the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Nothing yet: the background verifies the attachment.
    Later,
    /// Both sides.
    BothSides,
    /// The host's side.
    HostSide,
}

impl Before {
    /// Returns the container whose runtime may have bound the ports of the attachment.
    pub(crate) fn container(&self) -> Option<&ContainerId> {
        match self {
            Self::Absent { key, .. } | Self::Linked { key, .. } => Some(&key.container_id),
            Self::Attached(record) => Some(&record.attachment.key.container_id),
            Self::Network { .. }
            | Self::DefaultNetwork(_)
            | Self::NonMasquerade(_)
            | Self::Settings(_) => None,
        }
    }
}

/// Writes the subject of the change, for the log.
impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { key, .. } | Self::Linked { key, .. } => key.fmt(f),
            Self::Attached(record) => record.attachment.key.fmt(f),
            Self::Network { name, .. } => write!(f, "network {name}"),
            Self::DefaultNetwork(network) => write!(f, "network {}", network.name),
            Self::NonMasquerade(_) => f.write_str("non-masquerade CIDRs"),
            Self::Settings(ifname) => write!(f, "settings of {ifname}"),
        }
    }
}
