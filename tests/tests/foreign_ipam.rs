//! Foreign IPAM plugins: executed and applied as by the bridge plugin, and their addresses released
//! after every failure. Networks without IPAM.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use e2e::chain::{PluginSource, folder};
use e2e::residue::await_no_residue;
use e2e::{
    Answer, Call, Config, Echo, Machine, NODE, Process, Residue, Sandbox, Verb, ping, tcp_source,
    until,
};
use serde_json::{Value, json};

/// Folder of the test's plugins and of their call records, inside of the sandbox.
const PLUGINS: &str = "/run/plugins";

/// An IPAM plugin that records its calls and prints the file `answer`; it fails with the content of
/// `fail.COMMAND` if that file exists.
const IPAM: &str = r#"#!/bin/sh
here=$(dirname "$0")
cat > "$here/config.$CNI_COMMAND"
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS" >> "$here/calls"
if [ -e "$here/fail.$CNI_COMMAND" ]; then cat "$here/fail.$CNI_COMMAND"; exit 1; fi
if [ "$CNI_COMMAND" = ADD ]; then cat "$here/answer"; fi
"#;

fn write(node: &Machine, name: &str, text: &str) -> Result<()> {
    let path = Path::new(PLUGINS).join(name);
    node.run(|| {
        fs::create_dir_all(PLUGINS)?;
        fs::write(&path, text)?;
        Ok(fs::set_permissions(
            &path,
            fs::Permissions::from_mode(0o755),
        )?)
    })
}

/// Returns the plugin's recorded commands and clears the record.
fn calls(node: &Machine) -> Vec<String> {
    let path = Path::new(PLUGINS).join("calls");
    let shown = node.run(|| fs::read_to_string(&path)).unwrap_or_default();
    let _ = node.run(|| fs::remove_file(&path));
    shown
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

fn config(ipam: &Value) -> Config {
    Config(json!({
        "cniVersion": "1.0.0", "name": "lent", "type": "viaduct", "bridge": "br7",
        "isGateway": true, "isDefaultGateway": true, "ipam": ipam,
    }))
}

fn call(verb: Verb, pod: &Machine, config: &Config) -> Result<Call> {
    let reference = folder(PluginSource::Reference)?;
    let path = format!("{PLUGINS}:{}", reference.display());
    Ok(Call::new(verb, pod.name(), &pod.path(), config).set("CNI_PATH", &path))
}

fn run(verb: Verb, node: &Machine, pod: &Machine, config: &Config) -> Result<Answer> {
    call(verb, pod, config)?.run(node)
}

/// Checks that the network's state is gone after its last pod, except for its bridge.
fn clean(node: &Machine, before: &Residue) -> Result<()> {
    let _ = node.call("ip link delete br7");
    await_no_residue(before, node)
}

const DUAL: &str = r#"{"cniVersion": "1.0.0",
    "ips": [{"address": "10.7.0.9/24"}, {"address": "fd07::9/64", "gateway": "fd07::1"}],
    "routes": [{"dst": "10.200.0.0/16", "gw": "10.7.0.77"}], "dns": {"nameservers": ["10.7.0.53"]}}"#;

/// behaviours S14, R3, R6: the plugin gets the runtime's environment and the whole configuration.
#[test]
fn addresses_of_a_foreign_ipam_plugin_are_applied_and_released() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    write(node, "lender", IPAM)?;
    write(node, "answer", DUAL)?;
    let before = Residue::of(node, &[])?;
    let pod = sandbox.machine("pod")?;
    let port = json!({ "hostPort": 8070, "containerPort": 80, "protocol": "tcp" });
    let config = config(&json!({ "type": "lender", "secret": 7 }))
        .with("runtimeConfig", json!({ "portMappings": [port] }));
    let result = run(Verb::Add, node, &pod, &config)?.result()?;
    let given = json!([
        { "interface": 2, "address": "10.7.0.9/24", "gateway": "10.7.0.1" },
        { "interface": 2, "address": "fd07::9/64", "gateway": "fd07::1" },
    ]);
    assert_eq!(result["ips"], given);
    assert_eq!(result["dns"]["nameservers"][0], "10.7.0.53");
    for gateway in ["10.7.0.1", "fd07::1"] {
        ping(&pod, gateway.parse()?, 1)?;
    }
    let routes = pod.call("ip route show")?;
    for route in ["default via 10.7.0.1", "10.200.0.0/16 via 10.7.0.77"] {
        assert!(routes.contains(route), "{routes}");
    }
    let _echo = Echo::start(&pod, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8070))?;
    let handed = node.call(&format!("cat {PLUGINS}/config.ADD"))?;
    assert_eq!(serde_json::from_str::<Value>(&handed)?, config.0);

    agent.kill()?;
    agent.restart()?;
    let mut checked = config.clone();
    checked.0["prevResult"] = result;
    run(Verb::Check, node, &pod, &checked)?.success()?;
    assert_eq!(calls(node), ["ADD", "CHECK"]);
    pod.unbind()?;
    let gone = call(Verb::Del, &pod, &config)?.set("CNI_NETNS", "");
    gone.run(node)?.success()?;
    gone.run(node)?.success()?;
    assert_eq!(calls(node), ["DEL", "DEL"]);
    clean(node, &before)
}

/// behaviours S10, S14: the plugin's own error text, its DEL, and no residue; a retry works.
#[test]
fn an_ipam_plugins_error_is_returned_and_its_del_runs() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    write(node, "lender", IPAM)?;
    let before = Residue::of(node, &[])?;
    let pod = sandbox.machine("pod")?;
    let config = config(&json!({ "type": "lender" }));
    write(
        node,
        "fail.ADD",
        r#"{"code": 111, "msg": "nothing to lend", "details": "today"}"#,
    )?;
    write(node, "answer", DUAL)?;
    let failed = run(Verb::Add, node, &pod, &config)?.error()?;
    assert_eq!((failed.code, failed.details.as_str()), (111, "today"));
    assert!(failed.msg.contains("nothing to lend"), "{failed:?}");
    assert_eq!(calls(node), ["ADD", "DEL"]);
    node.call(&format!("rm {PLUGINS}/fail.ADD"))?;

    let no_address = ["{}", r#"{"cniVersion": "1.0.0", "ips": []}"#, "words", ""];
    for answer in no_address {
        write(node, "answer", answer)?;
        let failed = run(Verb::Add, node, &pod, &config)?.error()?;
        assert!(failed.msg.contains("IPAM plugin"), "{answer}: {failed:?}");
        assert_eq!(calls(node), ["ADD", "DEL"], "{answer}");
    }
    clean(node, &before)?;
    let missing = Config(json!({
        "cniVersion": "1.0.0", "name": "lent", "type": "viaduct", "bridge": "br7", "ipam": { "type": "missing" },
    }));
    let failed = run(Verb::Add, node, &pod, &missing)?.error()?;
    assert!(failed.msg.contains("no plugin \"missing\""), "{failed:?}");
    clean(node, &before)?;
    write(node, "answer", DUAL)?;
    run(Verb::Add, node, &pod, &config)?.result()?;
    run(Verb::Del, node, &pod, &config)?.success()
}

/// behaviour S10: an address of another pod is refused, whichever plugin returned it; a second ADD
/// does not release the pod's address.
#[test]
fn an_ipam_address_of_another_pod_is_refused_and_released() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    write(node, "lender", IPAM)?;
    write(node, "answer", DUAL)?;
    let config = config(&json!({ "type": "lender" }));
    let (first, second) = (sandbox.machine("first")?, sandbox.machine("second")?);
    run(Verb::Add, node, &first, &config)?.result()?;
    calls(node);
    let refused = run(Verb::Add, node, &second, &config)?.error()?;
    assert!(refused.msg.contains("10.7.0.9"), "{refused:?}");
    assert_eq!(calls(node), ["ADD", "DEL"]);
    assert!(!second.call("ip -o link")?.contains("eth0"));

    let again = run(Verb::Add, node, &first, &config)?.error()?;
    assert!(again.msg.contains("attached already"), "{again:?}");
    assert!(calls(node).is_empty(), "the second ADD called the plugin");
    ping(&first, "10.7.0.1".parse()?, 1)?;
    let default: IpAddr = "10.244.1.77".parse()?;
    write(
        node,
        "answer",
        &format!(r#"{{"cniVersion": "1.0.0", "ips": [{{"address": "{default}/24"}}]}}"#),
    )?;
    let refused = run(Verb::Add, node, &second, &config)?.error()?;
    assert!(
        refused.msg.contains("overlaps"),
        "an address of the agent's pool: {refused:?}"
    );
    let shown = agent.get("/v1/attachments")?;
    assert_eq!(shown.as_array().map(Vec::len), Some(1), "{shown}");
    run(Verb::Del, node, &first, &config)?.success()
}

/// The reference host-local, under another name, and under its own name with `"external": true`.
#[test]
fn the_reference_host_local_works_as_a_foreign_ipam_plugin() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let reference = folder(PluginSource::Reference)?.join("host-local");
    node.call(&format!("mkdir -p {PLUGINS}"))?;
    node.call(&format!(
        "ln -s {} {PLUGINS}/other-local",
        reference.display()
    ))?;
    let before = Residue::of(node, &[])?;
    for kind in ["other-local", "host-local"] {
        let ipam = json!({
            "type": kind, "external": true, "dataDir": "/run/leases",
            "ranges": [[{ "subnet": "10.7.0.0/24" }], [{ "subnet": "fd07::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        });
        let config = config(&ipam);
        let (one, two) = (sandbox.machine("one")?, sandbox.machine("two")?);
        let first = run(Verb::Add, node, &one, &config)?.result()?;
        let second = run(Verb::Add, node, &two, &config)?.result()?;
        assert_ne!(first["ips"], second["ips"]);
        let leases = node.call("ls /run/leases/lent")?;
        for ip in [&first, &second]
            .into_iter()
            .filter_map(|it| it["ips"].as_array())
            .flatten()
        {
            let address = ip["address"]
                .as_str()
                .and_then(|text| text.split('/').next());
            let address = address.context("an address")?;
            assert!(leases.contains(address), "{address} in {leases}");
            ping(&one, address.parse()?, 1)?;
        }
        for pod in [&one, &two] {
            run(Verb::Del, node, pod, &config)?.success()?;
            pod.unbind()?;
        }
        let leases = node.call("ls /run/leases/lent")?;
        assert!(!leases.contains("10.7.0."), "{leases}");
        node.call("ip link delete br7")?;
    }
    clean(node, &before)
}

/// The DHCP plugin works over the pod's link before the pod has an address.
#[test]
fn a_pod_gets_its_address_by_dhcp() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    for line in ["ip link add br7 type bridge", "ip link set br7 up"] {
        node.call(line)?;
    }
    let server = sandbox.machine("server")?;
    let path = server.path();
    node.call(&format!(
        "ip link add srv0 type veth peer name eth0 netns {path}"
    ))?;
    node.call("ip link set srv0 master br7 up")?;
    server.call("ip address add 10.7.0.1/24 dev eth0")?;
    server.call("ip link set eth0 up")?;
    let lines = "start 10.7.0.20\nend 10.7.0.29\ninterface eth0\nlease_file /run/udhcpd.leases\npidfile /run/udhcpd.pid\noption subnet 255.255.255.0\noption router 10.7.0.1\noption lease 3600\n";
    write(&server, "udhcpd.conf", lines)?;
    server.call("touch /run/udhcpd.leases")?;
    let config_file = format!("{PLUGINS}/udhcpd.conf");
    let lending = Process::start(&server, &["busybox", "udhcpd", "-f", &config_file])?;
    let dhcp = folder(PluginSource::Reference)?
        .join("dhcp")
        .display()
        .to_string();
    let client = Process::start(node, &[&dhcp, "daemon"])?;
    until("the DHCP daemon listens", || {
        Ok(node
            .output(&["test", "-S", "/run/cni/dhcp.sock"])?
            .status
            .success()
            .then_some(()))
    })?;
    let pod = sandbox.machine("pod")?;
    let mut config = config(&json!({ "type": "dhcp" }));
    for key in ["isGateway", "isDefaultGateway"] {
        config.0[key] = json!(false);
    }
    let added = run(Verb::Add, node, &pod, &config)?.result();
    let result = added.with_context(|| lending.output() + &client.output())?;
    let address = result["ips"][0]["address"].as_str().context("an address")?;
    assert!(address.starts_with("10.7.0.2"), "{result}");
    ping(&pod, "10.7.0.1".parse()?, 1)?;
    let mut checked = config.clone();
    checked.0["prevResult"] = result;
    run(Verb::Check, node, &pod, &checked)?.success()?;
    run(Verb::Del, node, &pod, &config)?.success()?;
    assert!(!pod.call("ip -o link")?.contains("eth0"));
    Ok(())
}

/// behaviour B3: as with the reference: no address, and a link that is down where so configured.
#[test]
fn a_bridge_without_ipam_is_a_switch() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let switch = Config(
        json!({ "cniVersion": "1.0.0", "name": "switch", "type": "bridge", "bridge": "br7" }),
    );
    let down = switch
        .clone()
        .with("disableContainerInterface", json!(true));
    let (one, two) = (sandbox.machine("one")?, sandbox.machine("two")?);
    let mut results = Vec::new();
    for (pod, config) in [(&one, &switch), (&two, &down)] {
        let result = call(Verb::Add, pod, config)?
            .run_as(node, "bridge")?
            .result()?;
        assert_eq!(result["ips"].as_array().map_or(0, Vec::len), 0, "{result}");
        assert_eq!(result["interfaces"][2]["name"], "eth0");
        results.push(result);
    }
    assert!(one.call("ip link show eth0")?.contains(",UP"));
    assert!(!two.call("ip link show eth0")?.contains(",UP"));
    agent.kill()?;
    agent.restart()?;
    for ((pod, config), result) in [(&one, &switch), (&two, &down)].into_iter().zip(results) {
        let config = config.clone().with("prevResult", result);
        call(Verb::Check, pod, &config)?
            .run_as(node, "bridge")?
            .success()?;
    }
    two.call("ip link set eth0 up")?;
    for (pod, address) in [(&one, "10.7.0.5"), (&two, "10.7.0.6")] {
        pod.call(&format!("ip address add {address}/24 dev eth0"))?;
    }
    ping(&one, "10.7.0.6".parse()?, 1)?;
    for (pod, config) in [(&one, &switch), (&two, &down)] {
        call(Verb::Del, pod, config)?
            .run_as(node, "bridge")?
            .success()?;
    }
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    let both = down.with(
        "ipam",
        json!({ "type": "host-local", "subnet": "10.7.0.0/24" }),
    );
    let words = call(Verb::Add, &one, &both)?
        .run_as(node, "bridge")?
        .error()?;
    assert!(
        words
            .msg
            .contains("cannot use IPAM when DisableContainerInterface flag is set"),
        "{words:?}"
    );
    clean(node, &before)
}
