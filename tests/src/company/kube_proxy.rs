//! kube-proxy in iptables mode, with the services of a test.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::api_server::ApiServer;
use super::tools::newest;
use crate::{Machine, NODE, Process, until};

/// Addresses of the pods of a test's node.
const PODS: &str = "10.244.0.0/16,fd00:10:244::/48";
/// Path of the services, and of the two forms of their endpoints.
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1beta1/endpointslices";

/// A service of type `NodePort`, for TCP and UDP, of both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its cluster IPs, IPv4 first.
    pub addresses: [IpAddr; 2],
    /// The port of the cluster IPs.
    pub port: u16,
    /// The port of the node's addresses.
    pub node_port: u16,
    /// The pods that serve it.
    pub endpoints: Vec<IpAddr>,
    /// The pods' port.
    pub target: u16,
}

/// A running kube-proxy. Dropping it ends it; its rules stay with the network namespace.
#[derive(Debug)]
pub struct KubeProxy {
    _process: Process,
    _server: Option<ApiServer>,
}

impl KubeProxy {
    /// Starts the newest kube-proxy below `target/tools`, and waits until the rules of `services`
    /// are written.
    pub fn start(node: &Machine, services: &[Service]) -> Result<Self> {
        let server = ApiServer::start(node, objects(services))?;
        let source = format!("--master={}", ApiServer::url());
        let process = launch(node, &source, "node", PODS)?;
        until("kube-proxy has written its rules", || {
            if let Some(status) = process.ended()? {
                bail!("kube-proxy exited ({status}): {}", process.output());
            }
            let mut written = true;
            for (family, tool) in [(0, "iptables-save"), (1, "ip6tables-save")] {
                let rules = node.call(&format!("{tool} -t nat"))?;
                written &= services
                    .iter()
                    .all(|it| rules.contains(&format!("-d {}/", it.addresses[family])));
            }
            Ok(written.then_some(()))
        })?;
        Ok(Self {
            _process: process,
            _server: Some(server),
        })
    }

    /// Starts it for the Node `name` of a real cluster, with the kubeconfig of this path. `pods`
    /// are the addresses of all pods.
    pub fn of_cluster(node: &Machine, config: &str, name: &str, pods: &str) -> Result<Self> {
        let process = launch(node, &format!("--kubeconfig={config}"), name, pods)?;
        Ok(Self {
            _process: process,
            _server: None,
        })
    }

    /// Returns the version of the program that [`KubeProxy::start`] runs.
    pub fn version() -> Option<String> {
        newest("kubernetes", "kube-proxy").map(|(version, _)| version)
    }
}

fn launch(node: &Machine, source: &str, name: &str, pods: &str) -> Result<Process> {
    let (_, folder) = newest("kubernetes", "kube-proxy")
        .context("there is no kube-proxy below target/tools: `cargo xtask compatibility`")?;
    let program = folder.join("kube-proxy").display().to_string();
    let words = words(&program, source, name, pods);
    Process::start(node, &words.each_ref().map(String::as_str))
}

/// Returns the command line. Timeouts of connection tracking are left as they are: they belong to
/// the machine.
fn words(program: &str, source: &str, name: &str, pods: &str) -> [String; 14] {
    [
        program,
        source,
        &format!("--hostname-override={name}"),
        "--proxy-mode=iptables",
        &format!("--cluster-cidr={pods}"),
        "--feature-gates=IPv6DualStack=true",
        "--iptables-min-sync-period=100ms",
        "--iptables-sync-period=1s",
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
    ]
    .map(str::to_owned)
}

/// Returns what the API server answers, by path.
fn objects(services: &[Service]) -> BTreeMap<String, Value> {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" },
        "status": { "addresses": [{ "type": "InternalIP", "address": NODE[0] }] } });
    let list = |version: &str, kind: &str, items: Vec<Value>| json!({ "apiVersion": version, "kind": kind, "metadata": { "resourceVersion": "1" }, "items": items });
    let slices = services.iter().flat_map(slices).collect();
    let all = services.iter().map(service).collect();
    BTreeMap::from([
        ("/api/v1/nodes/node".to_owned(), node),
        (SERVICES.to_owned(), list("v1", "ServiceList", all)),
        (
            SLICES.to_owned(),
            list("discovery.k8s.io/v1beta1", "EndpointSliceList", slices),
        ),
    ])
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "namespace": "default", "uid": name, "resourceVersion": "1" })
}

/// The two protocols of a service, with the names of its ports.
const PROTOCOLS: [(&str, &str); 2] = [("TCP", "stream"), ("UDP", "datagram")];

fn service(it: &Service) -> Value {
    let ports = PROTOCOLS.map(|(protocol, name)| {
        json!({ "name": name, "protocol": protocol, "port": it.port, "targetPort": it.target,
                "nodePort": it.node_port })
    });
    json!({
        "metadata": metadata(&it.name),
        "spec": {
            "type": "NodePort", "clusterIP": it.addresses[0], "clusterIPs": it.addresses,
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "sessionAffinity": "None", "externalTrafficPolicy": "Cluster", "ports": ports,
        },
    })
}

/// Returns the endpoint slices of a service, one of each family.
fn slices(it: &Service) -> [Value; 2] {
    [("IPv4", true), ("IPv6", false)].map(|(family, is_v4)| {
        let endpoints: Vec<_> = it
            .endpoints
            .iter()
            .filter(|address| address.is_ipv4() == is_v4)
            .map(|address| json!({ "addresses": [address], "conditions": { "ready": true } }))
            .collect();
        let ports = PROTOCOLS.map(
            |(protocol, name)| json!({ "name": name, "protocol": protocol, "port": it.target }),
        );
        let mut own = metadata(&format!("{}-{}", it.name, family.to_lowercase()));
        own["labels"] = json!({ "kubernetes.io/service-name": it.name });
        json!({ "metadata": own, "addressType": family, "endpoints": endpoints, "ports": ports })
    })
}
