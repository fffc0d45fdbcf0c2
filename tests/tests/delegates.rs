//! Delegate networks of a pod: options of the network annotation, and rollback after failures.

use anyhow::Result;
use e2e::chain::{PluginSource, folder};
use e2e::{Agent, Call, Config, Machine, Sandbox, Verb, program};
use serde_json::{Value, json};

/// Folders inside of the sandbox: configurations that annotations name, and plugins that are
/// scripts.
const NETS: &str = "/run/nets";
const SCRIPTS: &str = "/run/scripts";

/// A plugin that records its calls and returns a result. It fails where its configuration contains
/// `FAIL-` and the command, such as `FAIL-DEL`.
const SCRIPT: &str = r#"#!/bin/sh
config=$(cat)
echo "$(basename "$0") $CNI_COMMAND $CNI_IFNAME $CNI_ARGS" >> /run/scripts/calls
case "$config" in *"FAIL-$CNI_COMMAND"*) echo '{"code": 123, "msg": "no"}'; exit 1;; esac
if [ "$CNI_COMMAND" = ADD ]; then echo '{"cniVersion": "1.0.0", "ips": []}'; fi
"#;

fn write(node: &Machine, path: &str, text: &str) -> Result<()> {
    node.run(|| {
        let parent = std::path::Path::new(path).parent();
        parent.map(std::fs::create_dir_all).transpose()?;
        Ok(std::fs::write(path, text)?)
    })
}

fn scripts(node: &Machine) -> Result<()> {
    for name in ["a", "b", "c"] {
        let path = format!("{SCRIPTS}/{name}");
        write(node, &path, SCRIPT)?;
        node.call(&format!("chmod 755 {path}"))?;
    }
    Ok(())
}

/// Returns the recorded calls (plugin and command) and clears the record.
fn calls(node: &Machine) -> Result<Vec<String>> {
    let calls = node.call(&format!("cat {SCRIPTS}/calls"))?;
    node.call(&format!("rm {SCRIPTS}/calls"))?;
    let words = calls.lines().map(|line| line.split(' ').take(2));
    Ok(words
        .map(|words| words.collect::<Vec<_>>().join(" "))
        .collect())
}

fn script(name: &str, mark: &str) -> Value {
    json!({ "cniVersion": "1.0.0", "name": format!("net-{name}"), "type": name, "mark": mark })
}

fn call(verb: Verb, pod: &Machine, config: &Config) -> Result<Call> {
    let reference = folder(PluginSource::Reference)?;
    let path = format!(
        "{}:{}:{SCRIPTS}",
        program("cni").display(),
        reference.display()
    );
    Ok(Call::new(verb, pod.name(), &pod.path(), config).set("CNI_PATH", &path))
}

/// A configuration that passes the annotation in `runtimeConfig`, as containerd does.
fn annotated(networks: &str) -> Config {
    let annotations = json!({ "k8s.v1.cni.cncf.io/networks": networks });
    Config::new("1.0.0").with("delegateDir", json!(NETS)).with(
        "runtimeConfig",
        json!({ "io.kubernetes.cri.pod-annotations": annotations }),
    )
}

/// Writes a network with the capabilities `ips`, `mac` and `bandwidth`.
fn extra(node: &Machine) -> Result<()> {
    let network = json!({
        "cniVersion": "1.0.0", "name": "extra", "plugins": [{
            "type": "bridge", "bridge": "br8", "isGateway": true,
            "capabilities": { "ips": true, "mac": true, "bandwidth": true },
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.8.0.0/24" }]] },
        }],
    });
    write(node, "/run/nets/extra.conflist", &network.to_string())
}

fn attachments(agent: &Agent) -> Result<usize> {
    Ok(agent.get("/v1/attachments")?.as_array().map_or(0, Vec::len))
}

/// behaviour C14
#[test]
fn a_network_annotation_sets_interface_address_limit_and_default_route() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    extra(node)?;
    let networks = json!([
        { "name": "extra", "namespace": "default" },
        {
            "name": "extra", "interface": "lan0", "mac": "02:00:00:00:00:09", "ips": ["10.8.0.9/24"],
            "bandwidth": { "ingressRate": 8_000_000, "ingressBurst": 800_000 },
            "default-route": ["10.8.0.1"], "cni-args": { "unknown": true },
        },
    ]);
    let pod = sandbox.machine("pod")?;
    let config = annotated(&networks.to_string());
    let result = call(Verb::Add, &pod, &config)?.run(node)?.result()?;
    let link = pod.call("ip -o link show dev lan0")?;
    assert!(link.contains("02:00:00:00:00:09"), "{link}");
    let net1 = pod.call("ip -4 -o address show dev net1")?;
    assert!(
        net1.contains("10.8.0.2/24"),
        "the first of two attachments to the same network: {net1}"
    );
    let lan0 = pod.call("ip -4 -o address show dev lan0")?;
    assert!(lan0.contains("10.8.0.9/24"), "{lan0}");
    let default = pod.call("ip -4 route show default")?;
    assert!(
        default.starts_with("default via 10.8.0.1 dev lan0"),
        "{default}"
    );
    let default = pod.call("ip -6 route show default")?;
    assert!(
        default.contains("dev eth0"),
        "the IPv6 default route stays on eth0: {default}"
    );
    let routes = result["routes"].to_string();
    assert!(
        !routes.contains("0.0.0.0/0") && routes.contains("::/0"),
        "{routes}"
    );
    let shown = agent.get("/v1/attachments/pod")?;
    let all = shown.as_array().into_iter().flatten();
    let limited: Vec<_> = all
        .filter(|it| !it["bandwidth"]["ingress"].is_null())
        .collect();
    assert_eq!((limited.len(), &limited[0]["ifname"]), (1, &json!("lan0")));

    let mut checked = config.clone();
    checked.0["prevResult"] = result;
    call(Verb::Check, &pod, &checked)?.run(node)?.success()?;
    let status = node.call_json(&format!(
        "{} cni show pod",
        program("bin/viaductctl").display()
    ))?;
    assert_eq!(status[0]["interface"], "lan0");
    assert_eq!(
        (&status[0]["default"], &status[1]["default"]),
        (&json!(true), &json!(false))
    );
    call(Verb::Del, &pod, &config)?.run(node)?.success()?;
    assert_eq!(attachments(&agent)?, 0);
    Ok(())
}

/// behaviour C14
#[test]
fn an_interface_name_in_use_is_refused_before_any_delegate_runs() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    scripts(node)?;
    let pod = sandbox.machine("pod")?;
    pod.call("ip link add net2 type veth peer name other")?;
    // The scripts would not detect the existing interface themselves.
    let config = Config::new("1.0.0").with("delegates", json!([script("a", ""), script("b", "")]));
    let error = call(Verb::Add, &pod, &config)?.run(node)?.error()?;
    assert!(
        error.msg.contains("net-b: interface net2 already exists"),
        "{error:?}"
    );
    assert_eq!(
        (
            attachments(&agent)?,
            pod.call("ls /run/scripts")?.contains("calls")
        ),
        (0, false)
    );
    pod.call("ip link delete net2")?;
    call(Verb::Add, &pod, &config)?.run(node)?.success()?;
    assert_eq!(calls(node)?, ["a ADD", "b ADD"]);
    call(Verb::Del, &pod, &config)?.run(node)?.success()
}

/// behaviours C14, C15
#[test]
fn delegates_are_deleted_in_reverse_order_and_a_del_continues_after_errors() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    scripts(node)?;
    let pod = sandbox.machine("pod")?;
    let with = |marks: [&str; 3]| {
        let delegates = ["a", "b", "c"].into_iter().zip(marks);
        let scripts = delegates.map(|(name, mark)| script(name, mark));
        Config::new("1.0.0").with("delegates", scripts.collect())
    };
    let failing = with(["", "", "FAIL-ADD"]);
    let error = call(Verb::Add, &pod, &failing)?.run(node)?.error()?;
    assert_eq!(error.code, 123);
    assert_eq!(
        calls(node)?,
        ["a ADD", "b ADD", "c ADD", "c DEL", "b DEL", "a DEL"]
    );
    assert_eq!(attachments(&agent)?, 0);
    assert!(!pod.call("ip -o link")?.contains("eth0"));

    call(Verb::Add, &pod, &with(["", "FAIL-DEL", ""]))?
        .set("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web")
        .run(node)?
        .success()?;
    calls(node)?;
    // DEL without delegates in the configuration, without a namespace and without CNI_ARGS.
    let del = || -> Result<_> {
        call(Verb::Del, &pod, &Config::new("1.0.0"))?
            .set("CNI_NETNS", "")
            .run(node)
    };
    let error = del()?.error()?;
    assert!(error.msg.contains("plugin b: no"), "{error:?}");
    let shown = node.call(&format!("cat {SCRIPTS}/calls"))?;
    assert_eq!(
        shown.matches("K8S_POD_NAME=web").count(),
        3,
        "each DEL has the CNI_ARGS of the ADD: {shown}"
    );
    assert_eq!(calls(node)?, ["c DEL", "b DEL", "a DEL"]);
    assert_eq!(
        attachments(&agent)?,
        0,
        "the default network is deleted nevertheless"
    );
    // The failed DEL stays on record, and the next DEL executes it again.
    del()?.error()?;
    assert!(calls(node)?.contains(&"b DEL".to_owned()));
    node.call_words(&[
        "sh",
        "-c",
        "sed -i s/FAIL-DEL/fine/ /run/viaduct/delegates/*",
    ])?;
    del()?.success()?;
    calls(node)?;
    del()?.success()?;
    assert!(!node.call(&format!("ls {SCRIPTS}"))?.contains("calls"));
    Ok(())
}
