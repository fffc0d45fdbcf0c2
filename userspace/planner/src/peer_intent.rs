//! Desired connection between nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::Peers;

use crate::BetweenNodes;

/// Peers, and how the node connects its pods with theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIntent {
    /// The complete list; `None` until the first one.
    pub peers: Option<Arc<Peers>>,
    /// The configuration.
    pub options: PeerOptions,
}

/// Configuration of the connection between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerOptions {
    /// How packets of pods travel between nodes.
    pub between_nodes: BetweenNodes,
    /// Numbers of the software (`rtm_protocol`) whose routes lead to addresses that see the pods'
    /// own.
    pub protocols: BTreeSet<u8>,
}
