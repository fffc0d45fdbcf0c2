//! What `viaduct-kube` changes besides pod CIDRs and peers: the configuration list, the condition
//! of its Node, limits of pods, and the plugin's file.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use e2e::api_server::{ApiServer, node};
use e2e::kube::{API, CONFLIST, Kube, OWN, RIGHTS, read, start, write};
use e2e::{Agent, Config, Echo, Machine, Pod, Sandbox, Verb, connects, program, until};
use serde_json::{Value, json};

const CONDITION: &str = "NetworkUnavailable";

fn own_node() -> Value {
    node(OWN, &["10.85.1.0/24".to_owned()], &["192.0.2.1".to_owned()])
}

fn one_node() -> ApiServer {
    let server = ApiServer::new();
    server.put_node(own_node());
    server
}

fn await_conflist(node: &Machine, is_there: bool) -> Result<()> {
    until(
        &format!("the configuration list is there: {is_there}"),
        || Ok((read(node, CONFLIST).is_some() == is_there).then_some(())),
    )
}

#[test]
fn the_configuration_list_appears_last_and_goes_with_the_agent() -> Result<()> {
    let server = ApiServer::new();
    let flag = format!("--conflist={CONFLIST}");
    let flags = [&flag, "--conflist-grace=1", "--remove-conflist-on-exit"];
    let (sandbox, mut agent, kube) = start(&server, &flags)?;
    let node = &sandbox.node;
    kube.await_log("does not contain this node")?;
    ensure!(
        read(node, CONFLIST).is_none(),
        "before the first complete list"
    );
    server.put_node(e2e::api_server::node(OWN, &[], &["192.0.2.1".to_owned()]));
    kube.await_log("peers sent")?;
    ensure!(read(node, CONFLIST).is_none(), "before the pod CIDR");
    server.put_node(own_node());
    await_conflist(node, true)?;
    kube.await_metric("conflist_written", "1")?;
    let list: Value = serde_json::from_str(&read(node, CONFLIST).unwrap_or_default())?;
    assert_eq!(list["plugins"][0]["type"], "viaduct");
    // The list is one that the command line executes.
    node.call("mkdir -p /run/netns")?;
    let folder = node.call("ls /run/net.d")?;
    assert_eq!(folder.trim(), "05-viaduct.conflist", "no draft");

    agent.kill()?;
    await_conflist(node, false)?;
    agent.restart()?;
    await_conflist(node, true)?;
    // A new instance leaves it in place.
    ensure!(kube.terminate()?.success());
    ensure!(read(node, CONFLIST).is_none(), "as the flag says");
    Ok(())
}

#[test]
fn a_configuration_list_of_other_software_stays() -> Result<()> {
    let server = one_node();
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let foreign = r#"{"name":"theirs","plugins":[{"type":"bridge"}]}"#;
    node.call("mkdir /run/net.d")?;
    write(node, CONFLIST, foreign)?;
    let mut agent = Agent::start_with(node, Vec::new())?;
    let flag = format!("--conflist={CONFLIST}");
    let kube = Kube::start(&server, node, OWN, &[&flag, "--conflist-grace=0"])?;
    kube.await_log("was not written by viaduct-kube")?;
    kube.await_ready()?;
    agent.kill()?;
    kube.await_log("the agent does not serve")?;
    assert_eq!(read(node, CONFLIST).as_deref(), Some(foreign));
    // The operator removes it.
    node.call(&format!("rm {CONFLIST}"))?;
    agent.restart()?;
    await_conflist(node, true)
}

fn condition(server: &ApiServer) -> Value {
    let node = server.node(OWN).unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().cloned();
    let mut all = conditions.unwrap_or_default().into_iter();
    all.find(|one| one["type"] == CONDITION).unwrap_or_default()
}

fn with_condition() -> Value {
    let mut node = own_node();
    node["status"]["conditions"] = json!([
        { "type": "Ready", "status": "True" },
        { "type": CONDITION, "status": "True", "reason": "NoRouteCreated" },
    ]);
    node
}

#[test]
fn the_condition_of_the_own_node_is_cleared_and_a_missing_right_prevents_nothing() -> Result<()> {
    let server = ApiServer::new();
    server.put_node(with_condition());
    let (_sandbox, _agent, kube) = start(&server, &[])?;
    until("the condition is False", || {
        Ok((condition(&server)["status"] == "False").then_some(()))
    })?;
    for request in server.requests() {
        // Every account may read the version.
        ensure!(
            request == "get /version" || RIGHTS.contains(&request.as_str()),
            "{request}"
        );
    }
    let ready = server.node(OWN).unwrap_or_default()["status"]["conditions"][0].clone();
    assert_eq!(ready["type"], "Ready", "other conditions stay");
    drop(kube);

    let server = ApiServer::new();
    server.put_node(with_condition());
    server.faults(|faults| faults.forbids_patches = true);
    let (_sandbox, _agent, kube) = start(&server, &[])?;
    kube.await_log("cannot change the condition")?;
    kube.await_ready()?;
    server.put_node(node(
        "node-2",
        &["10.85.2.0/24".to_owned()],
        &["192.0.2.2".to_owned()],
    ));
    kube.await_metric("peers", "1")?;
    assert_eq!(server.count("patch nodes/status"), 1, "not again at once");
    drop(kube);

    // A Node without the condition does not get one.
    let server = one_node();
    let (_sandbox, _agent, kube) = start(&server, &[])?;
    kube.await_ready()?;
    assert_eq!(server.count("patch nodes/status"), 0);
    Ok(())
}

fn pod(annotations: &Value) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "namespace": "default", "name": "web", "annotations": annotations },
        "spec": { "nodeName": OWN },
    })
}

/// Attaches the pod as a runtime of Kubernetes does.
fn attach(sandbox: &Sandbox) -> Result<Pod> {
    let pod = sandbox.pod("pod")?;
    let args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=x";
    pod.prepare(Verb::Add, &Config::new("1.0.0"))
        .set("CNI_ARGS", args)
        .run(&sandbox.node)?
        .success()?;
    Ok(pod)
}

fn await_rates(agent: &Agent, pod: &Pod, expected: &[Value; 2]) -> Result<()> {
    until(&format!("limits {expected:?}"), || {
        let limits = agent.limits(pod)?;
        let rates = ["ingress", "egress"].map(|one| limits[one]["rate"].clone());
        Ok((rates == *expected).then_some(()))
    })
}

#[test]
fn bandwidth_annotations_of_running_pods_are_followed() -> Result<()> {
    let server = one_node();
    let annotation = |rate: &str| json!({ "kubernetes.io/ingress-bandwidth": rate });
    // It changes between the pod's creation and its ADD, whose runtime passes none here.
    server.put_pod(pod(&annotation("20M")));
    let (sandbox, agent, kube) = start(&server, &[])?;
    kube.await_ready()?;
    let attached = attach(&sandbox)?;
    await_rates(&agent, &attached, &[json!(20_000_000), Value::Null])?;
    server.put_pod(pod(&json!({
        "kubernetes.io/ingress-bandwidth": "5M", "kubernetes.io/egress-bandwidth": "1M",
    })));
    await_rates(&agent, &attached, &[json!(5_000_000), json!(1_000_000)])?;
    server.put_pod(pod(&annotation("much")));
    kube.await_log("bandwidth annotation ignored")?;
    await_rates(&agent, &attached, &[json!(5_000_000), Value::Null])?;
    server.put_pod(pod(&json!({})));
    await_rates(&agent, &attached, &[Value::Null, Value::Null])?;
    // Only the node's own pods are requested.
    let query = server.last_query("watch pods");
    assert!(query.contains("spec.nodeName%3Dnode-1"), "{query}");
    Ok(())
}

/// Attaches a pod with a name, a server in it, and this label.
fn labelled(sandbox: &Sandbox, server: &ApiServer, name: &str, label: &str) -> Result<(Pod, Echo)> {
    let mut pod = sandbox.pod(name)?;
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
    let add = pod
        .prepare(Verb::Add, &Config::new("1.1.0"))
        .set("CNI_ARGS", &args);
    let result = add.run(&sandbox.node)?.result()?;
    pod.addresses = e2e::addresses(&result)?;
    let ips: Vec<Value> = (pod.addresses.iter().map(|own| json!({ "ip": own }))).collect();
    server.put_pod(json!({
        "metadata": { "namespace": "shop", "name": name, "labels": { "app": label } },
        "spec": { "nodeName": OWN },
        "status": { "podIPs": ips },
    }));
    let echo = Echo::start(&pod.machine, 80)?;
    Ok((pod, echo))
}

fn await_open(from: &Pod, to: &Pod, expected: bool) -> Result<()> {
    for address in &to.addresses {
        let to = SocketAddr::new(*address, 80);
        until(
            &format!("{to} is open to {}: {expected}", from.id()),
            || Ok((connects(&from.machine, to)? == expected).then_some(())),
        )?;
    }
    Ok(())
}

#[test]
fn network_policies_of_the_cluster_apply_to_the_pods_of_the_node() -> Result<()> {
    let server = one_node();
    server.put_namespace(json!({ "metadata": { "name": "shop" } }));
    let (sandbox, _agent, kube) = start(&server, &[])?;
    kube.await_ready()?;
    let (web, _web) = labelled(&sandbox, &server, "web", "web")?;
    let (db, _db) = labelled(&sandbox, &server, "db", "db")?;
    let (other, _other) = labelled(&sandbox, &server, "other", "other")?;
    await_open(&web, &db, true)?;
    let policy = |label: &str| {
        json!({
            "metadata": { "namespace": "shop", "name": "db" },
            "spec": {
                "podSelector": { "matchLabels": { "app": "db" } },
                "ingress": [{
                    "from": [{ "podSelector": { "matchLabels": { "app": label } } }],
                    "ports": [{ "protocol": "TCP", "port": 80 }],
                }],
            },
        })
    };
    server.put_policy(policy("web"));
    await_open(&other, &db, false)?;
    await_open(&web, &db, true)?;
    await_open(&db, &other, true)?;
    // Another label is another client.
    server.put_policy(policy("other"));
    await_open(&web, &db, false)?;
    await_open(&other, &db, true)?;
    server.delete_policy("shop/db");
    await_open(&web, &db, true)
}

#[test]
fn options_that_cannot_work_end_the_program_with_the_reason() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let exec = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": { "server": format!("http://{API}") } }],
        "users": [{ "name": "a", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "touch",
            "args": ["/run/executed"], "interactiveMode": "Never" } } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    write(node, "/run/exec", &exec.to_string())?;
    let kube = program("bin/viaduct-kube").display().to_string();
    for (flags, reason) in [
        ("--kubeconfig=/run/exec", "--node-name"),
        ("--node-name=a", "no kubeconfig is given"),
        ("--node-name=a --kubeconfig=/run/missing", "/run/missing"),
        (
            "--node-name=a --kubeconfig=/run/exec --context=b",
            "/run/exec",
        ),
        ("--node-name=a --kubeconfig=/run/exec", "executes a program"),
        (
            "--node-name=a --kubeconfig=/run/exec --log-level=loud=x",
            "--log-level",
        ),
        (
            "--node-name=a --kubeconfig=/run/exec --metrics-listen=192.0.2.77:1",
            "cannot listen",
        ),
        (
            "install-plugin --to=/run/bin --from=/run/missing",
            "cannot install /run/missing",
        ),
    ] {
        let line = format!("env --unset=NODE_NAME --unset=KUBECONFIG {kube} {flags}");
        let words: Vec<&str> = line.split(' ').collect();
        let output = node.output(&words)?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            !output.status.success() && text.contains(reason),
            "{flags}: {text}"
        );
    }
    ensure!(
        read(node, "/run/executed").is_none(),
        "a program was executed"
    );
    Ok(())
}

#[test]
fn the_init_container_installs_a_plugin_that_runs() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let (kube, plugin) = (program("bin/viaduct-kube"), program("cni/viaduct"));
    let install = format!(
        "setpriv --bounding-set=-all {} install-plugin --from={} --to=/run/bin --missing=loopback",
        kube.display(),
        plugin.display()
    );
    node.call(&install)?;
    node.call(&install)?;
    assert_eq!(node.call("ls /run/bin")?, "loopback\nviaduct\n");
    for name in ["viaduct", "loopback"] {
        let about = node.output(&[&format!("/run/bin/{name}")])?;
        let about = String::from_utf8_lossy(&[about.stdout, about.stderr].concat()).into_owned();
        ensure!(about.contains("CNI"), "{name}: {about}");
    }
    Ok(())
}
