//! What users of the reference plugins rely on beyond results: a bridge that keeps its MAC address,
//! `tuning` with all its sources and without an interface, and pods whose MAC address changes.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use e2e::chain::{Chain, PluginSource};
use e2e::{Answer, Call, Config, Echo, Machine, NODE, Pod, Sandbox, Verb, WORLD, ping, tcp_source};
use serde_json::{Value, json};

const BRIDGE: &str = "rb0";

fn mac_of(machine: &Machine, link: &str) -> Result<String> {
    let shown = machine.call_json(&format!("ip -j link show {link}"))?;
    let mac = shown[0]["address"].as_str().context("no address")?;
    Ok(mac.to_owned())
}

fn on_foreign_bridge() -> Config {
    Config::new("1.0.0")
        .with("name", json!("foreign"))
        .with("bridge", json!(BRIDGE))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with(
            "ipam",
            json!({ "type": "host-local", "subnet": "10.77.0.0/24" }),
        )
}

fn attach(sandbox: &Sandbox, name: &str) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(on_foreign_bridge())?;
    Ok(pod)
}

/// Sets the MAC address of a port of the foreign bridge to one below or above all others.
fn set_mac(sandbox: &Sandbox, link: &str, mac: &str) -> Result<()> {
    let words = format!("ip link set {link} address {mac}");
    sandbox.node.call(&words).map(drop)
}

/// Asserts that a pod that has resolved its gateway reaches gateway and world without losses.
fn loses_nothing(pod: &Pod) -> Result<()> {
    for target in ["10.77.0.1".to_owned(), WORLD[0].to_string()] {
        let words = format!("ping -n -q -i 0.05 -c 10 -W 5 {target}");
        let shown = pod.machine.call(&words)?;
        assert!(shown.contains(" 0% packet loss"), "{target}: {shown}");
    }
    Ok(())
}

/// behaviour F2: a bridge without an address of its own takes the lowest MAC address of its ports.
/// The pods' neighbour entries for the gateway would be wrong after each change.
#[test]
fn a_foreign_bridge_keeps_its_mac_address_while_pods_come_and_go() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    node.call(&format!("ip link add {BRIDGE} type bridge"))?;
    let before = mac_of(node, BRIDGE)?;
    let one = attach(&sandbox, "one")?;
    let two = attach(&sandbox, "two")?;
    for pod in [&one, &two] {
        assert_eq!(pod.result()["interfaces"][0]["mac"], json!(before));
        ping(&pod.machine, "10.77.0.1".parse()?, 1)?;
    }
    // A foreign port with the lowest address comes and goes.
    node.call("ip link add low0 type veth peer name low1")?;
    set_mac(&sandbox, "low0", "02:00:00:00:00:01")?;
    node.call(&format!("ip link set low0 master {BRIDGE} up"))?;
    loses_nothing(&one)?;
    node.call("ip link delete low0")?;
    loses_nothing(&one)?;
    // So does a pod of ours.
    set_mac(&sandbox, two.host_link(), "02:00:00:00:00:01")?;
    two.del()?;
    assert_eq!(mac_of(node, BRIDGE)?, before);
    loses_nothing(&one)?;
    one.check()?.success()?;

    // Also after a restart, and when the last port is gone.
    agent.kill()?;
    agent.restart()?;
    loses_nothing(&one)?;
    one.del()?;
    assert_eq!(mac_of(node, BRIDGE)?, before);
    Ok(())
}

/// A bridge that has lost its last port has no MAC address at all.
#[test]
fn a_foreign_bridge_without_a_mac_address_gets_one() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    node.call(&format!("ip link add {BRIDGE} type bridge"))?;
    node.call("ip link add low0 type veth peer name low1")?;
    node.call(&format!("ip link set low0 master {BRIDGE}"))?;
    node.call("ip link delete low0")?;
    let pod = attach(&sandbox, "one")?;
    let mac = mac_of(node, BRIDGE)?;
    assert_ne!(mac, "00:00:00:00:00:00");
    assert_eq!(pod.result()["interfaces"][0]["mac"], json!(mac));
    let shown = node.call_json(&format!("ip -j link show {BRIDGE}"))?;
    assert!(shown[0]["ifalias"].is_null(), "still foreign: {shown}");
    loses_nothing(&pod)?;
    pod.del()?;
    assert_eq!(mac_of(node, BRIDGE)?, mac);
    Ok(())
}

fn ports() -> Value {
    json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }])
}

/// Decision 83: the reference has no check of an adopted pod's MAC address.
#[test]
fn a_tuned_mac_address_does_not_cut_off_a_pod_of_the_reference_bridge() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let bridge = json!({
        "type": "bridge", "bridge": "br7", "isGateway": true, "ipMasq": true,
        "ipam": {
            "type": "host-local", "ranges": [[{ "subnet": "10.7.0.0/24" }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    });
    let new = "02:00:00:00:00:77";
    let list = Chain::new("1.0.0", "tuned")
        .with(PluginSource::Reference, bridge)
        .with(
            PluginSource::Ours,
            json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        )
        .with(
            PluginSource::Reference,
            json!({ "type": "tuning", "mac": new }),
        )
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    assert_eq!(mac_of(&pod, "eth0")?, new);
    let _echo = Echo::start(&pod, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    ping(&pod, "10.7.0.1".parse()?, 1)?;
    ping(&pod, WORLD[0], 1)?;
    list.check(&sandbox.node, &pod, &result)?;
    let shown = agent.get("/v1/attachments")?;
    assert_eq!(shown[0]["mac"], json!(new), "recorded by CHECK: {shown}");
    // Its IP addresses are checked nevertheless.
    pod.call("ip address add 10.7.0.99/24 dev eth0")?;
    let forged = pod.output(&[
        "ping",
        "-n",
        "-c",
        "1",
        "-W",
        "1",
        "-I",
        "10.7.0.99",
        "10.7.0.1",
    ])?;
    assert!(!forged.status.success());
    // The DEL of the reference fails at addresses that it has not assigned.
    pod.call("ip address delete 10.7.0.99/24 dev eth0")?;
    list.del(&sandbox.node, &pod, &result)
}

/// The check of a pod of ours is strict, so a foreign change of its MAC address must not look well.
#[test]
fn check_fails_where_a_foreign_mac_address_cuts_off_a_pod() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    pod.check()?.success()?;
    pod.machine
        .call("ip link set eth0 address 02:00:00:00:00:78")?;
    let error = pod.check()?.error()?;
    let words = format!("{}: {}", error.msg, error.details);
    assert!(words.contains("02:00:00:00:00:78"), "{words}");
    Ok(())
}

/// A call of `tuning` for an interface of no plugin of ours.
fn tuning(
    sandbox: &Sandbox,
    pod: &Machine,
    verb: Verb,
    name: &str,
    keys: &Value,
) -> Result<Answer> {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": name, "type": "tuning",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": "eth0", "sandbox": pod.path() }],
        },
    });
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    Call::new(verb, "pod", &pod.path(), &Config(config)).run_as(&sandbox.node, "tuning")
}

/// behaviour F65
#[test]
fn tuning_sets_sysctls_without_the_interface_and_settings_only_with_it() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    let sysctls = json!({ "sysctl": { "net.core.somaxconn": "777" } });
    tuning(&sandbox, &pod, Verb::Add, "tuned", &sysctls)?.result()?;
    assert_eq!(pod.call("sysctl -n net.core.somaxconn")?.trim(), "777");
    tuning(&sandbox, &pod, Verb::Del, "tuned", &sysctls)?.success()?;
    let missing = tuning(&sandbox, &pod, Verb::Add, "tuned", &json!({ "mtu": 1300 }))?.error()?;
    assert!(missing.msg.contains("eth0"), "{missing:?}");
    let unknown = json!({ "sysctl": { "net.core.there_is_none": "1" } });
    tuning(&sandbox, &pod, Verb::Add, "tuned", &unknown)?.error()?;
    Ok(())
}

/// behaviour F65: all six keys of `args.cni`, and each value is restored at DEL, also under another
/// network name.
#[test]
fn tuning_honours_all_args_and_restores_the_previous_settings() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    pod.call("ip link add eth0 type veth peer name other")?;
    pod.call("ip link set eth0 address 02:00:00:00:00:01 mtu 1450 txqlen 9 up")?;
    let before = pod.call("ip link show eth0")?;
    let keys = json!({
        "mtu": 1300, "dataDir": "/run/tuning-test",
        "args": { "cni": {
            "mac": "02:00:00:00:00:07", "mtu": 1400, "promisc": true, "allmulti": true,
            "txQLen": 777, "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" },
        }},
    });
    let result = tuning(&sandbox, &pod, Verb::Add, "tuned", &keys)?.result()?;
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:07");
    let link = pod.call("ip link show eth0")?;
    for word in [
        "mtu 1400",
        "qlen 777",
        "02:00:00:00:00:07",
        "PROMISC",
        "ALLMULTI",
    ] {
        assert!(link.contains(word), "no {word} in {link}");
    }
    let sysctl = pod.call("sysctl -n net.ipv4.conf.eth0.arp_filter")?;
    assert_eq!(sysctl.trim(), "1");
    tuning(&sandbox, &pod, Verb::Check, "tuned", &keys)?.success()?;
    pod.call("ip link set eth0 address 02:00:00:00:00:09")?;
    tuning(&sandbox, &pod, Verb::Check, "tuned", &keys)?.error()?;
    tuning(&sandbox, &pod, Verb::Del, "other", &keys)?.success()?;
    assert_eq!(pod.call("ip link show eth0")?, before);
    Ok(())
}

/// behaviour F65: a node that changes between the reference and Viaduct while pods run.
#[test]
fn tuning_restores_what_the_other_implementation_has_changed() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    pod.call("ip link add eth0 type veth peer name other")?;
    let restored = |makers: [PluginSource; 2]| -> Result<()> {
        pod.call("ip link set eth0 address 02:00:00:00:00:01 mtu 1450 txqlen 9 up")?;
        let before = pod.call("ip link show eth0")?;
        let keys = json!({ "type": "tuning", "mac": "02:00:00:00:00:07", "mtu": 1300 });
        let [adds, dels] =
            makers.map(|maker| Chain::new("1.0.0", "tuned").with(maker, keys.clone()));
        let prev = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": "eth0", "sandbox": pod.path() }],
        });
        adds.add_after(&prev, &sandbox.node, &pod)?;
        assert!(pod.call("ip link show eth0")?.contains("mtu 1300"));
        dels.del(&sandbox.node, &pod, &prev)?;
        assert_eq!(pod.call("ip link show eth0")?, before, "{makers:?}");
        Ok(())
    };
    restored([PluginSource::Reference, PluginSource::Ours])?;
    restored([PluginSource::Ours, PluginSource::Reference])
}

/// Creates the interface of a pod with a plugin of the reference.
fn made_by_reference(settings: Value) -> Chain {
    let mut settings = settings;
    settings["ipam"] = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.7.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    Chain::new("1.0.0", "foreign").with(PluginSource::Reference, settings)
}

/// behaviour R16: the list of the reference's own integration test, with less than 1 kbit/s.
#[test]
fn a_limit_below_1_kbit_is_accepted_after_the_reference_ptp() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let limits = json!({
        "ingressRate": 800, "ingressBurst": 200, "egressRate": 800, "egressBurst": 200,
    });
    let list = made_by_reference(json!({ "type": "ptp", "ipMasq": true }))
        .with(
            PluginSource::Ours,
            json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }),
        )
        .with_capability("bandwidth", limits);
    let pod = sandbox.machine("pod")?;
    let result = list.add(&sandbox.node, &pod)?;
    let shown = agent.get("/v1/attachments")?;
    for direction in ["ingress", "egress"] {
        assert_eq!(shown[0]["bandwidth"][direction]["rate"], 800, "{shown}");
    }
    ping(&pod, WORLD[0], 1)?;
    list.check(&sandbox.node, &pod, &result)?;
    list.del(&sandbox.node, &pod, &result)?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    Ok(())
}

/// Runtimes disable IPv6 in namespaces without a network of their own. The reference plugins enable
/// it before the first IPv6 address, and keep addresses of an interface that is set down.
#[test]
fn a_namespace_with_ipv6_disabled_gets_its_ipv6_address_and_keeps_it() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("quiet")?;
    for scope in ["all", "default"] {
        let words = format!("sysctl -w net.ipv6.conf.{scope}.disable_ipv6=1");
        pod.machine.call(&words)?;
    }
    pod.add_with(Config::new("1.1.0"))?.success()?;
    ping(&pod.machine, WORLD[1], 1)?;
    pod.machine.call("ip link set eth0 down")?;
    let shown = pod
        .machine
        .call("ip -6 address show dev eth0 scope global")?;
    let address = pod.address(WORLD[1])?.to_string();
    assert!(shown.contains(&address), "{address}: {shown}");
    Ok(())
}

/// behaviour R13: the pod's side is that of the plugin that made it, which may not be done with it.
#[test]
fn a_chained_plugin_adopts_an_interface_that_is_still_down() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let made = made_by_reference(json!({ "type": "bridge", "bridge": "br7", "isGateway": true }));
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let chained = Chain::new("1.0.0", "foreign")
        .with(PluginSource::Ours, portmap)
        .with_capability("portMappings", ports());
    let pod = sandbox.machine("pod")?;
    let result = made.add(node, &pod)?;
    pod.call("ip link set eth0 down")?;
    pod.call("ip address flush dev eth0")?;
    chained.add_after(&result, node, &pod)?;
    let address = result["ips"][0]["address"].as_str().context("no address")?;
    pod.call(&format!("ip address add {address} dev eth0"))?;
    pod.call("ip link set eth0 up")?;
    pod.call("ip route add default via 10.7.0.1")?;
    let _echo = Echo::start(&pod, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    chained.check(node, &pod, &result)?;
    chained.del(node, &pod, &result)?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    made.del(node, &pod, &result)
}

/// Returns whether this kernel has bridge VLAN filtering.
fn can_filter_vlans(node: &Machine) -> Result<bool> {
    let words = [
        "ip",
        "link",
        "add",
        "probe0",
        "type",
        "bridge",
        "vlan_filtering",
        "1",
    ];
    let made = node.output(&words)?.status.success();
    let shown = node.output(&["ip", "-d", "link", "show", "probe0"])?;
    let _gone = node.output(&["ip", "link", "delete", "probe0"])?;
    Ok(made && String::from_utf8_lossy(&shown.stdout).contains("vlan_filtering 1"))
}

/// Returns VLAN IDs and flags of a port.
fn vlans_of(node: &Machine, port: &str) -> Result<Vec<(u64, String)>> {
    let shown = node.call_json(&format!("bridge -j vlan show dev {port}"))?;
    let vlans = shown[0]["vlans"].as_array().cloned().unwrap_or_default();
    let flags = |vlan: &Value| {
        let flags = vlan["flags"].as_array().cloned().unwrap_or_default();
        let words: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
        words.join(" ")
    };
    Ok(vlans
        .iter()
        .map(|vlan| (vlan["vlan"].as_u64().unwrap_or(0), flags(vlan)))
        .collect())
}

/// behaviour F8: as in release 1.8 of the reference.
#[test]
fn a_trunk_has_the_native_vlan_of_vlan_or_1() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    if !can_filter_vlans(&sandbox.node)? {
        e2e::skipped("this kernel has no bridge VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)");
        return Ok(());
    }
    let trunk = |name: &str, subnet: &str| {
        Config::new("1.0.0")
            .with("name", json!(name))
            .with("bridge", json!("trunk0"))
            .with("isGateway", json!(true))
            .with("vlanTrunk", json!([{ "minID": 101, "maxID": 102 }]))
            .with("ipam", json!({ "type": "host-local", "subnet": subnet }))
    };
    let native = "PVID Egress Untagged".to_owned();
    let none = String::new();
    let mut one = sandbox.pod("one")?;
    one.add_with(trunk("plain", "10.78.0.0/24"))?;
    let wanted = [
        (1, native.clone()),
        (101, none.clone()),
        (102, none.clone()),
    ];
    assert_eq!(vlans_of(&sandbox.node, one.host_link())?, wanted);
    let gateway: IpAddr = "10.78.0.1".parse()?;
    ping(&one.machine, gateway, 1)?;
    let mut two = sandbox.pod("two")?;
    two.add_with(trunk("native", "10.79.0.0/24").with("vlan", json!(100)))?;
    let wanted = [(100, native), (101, none.clone()), (102, none)];
    assert_eq!(vlans_of(&sandbox.node, two.host_link())?, wanted);
    assert_eq!(two.result()["interfaces"][3]["name"], "trunk0.100");
    ping(&two.machine, "10.79.0.1".parse()?, 1)?;
    for pod in [&one, &two] {
        pod.check()?.success()?;
    }
    Ok(())
}
