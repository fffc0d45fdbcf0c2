//! Host's end of an attachment's veth: created by this agent, or adopted from another plugin.

use std::fmt;

use crate::{IfName, ManagedLink};

/// Host's end of the veth of one attachment. Only a managed one can be deleted, because deletion
/// takes a [`ManagedLink`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostLink {
    /// Created by this agent.
    Managed(ManagedLink),
    /// Created by another plugin: it has programs of ours, and nothing else of it is changed.
    Adopted(IfName),
}

impl HostLink {
    /// Returns the interface name.
    pub fn name(&self) -> &IfName {
        match self {
            Self::Managed(link) => link.name(),
            Self::Adopted(name) => name,
        }
    }

    /// Returns the link as one that may be changed and deleted; `None` for an adopted one.
    pub fn managed(&self) -> Option<&ManagedLink> {
        match self {
            Self::Managed(link) => Some(link),
            Self::Adopted(_) => None,
        }
    }
}

impl fmt::Display for HostLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}
