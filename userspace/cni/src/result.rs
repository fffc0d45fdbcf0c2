//! Results: those that Viaduct prints, and those of other plugins that it reads.

pub(crate) mod foreign_lease;
pub(crate) mod inexpressible;
pub(crate) mod outcome;
pub(crate) mod plugin_result;
pub(crate) mod prev_result;
