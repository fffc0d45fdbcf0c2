//! A real kubelet with containerd and kube-proxy on a node, and the template of its pods.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::api::Api;
use super::control_plane::{PODS, PROXY, kubeconfig, program_of};
use super::node::node_name;
use crate::cluster::network::Host;
use crate::company::KubeProxy;
use crate::containers::{Containerd, IMAGE, NETS, Podman};
use crate::kube::write;
use crate::{Process, until, until_within};

/// Port of the server in the containers: the image's own is that of the pause container.
pub const PORT: u16 = 8080;
/// What containers need to start where other tests run.
const PATIENCE: Duration = Duration::from_mins(3);
/// State of kubelet, on the sandbox's own file system.
const FOLDER: &str = "/run/kubelet";
/// Settings of the machine that kubelet would change.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// A kubelet, its runtime, and kube-proxy. Dropping it removes all pods.
#[derive(Debug)]
pub struct Kubelet {
    process: Process,
    _proxy: KubeProxy,
    containerd: Containerd,
    _podman: Podman,
}

impl Kubelet {
    /// Starts all three, with the plugins of a folder and the configuration lists in [`NETS`], and
    /// waits until the Node is registered.
    pub fn start(host: &Host, api: &Api, plugins: &Path) -> Result<Self> {
        let machine = &host.sandbox.node;
        let name = node_name(host);
        // podman makes the image only.
        let podman = Podman::new(machine, plugins, &json!({ "name": "unused" }))?;
        machine.call(&format!("rm {NETS}/10.conflist"))?;
        let containerd = Containerd::start(&podman, plugins)?;
        machine.call("mount -t tmpfs none /var/log")?;
        machine.call(&format!("mkdir -p {FOLDER}/sysctls"))?;
        for (number, sysctl) in SYSCTLS.iter().enumerate() {
            let copy = format!("{FOLDER}/sysctls/{number}");
            let shown = format!("/proc/sys/{sysctl}");
            machine.call(&format!("cp {shown} {copy}"))?;
            machine.call(&format!("mount --bind {copy} {shown}"))?;
        }
        write(machine, &format!("{FOLDER}/config"), &config().to_string())?;
        let user = json!({ "token": name });
        write(machine, &format!("{FOLDER}/client"), &kubeconfig(&user))?;
        let client = format!("{FOLDER}/proxy");
        write(machine, &client, &kubeconfig(&json!({ "token": PROXY })))?;
        let proxy = KubeProxy::of_cluster(machine, &client, &name, PODS)?;
        let addresses = host.addresses.map(|one| one.to_string());
        let words = [
            program_of("kubelet")?.display().to_string(),
            format!("--config={FOLDER}/config"),
            format!("--kubeconfig={FOLDER}/client"),
            format!("--root-dir={FOLDER}"),
            format!("--cert-dir={FOLDER}/pki"),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", addresses.join(",")),
            "--container-runtime=remote".to_owned(),
            "--container-runtime-endpoint=unix:///run/containerd.sock".to_owned(),
        ];
        let kubelet = Self {
            process: Process::start(machine, &words.each_ref().map(String::as_str))?,
            _proxy: proxy,
            containerd,
            _podman: podman,
        };
        let registered = until(&format!("{name} is registered"), || {
            let ended = kubelet.process.ended()?;
            ensure!(ended.is_none(), "kubelet exited ({ended:?})");
            Ok(api.get(&format!("/api/v1/nodes/{name}")).ok())
        });
        registered.with_context(|| kubelet.process.output())?;
        Ok(kubelet)
    }

    /// Imports an image of this file for kubelet's pods.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let archive = archive.display();
        let import = format!("--namespace k8s.io images import --snapshotter native {archive}");
        self.containerd.ctr(&import).map(drop)
    }
}

/// Containers run without cgroups, so those of the machine stay unchanged, and nothing is evicted.
fn config() -> Value {
    json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": { "anonymous": { "enabled": false }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%" },
        "failSwapOn": false,
        // Plugins of devices have a folder of the machine.
        "featureGates": {
            "IPv6DualStack": true, "LocalStorageCapacityIsolation": false, "DevicePlugins": false,
        },
        "healthzPort": 0,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": false,
        "nodeStatusUpdateFrequency": "2s",
        "readOnlyPort": 0,
        "resolvConf": "",
        "serializeImagePulls": false,
        "syncFrequency": "2s",
        "volumePluginDir": format!("{FOLDER}/plugins"),
        "volumeStatsAggPeriod": "0s",
    })
}

/// Waits for a condition of a cluster. An error has all pods and the logs of the kubelets.
pub fn until_in_cluster(
    api: &Api,
    kubelets: &[Kubelet],
    what: &str,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let waited = until_within(PATIENCE, what, || Ok(holds()?.then_some(())));
    waited.with_context(|| {
        let pods = api.get("/api/v1/pods").unwrap_or_default();
        let logs: Vec<String> = kubelets.iter().map(|it| it.process.output()).collect();
        format!("{pods:#}\n{}", logs.join("\n"))
    })
}

/// Returns a Pod of a [`template`] with the label `app`, which is its name.
pub fn pod(name: &str, annotations: &Value, container: &Value) -> Value {
    let mut pod = template(&json!({ "app": name }), annotations, container);
    pod["kind"] = json!("Pod");
    pod["apiVersion"] = json!("v1");
    pod["metadata"]["name"] = json!(name);
    pod
}

/// Returns the template of a Pod with a web server on [`PORT`], and these fields of its container.
pub fn template(labels: &Value, annotations: &Value, container: &Value) -> Value {
    let mut web = json!({
        "name": "web", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["/bin/httpd", "-f", "-p", PORT.to_string(), "-h", "/www"],
        "ports": [{ "name": "web", "containerPort": PORT }],
    });
    for (key, value) in container.as_object().into_iter().flatten() {
        web[key] = value.clone();
    }
    json!({
        "metadata": { "labels": labels, "annotations": annotations },
        "spec": {
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [web],
        },
    })
}
