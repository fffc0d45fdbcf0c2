//! The agent follows the routing table: uplinks that appear, routes that move, addresses that change.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use e2e::{Agent, Echo, NODE, Pod, Sandbox, UPLINK, WORLD, skipped, udp_source, until_within};

/// An address in the world to which only a default route leads.
const FAR: &str = "203.0.113.5";

fn attached(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    Ok(pod)
}

/// New flows from `pod` to `server` get the address `expected` before long.
fn assert_becomes(pod: &Pod, server: &str, expected: &str) -> Result<()> {
    let server = SocketAddr::new(server.parse()?, 7000);
    let expected = expected.parse::<IpAddr>()?;
    let what = format!("new flows to {server} come from {expected}");
    until_within(Duration::from_secs(20), &what, || {
        // While routes are moving, datagrams may be lost; that is not what is asked here.
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
    sandbox.dress(&sandbox.node, "late0", &NODE)?;
    sandbox.dress(&sandbox.world, "eth0", &WORLD)?;
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
fn a_default_route_that_moves_to_another_interface_is_followed() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.connect("up1", "eth1")?;
    sandbox.dress(&sandbox.node, "up1", &["198.51.100.1".parse()?])?;
    sandbox.dress(&sandbox.world, "eth1", &["198.51.100.2".parse()?])?;
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

/// As MASQUERADE closes them: a flow that went on with the old address would never get an answer.
#[test]
fn a_flow_moves_off_an_address_that_is_gone() -> Result<()> {
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

/// The kernel routes what pods send by the interface that it came by; so must whoever looks the next hop up.
#[test]
fn the_next_hop_of_a_rule_for_pods_chooses_the_address() -> Result<()> {
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

/// The same for rules that ask for a mark, which others give to packets on their way.
#[test]
fn the_next_hop_of_a_rule_for_marks_chooses_the_address() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    if !agent.can("routes-by-mark")? {
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

/// RFC 6724, rule 3, as the kernel has it.
#[test]
fn an_address_that_is_deprecated_is_used_only_where_there_is_no_other() -> Result<()> {
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
fn pods_leave_with_the_egress_address_while_the_node_has_it() -> Result<()> {
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
    // The other family leaves as before.
    assert_becomes(&pod, &WORLD[1].to_string(), &NODE[1].to_string())
}
