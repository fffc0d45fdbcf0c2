//! Names of our chains.

/// Name of our chain of accept rules.
pub const FORWARD_CHAIN: &str = "VIADUCT-FORWARD";

/// Name of our chain of jumps to the administrator's chains.
pub const ADMIN_CHAIN: &str = "VIADUCT-ADMIN";
