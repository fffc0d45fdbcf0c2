//! The agent follows the routing table: new uplinks, moved routes, changed addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use e2e::{
    Agent, Config, Echo, NODE, Pod, Sandbox, UPLINK, WORLD, skipped, udp_source, until_within,
};
use serde_json::json;

/// An address in the world that is reachable by the default route only.
const FAR: &str = "203.0.113.5";

fn attached(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    Ok(pod)
}

/// Waits until new flows from `pod` to `server` have the source address `expected`.
fn assert_becomes(pod: &Pod, server: &str, expected: &str) -> Result<()> {
    let server = SocketAddr::new(server.parse()?, 7000);
    let expected = expected.parse::<IpAddr>()?;
    let what = format!("new flows to {server} come from {expected}");
    until_within(Duration::from_secs(20), &what, || {
        // Datagrams may be lost while routes change; only the source address matters here.
        let seen = udp_source(&pod.machine, 0, server).map(|(seen, _)| seen.ip());
        Ok(seen.is_ok_and(|seen| seen == expected).then_some(()))
    })
}

#[test]
fn an_uplink_that_appears_later_is_used() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call(&format!("ip link delete {UPLINK}"))?;
    let agent = Agent::start(&sandbox.node, &[])?;
    let pod = attached(&sandbox)?;

    sandbox.connect("late0", "eth0")?;
    sandbox.configure_link(&sandbox.node, "late0", &NODE)?;
    sandbox.configure_link(&sandbox.world, "eth0", &WORLD)?;
    for world in WORLD {
        let family = if world.is_ipv4() { "-4" } else { "-6" };
        sandbox
            .node
            .call(&format!("ip {family} route add default via {world}"))?;
    }
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        assert_becomes(&pod, &world.to_string(), &node.to_string())?;
    }
    let status = agent.get("/v1/status")?;
    let names = status["uplinks"].to_string();
    assert!(names.contains("late0"), "{names}");
    Ok(())
}

#[test]
fn the_masquerade_address_follows_a_default_route_that_moves() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.connect("up1", "eth1")?;
    sandbox.configure_link(&sandbox.node, "up1", &["198.51.100.1".parse()?])?;
    sandbox.configure_link(&sandbox.world, "eth1", &["198.51.100.2".parse()?])?;
    sandbox
        .world
        .call(&format!("ip address add {FAR}/32 dev lo"))?;
    let _agent = Agent::start(&sandbox.node, &[])?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::at(&sandbox.world, SocketAddr::new(FAR.parse()?, 7000))?;
    assert_becomes(&pod, FAR, &NODE[0].to_string())?;

    let node = &sandbox.node;
    node.call("ip route replace default via 198.51.100.2 dev up1")?;
    assert_becomes(&pod, FAR, "198.51.100.1")?;
    node.call(&format!(
        "ip route replace default via {} dev {UPLINK}",
        WORLD[0]
    ))?;
    assert_becomes(&pod, FAR, &NODE[0].to_string())
}

#[test]
fn an_uplinks_new_address_is_used_by_new_flows() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        assert_becomes(&pod, &world.to_string(), &node.to_string())?;
    }

    let changes = [
        format!("ip address del {}/24 dev {UPLINK}", NODE[0]),
        format!("ip address add 192.0.2.77/24 dev {UPLINK}"),
        format!("ip route replace default via {} dev {UPLINK}", WORLD[0]),
        format!("ip address del {}/64 dev {UPLINK}", NODE[1]),
        format!("ip address add 2001:db8:1::77/64 nodad dev {UPLINK}"),
        format!("ip -6 route replace default via {} dev {UPLINK}", WORLD[1]),
    ];
    for change in changes {
        sandbox.node.call(&change)?;
    }
    assert_becomes(&pod, &WORLD[0].to_string(), "192.0.2.77")?;
    assert_becomes(&pod, &WORLD[1].to_string(), "2001:db8:1::77")
}

/// netfilter's MASQUERADE deletes such connections too: a flow that kept the removed address would
/// never get a reply.
#[test]
fn a_flow_gets_a_new_source_when_its_address_is_removed() -> Result<()> {
    const PORT: u16 = 41_000;
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let server = SocketAddr::new(WORLD[0], 7000);
    let seen = || udp_source(&pod.machine, PORT, server).map(|(seen, _)| seen);
    assert_eq!(seen()?, SocketAddr::new(NODE[0], PORT));
    let node = &sandbox.node;
    node.call(&format!("ip address del {}/24 dev {UPLINK}", NODE[0]))?;
    node.call(&format!("ip address add 192.0.2.77/24 dev {UPLINK}"))?;
    let expected: SocketAddr = "192.0.2.77:41000".parse()?;
    until_within(
        Duration::from_secs(5),
        "the flow has another address",
        || Ok(seen().is_ok_and(|seen| seen == expected).then_some(())),
    )
}

/// The kernel routes packets of pods with their input interface; the next-hop lookup of the
/// datapath must use the same input interface.
#[test]
fn an_iif_rule_selects_next_hop_and_source_address() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let world = &sandbox.world;
    world.call("ip address add 198.51.100.2/24 dev eth0")?;
    world.call(&format!("ip address add {FAR}/32 dev lo"))?;
    let _echo = Echo::at(world, SocketAddr::new(FAR.parse()?, 7000))?;
    let node = &sandbox.node;
    node.call(&format!("ip address add 198.51.100.1/24 dev {UPLINK}"))?;
    assert_becomes(&pod, FAR, &NODE[0].to_string())?;
    node.call("ip route add default via 198.51.100.2 table 100")?;
    node.call("ip rule add iif cbr0 lookup 100")?;
    assert_becomes(&pod, FAR, "198.51.100.1")
}

/// The same for rules that match a firewall mark, which a foreign nftables rule sets.
#[test]
fn an_fwmark_rule_selects_next_hop_and_source_address() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    if !agent.has_feature("routes-by-mark")? {
        skipped("this kernel looks up routes for programs without their mark");
        return Ok(());
    }
    let pod = attached(&sandbox)?;
    let world = &sandbox.world;
    world.call("ip address add 198.51.100.2/24 dev eth0")?;
    world.call(&format!("ip address add {FAR}/32 dev lo"))?;
    let _echo = Echo::at(world, SocketAddr::new(FAR.parse()?, 7000))?;
    let node = &sandbox.node;
    node.call(&format!("ip address add 198.51.100.1/24 dev {UPLINK}"))?;
    assert_becomes(&pod, FAR, &NODE[0].to_string())?;
    node.call("ip route add default via 198.51.100.2 table 100")?;
    node.call("ip rule add fwmark 7 lookup 100")?;
    let marking = "table inet marking { chain prerouting { type filter hook prerouting priority -150; iifname cbr0 meta mark set 7; }; }";
    node.call_words(&["nft", marking])?;
    assert_becomes(&pod, FAR, "198.51.100.1")
}

/// RFC 6724, rule 3, as the kernel implements it.
#[test]
fn a_deprecated_address_is_used_only_without_an_alternative() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let world = WORLD[1].to_string();
    let (old, new) = (NODE[1].to_string(), "2001:db8:1::77");
    let deprecate = |address: &str| {
        let change = format!(
            "ip -6 address change {address}/64 dev {UPLINK} valid_lft forever preferred_lft 0"
        );
        sandbox.node.call(&change)
    };
    assert_becomes(&pod, &world, &old)?;
    deprecate(&old)?;
    assert_becomes(&pod, &world, &old)?;
    sandbox
        .node
        .call(&format!("ip address add {new}/64 nodad dev {UPLINK}"))?;
    assert_becomes(&pod, &world, new)?;
    sandbox
        .node
        .call(&format!("ip address del {new}/64 dev {UPLINK}"))?;
    assert_becomes(&pod, &world, &old)
}

#[test]
fn pods_use_the_egress_address_while_the_node_has_it() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start(&sandbox.node, &["--egress-address", "192.0.2.99"])?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let degraded = agent.get("/v1/status")?["degraded"].to_string();
    assert!(degraded.contains("no-egress-address"), "{degraded}");
    let server = SocketAddr::new(WORLD[0], 7000);
    assert!(udp_source(&pod.machine, 0, server).is_err());
    let add = format!("ip address add 192.0.2.99/24 dev {UPLINK}");
    sandbox.node.call(&add)?;
    assert_becomes(&pod, &WORLD[0].to_string(), "192.0.2.99")?;
    // IPv6 still uses the uplink's address.
    assert_becomes(&pod, &WORLD[1].to_string(), &NODE[1].to_string())
}

#[test]
fn pods_of_a_declared_network_use_its_egress_addresses() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start(&sandbox.node, &[])?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let config = Config::new("1.1.0")
        .with("name", json!("apps"))
        .with("bridge", json!("br7"))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with(
            "ipam",
            json!({ "type": "host-local", "subnet": "10.7.0.0/24" }),
        );
    let mut pod = sandbox.pod("one")?;
    pod.add_with(
        config
            .clone()
            .with("egressAddresses", json!(["192.0.2.99"])),
    )?;
    let degraded = agent.get("/v1/status")?["degraded"].to_string();
    assert!(degraded.contains("no-egress-address"), "{degraded}");
    let add = format!("ip address add 192.0.2.99/24 dev {UPLINK}");
    sandbox.node.call(&add)?;
    let world = WORLD[0].to_string();
    assert_becomes(&pod, &world, "192.0.2.99")?;
    // Pods of other networks use the uplink's address.
    assert_becomes(&attached(&sandbox)?, &world, &NODE[0].to_string())?;
    // The network's addresses are those of its last ADD.
    let mut next = sandbox.pod("two")?;
    next.add_with(config)?;
    assert_becomes(&next, &world, &NODE[0].to_string())?;
    assert_becomes(&pod, &world, &NODE[0].to_string())
}
