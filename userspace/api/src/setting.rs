//! Settings that can change while the agent runs. The response to a `PUT` has the same type, with
//! the values that are in effect.

use serde::{Deserialize, Serialize};

/// The pod CIDRs of the default network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCidrs {
    /// One or more prefixes; each string may be a comma-separated list, as kubelet writes it.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

/// Bandwidth limits of a pod's interface, from the pod's point of view. An absent limit is
/// unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthSetting {
    /// Limit of traffic to the pod: bit/s as a Kubernetes quantity, for example `50M`, or `none`.
    #[serde(default)]
    pub ingress: Option<String>,
    /// Limit of traffic from the pod, in the same format.
    #[serde(default)]
    pub egress: Option<String>,
}

/// Hairpin mode of the default network: how a pod reaches itself through a published port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HairpinModeSetting {
    /// `hairpin-veth`, `promiscuous-bridge` or `none`.
    pub mode: String,
}

/// Result of a reload of the agent's configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Changed keys that are in effect.
    pub applied: Vec<String>,
    /// Changed keys that take effect at the next start of the agent.
    pub needs_restart: Vec<String>,
}
