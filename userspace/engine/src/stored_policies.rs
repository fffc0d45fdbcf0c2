//! The stored network policies.

use std::sync::Arc;

use model::NetworkPolicies;
use planner::PolicyIndex;
use store::Store;

/// Name of the list in the store.
pub(crate) const POLICIES: &str = "policies";

/// Returns the stored list, and why it cannot be read.
pub(crate) fn load(store: &Store) -> (Option<Arc<PolicyIndex>>, Option<String>) {
    match store.choice(POLICIES).map(str::parse::<NetworkPolicies>) {
        None => (None, None),
        Some(Ok(policies)) => (Some(Arc::new(policies.into())), None),
        Some(Err(error)) => {
            tracing::error!(%error, "stored network policies unreadable: none is in effect");
            (None, Some(error.to_string()))
        }
    }
}
