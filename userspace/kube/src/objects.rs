//! Nodes and Pods as the API has them: only the fields that are read, so that the images and
//! volumes of a Node are skipped while it is parsed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::cluster::{NodeFacts, NodeTexts};

/// Implements `Resource` for a type that has the field `metadata`: scope, kind, API group of
/// version v1, and plural.
macro_rules! resource {
    ($name:ident, $scope:ident, $kind:literal, $group:literal, $plural:literal) => {
        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = kube::core::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

/// Type of the condition that cloud providers set until a route to the node exists.
pub(crate) const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Node {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeSpec {
    /// The first of `podCIDRs`, the only one before Kubernetes 1.16.
    #[serde(default, rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(default, rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    addresses: Option<Vec<NodeAddress>>,
    #[serde(default)]
    conditions: Option<Vec<NodeCondition>>,
}

#[derive(Clone, Debug, Deserialize)]
struct NodeAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Clone, Debug, Deserialize)]
struct NodeCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Node {
    /// Returns name and facts; `None` for an object without a name.
    pub(crate) fn into_facts(self) -> Option<(Box<str>, NodeFacts)> {
        let created = self.metadata.creation_timestamp;
        let spec = self.spec;
        let pod_cidrs = spec.pod_cidrs.filter(|list| !list.is_empty());
        let conditions = self.status.conditions.unwrap_or_default();
        let unavailable = conditions
            .iter()
            .find(|one| one.kind == NETWORK_UNAVAILABLE);
        let addresses = self.status.addresses.unwrap_or_default();
        let internal = addresses.into_iter().filter(|one| one.kind == "InternalIP");
        let texts = NodeTexts {
            created: created.map_or(0, |time| time.0.as_millisecond()),
            pod_cidrs: pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect()),
            internal_ips: internal.map(|one| one.address).collect(),
            network_unavailable: unavailable.map(|one| one.status != "False"),
        };
        let name = self.metadata.name?.into_boxed_str();
        Some((name, NodeFacts::parse(texts)))
    }
}

resource!(Node, ClusterResourceScope, "Node", "", "nodes");

/// A Pod: its metadata.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Pod {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl Pod {
    /// Returns the annotation.
    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(name).map(String::as_str)
    }
}

resource!(Pod, NamespaceResourceScope, "Pod", "", "pods");

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(json: &str) -> (Box<str>, NodeFacts) {
        let node: Node = serde_json::from_str(json).unwrap();
        node.into_facts().unwrap()
    }

    #[test]
    fn a_node_of_the_api_gives_internal_addresses_cidrs_age_and_condition() {
        let (name, node) = facts(
            r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","creationTimestamp":"2026-01-02T03:04:05Z",
                "managedFields":[{"manager":"kubelet"}],"labels":{"a":"b"}},
              "spec":{"podCIDR":"10.1.1.0/24","podCIDRs":["10.1.1.0/24","fd00:1::/64"],"taints":[]},
              "status":{"images":[{"names":["x"],"sizeBytes":1}],
                "conditions":[{"type":"Ready","status":"True"},{"type":"NetworkUnavailable","status":"True"}],
                "addresses":[{"type":"Hostname","address":"n1"},{"type":"ExternalIP","address":"203.0.113.1"},
                  {"type":"InternalIP","address":"192.0.2.1"},{"type":"InternalIP","address":"2001:db8::1"}]}}"#,
        );
        assert_eq!(&*name, "n1");
        assert_eq!(node.created, 1_767_323_045_000);
        let cidrs: Vec<String> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(cidrs, ["10.1.1.0/24", "fd00:1::/64"]);
        let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(node.network_unavailable, Some(true));
        assert!(node.unusable.is_empty());
    }

    #[test]
    fn a_node_that_has_only_the_older_field_and_one_without_status_are_read() {
        let (_, node) =
            facts(r#"{"metadata":{"name":"n1"},"spec":{"podCIDR":"10.1.1.0/24"},"status":{}}"#);
        assert_eq!(node.pod_cidrs.len(), 1);
        let (_, node) = facts(r#"{"metadata":{"name":"n1"}}"#);
        assert_eq!(node, NodeFacts::default());
    }
}
