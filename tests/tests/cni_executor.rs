//! Execution of plugin lists: by `viaductctl cni`, and by the plugin for its delegates.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use e2e::chain::{PluginSource, folder};
use e2e::residue::await_no_residue;
use e2e::{Call, Config, Echo, Machine, NODE, Residue, Sandbox, Verb, program, tcp_source};
use serde_json::{Value, json};

/// Folders of configurations and of cached results, inside of the sandbox.
const NETS: &str = "/run/nets";
const RESULTS: &str = "/run/results";

fn write(node: &Machine, path: &str, value: &Value) -> Result<()> {
    let text = value.to_string();
    node.run(|| {
        let parent = std::path::Path::new(path).parent().context("a folder")?;
        std::fs::create_dir_all(parent)?;
        Ok(std::fs::write(path, text)?)
    })
}

fn bridge(name: &str, subnet: &str) -> Value {
    json!({
        "type": "bridge", "bridge": name, "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": subnet }]] },
    })
}

/// Returns a `CNI_PATH` with Viaduct's plugins before the reference's.
fn path() -> Result<String> {
    let reference = folder(PluginSource::Reference)?;
    Ok(format!(
        "{}:{}",
        program("cni").display(),
        reference.display()
    ))
}

fn ctl(node: &Machine, verb: &str, rest: &str) -> Result<String> {
    let ctl = program("bin/viaductctl");
    let flags = format!(
        "--configurations {NETS} --results {RESULTS} --path {}",
        path()?
    );
    node.call(&format!("{} cni {verb} {flags} {rest}", ctl.display()))
}

#[test]
fn viaductctl_cni_adds_checks_and_deletes_with_a_plugin_list() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let mut routed = bridge("br7", "10.7.0.0/24");
    routed["isDefaultGateway"] = json!(true);
    let list = json!({ "cniVersion": "1.0.0", "name": "lab", "plugins": [
        routed,
        { "type": "portmap", "capabilities": { "portMappings": true } },
    ] });
    write(node, "/run/nets/10-lab.conflist", &list)?;
    let pod = sandbox.machine("pod")?;
    let target = format!("lab {} --publish 8080:80 --arg IgnoreUnknown=1", pod.path());
    let result: Value = serde_json::from_str(&ctl(node, "add", &target)?)?;
    assert_eq!(result["ips"][0]["address"], "10.7.0.2/24");
    let _echo = Echo::start(&pod, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    ctl(node, "check", &target)?;
    ctl(node, "status", "lab")?;
    pod.call("ip link set eth0 down")?;
    let refused = ctl(node, "check", &target).unwrap_err().to_string();
    assert!(refused.contains("eth0"), "{refused}");
    ctl(node, "del", &target)?;
    ctl(node, "del", &target)?;
    let unknown = ctl(node, "add", &format!("unknown {}", pod.path())).unwrap_err();
    assert!(unknown.to_string().contains("no network"), "{unknown}");
    clean(node, &before)
}

/// behaviour S12
#[test]
fn viaductctl_cni_gc_removes_attachments_of_deleted_namespaces() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let list =
        json!({ "cniVersion": "1.1.0", "name": "lab", "plugins": [bridge("br7", "10.7.0.0/24")] });
    write(node, "/run/nets/lab.conflist", &list)?;
    let (live, gone) = (sandbox.machine("live")?, sandbox.machine("gone")?);
    for pod in [&live, &gone] {
        ctl(
            node,
            "add",
            &format!("lab {} --container-id {}", pod.path(), pod.name()),
        )?;
    }
    gone.unbind()?;
    node.call(&format!("rm -f {}", gone.path()))?;
    ctl(node, "gc", "lab")?;
    let left = agent.get("/v1/attachments")?;
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!(left[0]["containerID"], "live");
    Ok(())
}

fn with_delegates(delegates: &Value) -> Config {
    Config::new("1.0.0").with("delegates", delegates.clone())
}

fn call(verb: Verb, pod: &Machine, config: &Config) -> Result<Call> {
    Ok(Call::new(verb, pod.name(), &pod.path(), config).set("CNI_PATH", &path()?))
}

fn delegate(name: &str, bridge_name: &str, subnet: &str) -> Value {
    let mut config = bridge(bridge_name, subnet);
    config["cniVersion"] = json!("1.0.0");
    config["name"] = json!(name);
    config
}

fn clean(node: &Machine, before: &Residue) -> Result<()> {
    for name in ["br7", "br8"] {
        let _ = node.call(&format!("ip link delete {name}"));
    }
    await_no_residue(before, node)
}

/// behaviours C14, C15
#[test]
fn delegates_are_added_after_the_default_network_and_deleted_without_configuration() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    write(
        node,
        "/run/nets/extra.conf",
        &delegate("extra", "br8", "10.8.0.0/24"),
    )?;
    let config = with_delegates(&json!([delegate("second", "br7", "10.7.0.0/24")]))
        .with("delegateDir", json!(NETS))
        .with(
            "runtimeConfig",
            json!({ "io.kubernetes.cri.pod-annotations": { "k8s.v1.cni.cncf.io/networks": "default/extra@lan0" } }),
        );
    let pod = sandbox.machine("pod")?;
    let result = call(Verb::Add, &pod, &config)?.run(node)?.result()?;
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    for (name, address) in [
        ("eth0", "10.244.1."),
        ("net1", "10.7.0.2"),
        ("lan0", "10.8.0.2"),
    ] {
        let shown = pod.call(&format!("ip -4 -o address show dev {name}"))?;
        assert!(shown.contains(address), "{shown}");
    }
    let mut checked = config.clone();
    checked.0["prevResult"] = result;
    call(Verb::Check, &pod, &checked)?.run(node)?.success()?;
    let status = program("bin/viaductctl");
    let status = node.call_json(&format!("{} cni show pod", status.display()))?;
    assert_eq!(status[0]["interface"], "lan0");
    assert_eq!(status[1]["ips"], json!(["10.7.0.2"]));

    // DEL without delegates in the configuration and without a namespace.
    pod.unbind()?;
    call(Verb::Del, &pod, &Config::new("1.0.0"))?
        .set("CNI_NETNS", "")
        .run(node)?
        .success()?;
    assert_eq!(
        node.call("ls /var/lib/cni/results /run/viaduct/delegates")?
            .matches("pod")
            .count(),
        0
    );
    clean(node, &before)
}

/// behaviour C15
#[test]
fn a_failing_delegate_undoes_the_whole_add() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let good = delegate("second", "br7", "10.7.0.0/24");
    let broken = json!({ "cniVersion": "1.0.0", "name": "third", "type": "no-such-plugin" });
    let pod = sandbox.machine("pod")?;
    let config = with_delegates(&json!([good, broken]));
    let error = call(Verb::Add, &pod, &config)?.run(node)?.error()?;
    assert!(error.msg.contains("third (net2)"), "{error:?}");
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    assert!(!pod.call("ip -o link")?.contains("net1"));
    call(Verb::Del, &pod, &config)?.run(node)?.success()?;
    clean(node, &before)
}

/// behaviour C14: under Multus, the same network twice in one container, without a list.
#[test]
fn viaduct_as_a_delegate_attaches_one_container_twice_to_a_network() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let pod = sandbox.machine("pod")?;
    let mut config = delegate("extra", "br7", "10.7.0.0/24");
    config["type"] = json!("viaduct");
    config["args"] = json!({ "cni": { "mac": "02:00:00:00:00:09" } });
    let config = Config(config);
    let on = |verb, ifname: &str| -> Result<_> {
        let call = call(verb, &pod, &config)?.set("CNI_IFNAME", ifname);
        call.set(
            "CNI_ARGS",
            "IgnoreUnknown=true;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n",
        )
        .run(node)
    };
    let first = on(Verb::Add, "net1")?.result()?;
    let second = on(Verb::Add, "net2")?.result()?;
    assert_eq!(first["ips"][0]["address"], "10.7.0.2/24");
    assert_eq!(second["ips"][0]["address"], "10.7.0.3/24");
    assert_eq!(second["interfaces"][2]["mac"], "02:00:00:00:00:09");
    on(Verb::Del, "net1")?.success()?;
    let left = agent.get("/v1/attachments")?;
    assert_eq!(left[0]["ifname"], "net2", "{left}");
    on(Verb::Del, "net2")?.success()?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    Ok(())
}
