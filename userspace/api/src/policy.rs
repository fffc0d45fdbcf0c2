//! Network policies: which connections pods of this node may open, and which they accept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Longest name of a policy or group, in bytes.
pub const MAX_POLICY_NAME: usize = 1024;

/// All network policies, in the body of a `PUT` and in the file of `--policies-file`. The meaning
/// is that of Kubernetes' `NetworkPolicy`, with selectors resolved into pods and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoliciesSetting {
    /// The policies. Names are different.
    #[serde(default)]
    pub policies: Vec<PolicySetting>,
    /// Addresses and prefixes of groups that rules name, for example of the pods with a label.
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<String>>,
}

/// A network policy, with `ingress`, `egress` or both. Policies only add up: what one allows, no
/// other forbids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicySetting {
    /// Name, for people: `namespace/name` in Kubernetes.
    pub name: String,
    /// The pods of this node to which it applies: names as `namespace/pod`, or prefixes and
    /// addresses of pods.
    #[serde(default)]
    pub pods: Vec<String>,
    /// Rules of the connections that the pods accept, one of which is enough. Absent where the
    /// policy says nothing about them; an empty list accepts none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<IngressRuleSetting>>,
    /// Rules of the connections that the pods may open, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<EgressRuleSetting>>,
}

/// Connections that pods accept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IngressRuleSetting {
    /// The ends that may open them; absent or empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<PolicyPeerSetting>,
    /// Ports of the pods; absent or empty for all ports and protocols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPortSetting>,
}

/// Connections that pods may open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EgressRuleSetting {
    /// The ends to which they may be opened; absent or empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<PolicyPeerSetting>,
    /// Ports of those ends; absent or empty for all ports and protocols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPortSetting>,
}

/// Other ends of connections: either `cidr` or `group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyPeerSetting {
    /// Addresses of a prefix, for example `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// Prefixes within `cidr` whose addresses are not meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
    /// Addresses of a group of [`PoliciesSetting::groups`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Ports of a protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyPortSetting {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The port, or the first one; absent for all ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The last port of a range that starts at `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_port: Option<u16>,
}

/// All network policies in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoliciesView {
    /// The policies, in the order in which they were set.
    pub policies: Vec<PolicyView>,
    /// Addresses and prefixes of groups, as they were set.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// A network policy in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyView {
    /// The policy as it was set.
    #[serde(flatten)]
    pub policy: PolicySetting,
    /// IDs of the containers on this node to which it applies now.
    pub container_ids: Vec<String>,
}
