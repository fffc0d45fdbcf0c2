//! The multicall plugin under the names of the reference plugins: beside them, mixed with them, and
//! instead of them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use e2e::chain::{Chain, PluginSource};
use e2e::residue::await_no_residue;
use e2e::{
    Agent, Call, Config, Echo, Machine, NODE, Residue, Sandbox, Verb, tcp_echo, tcp_source,
    udp_source, until,
};
use serde_json::{Value, json};

const NAMES: [&str; 7] = [
    "bridge",
    "host-local",
    "portmap",
    "bandwidth",
    "firewall",
    "tuning",
    "loopback",
];

const OLD: [&str; 3] = ["0.3.1", "0.4.0", "1.0.0"];

fn bridge(name: &str, subnet: &str) -> Value {
    json!({
        "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": false,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": subnet }]], "routes": [{ "dst": "0.0.0.0/0" }] },
    })
}

fn portmap() -> Value {
    json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true })
}

/// Port mappings as go-cni writes them, with each port for TCP and UDP as Nomad does.
fn ports() -> Value {
    let port = |protocol: &str| json!({ "HostPort": 8080, "ContainerPort": 80, "Protocol": protocol, "HostIP": "" });
    json!([port("tcp"), port("udp")])
}

/// Asserts that the hostport works from the world.
fn serves(sandbox: &Sandbox) -> Result<()> {
    let outside = SocketAddr::new(NODE[0], 8080);
    tcp_source(&sandbox.world, 0, outside)?;
    udp_source(&sandbox.world, 0, outside).map(drop)
}

/// Replaces the parts of a result that differ between two ADDs.
fn normalised(mut result: Value, pod: &Machine) -> Value {
    // Later releases of the reference omit an empty `dns`.
    if result["cniVersion"] == "1.0.0" && result["dns"] == json!({}) {
        result.as_object_mut().and_then(|it| it.remove("dns"));
    }
    for interface in result["interfaces"].as_array_mut().into_iter().flatten() {
        let name = interface["name"].as_str().unwrap_or_default();
        if name.starts_with("veth") {
            interface["name"] = json!("veth");
        }
        if interface["sandbox"] == json!(pod.path()) {
            interface["sandbox"] = json!("pod");
        }
        if interface["mac"].is_string() && interface["mac"] != "00:00:00:00:00:00" {
            interface["mac"] = json!("mac");
        }
    }
    result
}

/// Returns the results of both sources to the same list, each on its own node.
fn both(version: &str, lists: impl Fn(PluginSource, Chain) -> Chain) -> Result<[Value; 2]> {
    let mut results = Vec::new();
    for maker in [PluginSource::Reference, PluginSource::Ours] {
        let (sandbox, _agent) = Sandbox::with_agent()?;
        let pod = sandbox.machine("pod")?;
        let list = lists(maker, Chain::new(version, "net"));
        let result = list
            .add(&sandbox.node, &pod)
            .with_context(|| format!("{maker:?} {version}"))?;
        // On CHECK the reference portmap of Debian 12 looks for rules of a family that the pod does
        // not have.
        if version >= "0.4.0" && maker == PluginSource::Ours {
            list.check(&sandbox.node, &pod, &result)?;
        }
        list.del(&sandbox.node, &pod, &result)?;
        results.push(normalised(result, &pod));
    }
    let [reference, ours] = <[Value; 2]>::try_from(results).map_err(|_| anyhow::anyhow!("two"))?;
    Ok([reference, ours])
}

/// behaviours S1, S4, C8, R18
#[test]
fn every_plugin_name_reports_itself_and_its_versions() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for name in NAMES {
        let call = Call::new(Verb::Version, "", "", &Config::new("1.1.0")).stdin("");
        let versions = call.run_as(&sandbox.node, name)?.result()?;
        assert_eq!(
            versions["supportedVersions"].as_array().map(Vec::len),
            Some(7)
        );
        let about = call.without("CNI_COMMAND").run_as(&sandbox.node, name)?;
        about.success()?;
        let words = format!("CNI {name} plugin v1.9.1 ");
        assert!(about.stderr.starts_with(&words), "{}", about.stderr);
        assert_eq!(about.stdout, "");
    }
    Ok(())
}

/// behaviours S8, R2, R3
#[test]
fn bridge_and_host_local_answer_as_the_reference_does() -> Result<()> {
    for version in OLD {
        let [reference, ours] = both(version, |maker, list| {
            list.with(maker, bridge("br7", "10.7.0.0/24"))
        })?;
        assert_eq!(ours, reference, "{version}");
    }
    Ok(())
}

/// behaviour R8: the reference's ADD fails only where a route of the pod leads to such a gateway.
#[test]
fn a_gateway_outside_of_the_subnet_is_accepted_as_by_the_reference() -> Result<()> {
    let ipam = json!({ "type": "host-local", "subnet": "10.7.0.0/24", "gateway": "10.8.0.1" });
    let [reference, ours] = both("1.0.0", |maker, list| {
        let plain = json!({ "type": "bridge", "bridge": "br7", "ipam": ipam });
        list.with(maker, plain)
    })?;
    assert_eq!(ours, reference);
    assert_eq!(ours["ips"][0]["gateway"], "10.8.0.1");

    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    let with_route =
        json!({ "type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipam": ipam });
    let list = Chain::new("1.0.0", "net").with(PluginSource::Ours, with_route);
    let result = list.add(&sandbox.node, &pod)?;
    let routes = pod.call("ip route show default")?;
    assert!(routes.contains("via 10.8.0.1 dev eth0"), "{routes}");
    assert!(routes.contains("onlink"), "{routes}");
    list.check(&sandbox.node, &pod, &result)?;
    list.del(&sandbox.node, &pod, &result)
}

/// behaviours S9, R12, R17
#[test]
fn a_whole_plugin_list_answers_as_the_reference_does() -> Result<()> {
    let [reference, ours] = both("1.0.0", |maker, list| {
        list.with(maker, json!({ "type": "loopback" }))
            .with(maker, bridge("br7", "10.7.0.0/24"))
            .with(maker, json!({ "type": "firewall", "backend": "iptables" }))
            .with(
                maker,
                json!({ "type": "tuning", "mtu": 1400, "mac": "02:00:00:00:00:07" }),
            )
            .with(maker, portmap())
            .with_capability("portMappings", ports())
    })?;
    assert_eq!(ours, reference);
    Ok(())
}

#[test]
fn loopback_answers_as_the_reference_does_and_sets_it_up() -> Result<()> {
    // For other versions, the reference of Debian 12 returns the shape of 1.0.0 nevertheless.
    let [reference, ours] = both("1.0.0", |maker, list| {
        list.with(maker, json!({ "type": "loopback" }))
    })?;
    assert_eq!(ours, reference);
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    let list = Chain::new("1.0.0", "lo").with(PluginSource::Ours, json!({ "type": "loopback" }));
    pod.call("ip link set lo down")?;
    let result = list.add(&sandbox.node, &pod)?;
    assert!(pod.call("ip link show lo")?.contains(",UP"));
    list.check(&sandbox.node, &pod, &result)?;
    list.del(&sandbox.node, &pod, &result)?;
    assert!(!pod.call("ip link show lo")?.contains(",UP"));
    Ok(())
}

/// behaviour R18
#[test]
fn viaduct_portmap_serves_a_pod_of_the_reference_bridge() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let list = Chain::new("1.0.0", "foreign")
        .with(PluginSource::Reference, bridge("br7", "10.7.0.0/24"))
        .with(PluginSource::Ours, portmap())
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    let _echo = Echo::start(&pod, 80)?;
    serves(&sandbox)?;
    list.check(&sandbox.node, &pod, &result)?;
    let shown = agent.get("/v1/attachments")?;
    assert_eq!(shown[0]["network"], "foreign");
    assert_eq!(
        shown[0]["hostLink"]
            .as_str()
            .or(shown[0]["host_link"].as_str()),
        result["interfaces"][1]["name"].as_str()
    );

    let mut taker = sandbox.pod("taker")?;
    let config = Config::new("1.0.0").with("runtimeConfig", json!({ "portMappings": ports() }));
    let refused = taker
        .prepare(Verb::Add, &config)
        .run(&sandbox.node)?
        .error()?;
    assert!(refused.msg.contains("foreign/pod/eth0"), "{refused:?}");
    taker.add()?;
    taker.del()?;

    list.del(&sandbox.node, &pod, &result)?;
    list.del(&sandbox.node, &pod, &Value::Null)?;
    sandbox.node.call("ip link delete br7")?;
    await_no_residue(&before, &sandbox.node)
}

/// behaviour R13: results before version 0.3.0 name no interfaces.
#[test]
fn portmap_serves_a_pod_of_the_reference_bridge_whose_result_names_no_interface() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let list = Chain::new("0.2.0", "foreign")
        .with(PluginSource::Reference, bridge("br7", "10.7.0.0/24"))
        .with(PluginSource::Ours, portmap())
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    assert!(result.get("interfaces").is_none(), "{result}");
    let _echo = Echo::start(&pod, 80)?;
    serves(&sandbox)?;
    let shown = agent.get("/v1/attachments")?;
    assert_eq!(shown[0]["bridge"], "br7", "{shown}");
    list.del(&sandbox.node, &pod, &result)?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    Ok(())
}

/// behaviour A5
#[test]
fn an_adopted_pod_keeps_its_ports_when_the_agent_is_killed_and_loses_them_with_its_link()
-> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let list = Chain::new("1.0.0", "foreign")
        .with(PluginSource::Reference, bridge("br7", "10.7.0.0/24"))
        .with(PluginSource::Ours, portmap())
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    let _echo = Echo::start(&pod, 80)?;
    let (_, stream) = tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    agent.kill()?;
    tcp_echo(&stream)?;
    agent.restart()?;
    tcp_echo(&stream)?;
    serves(&sandbox)?;
    assert_eq!(
        agent.get("/v1/attachments")?.as_array().map(Vec::len),
        Some(1)
    );
    agent.kill()?;
    let host = result["interfaces"][1]["name"].as_str().context("a name")?;
    sandbox.node.call(&format!("ip link delete {host}"))?;
    agent.restart()?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    list.del(&sandbox.node, &pod, &result)
}

/// behaviour R18
#[test]
fn reference_plugins_work_on_a_pod_of_the_viaduct_bridge() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let list = Chain::new("1.0.0", "ours")
        .with(PluginSource::Ours, bridge("br7", "10.7.0.0/24"))
        .with(
            PluginSource::Reference,
            json!({ "type": "tuning", "mtu": 1300, "sysctl": { "net.core.somaxconn": "777" } }),
        )
        .with(
            PluginSource::Reference,
            json!({ "type": "firewall", "backend": "iptables" }),
        )
        .with(PluginSource::Ours, portmap())
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    assert_eq!(pod.call("cat /proc/sys/net/core/somaxconn")?.trim(), "777");
    let _echo = Echo::start(&pod, 80)?;
    serves(&sandbox)?;
    list.check(&sandbox.node, &pod, &result)?;
    list.del(&sandbox.node, &pod, &result)
}

#[test]
fn a_tuned_pod_works_with_its_new_mac_address() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let list = Chain::new("1.0.0", "ours")
        .with(PluginSource::Ours, bridge("br7", "10.7.0.0/24"))
        .with(PluginSource::Ours, portmap())
        .with(PluginSource::Ours, json!({
            "type": "tuning", "mac": "02:00:00:00:00:07", "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 77,
            "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "777" },
        }))
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:07");
    let link = pod.call("ip link show eth0")?;
    for word in [
        "PROMISC",
        "ALLMULTI",
        "mtu 1300",
        "qlen 77",
        "02:00:00:00:00:07",
    ] {
        assert!(link.contains(word), "no {word} in {link}");
    }
    assert_eq!(pod.call("cat /proc/sys/net/core/somaxconn")?.trim(), "777");
    assert_eq!(
        pod.call("cat /proc/sys/net/ipv4/conf/eth0/arp_filter")?
            .trim(),
        "1"
    );
    let _echo = Echo::start(&pod, 80)?;
    serves(&sandbox)?;
    list.check(&sandbox.node, &pod, &result)?;
    list.del(&sandbox.node, &pod, &result)
}

/// An interface that outlives the pod gets its original settings back.
#[test]
fn tuning_restores_a_foreign_interface_on_del() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    pod.call("ip link add eth0 type veth peer name other")?;
    pod.call("ip link set eth0 address 02:00:00:00:00:01 mtu 1450 txqlen 9 up")?;
    let config = json!({
        "cniVersion": "1.0.0", "name": "tuned", "type": "tuning",
        "mac": "02:00:00:00:00:07", "mtu": 1300, "promisc": true, "txQLen": 77,
        "prevResult": { "cniVersion": "1.0.0", "interfaces": [{ "name": "eth0", "sandbox": pod.path() }] },
    });
    let run = |verb| {
        Call::new(verb, "pod", &pod.path(), &Config(config.clone())).run_as(&sandbox.node, "tuning")
    };
    let result = run(Verb::Add)?.result()?;
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:07");
    run(Verb::Check)?.success()?;
    pod.call("ip link set eth0 mtu 1200")?;
    assert!(run(Verb::Check)?.error()?.msg.contains("1200"));
    agent.kill()?;
    agent.restart()?;
    run(Verb::Del)?.success()?;
    run(Verb::Del)?.success()?;
    let link = pod.call("ip link show eth0")?;
    for word in ["mtu 1450", "qlen 9", "02:00:00:00:00:01"] {
        assert!(link.contains(word), "no {word} in {link}");
    }
    assert!(!link.contains("PROMISC"), "{link}");
    Ok(())
}

/// behaviours C8, C9, C10, C11: the list that Nomad has compiled in, as it is.
#[test]
fn nomads_own_list_works_unchanged() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let list = nomad().with_capability("portMappings", ports());
    let pod = sandbox.machine("alloc")?;
    let running = list.clone().set(
        "CNI_ARGS",
        "IgnoreUnknown=true;NOMAD_REGION=global;NOMAD_ALLOC_ID=alloc;NOMAD_GROUP_NAME=a=b",
    );
    let result = running.add(&sandbox.node, &pod)?;
    assert_eq!(result["cniVersion"], "0.4.0");
    let interfaces = result["interfaces"].as_array().context("interfaces")?;
    let inside: Vec<&Value> = interfaces
        .iter()
        .filter(|it| it["sandbox"] == json!(pod.path()))
        .collect();
    assert_eq!(
        inside.len(),
        1,
        "the pod's first interface has the address: {result}"
    );
    assert_eq!(result["ips"][0]["address"], "172.26.64.2/20");
    let _echo = Echo::start(&pod, 80)?;
    serves(&sandbox)?;
    running.check(&sandbox.node, &pod, &result)?;
    refuses_and_leaves_nothing(&sandbox, &agent)?;
    // Nomad's DEL has neither CNI_ARGS nor a prevResult.
    list.del(&sandbox.node, &pod, &Value::Null)?;
    sandbox.node.call("ip link delete nomad")?;
    // The network's own map entries are removed by the next reconciliation.
    await_no_residue(&before, &sandbox.node)
}

/// behaviours C10, C12: three ADDs without a DEL while the agent is down; Nomad's forced cleanup
/// finds nothing to do.
#[test]
fn nomad_retries_adds_without_a_del_and_needs_no_forced_cleanup() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let list = nomad().with_capability("portMappings", ports());
    let pod = sandbox.machine("alloc")?;
    agent.kill()?;
    for _ in 0..3 {
        let refused = list.add(&sandbox.node, &pod).unwrap_err();
        assert!(
            format!("{refused:#}").contains("no agent listens"),
            "{refused:#}"
        );
        assert!(
            !pod.call("ip -o link")?.contains("eth0"),
            "the failed ADD left an interface"
        );
    }
    agent.restart()?;
    list.add(&sandbox.node, &pod)?;
    agent.kill()?;
    // DEL without a namespace, without an agent, without CNI_ARGS and without a prevResult.
    pod.unbind()?;
    list.del(&sandbox.node, &pod, &Value::Null)?;
    agent.restart()?;
    until("the spooled DELs are executed", || {
        let left = agent.get("/v1/attachments")?;
        Ok((left == json!([])).then_some(()))
    })?;
    sandbox.node.call("ip link delete nomad")?;
    await_no_residue(&before, &sandbox.node)
}

/// Asserts that a repeated ADD without a DEL, as Nomad sends it, is refused. The bridge plugin's
/// part stays, as with the reference.
fn refuses_and_leaves_nothing(sandbox: &Sandbox, agent: &Agent) -> Result<()> {
    let other = sandbox.machine("other")?;
    let list = nomad().with_capability("portMappings", ports());
    for _ in 0..2 {
        let refused = list.add(&sandbox.node, &other);
        let text = refused.map_or_else(|error| format!("{error:#}"), |result| result.to_string());
        assert!(
            text.contains("nomad/alloc/eth0") || text.contains("attached already"),
            "{text}"
        );
    }
    list.del(&sandbox.node, &other, &Value::Null)?;
    assert_eq!(
        agent.get("/v1/attachments")?.as_array().map(Vec::len),
        Some(1)
    );
    Ok(())
}

fn nomad() -> Chain {
    Chain::new("0.4.0", "nomad")
        .with(PluginSource::Ours, json!({ "type": "loopback" }))
        .with(
            PluginSource::Ours,
            json!({
                "type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": "/var/run/cni",
                    "ranges": [[{ "subnet": "172.26.64.0/20" }]], "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }),
        )
        .with(
            PluginSource::Ours,
            json!({ "type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN" }),
        )
        .with(PluginSource::Ours, portmap())
}
