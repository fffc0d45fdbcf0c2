//! Networks of CNI configurations: bridges, ports, VLANs and routes as the bridge plugin makes
//! them, and several networks on one node or one bridge.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, Sandbox, WORLD, ping, ping_from, tcp_source,
};
use serde_json::{Value, json};

/// A configuration with its own network: name, bridge and subnet.
fn network(name: &str, bridge: &str, subnet: &str) -> Config {
    Config::new("1.1.0")
        .with("name", json!(name))
        .with("bridge", json!(bridge))
        .with("isGateway", json!(true))
        .with("isDefaultGateway", json!(true))
        .with("ipam", json!({ "type": "host-local", "subnet": subnet }))
}

fn attached(sandbox: &Sandbox, name: &str, config: &Config) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(config.clone())?;
    Ok(pod)
}

fn first(pod: &Pod) -> Result<IpAddr> {
    pod.addresses
        .first()
        .copied()
        .context("the pod has no address")
}

/// Returns whether one echo request is answered within a second, without the retries of [`ping`].
fn reaches(from: &Pod, to: IpAddr) -> Result<bool> {
    let to = to.to_string();
    let output = from
        .machine
        .output(&["ping", "-n", "-q", "-c", "1", "-W", "1", &to])?;
    Ok(output.status.success())
}

/// Expects an ADD to fail and to leave no interface. Returns message and details of the error.
fn refusal(sandbox: &Sandbox, name: &str, config: &Config) -> Result<String> {
    let pod = sandbox.pod(name)?;
    let error = pod
        .prepare(e2e::Verb::Add, config)
        .run(&sandbox.node)?
        .error()?;
    let links = pod.machine.call("ip -o link")?;
    ensure!(
        !links.contains("eth0"),
        "the refused ADD left an interface: {links}"
    );
    Ok(format!("{}: {}", error.msg, error.details))
}

/// behaviour F9: isolated pods do not reach each other but reach everything else, and their
/// hostports work.
#[test]
fn isolated_pods_reach_the_gateway_and_published_ports_but_not_each_other() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let open = network("walls", "walls0", "10.60.0.0/24");
    let config = open.clone().with("portIsolation", json!(true));
    let port = [Mapping::tcp(8060, 80)];
    let one = attached(&sandbox, "one", &config.clone().publish(&port))?;
    let two = attached(&sandbox, "two", &config)?;
    assert!(!reaches(&two, first(&one)?)?, "two isolated pods");
    ping(&two.machine, "10.60.0.1".parse()?, 1)?;
    let _echo = Echo::start(&one.machine, 80)?;
    // The pods cannot resolve each other's MAC addresses, so the server sees the gateway as the
    // client.
    let (seen, _stream) = tcp_source(&two.machine, 0, SocketAddr::new(NODE[0], 8060))?;
    assert_eq!(seen.ip(), "10.60.0.1".parse::<IpAddr>()?);
    let mut other = sandbox.pod("other")?;
    other.add()?;
    tcp_source(&other.machine, 0, "10.60.0.1:8060".parse()?)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8060))?;
    let free = attached(&sandbox, "free", &open)?;
    ping(&free.machine, first(&one)?, 1)?;
    one.check()?.success()?;
    sandbox.node.call(&format!(
        "ip link set {} type bridge_slave isolated off",
        two.host_link()
    ))?;
    e2e::until("the port is isolated again", || {
        Ok((!reaches(&two, first(&one)?)?).then_some(()))
    })
}

/// The order of use of the networks must not matter, and each network keeps its own state.
#[test]
fn networks_share_a_bridge_and_nothing_else() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let red = network("red", "shared0", "10.61.0.0/24");
    let blue = network("blue", "shared0", "10.62.0.0/24");
    let one = attached(&sandbox, "one", &red)?;
    let two = attached(&sandbox, "two", &blue)?;
    for (pod, gateway) in [(&one, "10.61.0.1"), (&two, "10.62.0.1")] {
        ping(&pod.machine, gateway.parse()?, 1)?;
    }
    ping(&one.machine, first(&two)?, 1)?;
    let inside = network("green", "green0", "10.61.0.0/25");
    let words = refusal(&sandbox, "three", &inside)?;
    assert!(
        words.contains("overlaps") && words.contains("red"),
        "{words}"
    );

    agent.kill()?;
    agent.restart()?;
    for pod in [&one, &two] {
        pod.check()?.success()?;
    }
    two.del()?;
    ping(&one.machine, "10.61.0.1".parse()?, 1)?;
    let networks = agent.get("/v1/networks")?.to_string();
    assert!(
        networks.contains("red") && !networks.contains("blue"),
        "{networks}"
    );
    let shown = sandbox.node.call("ip -4 address show shared0")?;
    assert!(shown.contains("10.61.0.1/24"), "{shown}");
    Ok(())
}

/// behaviours R3, R4: a foreign bridge is used as it is, and gets another address only with
/// `forceAddress`.
#[test]
fn a_foreign_bridge_is_readdressed_only_by_force() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    for line in [
        "ip link add theirs0 address 02:00:00:00:77:01 type bridge",
        "ip address add 10.63.9.1/24 dev theirs0",
        "ip link set theirs0 mtu 1400 up",
        "ip link add dummy77 type veth peer name other77",
    ] {
        node.call(line)?;
    }
    let config = network("guests", "theirs0", "10.63.0.0/24");
    let words = refusal(&sandbox, "one", &config)?;
    let reference = "\"theirs0\" already has an IP address different from 10.63.0.1/24";
    assert!(words.contains(reference), "{words}");
    let wrong = network("guests", "dummy77", "10.63.0.0/24");
    let words = refusal(&sandbox, "two", &wrong)?;
    assert!(
        words.contains("\"dummy77\" already exists but is not a bridge"),
        "{words}"
    );

    let quiet = config.clone().with("isGateway", json!(false));
    let quiet = quiet
        .with("isDefaultGateway", json!(false))
        .with("name", json!("quiet"));
    let three = attached(&sandbox, "three", &quiet)?;
    let four = attached(&sandbox, "four", &quiet)?;
    ping(&three.machine, first(&four)?, 1)?;
    let addresses = || node.call("ip -4 -o address show theirs0");
    assert!(
        !addresses()?.contains("10.63.0.1"),
        "the bridge got an address without isGateway"
    );
    for pod in [&three, &four] {
        pod.del()?;
    }

    let forced = attached(&sandbox, "five", &config.with("forceAddress", json!(true)))?;
    ping(&forced.machine, "10.63.0.1".parse()?, 1)?;
    assert!(
        !addresses()?.contains("10.63.9.1"),
        "the old address is still there"
    );
    let shown = node.call("ip link show theirs0")?;
    assert!(
        shown.contains("mtu 1400") && shown.contains("02:00:00:00:77:01"),
        "{shown}"
    );
    Ok(())
}

/// behaviour F16: also MTU and MSS, which the bridge plugin reads and ignores.
#[test]
fn routes_have_their_metric_table_scope_mtu_and_mss() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let ipam = json!({
        "type": "host-local",
        "ranges": [[{ "subnet": "10.64.0.0/24" }], [{ "subnet": "fd64::/64" }]],
        "routes": [
            { "dst": "0.0.0.0/0", "priority": 50 },
            { "dst": "10.200.0.0/16", "gw": "10.64.0.9", "mtu": 1300, "advmss": 1200 },
            { "dst": "10.201.0.0/16", "table": 77 },
            { "dst": "10.202.0.0/16", "scope": 253 },
            { "dst": "fd99::/32", "priority": 9, "mtu": 1290, "table": 78 },
        ],
    });
    let config = network("routes", "routes0", "10.64.0.0/24").with("ipam", ipam);
    let pod = attached(&sandbox, "one", &config)?;
    let shown = |line: &str| pod.machine.call(line);
    for (line, words) in [
        (
            "ip route show default",
            "default via 10.64.0.1 dev eth0 metric 50",
        ),
        ("ip route show default", "default via 10.64.0.1 dev eth0 \n"),
        (
            "ip route show 10.200.0.0/16",
            "via 10.64.0.9 dev eth0 mtu 1300 advmss 1200",
        ),
        (
            "ip route show table 77",
            "10.201.0.0/16 via 10.64.0.1 dev eth0",
        ),
        (
            "ip route show 10.202.0.0/16",
            "10.202.0.0/16 dev eth0 scope link",
        ),
        (
            "ip -6 route show table 78",
            "fd99::/32 via fd64::1 dev eth0 metric 9",
        ),
        ("ip -6 route show table 78", "mtu 1290"),
        ("ip -6 route show default", "default via fd64::1 dev eth0"),
    ] {
        // Attributes of routes that are printed beside the configured ones.
        let printed = shown(line)?
            .replace(" proto static", "")
            .replace("onlink ", "");
        assert!(printed.contains(words), "{line}: {printed} without {words}");
    }
    pod.check()?.success()?;
    shown("ip route del 10.201.0.0/16 table 77")?;
    let error = pod.check()?.error()?;
    assert!(format!("{error:?}").contains("10.201.0.0/16"), "{error:?}");
    Ok(())
}

/// behaviour F12: with `enabledad`, ADD waits for duplicate address detection and fails on a
/// duplicate.
#[test]
fn a_duplicate_ipv6_address_is_detected_before_the_pod_starts() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "fd65::/64" }]] });
    let config = network("dad", "dad0", "10.65.0.0/24")
        .with("ipam", ipam)
        .with("enabledad", json!(true));
    let pod = attached(&sandbox, "one", &config)?;
    let shown = pod.machine.call("ip -6 address show eth0")?;
    assert!(
        !shown.contains("tentative") && !shown.contains("nodad"),
        "{shown}"
    );

    let foreign = sandbox.machine("foreign")?;
    let path = foreign.path();
    sandbox.node.call(&format!(
        "ip link add str0 type veth peer name eth0 netns {path}"
    ))?;
    sandbox.node.call("ip link set str0 master dad0 up")?;
    let next = "fd65::3";
    foreign.call(&format!("ip address add {next}/64 dev eth0 nodad"))?;
    foreign.call("ip link set eth0 up")?;
    let words = refusal(&sandbox, "two", &config)?;
    assert!(
        words.contains(next) && words.contains("duplicate address detected"),
        "{words}"
    );
    Ok(())
}

/// behaviour F11: static addresses, with and without a gateway; each can be assigned once.
#[test]
fn static_addresses_are_assigned_as_configured() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let ipam = json!({
        "type": "static",
        "addresses": [{ "address": "10.66.0.9/24", "gateway": "10.66.0.1" }, { "address": "fd66::9/64" }],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "nameservers": ["10.66.0.53"] },
    });
    let config = network("fixed", "fixed0", "10.66.0.0/24").with("ipam", ipam);
    let pod = attached(&sandbox, "one", &config)?;
    let written: [IpAddr; 2] = ["10.66.0.9".parse()?, "fd66::9".parse()?];
    assert_eq!(pod.addresses, written);
    assert_eq!(pod.result()["dns"]["nameservers"][0], "10.66.0.53");
    for gateway in ["10.66.0.1", "fd66::1"] {
        ping(&pod.machine, gateway.parse()?, 1)?;
    }
    pod.check()?.success()?;
    let words = refusal(&sandbox, "two", &config)?;
    assert!(words.contains("10.66.0.9"), "{words}");
    let other = config.with("runtimeConfig", json!({ "ips": ["10.66.0.10/24"] }));
    let second = attached(&sandbox, "three", &other)?;
    ping(&second.machine, first(&pod)?, 1)?;
    pod.del()?;
    second.del()?;
    Ok(())
}

/// behaviour R8: one address of each range set; the pod can send and receive by each of them.
#[test]
fn a_pod_uses_every_address_assigned_to_it() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let subnets = ["10.67.0.0/24", "10.68.0.0/24", "fd67::/64", "fd68::/64"];
    let ranges = subnets.map(|subnet| json!([{ "subnet": subnet }]));
    let config = network("many", "many0", subnets[0])
        .with("ipam", json!({ "type": "host-local", "ranges": ranges }))
        .with("ipMasq", json!(true));
    let (one, two) = (
        attached(&sandbox, "one", &config)?,
        attached(&sandbox, "two", &config)?,
    );
    assert_eq!(one.addresses.len(), subnets.len());
    for (own, other) in one.addresses.iter().zip(&two.addresses) {
        ping_from(&one.machine, *own, *other)?;
        for world in WORLD {
            if world.is_ipv4() == own.is_ipv4() {
                ping_from(&one.machine, *own, world)?;
            }
        }
    }
    one.check()?.success()?;
    one.machine.call("ip address add 10.68.0.77/24 dev eth0")?;
    let stolen = ping_from(&one.machine, "10.68.0.77".parse()?, two.addresses[1]);
    assert!(
        stolen.is_err(),
        "the pod uses an address that was not assigned to it"
    );
    Ok(())
}

/// behaviour K17: pods with addresses of one family only.
#[test]
fn single_stack_pods_have_no_addresses_or_routes_of_the_other_family() -> Result<()> {
    for (cidr, gateway, flag) in [
        ("10.67.0.0/24", "10.67.0.1", "-6"),
        ("fd67::/64", "fd67::1", "-4"),
    ] {
        let sandbox = Sandbox::new()?;
        let _agent = Agent::start_with(&sandbox.node, vec![format!("--pod-cidr={cidr}")])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add()?;
        assert_eq!(pod.addresses.len(), 1);
        ping(&pod.machine, gateway.parse()?, 1)?;
        pod.check()?.success()?;
        let other = pod
            .machine
            .call(&format!("ip {flag} -o address show dev eth0 scope global"))?;
        assert_eq!(other, "", "{cidr}");
        let routes = pod.machine.call(&format!("ip {flag} route show default"))?;
        assert_eq!(routes, "", "{cidr}");
    }
    Ok(())
}

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
    if made {
        node.call("ip link delete probe0")?;
    }
    Ok(made)
}

fn in_vlan(number: u16, subnet: &str) -> Config {
    network(&format!("vlan{number}"), "trunk0", subnet).with("vlan", json!(number))
}

/// behaviour F8: a kernel without VLAN filtering refuses the network instead of leaving it
/// unfiltered.
#[test]
fn vlans_of_one_bridge_are_isolated_or_refused() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let config = in_vlan(100, "10.68.0.0/24");
    if !can_filter_vlans(&sandbox.node)? {
        let words = refusal(&sandbox, "one", &config)?;
        assert!(words.contains("not supported"), "{words}");
        let links = sandbox.node.call("ip -o link")?;
        assert!(!links.contains("trunk0"), "{links}");
        return Ok(());
    }
    let one = attached(&sandbox, "one", &config)?;
    let two = attached(&sandbox, "two", &config)?;
    // Without the spoof check, so that only the VLAN separates the pod from the others.
    let free = in_vlan(200, "10.69.0.0/24").with("macspoofchk", json!(false));
    let three = attached(&sandbox, "three", &free)?;
    ping(&one.machine, first(&two)?, 1)?;
    for (pod, gateway) in [(&one, "10.68.0.1"), (&three, "10.69.0.1")] {
        ping(&pod.machine, gateway.parse()?, 1)?;
        pod.check()?.success()?;
    }
    let names = |pod: &Pod| pod.result()["interfaces"][3]["name"].clone();
    assert_eq!(
        [names(&one), names(&three)],
        [json!("trunk0.100"), json!("trunk0.200")]
    );
    // Neither broadcasts nor packets to the other VLAN's subnet cross without a router.
    three
        .machine
        .call("ip address add 10.68.0.250/24 dev eth0")?;
    three.machine.call("ip route del default")?;
    assert!(!reaches(&three, first(&one)?)?, "from VLAN 200 to VLAN 100");
    vlans_are_repaired(&sandbox, &one, &two)
}

/// Moves a port to another VLAN, and waits until the agent restores it.
fn vlans_are_repaired(sandbox: &Sandbox, one: &Pod, two: &Pod) -> Result<()> {
    let port = one.host_link();
    sandbox
        .node
        .call(&format!("bridge vlan del dev {port} vid 100"))?;
    sandbox
        .node
        .call(&format!("bridge vlan add dev {port} vid 200 pvid untagged"))?;
    e2e::until("the port is in its VLAN", || {
        let shown: Value = sandbox
            .node
            .call_json(&format!("bridge -j vlan show dev {port}"))?;
        let vlans = shown[0]["vlans"].as_array().cloned().unwrap_or_default();
        let is_right = vlans.len() == 1 && vlans[0]["vlan"] == json!(100);
        Ok(is_right.then_some(()))
    })?;
    ping(&one.machine, first(two)?, 1).map(drop)
}

/// behaviour F8: a trunk port passes several VLANs with their tags to the pod.
#[test]
fn a_trunk_port_carries_only_the_configured_vlans() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let trunk = network("trunk", "trunk0", "10.70.0.0/24")
        .with("isGateway", json!(false))
        .with("isDefaultGateway", json!(false))
        .with("vlanTrunk", json!([{ "minID": 100, "maxID": 101 }]));
    if !can_filter_vlans(&sandbox.node)? {
        let words = refusal(&sandbox, "one", &trunk)?;
        assert!(words.contains("not supported"), "{words}");
        return Ok(());
    }
    let router = attached(&sandbox, "router", &trunk)?;
    let host = attached(&sandbox, "host", &in_vlan(100, "10.68.0.0/24"))?;
    for number in [100, 102] {
        router.machine.call(&format!(
            "ip link add link eth0 name eth0.{number} type vlan id {number}"
        ))?;
        router.machine.call(&format!(
            "ip address add 10.68.0.{number}/24 dev eth0.{number}"
        ))?;
    }
    router.machine.call("ip link set eth0.100 up")?;
    assert!(reaches(&router, first(&host)?)?, "VLAN 100 is in vlanTrunk");
    router.machine.call("ip link set eth0.100 down")?;
    router.machine.call("ip link set eth0.102 up")?;
    assert!(
        !reaches(&router, first(&host)?)?,
        "a VLAN that is not in vlanTrunk"
    );
    router.check()?.success()
}
