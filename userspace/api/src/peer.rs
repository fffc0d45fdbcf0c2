//! Peers: the other nodes of a cluster.

use serde::{Deserialize, Serialize};

/// Another node, in the body of a `PUT` and in the file of `--peers-file`. Both have the complete
/// list of peers, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeerSetting {
    /// Name of the node.
    pub name: String,
    /// Prefixes of its pods, for example `10.244.2.0/24`.
    #[serde(default)]
    pub prefixes: Vec<String>,
    /// Addresses of the node, the preferred ones of each family first.
    #[serde(default)]
    pub addresses: Vec<String>,
}

/// What the program that sends the list of peers says about its own source, for example an API
/// server. In effect until the next one, or until the agent ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeerSourceSetting {
    /// The program, for example `viaduct-kube`.
    pub program: String,
    /// Why it has lost its source: then the list may be out of date. Absent if it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// With `error`: for how many seconds it has been without its source.
    #[serde(default)]
    pub seconds: u64,
}

/// Number of peers in one state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeerCount {
    /// The state, see [`PeerView::state`].
    pub state: String,
    /// Number of peers.
    pub peers: u64,
}

/// A peer with its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeerView {
    /// Name of the node.
    pub name: String,
    /// Prefixes of its pods.
    pub prefixes: Vec<String>,
    /// Addresses of the node.
    pub addresses: Vec<String>,
    /// `routed`, `partial` (some prefixes have routes), `unreachable`, `refused` (all prefixes are
    /// in conflict), `unrouted` (the agent adds no routes) or `this-node`.
    pub state: String,
    /// Next hops that its routes lead to, as `via 192.0.2.7 dev eth0`. Of a tunnel, the device is
    /// `viaduct.vx` or `viaduct.vx6`, and the next hop an address of the peer's pods.
    pub via: Vec<String>,
    /// Address to which tunnelled packets are sent, where a tunnel leads to the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// What cannot be applied, as sentences.
    pub problems: Vec<String>,
}
