//! The host's end of an attachment's link: one that we made, or one of another plugin's that we serve.

use std::fmt;

use crate::{IfName, ManagedLink};

/// The host's end of the veth of one attachment. Only one that we made can be deleted: only that holds a
/// [`ManagedLink`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostLink {
    /// We made it.
    Managed(ManagedLink),
    /// Another plugin made it: programs of ours are on it, and nothing else of it is ours to change.
    Adopted(IfName),
}

impl HostLink {
    /// The interface name.
    pub fn name(&self) -> &IfName {
        match self {
            Self::Managed(link) => link.name(),
            Self::Adopted(name) => name,
        }
    }

    /// The link as one that we may change and delete, if it is.
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
