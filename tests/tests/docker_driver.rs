//! Docker's network driver and IPAM driver: each call of the protocol, sent as dockerd sends it.

use std::net::TcpListener;

use anyhow::{Context as _, Result, ensure};
use e2e::docker_driver::{
    BRIDGE, Client, ENDPOINTS, NETWORK, POOL, PORT, PUBLISHED, Scene, at, create, of, tcp,
};
use e2e::residue::await_no_residue;
use e2e::{Agent, Echo, NODE, Sandbox, WORLD, connects, tcp_echo, tcp_source, until};
use serde_json::json;

const SERVER: u16 = 7000;

#[test]
fn the_socket_of_dockers_drivers_serves_their_calls_and_nothing_else() -> Result<()> {
    let scene = Scene::new()?;
    let activated = scene.client.raw("Plugin.Activate", "")?;
    ensure!(activated.0 == 200, "{activated:?}");
    ensure!(
        activated.1 == r#"{"Implements":["NetworkDriver","IpamDriver"]}"#,
        "{activated:?}"
    );
    let capabilities = scene.call("NetworkDriver.GetCapabilities", &json!(null))?;
    assert_eq!(capabilities["Scope"], "local");
    assert_eq!(capabilities["ConnectivityScope"], "local");
    let ipam = scene.call("IpamDriver.GetCapabilities", &json!(null))?;
    assert_eq!(ipam["RequiresRequestReplay"], false);
    for call in ["NetworkDriver.DiscoverNew", "NetworkDriver.DiscoverDelete"] {
        let node = json!({"DiscoveryType": 1, "DiscoveryData": {"Address": "192.0.2.1"}});
        assert_eq!(scene.call(call, &node)?, json!({}));
    }
    for path in [
        "v1/status",
        "v1/attachments",
        "NetworkDriver.AllocateNetwork",
        "",
    ] {
        assert_eq!(scene.client.raw(path, "{}")?.0, 404, "{path}");
    }
    for body in ["", "{", "[]", r#"{"NetworkID": "../../etc"}"#] {
        let (status, text) = scene.client.raw("NetworkDriver.DeleteNetwork", body)?;
        ensure!(
            status == 400 && text.contains("\"Err\""),
            "{body}: {status} {text}"
        );
    }
    let large = "x".repeat(5 << 20);
    assert_eq!(scene.client.raw("IpamDriver.RequestPool", &large)?.0, 400);
    let mode = scene
        .sandbox
        .node
        .call("stat --format=%a /run/docker/plugins/viaduct.sock")?;
    assert_eq!(mode.trim(), "600");
    Ok(())
}

#[test]
fn endpoints_of_docker_reach_each_other_and_the_outside_and_publish_ports() -> Result<()> {
    let scene = Scene::new()?;
    scene.create_network(&json!({}))?;
    let node = &scene.sandbox.node;
    let link = node.call(&format!("ip -brief address show dev {BRIDGE}"))?;
    ensure!(link.contains("10.7.0.1/24"), "{link}");
    let first = scene.start("first", ENDPOINTS[0])?;
    let second = scene.start("second", ENDPOINTS[1])?;
    assert_eq!(first.address.to_string(), "10.7.0.2");

    // As the outside and a container of the network see them.
    let world = Echo::start(&scene.sandbox.world, SERVER)?;
    let (seen, _) = tcp_source(&first.machine, 0, at(WORLD[0], SERVER))?;
    assert_eq!(seen.ip(), NODE[0]);
    let _serving = Echo::start(&second.machine, PORT)?;
    let (seen, _) = tcp_source(&first.machine, 0, at(second.address, PORT))?;
    assert_eq!(seen.ip(), first.address);
    // Without a published port nothing enters.
    let gateway = NODE[0];
    scene
        .sandbox
        .world
        .call(&format!("ip route add {POOL} via {gateway}"))?;
    ensure!(!connects(&scene.sandbox.world, at(second.address, PORT))?);

    scene.publish(ENDPOINTS[1], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    assert_eq!(scene.published(ENDPOINTS[1])?, [PUBLISHED]);
    let (_, stream) = tcp_source(&scene.sandbox.world, 0, at(NODE[0], PUBLISHED))?;
    tcp_echo(&stream)?;
    let attachments = scene.agent.get("/v1/attachments")?;
    let listed = attachments.as_array().context("a list")?;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["pod"]["namespace"], "docker");
    assert_eq!(listed[0]["network"], "docker-0123456789ab");
    assert_eq!(listed[0]["netns"], "");

    drop(world);
    scene.stop(&first, ENDPOINTS[0])?;
    scene.stop(&second, ENDPOINTS[1])?;
    let links = second.machine.call("ip -o link show")?;
    ensure!(!links.contains("eth0"), "{links}");
    scene.clean()
}

#[test]
fn repeated_calls_of_dockers_drivers_have_one_effect() -> Result<()> {
    let scene = Scene::new()?;
    scene.create_network(&json!({}))?;
    scene.call("NetworkDriver.CreateNetwork", &create(&json!({})))?;
    let other = json!({"com.docker.network.driver.mtu": "1400"});
    let refused = scene
        .client
        .refused("NetworkDriver.CreateNetwork", &create(&other))?;
    ensure!(refused.contains("another network"), "{refused}");
    let container = scene.start("container", ENDPOINTS[0])?;
    // An answer was lost: dockerd repeats the request.
    let interface = json!({"Interface": {"Address": "10.7.0.2/24"}});
    let again = scene.call(
        "NetworkDriver.CreateEndpoint",
        &of(ENDPOINTS[0], &interface),
    )?;
    assert_eq!(again["Interface"]["MacAddress"], container.mac);
    scene.call("NetworkDriver.Join", &of(ENDPOINTS[0], &json!({})))?;
    let interface = json!({"Interface": {"Address": "10.7.0.9/24"}});
    let changed = of(ENDPOINTS[0], &interface);
    let refused = scene
        .client
        .refused("NetworkDriver.CreateEndpoint", &changed)?;
    ensure!(refused.contains("already"), "{refused}");
    for _ in 0..2 {
        scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
        assert_eq!(scene.published(ENDPOINTS[0])?, [PUBLISHED]);
    }
    let network = json!({"NetworkID": NETWORK});
    let refused = scene
        .client
        .refused("NetworkDriver.DeleteNetwork", &network)?;
    ensure!(refused.contains("still attached"), "{refused}");
    for _ in 0..2 {
        scene.stop(&container, ENDPOINTS[0])?;
    }
    let unknown = of(ENDPOINTS[0], &json!({"Options": {}}));
    for call in ["Join", "EndpointOperInfo", "ProgramExternalConnectivity"] {
        let refused = scene
            .client
            .refused(&format!("NetworkDriver.{call}"), &unknown)?;
        ensure!(refused.contains("is not attached"), "{call}: {refused}");
    }
    scene.call("NetworkDriver.DeleteNetwork", &network)?;
    let interface = json!({"Interface": {"Address": "10.7.0.2/24"}});
    let orphan = of(ENDPOINTS[0], &interface);
    let refused = scene
        .client
        .refused("NetworkDriver.CreateEndpoint", &orphan)?;
    ensure!(refused.contains("there is no network"), "{refused}");
    scene.clean()
}

#[test]
fn networks_and_endpoints_of_docker_survive_the_agent() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.create_network(&json!({}))?;
    let bridge = format!("ip link show dev {BRIDGE}");
    scene.agent.kill()?;
    // As after a reboot: neither records nor links are left.
    scene
        .sandbox
        .node
        .call(&format!("ip link delete {BRIDGE}"))?;
    let records = "rm -f /run/viaduct/records.*";
    scene.sandbox.node.call_words(&["sh", "-c", records])?;
    scene.agent.restart()?;
    scene
        .sandbox
        .node
        .call(&bridge)
        .context("the network has a bridge again")?;
    let container = scene.start("container", ENDPOINTS[0])?;
    scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    let _serving = Echo::start(&container.machine, PORT)?;
    let (_, stream) = tcp_source(&scene.sandbox.world, 0, at(NODE[0], PUBLISHED))?;
    scene.agent.kill()?;
    tcp_echo(&stream).context("while no agent runs")?;
    scene.agent.restart()?;
    tcp_echo(&stream)?;
    let (_, second) = tcp_source(&scene.sandbox.world, 0, at(NODE[0], PUBLISHED))?;
    tcp_echo(&second)?;
    assert_eq!(scene.published(ENDPOINTS[0])?, [PUBLISHED]);
    // The address is still taken, and the network still there.
    assert_eq!(scene.address(&json!({}))?, "10.7.0.3/24");
    scene.release("10.7.0.3")?;
    scene.stop(&container, ENDPOINTS[0])?;
    scene.clean()
}

#[test]
fn an_endpoint_of_docker_ends_with_its_namespace() -> Result<()> {
    let scene = Scene::new()?;
    scene.create_network(&json!({}))?;
    let container = scene.start("container", ENDPOINTS[0])?;
    scene.publish(ENDPOINTS[0], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    container.machine.call("ip link delete eth0")?;
    until("the attachment is removed", || {
        Ok((scene.agent.get("/v1/attachments")? == json!([])).then_some(()))
    })?;
    // The port is free.
    let bound = scene
        .sandbox
        .node
        .run(|| TcpListener::bind((NODE[0], PUBLISHED)).map(drop));
    bound.context("the port of an endpoint that is gone")?;
    scene.stop(&container, ENDPOINTS[0])?;
    scene.clean()
}

#[test]
fn docker_gets_a_free_port_for_ranges_and_ports_without_a_number() -> Result<()> {
    let scene = Scene::new()?;
    scene.create_network(&json!({}))?;
    let container = scene.start("container", ENDPOINTS[0])?;
    let node = &scene.sandbox.node;
    node.sysctl("ipv4/ip_local_port_range", "40000 40003")?;
    // Another process has the first of each.
    let bind = |port| node.run(|| TcpListener::bind(("0.0.0.0", port)));
    let bound = [bind(9000)?, bind(40000)?];
    scene.publish(ENDPOINTS[0], &json!([tcp(9000, 9005), tcp(0, 0)]))?;
    let ports = scene.published(ENDPOINTS[0])?;
    assert_eq!(ports[0], 9001);
    ensure!((40001..=40003).contains(&ports[1]), "{ports:?}");
    let _serving = Echo::start(&container.machine, PORT)?;
    for port in &ports {
        let (_, stream) = tcp_source(&scene.sandbox.world, 0, at(NODE[0], *port))?;
        tcp_echo(&stream)?;
    }
    // A port that the user has named is not replaced.
    let bindings = json!([tcp(9000, 9000)]);
    let request = of(
        ENDPOINTS[0],
        &json!({"Options": {"com.docker.network.portmap": bindings}}),
    );
    let refused = scene
        .client
        .refused("NetworkDriver.ProgramExternalConnectivity", &request)?;
    ensure!(refused.contains("9000"), "{refused}");
    assert_eq!(
        scene.published(ENDPOINTS[0])?,
        ports,
        "a failed call changes nothing"
    );
    node.sysctl("ipv4/ip_local_port_range", "32768 60999")?;
    drop(bound);
    scene.stop(&container, ENDPOINTS[0])?;
    scene.clean()
}

#[test]
fn containers_without_icc_do_not_reach_each_other() -> Result<()> {
    let scene = Scene::new()?;
    scene.create_network(&json!({"com.docker.network.bridge.enable_icc": "false"}))?;
    let first = scene.start("first", ENDPOINTS[0])?;
    let second = scene.start("second", ENDPOINTS[1])?;
    let _serving = Echo::start(&second.machine, PORT)?;
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;
    tcp_source(&first.machine, 0, at(WORLD[0], SERVER))?;
    ensure!(!connects(&first.machine, at(second.address, PORT))?);
    scene.publish(ENDPOINTS[1], &json!([tcp(PUBLISHED, PUBLISHED)]))?;
    tcp_source(&first.machine, 0, at(NODE[0], PUBLISHED))?;
    scene.stop(&first, ENDPOINTS[0])?;
    scene.stop(&second, ENDPOINTS[1])?;
    scene.clean()
}

#[test]
fn options_that_viaduct_does_not_have_are_refused_by_name() -> Result<()> {
    let scene = Scene::new()?;
    for (name, value) in [
        ("com.docker.network.bridge.inhibit_ipv4", "true"),
        ("com.docker.network.bridge.colour", "blue"),
        ("parent", "eth0"),
    ] {
        let request = create(&json!({name: value}));
        let refused = scene
            .client
            .refused("NetworkDriver.CreateNetwork", &request)?;
        ensure!(refused.contains(&format!("{name}={value}")), "{refused}");
    }
    let mut clashing = create(&json!({}));
    clashing["IPv4Data"][0] = json!({"Pool": "10.244.0.0/16", "Gateway": "10.244.0.1/16"});
    let refused = scene
        .client
        .refused("NetworkDriver.CreateNetwork", &clashing)?;
    ensure!(refused.contains("overlaps"), "{refused}");
    let check = json!({"Options": {"com.docker.network.generic":
        {"com.docker.network.bridge.gateway_mode_ipv4": "isolated"}}});
    let skipped = scene.call("NetworkDriver.GwAllocCheck", &check)?;
    assert_eq!(skipped, json!({"SkipIPv4": true, "SkipIPv6": false}));
    await_no_residue(&scene.before, &scene.sandbox.node)
}

#[test]
fn an_agent_without_the_directory_of_dockers_socket_says_so() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start(&sandbox.node, &[])?;
    drop(agent);
    let error = Agent::start(&sandbox.node, &Client::FLAGS).unwrap_err();
    let text = format!("{error:#}");
    ensure!(
        text.contains("there is no directory /run/docker/plugins"),
        "{text}"
    );
    Ok(())
}
