//! A network's bridge: made when it is missing, mended when it is ours, used when it is someone else's.

use model::Network;

use crate::{Observed, Plan, Refusal};

const ALIAS: &str = "viaduct ";

/// Whether an alias is that of a bridge that we made.
pub(crate) fn is_our_alias(alias: Option<&str>) -> bool {
    alias.is_some_and(|alias| alias.starts_with(ALIAS))
}

/// Plans the bridge of `network`.
pub fn plan_bridge(_network: &Network, _observed: &Observed) -> Result<Plan, Refusal> {
    Ok(Plan::default())
}
