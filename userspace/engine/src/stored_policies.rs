//! The stored network policies.

use std::error::Error;
use std::sync::Arc;

use model::NetworkPolicies;
use planner::PolicyIndex;
use store::Store;

/// Name of the list in the store.
pub(crate) const POLICIES: &str = "policies";

/// Returns the stored list, and why it cannot be read.
pub(crate) fn load(store: &Store) -> (Option<Arc<PolicyIndex>>, Option<String>) {
    let Some(text) = store.choice(POLICIES) else {
        return (None, None);
    };
    match read(text) {
        Ok(policies) => (Some(Arc::new(policies)), None),
        Err(error) => {
            tracing::error!(%error, "stored network policies unreadable: none is in effect");
            (None, Some(error.to_string()))
        }
    }
}

fn read(text: &str) -> Result<PolicyIndex, Box<dyn Error>> {
    Ok(PolicyIndex::new(text.parse::<NetworkPolicies>()?)?)
}
