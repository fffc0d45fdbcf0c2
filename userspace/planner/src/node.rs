//! The node itself: bridges, sysctls, uplinks, and the tables that are not a pod's.

use std::collections::{BTreeMap, BTreeSet};

use model::{Cidr, IfName, Network, NetworkName};

use crate::{Observed, Plan, Records, Refusal, SysctlKey};

/// What the node is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIntent {
    /// Networks, the default one first.
    pub networks: Vec<Network>,
    /// Uplinks; empty to follow the routing table.
    pub uplinks: BTreeSet<IfName>,
    /// Prefixes to which pods keep their own address.
    pub non_masquerade: BTreeSet<Cidr>,
}

/// What is to be done about the node, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlan {
    /// Steps.
    pub plan: Plan,
    /// Networks whose bridge is refused; the others are served all the same.
    pub refused: BTreeMap<NetworkName, Refusal>,
}

/// The sysctls that [`plan_node`] and [`crate::plan_bridge`] want to see. They depend on the links that are there:
/// observe the node without sysctls first, then with these.
pub fn node_sysctls(_intent: &NodeIntent, _observed: &Observed) -> BTreeSet<SysctlKey> {
    BTreeSet::new()
}

/// Plans the node.
pub fn plan_node(_intent: &NodeIntent, _observed: &Observed, _records: &Records) -> NodePlan {
    NodePlan::default()
}
