//! What can be set while the agent runs. A `PUT` is answered with what holds from now on, in the same type.

use serde::{Deserialize, Serialize};

/// The pod CIDRs of the default network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCidrs {
    /// One or more prefixes; each text may be a list with commas, as kubelet writes it.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

/// The limits of a pod's interface, seen from the pod. What is not given stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthSetting {
    /// To the pod: bits per second as Kubernetes writes quantities, for example `50M`, or `none`.
    #[serde(default)]
    pub ingress: Option<String>,
    /// From the pod.
    #[serde(default)]
    pub egress: Option<String>,
}

/// How pods of the default network reach themselves through their bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HairpinModeSetting {
    /// `hairpin-veth`, `promiscuous-bridge` or `none`.
    pub mode: String,
}
