//! Addresses and routes of the node change during traffic of pods.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use e2e::{
    DatagramFlood, Echo, Machine, NODE, Pod, Sandbox, Sniffer, UPLINK, WORLD, udp_source,
    until_within,
};
use serde_json::Value;

/// Addresses in the world that are reachable by default routes only.
const FAR: [&str; 2] = ["203.0.113.5", "2001:db8:9::5"];
/// A second uplink of the node, and the world's end of it.
const SECOND: [&str; 2] = ["198.51.100.1", "2001:db8:2::1"];
const BEYOND: [&str; 2] = ["198.51.100.2", "2001:db8:2::2"];
/// How long the node may take to apply a change.
const SOON: Duration = Duration::from_secs(15);

fn attached(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    Ok(pod)
}

/// Runs `change` during continuous traffic to `servers`. No packet may reach the world with a pod's
/// address.
fn under_traffic(
    sandbox: &Sandbox,
    pod: &Pod,
    servers: &[SocketAddr],
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let sniffer = Sniffer::for_pods(&sandbox.world, "any")?;
    let traffic = DatagramFlood::start(&pod.machine, servers);
    traffic.await_progress(100)?;
    change()?;
    traffic.await_progress(100)?;
    traffic.end()?;
    assert_eq!(sniffer.end()?, Vec::<String>::new());
    Ok(())
}

/// Waits until new flows from the pod to `server` have the source address `expected`.
fn becomes(pod: &Pod, server: SocketAddr, expected: &str) -> Result<()> {
    let expected = expected.parse::<IpAddr>()?;
    until_within(
        SOON,
        &format!("flows to {server} come from {expected}"),
        || {
            let seen = udp_source(&pod.machine, 0, server).map(|(seen, _)| seen.ip());
            Ok(seen.is_ok_and(|seen| seen == expected).then_some(()))
        },
    )
}

fn replace_addresses(node: &Machine) -> Result<()> {
    for change in [
        format!("ip address del {}/24 dev {UPLINK}", NODE[0]),
        format!("ip address add 192.0.2.77/24 dev {UPLINK}"),
        format!("ip route replace default via {} dev {UPLINK}", WORLD[0]),
        format!("ip address add 2001:db8:1::77/64 nodad dev {UPLINK}"),
        format!("ip address del {}/64 dev {UPLINK}", NODE[1]),
        format!("ip -6 route replace default via {} dev {UPLINK}", WORLD[1]),
    ] {
        node.call(&change)?;
    }
    Ok(())
}

#[test]
fn no_packet_leaves_with_a_pods_address_while_the_uplinks_address_changes() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let servers = WORLD.map(|world| SocketAddr::new(world, 7000));
    for (server, node) in servers.into_iter().zip(NODE) {
        becomes(&pod, server, &node.to_string())?;
    }
    under_traffic(&sandbox, &pod, &servers, || {
        replace_addresses(&sandbox.node)?;
        becomes(&pod, servers[0], "192.0.2.77")?;
        becomes(&pod, servers[1], "2001:db8:1::77")
    })
}

#[test]
fn an_established_flow_gets_the_uplinks_new_address() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let mut open = Vec::new();
    for (world, expected) in WORLD.into_iter().zip(["192.0.2.77", "2001:db8:1::77"]) {
        let (seen, socket) = udp_source(&pod.machine, 0, SocketAddr::new(world, 7000))?;
        open.push((SocketAddr::new(expected.parse()?, seen.port()), socket));
    }
    replace_addresses(&sandbox.node)?;
    for (expected, socket) in open {
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut buffer = [0; 128];
        until_within(SOON, &format!("a reply to {expected}"), || {
            let received = socket.send(b"?").and_then(|_| socket.recv(&mut buffer));
            let is_expected = |length: usize| buffer[..length] == *expected.to_string().as_bytes();
            Ok(received.is_ok_and(is_expected).then_some(()))
        })?;
    }
    Ok(())
}

/// Adds a second link between node and world, and addresses that are reachable by both.
fn second_uplink(sandbox: &Sandbox) -> Result<()> {
    let parsed = |texts: [&str; 2]| texts.map(str::parse::<IpAddr>);
    let [v4, v6] = parsed(SECOND);
    let [far_v4, far_v6] = parsed(BEYOND);
    sandbox.connect("up1", "eth1")?;
    sandbox.configure_link(&sandbox.node, "up1", &[v4?, v6?])?;
    sandbox.configure_link(&sandbox.world, "eth1", &[far_v4?, far_v6?])?;
    sandbox
        .world
        .call(&format!("ip address add {}/32 dev lo", FAR[0]))?;
    sandbox
        .world
        .call(&format!("ip address add {}/128 nodad dev lo", FAR[1]))
        .map(drop)
}

fn default_route(node: &Machine, via: [&str; 2], dev: &str) -> Result<()> {
    node.call(&format!(
        "ip route replace default via {} dev {dev}",
        via[0]
    ))?;
    // `replace` would add an IPv6 route by another device beside the first one.
    node.call("ip -6 route flush exact ::/0")?;
    node.call(&format!("ip -6 route add default via {} dev {dev}", via[1]))
        .map(drop)
}

#[test]
fn no_packet_leaves_with_a_pods_address_while_the_default_route_moves() -> Result<()> {
    let sandbox = Sandbox::new()?;
    second_uplink(&sandbox)?;
    let _agent = e2e::Agent::start(&sandbox.node, &[])?;
    let pod = attached(&sandbox)?;
    let mut servers = Vec::new();
    let mut echoes = Vec::new();
    for far in FAR {
        let server = SocketAddr::new(far.parse()?, 7000);
        echoes.push(Echo::at(&sandbox.world, server)?);
        servers.push(server);
    }
    let all_become = |expected: [&str; 2]| -> Result<()> {
        becomes(&pod, servers[0], expected[0])?;
        becomes(&pod, servers[1], expected[1])
    };
    let (first, world) = (
        NODE.map(|node| node.to_string()),
        WORLD.map(|w| w.to_string()),
    );
    let first = [first[0].as_str(), first[1].as_str()];
    all_become(first)?;
    under_traffic(&sandbox, &pod, &servers, || {
        default_route(&sandbox.node, BEYOND, "up1")?;
        all_become(SECOND)?;
        default_route(&sandbox.node, [&world[0], &world[1]], UPLINK)?;
        all_become(first)
    })?;
    drop(echoes);
    Ok(())
}

#[test]
fn no_packet_leaves_with_a_pods_address_by_a_new_attached_uplink() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox)?;
    let [v4, v6] = FAR.map(|far| far.parse().map(|far| SocketAddr::new(far, 7000)));
    let servers = [v4?, v6?];
    let mut echoes = Vec::new();
    under_traffic(&sandbox, &pod, &servers, || {
        second_uplink(&sandbox)?;
        for server in &servers {
            echoes.push(Echo::at(&sandbox.world, *server)?);
        }
        until_within(SOON, "the agent has attached the new uplink", || {
            let status = agent.get("/v1/status")?;
            let mut uplinks = status["uplinks"].as_array().into_iter().flatten();
            let ready = |uplink: &Value| uplink["name"] == "up1" && uplink["attached"] == true;
            Ok(uplinks.any(ready).then_some(()))
        })?;
        default_route(&sandbox.node, BEYOND, "up1")?;
        becomes(&pod, servers[0], SECOND[0])?;
        becomes(&pod, servers[1], SECOND[1])
    })?;
    drop(echoes);
    Ok(())
}
