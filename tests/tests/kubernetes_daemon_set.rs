//! `deploy/kubernetes` in a real cluster: kubelets run the `DaemonSet` with the image of
//! `cargo xtask package`, and replace its pods under traffic.
//!
//! `cargo xtask test cluster` builds the programs and the image, and runs these tests.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::network::{Host, Network};
use e2e::kubernetes::kubelet::{Kubelet, pod, until_in_cluster};
use e2e::kubernetes::{ControlPlane, Nodes, attach, load_between};
use e2e::manifests::{image, object};
use e2e::{Cgroup, Pod};
use serde_json::{Value, json};

/// Where a kustomization puts what its own folders have on other nodes: no file of the machine is
/// touched.
const FOLDERS: [(&str, &str); 3] = [
    ("plugins", PLUGINS),
    ("net-d", e2e::containers::NETS),
    ("cgroup", CGROUP),
];
const PLUGINS: &str = "/run/plugins";
const CGROUP: &str = "/run/node-cgroup";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/viaduct";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Returns the `DaemonSet` as the kustomization makes it, with other folders of the node.
fn daemon_set() -> Result<Value> {
    let kustomization = object("kustomization.yaml", "Kustomization")?;
    let image = &kustomization["images"][0];
    let name = |part: &str| image[part].as_str().unwrap_or_default().to_owned();
    let tagged = format!("{}:{}", name("name"), name("newTag"));
    let mut set = object("daemon-set.yaml", "DaemonSet")?;
    let labels = &kustomization["labels"][0]["pairs"];
    for (key, value) in labels.as_object().into_iter().flatten() {
        set["spec"]["selector"]["matchLabels"][key] = value.clone();
        set["spec"]["template"]["metadata"]["labels"][key] = value.clone();
    }
    let pod = &mut set["spec"]["template"]["spec"];
    for kind in ["initContainers", "containers"] {
        for container in pod[kind].as_array_mut().into_iter().flatten() {
            container["image"] = json!(tagged);
        }
    }
    for volume in pod["volumes"].as_array_mut().into_iter().flatten() {
        for (name, folder) in FOLDERS {
            if volume["name"] == name {
                volume["hostPath"] = json!({ "path": folder, "type": "DirectoryOrCreate" });
            }
        }
    }
    Ok(set)
}

/// Nodes without any program of Viaduct, until a `DaemonSet` brings them.
struct Scene {
    plane: ControlPlane,
    kubelets: Vec<Kubelet>,
    hosts: Vec<Host>,
    _cgroups: Vec<Cgroup>,
}

impl Scene {
    fn new() -> Result<Self> {
        let network = Network::flat(2)?;
        let plane = ControlPlane::start(&network, Nodes::OfKubelets)?;
        plane.add_account()?;
        let mut cgroups = Vec::new();
        let mut kubelets = Vec::new();
        for host in &network.hosts {
            let node = &host.sandbox.node;
            let cgroup = Cgroup::new()?.context("cgroup2 is mounted")?;
            let own = cgroup.path_on(node)?.display().to_string();
            node.call(&format!("mkdir -p {CGROUP} {PLUGINS}"))?;
            node.call(&format!("mount --bind {own} {CGROUP}"))?;
            // What the runtime mounts later appears in containers, as on a machine with systemd.
            for place in ["/run", "/sys/fs/bpf"] {
                node.call(&format!("mount --make-rshared {place}"))?;
            }
            plane.introduce(node)?;
            let kubelet = Kubelet::start(host, &plane.api, Path::new(PLUGINS))?;
            kubelet.import(&image()?)?;
            kubelets.push(kubelet);
            cgroups.push(cgroup);
        }
        Ok(Self {
            plane,
            kubelets,
            hosts: network.hosts,
            _cgroups: cgroups,
        })
    }

    /// Waits until each node has a ready pod of the present `DaemonSet`.
    fn await_rollout(&self) -> Result<()> {
        self.until("the DaemonSet is rolled out", || {
            let set = self.plane.api.get(DAEMON_SET)?;
            let status = &set["status"];
            let is_new = status["observedGeneration"] == set["metadata"]["generation"];
            let counts = ["updatedNumberScheduled", "numberReady"];
            Ok(is_new && counts.iter().all(|key| status[key] == self.hosts.len()))
        })
    }

    fn until(&self, what: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
        until_in_cluster(&self.plane.api, &self.kubelets, what, holds)
    }

    fn await_running(&self, name: &str) -> Result<()> {
        let object = pod(name, &json!({}), &json!({}));
        self.plane.api.create(PODS, &object)?;
        self.until(&format!("the pod {name} runs"), || {
            let pod = self.plane.api.get(&format!("{PODS}/{name}"))?;
            Ok(pod["status"]["phase"] == "Running")
        })
    }
}

#[test]
fn the_daemon_set_brings_up_nodes_and_is_replaced_under_traffic() -> Result<()> {
    let scene = Scene::new()?;
    let config = object("config.yaml", "ConfigMap")?;
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    scene.plane.api.create(maps, &config)?;
    scene.plane.api.create(DAEMON_SETS, &daemon_set()?)?;
    scene.await_rollout()?;
    scene.await_running("first")?;

    let attached = scene
        .hosts
        .iter()
        .map(|host| attach(host, "default", "load"));
    let pods = attached.collect::<Result<Vec<_>>>()?;
    let ends: Vec<&Pod> = pods.iter().map(|(pod, _server)| pod).collect();
    let connections = load_between(&ends)?;
    let restart = json!({ "metadata": { "annotations": { "restarted": "yes" } } });
    let change = json!({ "spec": { "template": restart } });
    scene.plane.api.merge(DAEMON_SET, &change)?;
    scene.await_rollout()?;
    connections.await_round()?;
    scene.await_running("second")?;

    // Without any program of Viaduct, all that is there works on.
    scene.plane.api.delete(DAEMON_SET)?;
    scene.until("no pod of the DaemonSet is left", || {
        let pods = scene.plane.api.get("/api/v1/namespaces/kube-system/pods")?;
        Ok(pods["items"].as_array().is_some_and(Vec::is_empty))
    })?;
    connections.await_round()?;
    let rounds = connections.end()?;
    ensure!(rounds > 0, "no connection was used");
    Ok(())
}
