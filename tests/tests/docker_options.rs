//! Options of Docker's networks: each has the effect that docs/docker.md states, or is refused by
//! name.

use anyhow::{Context as _, Result, ensure};
use e2e::company::{DebianPodman, has_program};
use e2e::docker_driver::options::{CELLS, CLOSED, MODE_V4, REFUSED, TRUSTED};
use e2e::docker_driver::{ENDPOINTS, POOL, PORT, PUBLISHED, Scene, at, create, tcp};
use e2e::residue::await_no_residue;
use e2e::{
    Echo, NODE, UPLINK, WORLD, connects, ping, ping_source, skipped, tcp_echo, tcp_source, until,
};
use serde_json::json;

/// Returns a scene whose world has a route to the pool.
fn routed_scene() -> Result<Scene> {
    let scene = Scene::new()?;
    let route = format!("ip route add {POOL} via {}", NODE[0]);
    scene.sandbox.world.call(&route)?;
    Ok(scene)
}

#[test]
fn routed_containers_of_docker_are_reached_by_published_ports_and_echo_requests() -> Result<()> {
    let scene = routed_scene()?;
    scene.create_network(&json!({MODE_V4: "routed"}))?;
    let web = scene.start("web", ENDPOINTS[0])?;
    let client = scene.start("client", ENDPOINTS[1])?;
    scene.attached(&web).world_reaches(PORT, false)?;
    // The port of the node has no effect, and stays free.
    scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    scene.attached(&web).world_reaches(PORT, true)?;
    scene.attached(&web).world_reaches(CLOSED, false)?;
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
    assert_eq!(
        scene.attached(&web).seen_by_world()?,
        web.address,
        "not masqueraded"
    );
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
    scene.attached(&web).world_reaches(PORT, true)?;
    scene.agent.restart()?;
    scene.attached(&web).world_reaches(PORT, true)?;
    scene.attached(&web).world_reaches(CLOSED, false)?;
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
        scene.attached(&web).world_reaches(CLOSED, true)?;
        scene.agent.kill()?;
        scene.agent.restart()?;
    }
    assert_eq!(
        scene.attached(&web).seen_by_world()?,
        NODE[0],
        "masqueraded"
    );
    scene.stop(&web, ENDPOINTS[0])?;
    scene.delete_network()?;
    // Other networks of the node do not trust the interface.
    scene.create_network(&json!({TRUSTED: "wg0"}))?;
    let web = scene.start("again", ENDPOINTS[0])?;
    scene.attached(&web).world_reaches(CLOSED, false)?;
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

#[test]
fn each_option_of_docker_networks_has_its_effect() -> Result<()> {
    let scene = routed_scene()?;
    for (number, cell) in CELLS.iter().enumerate() {
        let try_one = || {
            scene.create_network(&json!({cell.option: cell.value}))?;
            let web = scene.start(&format!("web{number}"), ENDPOINTS[0])?;
            scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
            (cell.holds)(&scene.attached(&web))?;
            scene.stop(&web, ENDPOINTS[0])?;
            scene.delete_network()
        };
        try_one().with_context(|| cell.to_string())?;
    }
    await_no_residue(&scene.before, &scene.sandbox.node)
}

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
