//! A node of the cluster, whose kubelet is the test: it registers the Node, and runs pods.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::api::Api;
use super::control_plane::{ControlPlane, kubeconfig};
use crate::cluster::await_seen;
use crate::cluster::network::Host;
use crate::kube::{Kube, TOKEN, write_token};
use crate::{
    Agent, Config, Connection, ConnectionLoad, Echo, Machine, Pod, Verb, addresses, connects, until,
};

/// Port of the server in each pod.
pub const PORT: u16 = 7000;

/// Flags of the programs of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// Those of the agent.
    pub agent: &'a [&'a str],
    /// Those of `viaduct-kube`.
    pub kube: &'a [&'a str],
}

/// A node with an agent and `viaduct-kube`.
#[derive(Debug)]
pub struct KubernetesNode {
    /// Its name, and that of its Node.
    pub name: String,
    /// The agent.
    pub agent: Agent,
    /// `viaduct-kube`.
    pub kube: Kube,
    host: Host,
    api: Api,
}

/// Attaches a pod on a host with an agent, and starts a server in it.
pub fn attach(host: &Host, namespace: &str, name: &str) -> Result<(Pod, Echo)> {
    let mut pod = host.sandbox.pod(name)?;
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
    let answer = pod
        .prepare(Verb::Add, &Config::new("1.0.0"))
        .set("CNI_ARGS", &args)
        .run(&host.sandbox.node)?;
    pod.addresses = addresses(&answer.result()?)?;
    let server = Echo::start(&pod.machine, PORT)?;
    Ok((pod, server))
}

/// Starts exchanges on connections from each of the pods to the servers of all others, by both
/// families.
pub fn load_between(pods: &[&Pod]) -> Result<ConnectionLoad> {
    let mut connections = Vec::new();
    for from in pods {
        for to in pods.iter().filter(|to| to.addresses != from.addresses) {
            for address in &to.addresses {
                let server = SocketAddr::new(*address, PORT);
                connections.push(Connection::tcp(&from.machine, server)?);
            }
        }
    }
    Ok(ConnectionLoad::start(connections))
}

/// Returns the name of a host as a Node.
pub(super) fn node_name(host: &Host) -> String {
    format!("node-{}", host.number)
}

/// A pod of a node, with a server on [`PORT`] that answers with the client's address.
#[derive(Debug)]
pub struct KubernetesPod {
    /// Its namespace and addresses.
    pub pod: Pod,
    /// The path of its object.
    pub path: String,
    api: Api,
    _server: Echo,
}

impl KubernetesNode {
    /// Starts the programs of a node with `flags` for the agent, and registers its Node.
    pub fn join(host: Host, plane: &ControlPlane, token: &str, flags: &[&str]) -> Result<Self> {
        let node = Self::start(
            host,
            plane,
            token,
            Flags {
                agent: flags,
                kube: &[],
            },
        )?;
        node.register()?;
        Ok(node)
    }

    /// Starts the programs of a node. A kubelet registers the Node.
    pub fn start(host: Host, plane: &ControlPlane, token: &str, flags: Flags<'_>) -> Result<Self> {
        let name = node_name(&host);
        let own = format!("--node-name={name}");
        let machine = &host.sandbox.node;
        let of_agent = flags.agent.iter().map(ToString::to_string);
        let agent = Agent::start_with(machine, of_agent.chain([own]).collect())?;
        plane.introduce(machine)?;
        write_token(machine, token)?;
        let config = kubeconfig(&json!({ "tokenFile": TOKEN }));
        let kube = Kube::start_with(machine, &name, &config, flags.kube)?;
        Ok(Self {
            name,
            agent,
            kube,
            host,
            api: plane.api.clone(),
        })
    }

    /// Returns the node's addresses, IPv4 first.
    pub fn internal_addresses(&self) -> [IpAddr; 2] {
        self.host.addresses
    }

    /// Returns the node's machine.
    pub fn machine(&self) -> &Machine {
        &self.host.sandbox.node
    }

    /// Returns the path of its Node.
    pub fn path(&self) -> String {
        format!("/api/v1/nodes/{}", self.name)
    }

    /// Creates the Node as a kubelet does, with the condition that clouds add.
    pub fn register(&self) -> Result<()> {
        let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": self.name } });
        self.api.create("/api/v1/nodes", &node)?;
        let conditions = json!([
            { "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "" },
            { "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated", "message": "" },
        ]);
        self.report(&json!({ "addresses": self.addresses(), "conditions": conditions }))
    }

    /// Replaces the node's addresses by those of another number, and reports them.
    pub fn readdress(&mut self, number: u8) -> Result<()> {
        self.host.readdress(number)?;
        self.report(&json!({ "addresses": self.addresses() }))
    }

    /// Returns the status of a condition of the Node.
    pub fn condition(&self, kind: &str) -> Result<Option<String>> {
        let node = self.api.get(&self.path())?;
        let mut all = node["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let found = all.find(|one| one["type"] == kind);
        Ok(found.and_then(|one| Some(one["status"].as_str()?.to_owned())))
    }

    /// Waits until the agent has the pod CIDRs that the controllers have given the Node, one of
    /// each family.
    pub fn await_pod_cidrs_of_agent(&self) -> Result<()> {
        until(&format!("{} has its pod CIDRs", self.name), || {
            let node = self.api.get(&self.path())?;
            let cidrs = node["spec"]["podCIDRs"].as_array().cloned();
            let given: Vec<Value> = cidrs.into_iter().flatten().collect();
            let shown = self.agent.get("/v1/pod-cidrs")?.to_string();
            let has_all = given.iter().all(|one| shown.contains(&one.to_string()));
            Ok((given.len() == 2 && has_all).then_some(()))
        })
    }

    /// Creates a Pod, attaches it as a runtime does, and reports its addresses as a kubelet does.
    pub fn run(&self, namespace: &str, name: &str, labels: &Value) -> Result<KubernetesPod> {
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let object = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": {
                "nodeName": self.name, "automountServiceAccountToken": false,
                "containers": [{ "name": "web", "image": "web",
                    "ports": [{ "name": "web", "containerPort": PORT }] }],
            },
        });
        self.api.create(&pods, &object)?;
        let (pod, server) = self.attach(namespace, name)?;
        let pod = KubernetesPod {
            pod,
            path: format!("{pods}/{name}"),
            api: self.api.clone(),
            _server: server,
        };
        pod.report()?;
        Ok(pod)
    }

    /// Attaches a pod whose object the API server may not have yet.
    pub fn attach(&self, namespace: &str, name: &str) -> Result<(Pod, Echo)> {
        attach(&self.host, namespace, name)
    }

    /// Returns the machine that it is on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The Node's addresses as its status has them.
    fn addresses(&self) -> Value {
        let internal = self.host.addresses.iter();
        let mut all: Vec<Value> = internal
            .map(|one| json!({ "type": "InternalIP", "address": one }))
            .collect();
        all.push(json!({ "type": "Hostname", "address": self.name }));
        Value::Array(all)
    }

    fn report(&self, status: &Value) -> Result<()> {
        let path = format!("{}/status", self.path());
        let merged = self.api.merge(&path, &json!({ "status": status }));
        merged.map(drop)
    }
}

impl KubernetesPod {
    /// Waits until `to` sees this pod by its own address of each family, over TCP and UDP.
    pub fn await_seen_by(&self, to: &Self) -> Result<()> {
        for own in &self.pod.addresses {
            await_seen(&self.pod.machine, *own, to.server(*own)?)?;
        }
        Ok(())
    }

    /// Waits until this pod can, or cannot, connect to `to`, by each family.
    pub fn await_reach(&self, to: &Self, expected: bool) -> Result<()> {
        for own in &self.pod.addresses {
            let server = to.server(*own)?;
            let what = format!("{} reaches {server}: {expected}", self.pod.id());
            until(&what, || {
                Ok((connects(&self.pod.machine, server)? == expected).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Deletes the Pod, as a kubelet does after its runtime.
    pub fn delete(self) -> Result<()> {
        self.pod.del()?;
        self.api.delete(&self.path).map(drop)
    }

    /// Returns the address of its server, of the family of `like`.
    fn server(&self, like: IpAddr) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.pod.address(like)?, PORT))
    }

    fn report(&self) -> Result<()> {
        let ips: Vec<Value> = (self.pod.addresses.iter())
            .map(|own| json!({ "ip": own }))
            .collect();
        let first = ips.first().context("a pod has an address")?["ip"].clone();
        let status = json!({ "phase": "Running", "podIP": first, "podIPs": ips });
        let path = format!("{}/status", self.path);
        self.api
            .merge(&path, &json!({ "status": status }))
            .map(drop)
    }
}
