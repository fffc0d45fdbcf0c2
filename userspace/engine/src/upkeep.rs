//! What reconciliations of the node keep from one to the next.

use std::sync::Arc;

use crate::forwarding_state::Forwarding;
use crate::node::NodeReconciler;
use crate::node_conditions::NodeConditions;
use crate::{Report, StalePeers};

/// What reconciliations of the node keep from one to the next. [`crate::node::NodeState`] beside it
/// is replaced by each.
#[derive(Debug, Default)]
pub(crate) struct NodeUpkeep {
    pub(crate) reconciler: NodeReconciler,
    pub(crate) conditions: NodeConditions,
    pub(crate) forwarding: Forwarding,
    /// Why the list of peers cannot be read; `None` if it can.
    pub(crate) peers_unreadable: Option<String>,
    /// Why the list of peers may be out of date; `None` if it is current.
    pub(crate) peers_stale: Option<StalePeers>,
    /// Why the list of network policies cannot be read; `None` if it can.
    pub(crate) policies_unreadable: Option<String>,
    /// Report of the last reconciliation; none before the first.
    pub(crate) last_reconcile: Option<Arc<Report>>,
}
