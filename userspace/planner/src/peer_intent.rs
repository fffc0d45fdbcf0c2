//! Desired connection between nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{PeerName, Peers};

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
    /// The tunnels.
    pub tunnel: TunnelOptions,
}

/// Configuration of the tunnels between nodes. All nodes of a cluster have the same network
/// identifier and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelOptions {
    /// VXLAN network identifier (RFC 7348).
    pub vni: u32,
    /// UDP port of the outer packets.
    pub port: u16,
    /// Name of this node in the lists of the others, from which they derive its MAC address.
    pub node: Option<PeerName>,
}

impl TunnelOptions {
    /// Default of [`TunnelOptions::vni`].
    pub const VNI: u32 = 118;
    /// Default of [`TunnelOptions::port`]: not that of other overlays, whose packets would be those
    /// of foreign senders.
    pub const PORT: u16 = 8118;
}

impl Default for TunnelOptions {
    fn default() -> Self {
        Self {
            vni: Self::VNI,
            port: Self::PORT,
            node: None,
        }
    }
}
