//! Decides which pods are migrated: a pure function of what was observed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use api::{AttachmentView, TranslatedConnection};
use cni::{
    Cached, ChainedRequest, Command, Environment, FileKind, NetworkList, Plugin, PluginConfig,
    PluginRequest,
};
use model::{PortMapping, Protocol};

/// Name of the plugin whose rules are replaced.
pub(super) const PORTMAP: &str = "portmap";

/// State of the node.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The runtime's cached results.
    pub(super) cached: Vec<Cached>,
    /// Paths of network namespaces that exist, among those of `cached`.
    pub(super) live: BTreeSet<String>,
    /// Attachments of the agent.
    pub(super) attachments: Vec<AttachmentView>,
    /// Program of the reference `portmap`, or why there is none.
    pub(super) program: Result<String, String>,
    /// Open connections of pods through published ports.
    pub(super) of_pods: Vec<TranslatedConnection>,
    /// Number of open connections from outside to pods that can be migrated.
    pub(super) kept: u64,
}

/// From `portmap` to Viaduct, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Apply,
    Undo,
}

/// What happens to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Publish the ports by Viaduct, then remove the rules.
    Publish,
    /// Viaduct publishes the ports already: remove the rules, where there are any.
    RemoveRules,
    /// Make the rules again, then unpublish the ports.
    Restore,
    /// The rules are there again: release the interface, once no connection needs it.
    Release,
    /// Nothing: the pod is where the direction leads.
    Done,
    Refuse(Refusal),
}

/// Why a pod is not migrated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The cached configuration cannot be executed by Viaduct.
    Configuration(String),
    NamespaceGone(String),
    /// Another pod has the same port: one of them may need the rules of both.
    SharedPort {
        port: String,
        other: String,
    },
    /// The pod has connections through published ports, which its programs would reset.
    Connections {
        first: String,
        count: usize,
    },
    NoProgram(String),
}

/// One pod with published ports.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) cached: Cached,
    /// List and plugin of the rules; `None` for a configuration that cannot be parsed.
    pub(super) plugin: Option<(NetworkList, PluginConfig)>,
    pub(super) ports: Vec<PortMapping>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) step: Step,
}

/// The pods with published ports, in the order of the cache.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) pods: Vec<Pod>,
}

impl Plan {
    pub(super) fn new(direction: Direction, observed: &Observed) -> Self {
        let mut pods: Vec<Pod> = observed
            .cached
            .iter()
            .filter_map(|cached| pod(cached, observed))
            .collect();
        let owners = owners(&pods);
        for pod in &mut pods {
            if !matches!(pod.step, Step::Refuse(_)) {
                pod.step = match direction {
                    Direction::Apply => apply(pod, observed, &owners),
                    Direction::Undo => undo(pod, observed),
                };
            }
        }
        Self { pods }
    }

    /// Returns the addresses of the pods whose ports Viaduct will publish.
    pub(super) fn addresses(&self) -> Vec<String> {
        let published = self.pods.iter().filter(|pod| pod.step == Step::Publish);
        published
            .flat_map(|pod| &pod.addresses)
            .map(IpAddr::to_string)
            .collect()
    }
}

/// Returns the pod of a cached result; `None` if `portmap` has nothing to do for it, or if Viaduct
/// has attached it. Its step is a refusal or [`Step::Done`].
fn pod(cached: &Cached, observed: &Observed) -> Option<Pod> {
    let attached = attachment(cached, &observed.attachments);
    if attached.is_some_and(|attached| !attached.adopted) {
        return None;
    }
    let parsed = NetworkList::parse(FileKind::List, &cached.config);
    let Ok(list) = parsed.or_else(|_| NetworkList::parse(FileKind::Single, &cached.config)) else {
        let of_portmap = cached.config.contains(PORTMAP);
        let why = "the cached configuration is no network configuration".to_owned();
        return of_portmap.then(|| refused(cached, None, Refusal::Configuration(why)));
    };
    let mut plugins = list.plugins.iter();
    let plugin = plugins.find(|plugin| plugin.kind == PORTMAP)?.clone();
    let config = list.config_for(&plugin, Some(&cached.result), &cached.capabilities);
    let request = ChainedRequest::read(Plugin::Portmap, &environment(cached), &config);
    let plugin = Some((list, plugin));
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            let why = Refusal::Configuration(error.msg);
            return Some(refused(cached, plugin, why));
        }
    };
    let PluginRequest::Ports(ports) = &request.requested else {
        return None;
    };
    if ports.is_empty() {
        return None;
    }
    let addresses = match request.adoption() {
        Ok(adoption) => adoption.addresses,
        Err(error) => {
            let why = Refusal::Configuration(error.msg);
            return Some(refused(cached, plugin, why));
        }
    };
    Some(Pod {
        cached: cached.clone(),
        plugin,
        ports: ports.clone(),
        addresses: addresses.iter().map(|own| own.address.address).collect(),
        step: Step::Done,
    })
}

fn refused(cached: &Cached, plugin: Option<(NetworkList, PluginConfig)>, refusal: Refusal) -> Pod {
    Pod {
        cached: cached.clone(),
        plugin,
        ports: Vec::new(),
        addresses: Vec::new(),
        step: Step::Refuse(refusal),
    }
}

/// Returns the variables of the ADD that `portmap` has executed.
pub(super) fn environment(cached: &Cached) -> Environment {
    let pairs: Vec<String> = cached
        .args
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    Environment {
        command: Command::Add,
        container_id: cached.container_id.to_string(),
        netns: cached.netns.clone(),
        ifname: cached.ifname.to_string(),
        args: pairs.join(";"),
        // No plugin is executed by it.
        path: invoke::DEFAULT_PATH.to_owned(),
    }
}

fn attachment<'a>(cached: &Cached, all: &'a [AttachmentView]) -> Option<&'a AttachmentView> {
    all.iter().find(|view| {
        view.container_id == cached.container_id.as_str() && view.ifname == cached.ifname.as_str()
    })
}

/// Containers by the port that they publish. Interfaces of one container share their ports.
type Owners = BTreeMap<(u16, Protocol, Option<IpAddr>), BTreeSet<String>>;

fn owners(pods: &[Pod]) -> Owners {
    let mut owners = Owners::new();
    for pod in pods {
        for port in &pod.ports {
            owners
                .entry(key(port))
                .or_default()
                .insert(pod.cached.container_id.to_string());
        }
    }
    owners
}

fn key(port: &PortMapping) -> (u16, Protocol, Option<IpAddr>) {
    (port.host_port.get(), port.protocol, port.host_address)
}

fn apply(pod: &Pod, observed: &Observed, owners: &Owners) -> Step {
    if !observed.live.contains(&pod.cached.netns) {
        return Step::Refuse(Refusal::NamespaceGone(pod.cached.netns.clone()));
    }
    if let Err(why) = &observed.program {
        return Step::Refuse(Refusal::NoProgram(why.clone()));
    }
    let own = pod.cached.container_id.as_str();
    let shared = pod.ports.iter().find_map(|port| {
        let mut others = owners.get(&key(port))?.iter().filter(|id| *id != own);
        Some((port, others.next()?))
    });
    if let Some((port, other)) = shared {
        return Step::Refuse(Refusal::SharedPort {
            port: port.to_string(),
            other: other.clone(),
        });
    }
    let attached = attachment(&pod.cached, &observed.attachments);
    if attached.is_some_and(|attached| !attached.hostports.is_empty()) {
        return Step::RemoveRules;
    }
    let is_own = |connection: &&TranslatedConnection| {
        let client = connection.client.parse::<SocketAddr>();
        client.is_ok_and(|client| pod.addresses.contains(&client.ip()))
    };
    let connections: Vec<_> = observed.of_pods.iter().filter(is_own).collect();
    match connections.first() {
        Some(first) => Step::Refuse(Refusal::Connections {
            first: format!("{} to {}", first.client, first.server),
            count: connections.len(),
        }),
        None => Step::Publish,
    }
}

fn undo(pod: &Pod, observed: &Observed) -> Step {
    let Some(attached) = attachment(&pod.cached, &observed.attachments) else {
        return Step::Done;
    };
    match &observed.program {
        Err(why) => Step::Refuse(Refusal::NoProgram(why.clone())),
        Ok(_) if attached.hostports.is_empty() => Step::Release,
        Ok(_) => Step::Restore,
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(why) | Self::NoProgram(why) => f.write_str(why),
            Self::NamespaceGone(path) => write!(f, "no network namespace at {path:?}"),
            Self::SharedPort { port, other } => write!(
                f,
                "container {other} publishes {port} as well, and needs the rules"
            ),
            Self::Connections { first, count } => write!(
                f,
                "{count} connections of the pod through published ports would be reset, such as {first}"
            ),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
