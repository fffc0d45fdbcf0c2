//! Nodes of a real Kubernetes with kubelet, containerd and kube-proxy: Deployments, Services, ports
//! of the node, bandwidth annotations and policies, with the configuration list of `viaduct-kube`.
//!
//! `cargo xtask test cluster` builds the programs and runs these tests.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::network::Network;
use e2e::containers::NETS;
use e2e::kubernetes::kubelet::{Kubelet, PORT, pod, template, until_in_cluster};
use e2e::kubernetes::{ControlPlane, Flags, KubernetesNode, Nodes};
use e2e::{Echo, Machine, Pod, program};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
/// Port of the Service, and of the Nodes.
const NODE_PORT: u16 = 30_080;
/// Port of the node that leads to one pod.
const HOST_PORT: u16 = 8_081;

/// Two nodes with all programs, and a machine beside them.
struct Scene {
    plane: ControlPlane,
    nodes: Vec<KubernetesNode>,
    kubelets: Vec<Kubelet>,
    /// A machine on the switch.
    world: Machine,
}

impl Scene {
    fn new() -> Result<Self> {
        let network = Network::flat(2)?;
        let plane = ControlPlane::start(&network, Nodes::OfKubelets)?;
        let world = network.join("beside", 200)?;
        let token = plane.add_account()?;
        let list = format!("--conflist={NETS}/05-viaduct.conflist");
        let flags = Flags {
            kube: &[&list],
            ..Flags::default()
        };
        let hosts = network.hosts.into_iter();
        let nodes = hosts
            .map(|host| KubernetesNode::start(host, &plane, &token, flags))
            .collect::<Result<Vec<_>>>()?;
        let kubelets = nodes
            .iter()
            .map(|node| Kubelet::start(node.host(), &plane.api, &program("cni")))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            plane,
            nodes,
            kubelets,
            world,
        })
    }

    fn until(&self, what: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
        until_in_cluster(&self.plane.api, &self.kubelets, what, holds)
    }

    /// Returns the addresses of the running pods with this label.
    fn addresses(&self, app: &str) -> Result<Vec<IpAddr>> {
        let path = format!("{PODS}?labelSelector=app%3D{app}");
        let list = self.plane.api.get(&path)?;
        let pods = list["items"].as_array().into_iter().flatten();
        let running = pods.filter(|pod| pod["status"]["phase"] == "Running");
        let addresses = running.filter_map(|pod| pod["status"]["podIP"].as_str());
        addresses.map(|one| Ok(one.parse()?)).collect()
    }

    fn await_pods(&self, app: &str, count: usize) -> Result<Vec<IpAddr>> {
        self.until(&format!("{count} pods of {app} run"), || {
            Ok(self.addresses(app)?.len() == count)
        })?;
        self.addresses(app)
    }

    fn await_served(&self, from: &Machine, server: SocketAddr) -> Result<()> {
        self.until(&format!("{} is served by {server}", from.name()), || {
            serves(from, server)
        })
    }
}

/// Returns whether a web server answers.
fn serves(from: &Machine, server: SocketAddr) -> Result<bool> {
    let url = format!("http://{server}/");
    let words = [
        "curl",
        "--silent",
        "--max-time",
        "2",
        "--no-keepalive",
        &url,
    ];
    let answer = from.output(&words)?;
    Ok(answer.stdout == b"ok")
}

/// Returns where a port of a node is.
fn at(node: &KubernetesNode, port: u16) -> SocketAddr {
    SocketAddr::new(node.internal_addresses()[0], port)
}

/// A Deployment of web servers, its Service, and a pod without an object.
struct Web {
    servers: Vec<IpAddr>,
    cluster_ip: SocketAddr,
    /// Not selected by any policy.
    client: Pod,
    _server: Echo,
}

fn labels() -> Value {
    json!({ "app": "web" })
}

impl Scene {
    fn deploy(&self) -> Result<Web> {
        let deployment = json!({
            "kind": "Deployment", "apiVersion": "apps/v1", "metadata": { "name": "web" },
            "spec": {
                "replicas": 4, "selector": { "matchLabels": labels() },
                "template": template(&labels(), &json!({}), &json!({})),
            },
        });
        self.plane.api.create(DEPLOYMENTS, &deployment)?;
        let service = json!({
            "kind": "Service", "apiVersion": "v1", "metadata": { "name": "web" },
            "spec": {
                "type": "NodePort", "selector": labels(),
                "ports": [{ "port": 80, "targetPort": "web", "nodePort": NODE_PORT }],
            },
        });
        let service = self.plane.api.create(SERVICES, &service)?;
        let address = service["spec"]["clusterIP"].as_str();
        let cluster_ip = address.context("a cluster IP")?.parse()?;
        let servers = self.await_pods("web", 4)?;
        let (client, server) = self.nodes[0].attach("default", "client")?;
        Ok(Web {
            servers,
            cluster_ip: SocketAddr::new(cluster_ip, 80),
            client,
            _server: server,
        })
    }

    /// Pods, Service and node ports are reached by nodes, pods and the world.
    fn all_ways_lead_to(&self, web: &Web) -> Result<()> {
        let nodes = self.nodes.iter().map(KubernetesNode::machine);
        for from in nodes.chain([&web.client.machine]) {
            for pod in &web.servers {
                self.await_served(from, SocketAddr::new(*pod, PORT))?;
            }
            self.await_served(from, web.cluster_ip)?;
        }
        for node in &self.nodes {
            self.await_served(&self.world, at(node, NODE_PORT))?;
        }
        Ok(())
    }

    /// A port of the node and limits, as kubelet passes them to the runtime.
    fn a_pod_has_its_port_and_its_limits(&self) -> Result<()> {
        let annotations = json!({
            "kubernetes.io/ingress-bandwidth": "20M", "kubernetes.io/egress-bandwidth": "10M",
        });
        let port = json!({ "name": "web", "containerPort": PORT, "hostPort": HOST_PORT });
        let object = pod("limited", &annotations, &json!({ "ports": [port] }));
        self.plane.api.create(PODS, &object)?;
        self.await_pods("limited", 1)?;
        let mut found = None;
        for node in &self.nodes {
            let all = node.agent.get("/v1/attachments")?;
            let mut views = all.as_array().into_iter().flatten();
            let view = views.find(|one| one["pod"]["name"] == "limited").cloned();
            found = found.or(view.map(|view| (node, view)));
        }
        let (node, view) = found.context("a node has the pod")?;
        let rates = ["ingress", "egress"].map(|one| view["bandwidth"][one]["rate"].clone());
        ensure!(rates == [json!(20_000_000), json!(10_000_000)], "{view}");
        self.await_served(&self.world, at(node, HOST_PORT))
    }

    /// Only pods with a label reach the web, by its addresses and by its Service.
    fn a_policy_holds(&self, web: &Web) -> Result<()> {
        let policy = json!({
            "kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
            "metadata": { "name": "web" },
            "spec": {
                "podSelector": { "matchLabels": labels() },
                "ingress": [{
                    "from": [{ "podSelector": { "matchLabels": { "app": "limited" } } }],
                }],
            },
        });
        self.plane.api.create(POLICIES, &policy)?;
        let pods = web.servers.iter().map(|pod| SocketAddr::new(*pod, PORT));
        for server in pods.chain([web.cluster_ip]) {
            self.until(&format!("{server} is closed to pods"), || {
                Ok(!serves(&web.client.machine, server)?)
            })?;
        }
        self.until("the node port is closed to the world", || {
            Ok(!serves(&self.world, at(&self.nodes[0], NODE_PORT))?)
        })?;
        self.plane.api.delete(&format!("{POLICIES}/web"))?;
        self.await_served(&web.client.machine, web.cluster_ip)
    }

    /// Agents are replaced while the pods of the Deployment are, too.
    fn agents_and_pods_are_replaced(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.agent.kill()?;
            node.agent.restart()?;
        }
        let labels = json!({ "metadata": { "labels": { "release": "second" } } });
        let path = format!("{DEPLOYMENTS}/web");
        let change = json!({ "spec": { "template": labels } });
        self.plane.api.merge(&path, &change)?;
        self.until("all pods are of the second release", || {
            let status = self.plane.api.get(&path)?["status"].clone();
            let counts = ["updatedReplicas", "readyReplicas", "replicas"];
            Ok(counts.iter().all(|key| status[key] == 4))
        })
    }

    fn nothing_is_left(&self) -> Result<()> {
        self.plane.api.delete(&format!("{DEPLOYMENTS}/web"))?;
        self.plane.api.delete(&format!("{PODS}/limited"))?;
        self.until("no node has an attachment", || {
            let mut left = 0;
            for node in &self.nodes {
                let all = node.agent.get("/v1/attachments")?;
                left += all.as_array().context("a list")?.len();
            }
            Ok(left == 0)
        })
    }
}

#[test]
fn deployments_services_ports_limits_and_policies_of_a_real_cluster_work() -> Result<()> {
    let mut scene = Scene::new()?;
    let web = scene.deploy()?;
    scene.all_ways_lead_to(&web)?;
    scene.a_pod_has_its_port_and_its_limits()?;
    scene.a_policy_holds(&web)?;
    scene.agents_and_pods_are_replaced()?;
    scene.await_served(&web.client.machine, web.cluster_ip)?;
    web.client.del()?;
    scene.nothing_is_left()
}
