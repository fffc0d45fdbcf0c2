//! Nodes of a real Kubernetes with kubelet, containerd and kube-proxy: Deployments, Services, ports of
//! the node, bandwidth annotations and policies, with the configuration list of `viaduct-kube`.
//!
//! `cargo xtask test cluster` builds the programs and runs these tests.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::network::Network;
use e2e::containers::NETS;
use e2e::kubernetes::kubelet::{Kubelet, PORT, template};
use e2e::kubernetes::{ControlPlane, KubernetesNode, Nodes};
use e2e::{Agent, Machine, until_within};
use serde_json::{Value, json};

/// What containers need to start where other tests run.
const PATIENCE: Duration = Duration::from_mins(3);
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
/// Port of the Service, and of the Nodes.
const NODE_PORT: u16 = 30_080;

/// Two nodes with all programs, and the switch's machine.
struct Scene {
    plane: ControlPlane,
    nodes: Vec<KubernetesNode>,
    kubelets: Vec<Kubelet>,
    client: Machine,
}

impl Scene {
    fn new() -> Result<Self> {
        let network = Network::flat(2)?;
        let plane = ControlPlane::start(&network, Nodes::OfKubelets)?;
        let client = network.join("client", 200)?;
        let token = plane.add_account()?;
        let list = format!("--conflist={NETS}/05-viaduct.conflist");
        let hosts = network.hosts.into_iter();
        let nodes = hosts
            .map(|host| KubernetesNode::start(host, &plane, &token, (&[], &[&list])))
            .collect::<Result<Vec<_>>>()?;
        let kubelets = nodes
            .iter()
            .map(Kubelet::start)
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            plane,
            nodes,
            kubelets,
            client,
        })
    }

    /// Waits for a condition of a cluster.
    fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let waited = until_within(PATIENCE, what, || Ok(holds()?.then_some(())));
        waited.with_context(|| {
            let pods = self.plane.api.get(PODS).unwrap_or_default();
            let logs: Vec<String> = self.kubelets.iter().map(Kubelet::log).collect();
            format!("{pods:#}\n{}", logs.join("\n"))
        })
    }

    /// Returns the addresses of the running pods with this label.
    fn addresses(&self, app: &str) -> Result<Vec<IpAddr>> {
        let pods = self
            .plane
            .api
            .get(&format!("{PODS}?labelSelector=app%3D{app}"))?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let running = pods
            .iter()
            .filter(|pod| pod["status"]["phase"] == "Running");
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

fn pod(name: &str, annotations: &Value, container: &Value) -> Value {
    let mut pod = template(&json!({ "app": name }), annotations, container);
    pod["kind"] = json!("Pod");
    pod["apiVersion"] = json!("v1");
    pod["metadata"]["name"] = json!(name);
    pod
}

/// Returns how many attachments the agent has.
fn attachments(agent: &Agent) -> Result<usize> {
    let all = agent.get("/v1/attachments")?;
    Ok(all.as_array().context("a list")?.len())
}

#[test]
fn deployments_services_ports_limits_and_policies_of_a_real_cluster_work() -> Result<()> {
    let mut scene = Scene::new()?;
    let labels = json!({ "app": "web" });
    let deployment = json!({
        "kind": "Deployment", "apiVersion": "apps/v1", "metadata": { "name": "web" },
        "spec": {
            "replicas": 4, "selector": { "matchLabels": labels },
            "template": template(&labels, &json!({}), &json!({})),
        },
    });
    scene.plane.api.create(DEPLOYMENTS, &deployment)?;
    let service = json!({
        "kind": "Service", "apiVersion": "v1", "metadata": { "name": "web" },
        "spec": {
            "type": "NodePort", "selector": labels,
            "ports": [{ "port": 80, "targetPort": "web", "nodePort": NODE_PORT }],
        },
    });
    let service = scene.plane.api.create(SERVICES, &service)?;
    let cluster_ip: IpAddr = service["spec"]["clusterIP"]
        .as_str()
        .context("a cluster IP")?
        .parse()?;
    let pods = scene.await_pods("web", 4)?;
    for node in &scene.nodes {
        ensure!(attachments(&node.agent)? == 2, "two pods on each node");
        for pod in &pods {
            scene.await_served(node.machine(), SocketAddr::new(*pod, PORT))?;
        }
        scene.await_served(node.machine(), SocketAddr::new(cluster_ip, 80))?;
        scene.await_served(
            &scene.client,
            SocketAddr::new(node.internal_addresses()[0], NODE_PORT),
        )?;
    }
    let (bare, _server) = scene.nodes[0].attach("default", "bare")?;
    for pod in &pods {
        scene.await_served(&bare.machine, SocketAddr::new(*pod, PORT))?;
    }
    scene.await_served(&bare.machine, SocketAddr::new(cluster_ip, 80))?;

    // A port of the node and limits, as kubelet passes them to the runtime.
    let annotations = json!({
        "kubernetes.io/ingress-bandwidth": "20M", "kubernetes.io/egress-bandwidth": "10M",
    });
    let container =
        json!({ "ports": [{ "name": "web", "containerPort": PORT, "hostPort": 8_081 }] });
    scene
        .plane
        .api
        .create(PODS, &pod("limited", &annotations, &container))?;
    let limited = scene.await_pods("limited", 1)?[0];
    let own = scene.nodes.iter().find(|node| {
        let shown = node.agent.get("/v1/attachments").unwrap_or_default();
        shown.to_string().contains(&format!("\"{limited}"))
    });
    let own = own.context("a node has the pod")?;
    scene.await_served(
        &scene.client,
        SocketAddr::new(own.internal_addresses()[0], 8_081),
    )?;
    let shown = own.agent.get("/v1/attachments")?;
    let mut all = shown.as_array().into_iter().flatten();
    let view = all
        .find(|one| one["pod"]["name"] == "limited")
        .context("it has a record")?;
    ensure!(view["bandwidth"]["ingress"]["rate"] == 20_000_000, "{view}");
    ensure!(view["bandwidth"]["egress"]["rate"] == 10_000_000, "{view}");

    // Only pods with the label reach the web.
    let policy = json!({
        "kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
        "metadata": { "name": "web" },
        "spec": {
            "podSelector": { "matchLabels": labels },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "limited" } } }] }],
        },
    });
    scene.plane.api.create(POLICIES, &policy)?;
    for server in pods
        .iter()
        .map(|pod| SocketAddr::new(*pod, PORT))
        .chain([SocketAddr::new(cluster_ip, 80)])
    {
        scene.until(&format!("{server} is closed to pods"), || {
            Ok(!serves(&bare.machine, server)?)
        })?;
        scene.until(&format!("{server} is closed to the world"), || {
            Ok(!serves(
                &scene.client,
                SocketAddr::new(scene.nodes[0].internal_addresses()[0], NODE_PORT),
            )?)
        })?;
    }
    scene.plane.api.delete(&format!("{POLICIES}/web"))?;
    scene.await_served(&bare.machine, SocketAddr::new(cluster_ip, 80))?;

    // Agents are replaced while the Deployment's pods are, too.
    for node in &mut scene.nodes {
        node.agent.kill()?;
        node.agent.restart()?;
    }
    let change =
        json!({ "spec": { "template": { "metadata": { "labels": { "release": "second" } } } } });
    scene
        .plane
        .api
        .merge(&format!("{DEPLOYMENTS}/web"), &change)?;
    scene.until("all pods are of the second release", || {
        let shown = scene.plane.api.get(&format!("{DEPLOYMENTS}/web"))?;
        let status = &shown["status"];
        Ok(["updatedReplicas", "readyReplicas", "replicas"]
            .iter()
            .all(|key| status[key] == 4))
    })?;
    scene.await_served(&bare.machine, SocketAddr::new(cluster_ip, 80))?;

    bare.del()?;
    scene.plane.api.delete(&format!("{DEPLOYMENTS}/web"))?;
    scene.plane.api.delete(&format!("{PODS}/limited"))?;
    scene.until("no node has an attachment", || {
        let left = scene.nodes.iter().map(|node| attachments(&node.agent));
        Ok(left.sum::<Result<usize>>()? == 0)
    })
}
