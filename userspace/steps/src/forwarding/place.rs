//! Places for jumps in chains of other software.

/// A place for a jump.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// First in the chain.
    First {
        /// The chain.
        chain: String,
    },
    /// Last in the chain.
    Last {
        /// The chain.
        chain: String,
    },
    /// Before a rule.
    Before {
        /// The chain.
        chain: String,
        /// Handle of the rule.
        handle: u64,
    },
}

impl Place {
    /// Returns the chain.
    pub fn chain(&self) -> &str {
        match self {
            Self::First { chain } | Self::Last { chain } | Self::Before { chain, .. } => chain,
        }
    }
}
