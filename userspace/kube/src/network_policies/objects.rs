//! Network policies, Namespaces and Pods as the API has them: only the fields that decide which
//! connections are allowed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

use crate::objects::resource;

/// A `NetworkPolicy` of `networking.k8s.io/v1`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NetworkPolicy {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: PolicySpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicySpec {
    pub(super) pod_selector: Option<LabelSelector>,
    pub(super) ingress: Option<Vec<RuleObject>>,
    pub(super) egress: Option<Vec<RuleObject>>,
    pub(super) policy_types: Option<Vec<String>>,
}

/// A rule of ingress, with `from`, or of egress, with `to`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RuleObject {
    #[serde(rename = "from", alias = "to")]
    pub(super) peers: Option<Vec<PeerObject>>,
    pub(super) ports: Option<Vec<PortObject>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PeerObject {
    pub(super) pod_selector: Option<LabelSelector>,
    pub(super) namespace_selector: Option<LabelSelector>,
    pub(super) ip_block: Option<BlockObject>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct BlockObject {
    #[serde(default)]
    pub(super) cidr: String,
    pub(super) except: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortObject {
    pub(super) protocol: Option<String>,
    pub(super) port: Option<IntOrString>,
    pub(super) end_port: Option<i32>,
}

resource!(
    NetworkPolicy,
    NamespaceResourceScope,
    "NetworkPolicy",
    "networking.k8s.io",
    "networkpolicies"
);

/// A Namespace: its metadata.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Namespace {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
}

resource!(
    Namespace,
    ClusterResourceScope,
    "Namespace",
    "",
    "namespaces"
);

/// A Pod, as policies see it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PolicyPod {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: PodSpec,
    #[serde(default)]
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) host_network: Option<bool>,
    pub(super) containers: Option<Vec<Container>>,
    pub(super) init_containers: Option<Vec<Container>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) ports: Option<Vec<ContainerPort>>,
    /// `Always` for an init container that runs as long as the pod does.
    pub(super) restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ContainerPort {
    pub(super) name: Option<String>,
    pub(super) protocol: Option<String>,
    #[serde(default, rename = "containerPort")]
    pub(super) number: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    /// The first of `podIPs`, the only one before Kubernetes 1.16.
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(super) pod_ips: Option<Vec<PodIp>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PodIp {
    #[serde(default)]
    pub(super) ip: String,
}

resource!(PolicyPod, NamespaceResourceScope, "Pod", "", "pods");
