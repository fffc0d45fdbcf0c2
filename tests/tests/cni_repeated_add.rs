//! `viaductctl cni add` for an attachment that exists: the remembered result, or an error that
//! changes nothing.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{PluginSource, folder};
use e2e::{Machine, Sandbox, program};
use serde_json::{Value, json};

/// Folders of configurations and of cached results, inside of the sandbox.
const NETS: &str = "/run/nets";
const RESULTS: &str = "/run/results";

fn write(node: &Machine, path: &str, value: &Value) -> Result<()> {
    let text = value.to_string();
    node.run(|| {
        let parent = Path::new(path).parent().context("a folder")?;
        std::fs::create_dir_all(parent)?;
        Ok(std::fs::write(path, text)?)
    })
}

fn ctl(node: &Machine, results: &str, rest: &str) -> Result<String> {
    let reference = folder(PluginSource::Reference)?;
    let (verb, rest) = rest.split_once(' ').context("a verb")?;
    node.call(&format!(
        "{} cni {verb} --configurations {NETS} --results {results} --path {}:{} {rest}",
        program("bin/viaductctl").display(),
        program("cni").display(),
        reference.display()
    ))
}

fn network() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "viaduct", "plugins": [
        { "type": "viaduct", "capabilities": { "portMappings": true, "bandwidth": true } },
    ] })
}

fn is_connected(pod: &Machine) -> bool {
    pod.call("ping -c 1 -W 2 10.244.1.1").is_ok()
}

#[test]
fn a_repeated_cni_add_returns_the_remembered_result_and_detaches_nothing() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    write(node, "/run/nets/05.conflist", &network())?;
    let pod = sandbox.machine("pod")?;
    let add = format!("add viaduct {}", pod.path());
    let first: Value = serde_json::from_str(&ctl(node, RESULTS, &add)?)?;
    let again: Value = serde_json::from_str(&ctl(node, RESULTS, &add)?)?;
    ensure!(first == again, "{first} {again}");
    ensure!(is_connected(&pod));
    for (results, other, words) in [
        (RESULTS, "--publish 8080:80", "capability arguments"),
        (RESULTS, "--arg K8S_POD_NAME=x", "CNI_ARGS"),
        // Without the remembered result, the plugin refuses, and the attachment stays.
        ("/run/other", "", "is attached already"),
        ("/run/other", "--container-id other", "already exists"),
    ] {
        let refused = ctl(node, results, &format!("{add} {other}")).unwrap_err();
        ensure!(refused.to_string().contains(words), "{other}: {refused}");
        ensure!(is_connected(&pod), "after {other}");
    }
    let second = sandbox.machine("second")?;
    let id = first_id(&agent.get("/v1/attachments")?)?;
    let elsewhere = format!("add viaduct {} --container-id {id}", second.path());
    for results in [RESULTS, "/run/other"] {
        ctl(node, results, &elsewhere).unwrap_err();
        ensure!(is_connected(&pod), "after an ADD in another namespace");
    }
    ctl(node, RESULTS, &format!("del viaduct {}", pod.path()))?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    Ok(())
}

fn first_id(attachments: &Value) -> Result<String> {
    let id = attachments[0]["containerID"].as_str();
    Ok(id.context("an attachment")?.to_owned())
}

#[test]
fn a_cni_add_into_a_new_namespace_at_the_same_path_works() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    write(node, "/run/nets/05.conflist", &network())?;
    let pod = sandbox.machine("pod")?;
    let add = format!("add viaduct {}", pod.path());
    ctl(node, RESULTS, &add)?;
    pod.unbind()?;
    drop(pod);
    let pod = sandbox.machine("pod")?;
    ctl(node, RESULTS, &add)?;
    ensure!(is_connected(&pod));
    let attached = agent.get("/v1/attachments")?;
    assert_eq!(attached.as_array().map(Vec::len), Some(1), "{attached}");
    Ok(())
}

/// The reference plugins do not clean up after a failure of their own.
#[test]
fn a_failed_cni_add_of_reference_plugins_leaves_nothing_and_keeps_others() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let list = json!({ "cniVersion": "1.0.0", "name": "lab", "plugins": [
        { "type": "ptp", "ipMasq": false, "ipam": { "type": "host-local", "dataDir": "/run/leases",
          "subnet": "10.9.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }] } },
        { "type": "missing" },
    ] });
    write(node, "/run/nets/lab.conflist", &list)?;
    let pod = sandbox.machine("pod")?;
    ctl(node, RESULTS, &format!("add lab {}", pod.path())).unwrap_err();
    ensure!(pod.call("ip link show eth0").is_err(), "a link is left");
    pod.call("ip link add eth0 type veth peer name peer0")?;
    ctl(node, RESULTS, &format!("add lab {}", pod.path())).unwrap_err();
    pod.call("ip link show eth0")?;
    Ok(())
}

#[test]
fn runtime_arguments_of_a_cni_add_are_honoured_or_refused() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let undeclared =
        json!({ "cniVersion": "1.0.0", "name": "bare", "plugins": [{ "type": "viaduct" }] });
    write(node, "/run/nets/05.conflist", &network())?;
    write(node, "/run/nets/10.conflist", &undeclared)?;
    let pod = sandbox.machine("pod")?;
    let path = pod.path();
    for (option, capability) in [
        ("--egress-rate 1000000", "bandwidth"),
        ("--publish 8080:80", "portMappings"),
        ("--capabilities {\"ips\":[]}", "ips"),
    ] {
        let refused = ctl(node, RESULTS, &format!("add bare {path} {option}")).unwrap_err();
        let words = format!("declares the capability {capability}");
        ensure!(refused.to_string().contains(&words), "{refused}");
    }
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    let rates = "--egress-rate 1000000 --ingress-rate 2000000";
    ctl(node, RESULTS, &format!("add viaduct {path} {rates}"))?;
    let shown = agent.get("/v1/attachments")?;
    assert_eq!(
        shown[0]["bandwidth"]["egress"]["rate"], 1_000_000,
        "{shown}"
    );
    assert_eq!(
        shown[0]["bandwidth"]["ingress"]["rate"], 2_000_000,
        "{shown}"
    );
    Ok(())
}
