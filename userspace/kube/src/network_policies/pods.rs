//! Pods as policies see them: labels, addresses and named ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use model::Protocol;

use super::objects::{Container, ContainerPort, Namespace, PodSpec, PodStatus, PolicyPod};
use super::selector::Labels;
use super::store::ObjectKey;

/// Label that each Namespace has since Kubernetes 1.21, with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Phases of pods whose containers have ended for good. Another pod may have their addresses.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];
/// Templates below which unused ones are not looked for.
const FEW_TEMPLATES: usize = 64;

/// The pods of the cluster, or of this node.
pub(crate) type Pods = BTreeMap<ObjectKey, PodFacts>;
/// Labels of each Namespace.
pub(crate) type Namespaces = BTreeMap<Box<str>, Labels>;

/// A pod with an address, or of this node. There are tens of thousands of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodFacts {
    /// Whether it is on this node.
    pub(super) is_local: bool,
    /// Of both families; none of a pod that has ended.
    pub(super) addresses: Box<[IpAddr]>,
    pub(super) template: Rc<PodTemplate>,
}

/// What the pods of a workload have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodTemplate {
    pub(super) labels: Labels,
    pub(super) ports: Box<[NamedPort]>,
}

/// A port of a container with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub(super) name: Box<str>,
    pub(super) protocol: Protocol,
    pub(super) number: u16,
}

/// The different templates, each of which is stored once.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    templates: BTreeSet<Rc<PodTemplate>>,
    /// Number after the last removal of unused ones.
    used: usize,
}

impl Templates {
    fn shared(&mut self, template: PodTemplate) -> Rc<PodTemplate> {
        if let Some(found) = self.templates.get(&template) {
            return Rc::clone(found);
        }
        if self.templates.len() >= FEW_TEMPLATES.max(2 * self.used) {
            self.templates.retain(|one| Rc::strong_count(one) > 1);
            self.used = self.templates.len();
        }
        let new = Rc::new(template);
        self.templates.insert(Rc::clone(&new));
        new
    }

    /// Returns their number, with unused ones that have not been removed yet.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.templates.len()
    }
}

impl PolicyPod {
    /// Returns key and facts; no facts of a pod to which no policy applies and which no rule
    /// selects. `own` is the name of this node. `None` for an object without a name.
    pub(super) fn into_facts(
        self,
        own: &str,
        templates: &mut Templates,
    ) -> Option<(ObjectKey, Option<PodFacts>)> {
        let key = ObjectKey::of(self.metadata.namespace, self.metadata.name)?;
        let is_local = self.spec.node_name.as_deref() == Some(own);
        let addresses = addresses(self.status);
        // The addresses of the node are not those of one of its pods.
        let is_in_host_network = self.spec.host_network.unwrap_or_default();
        if is_in_host_network || (addresses.is_empty() && !is_local) {
            return Some((key, None));
        }
        let template = PodTemplate {
            labels: self.metadata.labels.unwrap_or_default().into(),
            ports: named_ports(self.spec),
        };
        let facts = PodFacts {
            is_local,
            addresses,
            template: templates.shared(template),
        };
        Some((key, Some(facts)))
    }
}

/// Returns the addresses. A pod that is being deleted has them until it has ended or is gone.
fn addresses(status: PodStatus) -> Box<[IpAddr]> {
    if status.phase.is_some_and(|phase| ENDED.contains(&&*phase)) {
        return Box::default();
    }
    let texts = match status.pod_ips.filter(|list| !list.is_empty()) {
        Some(list) => list.into_iter().map(|one| one.ip).collect(),
        None => Vec::from_iter(status.pod_ip),
    };
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns the ports of containers, and of init containers that do not end before them.
fn named_ports(spec: PodSpec) -> Box<[NamedPort]> {
    let stays = |one: &Container| one.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.into_iter().flatten().filter(stays);
    let containers = spec.containers.into_iter().flatten().chain(sidecars);
    let ports = containers.flat_map(|one| one.ports.unwrap_or_default());
    ports.filter_map(named_port).collect()
}

fn named_port(port: ContainerPort) -> Option<NamedPort> {
    let protocol = match port.protocol {
        None => Protocol::Tcp,
        Some(text) => text.parse().ok()?,
    };
    Some(NamedPort {
        name: port.name.filter(|name| !name.is_empty())?.into(),
        protocol,
        number: u16::try_from(port.number).ok()?,
    })
}

impl Namespace {
    /// Returns name and labels; `None` for an object without a name.
    pub(super) fn into_labels(self) -> Option<(Box<str>, Labels)> {
        let name = self.metadata.name?;
        let mut labels = self.metadata.labels.unwrap_or_default();
        labels
            .entry(NAMESPACE_NAME.to_owned())
            .or_insert_with(|| name.clone());
        Some((name.into(), labels.into()))
    }
}
