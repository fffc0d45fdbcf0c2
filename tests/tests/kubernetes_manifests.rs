//! The manifests of `deploy/kubernetes`, beside what the programs call, the packages have and the
//! documents say.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use e2e::manifests::{object, repository};
use serde_json::Value;

fn text(path: &str) -> Result<String> {
    std::fs::read_to_string(repository().join(path)).with_context(|| path.to_owned())
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Returns the specification of the pods.
fn pod() -> Result<Value> {
    Ok(object("daemon-set.yaml", "DaemonSet")?["spec"]["template"]["spec"].clone())
}

fn named<'a>(list: &'a Value, name: &str) -> Result<&'a Value> {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|one| one["name"] == name)
        .with_context(|| format!("no {name} in {list}"))
}

/// Returns the mount at `place`.
fn mount<'a>(container: &'a Value, place: &str) -> Result<&'a Value> {
    let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let found = mounts.find(|one| one["mountPath"] == place);
    found.with_context(|| format!("nothing at {place}"))
}

/// Returns the path of the node that a container has at `place`.
fn mounted<'a>(pod: &'a Value, container: &Value, place: &str) -> Result<&'a str> {
    let name = mount(container, place)?["name"]
        .as_str()
        .context("a name")?;
    let volume = named(&pod["volumes"], name)?;
    volume["hostPath"]["path"]
        .as_str()
        .context("a path of the node")
}

#[test]
fn the_kustomization_lists_every_manifest() -> Result<()> {
    let kustomization = object("kustomization.yaml", "Kustomization")?;
    let listed: BTreeSet<String> = texts(&kustomization["resources"])
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(repository().join("deploy/kubernetes"))? {
        found.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    found.remove("kustomization.yaml");
    assert_eq!(listed, found);
    let namespace = kustomization["namespace"].as_str().context("a namespace")?;
    let binding = object("cluster-role.yaml", "ClusterRoleBinding")?;
    // kustomize does not change this one.
    assert_eq!(binding["subjects"][0]["namespace"], namespace);
    let account = object("service-account.yaml", "ServiceAccount")?;
    assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
    assert_eq!(pod()?["serviceAccountName"], account["metadata"]["name"]);
    let tag = kustomization["images"][0]["newTag"]
        .as_str()
        .context("a tag")?;
    assert_eq!(tag, env!("CARGO_PKG_VERSION"));
    Ok(())
}

/// The requests are those that the tests of `viaduct-kube` see: `kube.rs` compares them with
/// `e2e::kube::RIGHTS`.
#[test]
fn the_cluster_role_has_exactly_the_rights_that_viaduct_kube_uses() -> Result<()> {
    let role = object("cluster-role.yaml", "ClusterRole")?;
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().context("rules")? {
        for resource in texts(&rule["resources"]) {
            let group = match resource {
                "networkpolicies" => "networking.k8s.io",
                _ => "",
            };
            assert_eq!(texts(&rule["apiGroups"]), [group], "{resource}");
            let verbs = texts(&rule["verbs"]).into_iter();
            rights.extend(verbs.map(|verb| format!("{verb} {resource}")));
        }
    }
    let used: BTreeSet<String> = e2e::kube::RIGHTS.iter().map(ToString::to_string).collect();
    assert_eq!(rights, used);
    Ok(())
}

#[test]
fn only_the_agent_is_privileged_and_only_viaduct_kube_has_the_token() -> Result<()> {
    let pod = pod()?;
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(pod["hostPID"].is_null());
    let containers = &pod["containers"];
    let (agent, kube) = (
        named(containers, "viaductd")?,
        named(containers, "viaduct-kube")?,
    );
    let install = named(&pod["initContainers"], "install-plugin")?;
    assert_eq!(agent["securityContext"]["privileged"], true);
    for container in [kube, install] {
        let context = &container["securityContext"];
        assert!(context["privileged"].is_null());
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(texts(&context["capabilities"]["drop"]), ["ALL"]);
        // Directories of the node may belong to another user than root.
        assert_eq!(texts(&context["capabilities"]["add"]), ["DAC_OVERRIDE"]);
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    }
    let unit = text("xtask/assets/viaduct-kube.service")?;
    let has = |line: &str| unit.lines().any(|one| one == line);
    assert!(has("CapabilityBoundingSet=CAP_DAC_OVERRIDE"), "{unit}");
    for container in [agent, kube, install] {
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        let mounts = container["volumeMounts"].to_string();
        assert_eq!(
            mounts.contains("serviceaccount"),
            container == kube,
            "{mounts}"
        );
    }
    Ok(())
}

#[test]
fn containers_run_programs_of_the_image_with_the_paths_of_the_node() -> Result<()> {
    let pod = pod()?;
    let image = text("xtask/src/package/oci.rs")?;
    let containers = &pod["containers"];
    let (agent, kube) = (
        named(containers, "viaductd")?,
        named(containers, "viaduct-kube")?,
    );
    let install = named(&pod["initContainers"], "install-plugin")?;
    for container in [agent, kube, install] {
        let program = texts(&container["command"])[0]
            .trim_start_matches('/')
            .to_owned();
        ensure!(
            image.contains(&format!("\"{program}\"")),
            "{program} is not in the image"
        );
        assert_eq!(container["image"], "localhost/viaduct");
    }
    ensure!(
        image.contains("\"opt/cni/bin/viaduct\""),
        "the default of --from"
    );
    ensure!(
        image.contains("localhost/viaduct:"),
        "the name of the image"
    );
    assert_eq!(mounted(&pod, install, "/host/cni/bin")?, "/opt/cni/bin");
    assert_eq!(mounted(&pod, kube, "/etc/cni/net.d")?, "/etc/cni/net.d");
    for container in [agent, kube] {
        assert_eq!(mounted(&pod, container, "/run/viaduct")?, "/run/viaduct");
    }
    assert_eq!(mounted(&pod, agent, "/sys/fs/bpf")?, "/sys/fs/bpf");
    assert_eq!(mounted(&pod, agent, "/host/cgroup")?, "/sys/fs/cgroup");
    // Namespaces that appear later must appear in the container, too.
    for place in ["/run/netns", "/var/run/netns", "/sys/fs/bpf"] {
        let propagation = &mount(agent, place)?["mountPropagation"];
        assert_eq!(propagation, "HostToContainer", "{place}");
    }
    Ok(())
}

#[test]
fn the_manifests_configure_what_the_programs_know() -> Result<()> {
    let pod = pod()?;
    let config = object("config.yaml", "ConfigMap")?;
    let config = config["data"]["viaductd.toml"]
        .as_str()
        .context("a configuration")?;
    let sample = text("xtask/assets/viaductd.toml")?;
    let keys = config.lines().filter_map(|line| line.split_once(" = "));
    for (key, _) in keys.filter(|(key, _)| !key.starts_with('#')) {
        ensure!(
            sample.contains(&format!("# {key} = ")),
            "{key} is no key of the agent"
        );
    }
    let kube = named(&pod["containers"], "viaduct-kube")?;
    let options = text("userspace/kube/src/options.rs")?;
    for variable in kube["env"].as_array().context("variables")? {
        let name = variable["name"].as_str().context("a name")?;
        ensure!(
            options.contains(&format!("env = \"{name}\"")),
            "{name} is no variable"
        );
    }
    // Probes use the ports of the configuration.
    let listen = named(&kube["env"], "VIADUCT_KUBE_METRICS_LISTEN")?["value"].as_str();
    let agent = named(&pod["containers"], "viaductd")?;
    for (container, address) in [(agent, config), (kube, listen.unwrap_or_default())] {
        for probe in ["livenessProbe", "readinessProbe"] {
            let get = &container[probe]["httpGet"];
            let (host, port) = (get["host"].as_str().unwrap_or_default(), &get["port"]);
            ensure!(
                address.contains(&format!("{host}:{port}")),
                "{probe} of {address}"
            );
        }
    }
    Ok(())
}

#[test]
fn agent_and_viaduct_kube_get_the_name_of_the_node() -> Result<()> {
    let pod = pod()?;
    for name in ["viaductd", "viaduct-kube"] {
        let container = named(&pod["containers"], name)?;
        let variable = named(&container["env"], "NODE_NAME")?;
        let field = &variable["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(field, "spec.nodeName", "{name}");
    }
    // The agent reads no variable. kubelet replaces it in the command.
    let command = texts(&named(&pod["containers"], "viaductd")?["command"]);
    ensure!(command.contains(&"--node-name=$(NODE_NAME)"), "{command:?}");
    let sample = text("xtask/assets/viaductd.toml")?;
    ensure!(sample.contains("# node-name = "), "no key of the agent");
    Ok(())
}

#[test]
fn the_guide_lists_every_variable_of_viaduct_kube() -> Result<()> {
    let guide = text("docs/guides/kubernetes.md")?;
    let options = text("userspace/kube/src/options.rs")?;
    let own = ["VIADUCT_KUBE_SOCKET", "VIADUCT_KUBE_CONTEXT"];
    for part in options.split("env = \"").skip(1) {
        let name = part.split('"').next().unwrap_or_default();
        let is_needed = name.starts_with("VIADUCT_KUBE_") && !own.contains(&name);
        ensure!(!is_needed || guide.contains(&format!("`{name}`")), "{name}");
    }
    Ok(())
}
