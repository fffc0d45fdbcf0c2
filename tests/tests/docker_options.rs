//! Options of Docker's networks: each has the effect that docs/docker.md states, or is refused by
//! name.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::company::{DebianPodman, has_program};
use e2e::docker_driver::{Container, ENDPOINTS, POOL, PORT, PUBLISHED, Scene, at, create, tcp};
use e2e::residue::await_no_residue;
use e2e::{
    Echo, NODE, UPLINK, WORLD, connects, ping, ping_source, skipped, tcp_echo, tcp_source, until,
};
use serde_json::{Value, json};

const SERVER: u16 = 7000;
/// A port of containers that nothing publishes.
const CLOSED: u16 = 81;
const EGRESS: &str = "192.0.2.99";
const MODE_V4: &str = "com.docker.network.bridge.gateway_mode_ipv4";
const MODE_V6: &str = "com.docker.network.bridge.gateway_mode_ipv6";
const TRUSTED: &str = "com.docker.network.bridge.trusted_host_interfaces";

/// Returns a scene whose world has a route to the pool.
fn routed_scene() -> Result<Scene> {
    let scene = Scene::new()?;
    let route = format!("ip route add {POOL} via {}", NODE[0]);
    scene.sandbox.world.call(&route)?;
    Ok(scene)
}

/// Asserts that the world reaches a port of the container by its own address, or does not.
fn world_reaches(scene: &Scene, container: &Container, port: u16, reached: bool) -> Result<()> {
    let _serving = Echo::start(&container.machine, port)?;
    if reached {
        let (seen, _) = tcp_source(&scene.sandbox.world, 0, at(container.address, port))?;
        assert_eq!(seen.ip(), WORLD[0], "the client's address");
        return Ok(());
    }
    ensure!(!connects(
        &scene.sandbox.world,
        at(container.address, port)
    )?);
    Ok(())
}

/// Returns the address with which the container reaches the world.
fn seen_by_world(scene: &Scene, container: &Container) -> Result<IpAddr> {
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;
    let (seen, _) = tcp_source(&container.machine, 0, at(WORLD[0], SERVER))?;
    Ok(seen.ip())
}

#[test]
fn routed_containers_of_docker_are_reached_by_published_ports_and_echo_requests() -> Result<()> {
    let scene = routed_scene()?;
    scene.create_network(&json!({MODE_V4: "routed"}))?;
    let web = scene.start("web", ENDPOINTS[0])?;
    let client = scene.start("client", ENDPOINTS[1])?;
    world_reaches(&scene, &web, PORT, false)?;
    // The port of the node has no effect, and stays free.
    scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    world_reaches(&scene, &web, PORT, true)?;
    world_reaches(&scene, &web, CLOSED, false)?;
    let node = &scene.sandbox.node;
    for port in [PUBLISHED, PORT] {
        drop(Echo::start(node, port)?);
    }
    let _serving = Echo::start(&web.machine, PORT)?;
    ensure!(!connects(&scene.sandbox.world, at(NODE[0], PUBLISHED))?);
    let open = (0..3)
        .map(|_| tcp_source(&scene.sandbox.world, 0, at(web.address, PORT)))
        .collect::<Result<Vec<_>>>()?;
    // Echo requests pass, and so do the answers to the container's own.
    let seen = ping_source(&scene.sandbox.world, &web.machine, web.address)?;
    assert_eq!(seen, WORLD[0]);
    ping(&web.machine, WORLD[0], 1)?;
    assert_eq!(seen_by_world(&scene, &web)?, web.address, "not masqueraded");
    // Within the network all ports are open.
    let _closed = Echo::start(&web.machine, CLOSED)?;
    tcp_source(&client.machine, 0, at(web.address, CLOSED))?;
    let ports = scene.agent.get("/v1/hostports")?;
    assert_eq!(ports[0]["host_address"], web.address.to_string());
    assert_eq!(
        (&ports[0]["host_port"], &ports[0]["claims"]),
        (&json!(PORT), &json!([]))
    );
    // And perhaps the connection above, which is closed.
    let flows = ports[0]["flows"].as_u64();
    ensure!(flows.is_some_and(|it| (3..=4).contains(&it)), "{ports}");
    drop(open);
    scene.publish(ENDPOINTS[0], &json!([]))?;
    ensure!(!connects(&scene.sandbox.world, at(web.address, PORT))?);
    scene.stop(&web, ENDPOINTS[0])?;
    scene.stop(&client, ENDPOINTS[1])?;
    scene.clean()
}

#[test]
fn routed_containers_of_docker_survive_the_agent() -> Result<()> {
    let mut scene = routed_scene()?;
    scene.create_network(&json!({MODE_V4: "routed"}))?;
    let web = scene.start("web", ENDPOINTS[0])?;
    scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    scene.agent.kill()?;
    world_reaches(&scene, &web, PORT, true)?;
    scene.agent.restart()?;
    world_reaches(&scene, &web, PORT, true)?;
    world_reaches(&scene, &web, CLOSED, false)?;
    let status = scene.agent.get("/v1/status")?;
    assert_eq!(status["degraded"], json!([]), "{status}");
    scene.stop(&web, ENDPOINTS[0])?;
    scene.clean()
}

#[test]
fn trusted_interfaces_reach_every_port_of_dockers_containers() -> Result<()> {
    let mut scene = routed_scene()?;
    scene.create_network(&json!({TRUSTED: format!("wg0:{UPLINK}")}))?;
    let web = scene.start("web", ENDPOINTS[0])?;
    for _ in 0..2 {
        world_reaches(&scene, &web, CLOSED, true)?;
        scene.agent.kill()?;
        scene.agent.restart()?;
    }
    assert_eq!(seen_by_world(&scene, &web)?, NODE[0], "masqueraded");
    scene.stop(&web, ENDPOINTS[0])?;
    scene.delete_network()?;
    // Other networks of the node do not trust the interface.
    scene.create_network(&json!({TRUSTED: "wg0"}))?;
    let web = scene.start("again", ENDPOINTS[0])?;
    world_reaches(&scene, &web, CLOSED, false)?;
    scene.stop(&web, ENDPOINTS[0])?;
    scene.clean()
}

#[test]
fn containers_of_podman_reach_published_ports_of_routed_networks() -> Result<()> {
    for program in ["podman", "crun", "conmon"] {
        if !has_program(program) {
            skipped(program);
            return Ok(());
        }
    }
    let scene = routed_scene()?;
    scene.create_network(&json!({MODE_V4: "routed"}))?;
    let web = scene.start("web", ENDPOINTS[0])?;
    scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    let _serving = [
        Echo::start(&web.machine, PORT)?,
        Echo::start(&web.machine, CLOSED)?,
    ];
    let node = &scene.sandbox.node;
    let podman = DebianPodman::new(node)?;
    let neighbour = podman.run("neighbour", 9090, 90)?.machine;
    until("the agent has closed the network", || {
        let rules = node.call("nft list table inet viaduct");
        Ok(rules.ok().filter(|rules| rules.contains("chain closed")))
    })?;
    let (_, stream) = tcp_source(&neighbour, 0, at(web.address, PORT))?;
    tcp_echo(&stream)?;
    ping(&neighbour, web.address, 1)?;
    ensure!(!connects(&neighbour, at(web.address, CLOSED))?);
    // Without the port, the container's address is closed again.
    scene.publish(ENDPOINTS[0], &json!([]))?;
    ensure!(!connects(&neighbour, at(web.address, PORT))?);
    Ok(())
}

/// An option with a value, and a check of its effect on a container.
struct Cell {
    option: &'static str,
    value: &'static str,
    holds: fn(&Scene, &Container) -> Result<()>,
}

const fn cell(
    option: &'static str,
    value: &'static str,
    holds: fn(&Scene, &Container) -> Result<()>,
) -> Cell {
    Cell {
        option,
        value,
        holds,
    }
}

/// Returns the attachment of the container.
fn attachment(scene: &Scene) -> Result<Value> {
    Ok(scene.agent.get("/v1/attachments")?[0].clone())
}

fn is_masqueraded(scene: &Scene, web: &Container) -> Result<()> {
    assert_eq!(seen_by_world(scene, web)?, NODE[0]);
    Ok(())
}

fn is_closed(scene: &Scene, web: &Container) -> Result<()> {
    world_reaches(scene, web, CLOSED, false)
}

/// All options that are honoured, in the order of the page.
const CELLS: [Cell; 20] = [
    cell("com.docker.network.bridge.name", "apps0", |scene, _| {
        assert_eq!(attachment(scene)?["bridge"], "apps0");
        Ok(())
    }),
    cell(
        "com.docker.network.bridge.enable_ip_masquerade",
        "false",
        |scene, web| {
            assert_eq!(seen_by_world(scene, web)?, web.address);
            Ok(())
        },
    ),
    cell(
        "com.docker.network.bridge.enable_ip_masquerade",
        "true",
        is_masqueraded,
    ),
    cell(
        "com.docker.network.bridge.enable_icc",
        "false",
        |scene, _| {
            let attachment = attachment(scene)?;
            let link = attachment["host_link"].as_str().context("a link")?;
            let port = scene
                .sandbox
                .node
                .call(&format!("bridge -d link show dev {link}"))?;
            ensure!(port.contains("isolated on"), "{port}");
            Ok(())
        },
    ),
    cell(
        "com.docker.network.bridge.host_binding_ipv4",
        "192.0.2.1",
        |scene, web| {
            scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
            let ports = scene.agent.get("/v1/hostports")?;
            assert_eq!(ports[0]["host_address"], "192.0.2.1");
            let _serving = Echo::start(&web.machine, PORT)?;
            tcp_source(&scene.sandbox.world, 0, at(NODE[0], PUBLISHED)).map(drop)
        },
    ),
    cell(MODE_V4, "nat", is_closed),
    cell(MODE_V4, "nat", is_masqueraded),
    cell(MODE_V4, "nat-unprotected", |scene, web| {
        world_reaches(scene, web, CLOSED, true)?;
        is_masqueraded(scene, web)
    }),
    cell(MODE_V4, "routed", is_closed),
    cell(MODE_V4, "routed", |scene, web| {
        assert_eq!(seen_by_world(scene, web)?, web.address);
        Ok(())
    }),
    // The mode of a family that the network lacks has no effect.
    cell(MODE_V6, "routed", is_masqueraded),
    cell(MODE_V6, "nat-unprotected", is_closed),
    cell(TRUSTED, "wg0:up0", |scene, web| {
        world_reaches(scene, web, CLOSED, true)
    }),
    cell("com.docker.network.driver.mtu", "1400", |_, web| {
        let link = web.machine.call("ip link show dev eth0")?;
        ensure!(link.contains("mtu 1400"), "{link}");
        Ok(())
    }),
    cell("com.docker.network.host_ipv4", EGRESS, |scene, web| {
        let address = format!("ip address replace {EGRESS}/24 dev {UPLINK}");
        scene.sandbox.node.call(&address)?;
        // The agent learns of the node's new address by an event.
        until("new flows have the egress address", || {
            let seen = seen_by_world(scene, web);
            Ok(seen
                .is_ok_and(|seen| seen.to_string() == EGRESS)
                .then_some(()))
        })?;
        let address = format!("ip address del {EGRESS}/24 dev {UPLINK}");
        scene.sandbox.node.call(&address).map(drop)
    }),
    cell(
        "com.docker.network.host_ipv6",
        "2001:db8::99",
        is_masqueraded,
    ),
    cell(
        "com.docker.network.container_iface_prefix",
        "app",
        |_, web| web.machine.call("ip link show dev app0").map(drop),
    ),
    cell("viaduct.ingress-rate", "50M", |scene, _| {
        let rate = &attachment(scene)?["bandwidth"]["ingress"]["rate"];
        assert_eq!(*rate, 50_000_000);
        Ok(())
    }),
    cell("viaduct.egress-rate", "40M", |scene, _| {
        let rate = &attachment(scene)?["bandwidth"]["egress"]["rate"];
        assert_eq!(*rate, 40_000_000);
        Ok(())
    }),
    // The default of a refused option.
    cell(
        "com.docker.network.bridge.inhibit_ipv4",
        "false",
        is_masqueraded,
    ),
];

#[test]
fn each_option_of_docker_networks_has_its_effect() -> Result<()> {
    let scene = routed_scene()?;
    for (
        number,
        Cell {
            option,
            value,
            holds,
        },
    ) in CELLS.iter().enumerate()
    {
        let name = || format!("{option}={value}");
        scene
            .create_network(&json!({*option: value}))
            .with_context(name)?;
        let web = scene
            .start(&format!("web{number}"), ENDPOINTS[0])
            .with_context(name)?;
        holds(&scene, &web).with_context(name)?;
        scene.stop(&web, ENDPOINTS[0])?;
        scene.delete_network().with_context(name)?;
    }
    await_no_residue(&scene.before, &scene.sandbox.node)
}

/// Values that are refused, of known and unknown options.
const REFUSED: [(&str, &str); 16] = [
    ("com.docker.network.bridge.default_bridge", "true"),
    ("com.docker.network.bridge.inhibit_ipv4", "true"),
    ("parent", "eth0"),
    ("ipvlan_mode", "l3"),
    ("com.docker.network.bridge.name", "a name"),
    ("com.docker.network.bridge.enable_ip_masquerade", "perhaps"),
    ("com.docker.network.bridge.enable_icc", "perhaps"),
    ("com.docker.network.bridge.host_binding_ipv4", "::1"),
    (MODE_V4, "bridged"),
    (MODE_V6, "bridged"),
    (TRUSTED, "eth0:a name"),
    ("com.docker.network.driver.mtu", "67"),
    (
        "com.docker.network.container_iface_prefix",
        "fourteen-bytes",
    ),
    ("viaduct.egress-rate", "fast"),
    ("com.docker.network.bridge.colour", "blue"),
    ("colour", "blue"),
];

#[test]
fn other_options_and_values_of_docker_networks_are_refused_by_name() -> Result<()> {
    let scene = Scene::new()?;
    for (name, value) in REFUSED {
        let request = create(&json!({name: value}));
        let refused = scene
            .client
            .refused("NetworkDriver.CreateNetwork", &request)?;
        ensure!(refused.contains(&format!("{name}={value}")), "{refused}");
    }
    // The mode isolated needs an internal network.
    let isolated = json!({MODE_V4: "isolated"});
    let refused = scene
        .client
        .refused("NetworkDriver.CreateNetwork", &create(&isolated))?;
    ensure!(refused.contains("--internal"), "{refused}");
    let mut internal = create(&isolated);
    internal["Options"]["com.docker.network.internal"] = json!(true);
    scene.create_network_of(&internal)?;
    let addresses = scene
        .sandbox
        .node
        .call("ip -4 -brief address show dev vd-0123456789ab")?;
    ensure!(!addresses.contains("10.7.0."), "{addresses}");
    scene.clean()
}
