//! Settings that can change while the agent runs. The response to a `PUT` has the same type, with
//! the values that are in effect.

use serde::{Deserialize, Serialize};

/// The pod CIDRs of the default network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PodCidrs {
    /// One or more prefixes; each string may be a comma-separated list, as kubelet writes it.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

/// Bandwidth limits of a pod's interface, from the pod's point of view. An absent limit is
/// unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HairpinModeSetting {
    /// `hairpin-veth`, `promiscuous-bridge` or `none`.
    pub mode: String,
}

/// A mode of the netfilter bypass for a limited time. A restart of the agent, and a reload that
/// changes the configured mode, end it earlier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BypassSetting {
    /// `auto`, `offload`, `always` or `never`; ignored without time.
    #[serde(default)]
    pub mode: String,
    /// Time in seconds, at most a day; 0 returns to the configured mode.
    pub seconds: u64,
}

/// The log levels of the agent and of the datapath, until the agent's next reload or start. At
/// least one is set; an absent one is unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLevelSetting {
    /// Level of the agent, or a comma-separated list of `target=level`, as the key `log-level` has
    /// it.
    #[serde(default)]
    pub level: String,
    /// Level of the datapath log: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datapath: Option<String>,
}

/// Result of a reload of the agent's configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reloaded {
    /// Changed keys that are in effect.
    pub applied: Vec<String>,
    /// Changed keys that take effect at the next start of the agent.
    pub needs_restart: Vec<String>,
}
