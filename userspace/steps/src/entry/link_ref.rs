//! Links that entries refer to, by name.

use std::fmt;

use model::IfName;

/// A link that an entry refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkRef {
    /// One that exists, or will when the entry is written.
    Name(IfName),
    /// Interface index of a link that is gone; observed only, never planned.
    Gone(u32),
}

impl fmt::Display for LinkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Gone(index) => write!(f, "gone link #{index}"),
        }
    }
}

impl LinkRef {
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }
}
