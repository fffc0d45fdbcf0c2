//! Containers of dockerd on networks of the driver viaduct.

#[path = "docker_daemon/options.rs"]
mod options;

use std::net::{IpAddr, SocketAddr, TcpListener};

use anyhow::{Context as _, Result, ensure};
use e2e::company::{Docker, DockerRelease};
use e2e::residue::await_no_residue;
use e2e::{
    Agent, Echo, Machine, NODE, Residue, Sandbox, WORLD, connects, ping, skipped, tcp_echo,
    tcp_source, udp_source, until,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const FLAGS: [&str; 2] = [
    "--docker-socket=/run/docker/plugins/viaduct.sock",
    "--docker-state=/run/docker.json",
];
/// Options of a network of Viaduct's drivers.
const DRIVERS: &str = "--driver viaduct --ipam-driver viaduct";
/// Options with the gateway mode of each family.
const MODES: [&str; 2] = [
    "com.docker.network.bridge.gateway_mode_ipv4",
    "com.docker.network.bridge.gateway_mode_ipv6",
];
const SUBNET: &str = "10.7.0.0/24";
const PUBLISHED: u16 = 8080;
const PORT: u16 = 80;
const SERVER: u16 = 7000;

/// Starts a dockerd on a node.
type Start = fn(&Machine, DockerRelease) -> Result<Docker>;

/// Executes a test with each release of dockerd that is there: the installed one, and the newest
/// one of `cargo xtask setup`.
fn with_each_dockerd(start: Start, test: impl Fn(Scene) -> Result<()>) -> Result<()> {
    for release in [DockerRelease::Installed, DockerRelease::Newest] {
        if !release.is_here() {
            skipped(&format!("{release:?} dockerd"));
            continue;
        }
        let scene = Scene::new(start, release)?;
        let version = scene.docker.version()?;
        test(scene).with_context(|| format!("with dockerd {version}"))?;
    }
    Ok(())
}

/// A node with an agent and a dockerd.
struct Scene {
    docker: Docker,
    agent: Agent,
    sandbox: Sandbox,
    before: Residue,
}

impl Scene {
    fn new(start: Start, release: DockerRelease) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        sandbox.node.call("mkdir -p /run/docker/plugins")?;
        // First: it mounts the cgroups that the agent's is in.
        let docker = start(&sandbox.node, release)?;
        let agent = Agent::start(&sandbox.node, &FLAGS)?;
        let before = Residue::of(&sandbox.node, &[])?;
        Ok(Self {
            docker,
            agent,
            sandbox,
            before,
        })
    }

    /// Creates a network, and returns its ID.
    fn network(&self, name: &str, options: &str) -> Result<String> {
        let created = self
            .docker
            .call(&format!("network create {DRIVERS} {options} {name}"));
        let id = created.with_context(|| self.docker.log())?;
        Ok(id.trim().to_owned())
    }

    /// Starts a container, and returns its namespace.
    fn run(&self, name: &str, options: &str) -> Result<Machine> {
        self.docker.run_with(name, options)?;
        self.docker.namespace(name)
    }

    /// Asserts that a connection from the world to the published port is served.
    fn world_reaches(&self, port: u16) -> Result<()> {
        let (_, stream) = tcp_source(&self.sandbox.world, 0, at(NODE[0], port))?;
        tcp_echo(&stream)
    }

    /// Removes containers and networks, and asserts that nothing is left.
    fn clean(self, containers: &str, networks: &str) -> Result<()> {
        self.docker.call(&format!("rm --force {containers}"))?;
        self.agent.await_detached()?;
        self.docker.call(&format!("network rm {networks}"))?;
        let state: Value = serde_json::from_str(&self.sandbox.node.call("cat /run/docker.json")?)?;
        ensure!(
            state["networks"] == json!({}) && state["pools"] == json!({}),
            "{state}"
        );
        await_no_residue(&self.before, &self.sandbox.node)
    }
}

fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

#[test]
fn docker_run_publishes_ports_and_names_containers() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        let id = scene.network("apps", &format!("--subnet {SUBNET}"))?;
        let web = scene.run(
            "web",
            &format!("--network apps --publish {PUBLISHED}:{PORT}"),
        )?;
        let client = scene.run("client", "--network apps")?;
        let _serving = Echo::start(&web, PORT)?;
        scene.world_reaches(PUBLISHED)?;
        let address = scene.docker.address("web", "apps")?;
        let (seen, _) = tcp_source(&client, 0, at(address, PORT))?;
        assert_eq!(seen.ip(), scene.docker.address("client", "apps")?);
        let _world = Echo::start(&scene.sandbox.world, SERVER)?;
        let (seen, _) = tcp_source(&client, 0, at(WORLD[0], SERVER))?;
        assert_eq!(seen.ip(), NODE[0]);
        // By Docker's own name service.
        let found = scene
            .docker
            .call("exec client /bin/busybox ping -c 1 -w 10 web")?;
        ensure!(found.contains(&address.to_string()), "{found}");

        let inspected: Value = serde_json::from_str(&scene.docker.call("network inspect apps")?)?;
        assert_eq!(inspected[0]["Driver"], "viaduct");
        assert_eq!(inspected[0]["IPAM"]["Config"][0]["Subnet"], SUBNET);
        let containers = inspected[0]["Containers"]
            .as_object()
            .context("no containers")?;
        let mut endpoints = containers
            .values()
            .filter_map(|it| it["EndpointID"].as_str());
        let attachments = scene.agent.get("/v1/attachments")?;
        let listed = attachments.as_array().context("a list")?;
        assert_eq!(listed.len(), 2);
        ensure!(endpoints.all(|endpoint| listed.iter().any(|it| it["containerID"] == endpoint)));
        assert_eq!(listed[0]["network"], format!("docker-{}", &id[..12]));
        scene.clean("web client", "apps")
    })
}

#[test]
fn a_range_of_ports_of_docker_run_is_one_row() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        scene.network("apps", &format!("--subnet {SUBNET}"))?;
        let web = scene.run("web", "--network apps --publish 8000-8099:8000-8099")?;
        for port in [8000, 8050, 8099] {
            let _serving = Echo::start(&web, port)?;
            scene.world_reaches(port)?;
        }
        let listed = scene.agent.ctl("ports")?;
        ensure!(
            listed.matches("8000-8099->8000-8099/tcp").count() == 1,
            "{listed}"
        );
        scene.clean("web", "apps")
    })
}

#[test]
fn containers_on_two_networks_of_docker_reach_both() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        // Their subnets are chosen.
        scene.network("front", "")?;
        scene.network("back", "--internal")?;
        let front = scene.run("front", "--network front")?;
        let back = scene.run("back", "--network back")?;
        let both = scene.run("both", "--network front")?;
        scene.docker.call("network connect back both")?;
        let _serving = [Echo::start(&front, PORT)?, Echo::start(&back, PORT)?];
        let addresses = [
            scene.docker.address("front", "front")?,
            scene.docker.address("back", "back")?,
        ];
        for address in addresses {
            tcp_source(&both, 0, at(address, PORT))?;
        }
        ensure!(!connects(&front, at(addresses[1], PORT)).unwrap_or(false));
        // An internal network leads nowhere, and has no way around it.
        let _world = Echo::start(&scene.sandbox.world, SERVER)?;
        tcp_source(&both, 0, at(WORLD[0], SERVER))?;
        let routes = back.call("ip route show default")?;
        ensure!(routes.is_empty(), "{routes}");
        scene.docker.call("network disconnect back both")?;
        ensure!(!connects(&both, at(addresses[1], PORT)).unwrap_or(false));
        scene.clean("front back both", "front back")
    })
}

#[test]
fn containers_of_dockerd_survive_the_agent() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |mut scene| {
        scene.network("apps", &format!("--subnet {SUBNET}"))?;
        let web = scene.run(
            "web",
            &format!("--network apps --publish {PUBLISHED}:{PORT}"),
        )?;
        let serving = Echo::start(&web, PORT)?;
        let (_, stream) = tcp_source(&scene.sandbox.world, 0, at(NODE[0], PUBLISHED))?;
        scene.agent.kill()?;
        scene.agent.restart()?;
        tcp_echo(&stream)?;
        // Both know all of it: another container gets another address, and the port is taken.
        scene.run("other", "--network apps")?;
        ensure!(scene.docker.address("other", "apps")? != scene.docker.address("web", "apps")?);
        let clash = scene.docker.run_with(
            "clash",
            &format!("--network apps --publish {PUBLISHED}:{PORT}"),
        );
        let clash = format!("{:#}", clash.unwrap_err());
        ensure!(clash.contains(&PUBLISHED.to_string()), "{clash}");
        scene.world_reaches(PUBLISHED)?;
        drop((serving, stream));
        // A restarted container has its port again.
        web.unbind()?;
        scene.docker.call("restart --time 0 web")?;
        let web = scene.docker.namespace("web")?;
        let _serving = Echo::start(&web, PORT)?;
        scene.world_reaches(PUBLISHED)?;
        scene.clean("web other clash", "apps")
    })
}

#[test]
fn containers_of_docker_have_ipv6() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        scene.network(
            "both",
            &format!("--subnet {SUBNET} --ipv6 --subnet fd07::/64"),
        )?;
        let web = scene.run(
            "web",
            &format!("--network both --publish {PUBLISHED}:{PORT}"),
        )?;
        let _serving = Echo::start(&web, PORT)?;
        for node in NODE {
            let (_, stream) = tcp_source(&scene.sandbox.world, 0, at(node, PUBLISHED))?;
            tcp_echo(&stream)?;
        }
        let _world = Echo::start(&scene.sandbox.world, SERVER)?;
        for (world, node) in WORLD.into_iter().zip(NODE) {
            let (seen, _) = tcp_source(&web, 0, at(world, SERVER))?;
            assert_eq!(seen.ip(), node);
        }
        scene.clean("web", "both")
    })
}

#[test]
fn containers_keep_their_network_while_dockerd_is_restarted() -> Result<()> {
    with_each_dockerd(Docker::with_live_restore, |mut scene| {
        let id = scene.network("apps", &format!("--subnet {SUBNET}"))?;
        let web = scene.run(
            "web",
            &format!("--network apps --publish {PUBLISHED}:{PORT}"),
        )?;
        let address = scene.docker.address("web", "apps")?;
        let serving = Echo::start(&web, PORT)?;
        let (_, stream) = tcp_source(&scene.sandbox.world, 0, at(NODE[0], PUBLISHED))?;
        // Twice: the second dockerd has read what the first one stored of restored endpoints.
        for _ in 0..2 {
            scene.docker.end(Signal::SIGTERM)?;
            tcp_echo(&stream).context("while no dockerd runs")?;
            scene.world_reaches(PUBLISHED)?;
            scene.docker.start_again()?;
            tcp_echo(&stream)?;
            scene.world_reaches(PUBLISHED)?;
            // dockerd knows network and endpoint again, and so does the agent.
            assert_eq!(scene.docker.address("web", "apps")?, address);
            let inspected: Value =
                serde_json::from_str(&scene.docker.call("network inspect apps")?)?;
            assert_eq!(inspected[0]["Id"], id);
            let containers = inspected[0]["Containers"].as_object();
            assert_eq!(containers.map(serde_json::Map::len), Some(1), "{inspected}");
            let attachments = scene.agent.get("/v1/attachments")?;
            assert_eq!(
                attachments.as_array().map(Vec::len),
                Some(1),
                "{attachments}"
            );
        }
        // A container that is started now gets another address, and reaches the old one by name.
        let client = scene.run("client", "--network apps")?;
        ensure!(scene.docker.address("client", "apps")? != address);
        tcp_source(&client, 0, at(address, PORT))?;
        let found = scene
            .docker
            .call("exec client /bin/busybox ping -c 1 -w 10 web")?;
        ensure!(found.contains(&address.to_string()), "{found}");
        drop((serving, stream));
        web.unbind()?;
        scene.docker.call("stop --time 0 web")?;
        until("the attachment of the stopped container is removed", || {
            let attachments = scene.agent.get("/v1/attachments")?;
            Ok((attachments.as_array().map(Vec::len) == Some(1)).then_some(()))
        })?;
        let node = &scene.sandbox.node;
        let bound = node.run(|| TcpListener::bind((NODE[0], PUBLISHED)).map(drop));
        bound.context("the port of a stopped container")?;
        scene.clean("web client", "apps")
    })
}

#[test]
fn one_family_of_docker_can_be_routed() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        let routed = "--opt com.docker.network.bridge.gateway_mode_ipv6=routed";
        scene.network(
            "both",
            &format!("--subnet {SUBNET} --ipv6 --subnet fd07::/64 {routed}"),
        )?;
        let web = scene.run(
            "web",
            &format!("--network both --publish {PUBLISHED}:{PORT}"),
        )?;
        let world = &scene.sandbox.world;
        for (subnet, node) in [(SUBNET, NODE[0]), ("fd07::/64", NODE[1])] {
            world.call(&format!("ip route add {subnet} via {node}"))?;
        }
        let format = "{{.NetworkSettings.Networks.both.GlobalIPv6Address}}";
        let shown = scene
            .docker
            .call(&format!("inspect --format {format} web"))?;
        let own: IpAddr = shown.trim().parse().context(shown)?;
        let _serving = [Echo::start(&web, PORT)?, Echo::start(&web, PORT + 1)?];
        scene.world_reaches(PUBLISHED)?;
        let (seen, _) = tcp_source(world, 0, at(own, PORT))?;
        assert_eq!(seen.ip(), WORLD[1]);
        for closed in [
            at(own, PORT + 1),
            at(NODE[1], PUBLISHED),
            at(scene.docker.address("web", "both")?, PORT),
        ] {
            ensure!(!connects(world, closed)?, "{closed}");
        }
        let _world = Echo::start(world, SERVER)?;
        for (family, expected) in [NODE[0], own].into_iter().enumerate() {
            let (seen, _) = tcp_source(&web, 0, at(WORLD[family], SERVER))?;
            assert_eq!(seen.ip(), expected);
        }
        scene.clean("web", "both")
    })
}

/// The own bridge of this dockerd has both families.
#[test]
fn containers_of_dockers_own_bridge_reach_published_ports_of_routed_networks() -> Result<()> {
    with_each_dockerd(Docker::start, |scene| {
        let routed = MODES.map(|mode| format!("--opt {mode}=routed")).join(" ");
        let subnets = "--ipv6 --subnet fd07::/64";
        scene.network("routed", &format!("--subnet {SUBNET} {subnets} {routed}"))?;
        scene.network("closed", "--subnet 10.8.0.0/24")?;
        let publish = |network: &str| format!("--network {network} --publish {PUBLISHED}:{PORT}");
        let open = scene.run("open", &publish("routed"))?;
        let closed = scene.run("closed", &publish("closed"))?;
        let neighbour = scene.run("neighbour", "--network bridge")?;
        let _serving = [
            Echo::start(&open, PORT)?,
            Echo::start(&open, PORT + 1)?,
            Echo::start(&closed, PORT)?,
        ];
        until("the agent has closed both networks", || {
            let rules = scene.sandbox.node.call("nft list table inet viaduct");
            let has = |rules: &String| {
                ["10.8.0.0/24", "fd07::/64"]
                    .iter()
                    .all(|it| rules.contains(it))
            };
            Ok(rules.ok().filter(has))
        })?;
        let own = scene.docker.address("open", "routed")?;
        let own_v6 = global_v6(&open)?;
        for address in [own, own_v6] {
            let (_, stream) = tcp_source(&neighbour, 0, at(address, PORT))?;
            tcp_echo(&stream)?;
            ensure!(udp_source(&neighbour, 0, at(address, PORT)).is_err());
            ping(&neighbour, address, 1)?;
            ensure!(!connects(&neighbour, at(address, PORT + 1))?, "{address}");
        }
        let hidden = scene.docker.address("closed", "closed")?;
        ensure!(!connects(&neighbour, at(hidden, PORT))?, "{hidden}");
        ensure!(ping(&neighbour, hidden, 1).is_err(), "{hidden}");
        tcp_source(&neighbour, 0, at(NODE[0], PUBLISHED)).map(drop)
    })
}

/// Returns the IPv6 address of a container.
fn global_v6(container: &Machine) -> Result<IpAddr> {
    let shown = container.call("ip -6 -o address show dev eth0 scope global")?;
    let address = shown
        .split_whitespace()
        .nth(3)
        .and_then(|it| it.split('/').next());
    address
        .context("no address")?
        .parse()
        .context(shown.clone())
}
