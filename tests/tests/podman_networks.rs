//! podman 5 itself, with networks of the driver `viaduct`.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::company::newest;
use e2e::containers::{IMAGE, Podman, await_pages};
use e2e::residue::await_no_residue;
use e2e::{
    Agent, Echo, Machine, Residue, Sandbox, UPLINK, WORLD, connects, ping, program, skipped,
    udp_source, until,
};
use serde_json::Value;

const SUBNETS: &str = "--subnet 10.90.0.0/24 --subnet fd90::/64";
/// A port in the world.
const SERVER: u16 = 7000;

struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    podman: Podman,
    before: Residue,
}

impl Scene {
    /// Returns `None` where there is no podman 5.
    fn new() -> Result<Option<Self>> {
        let Some((_, root)) = newest("podman", "usr/bin/podman") else {
            skipped("podman 5");
            return Ok(None);
        };
        let (sandbox, agent) = Sandbox::with_agent()?;
        let before = Residue::of(&sandbox.node, &[])?;
        let podman = Podman::with_netavark(&sandbox.node, &root, &program("cni"))?;
        Ok(Some(Self {
            sandbox,
            agent,
            podman,
            before,
        }))
    }

    /// Creates a network of the driver, with more flags.
    fn create(&self, name: &str, flags: &str) -> Result<()> {
        let line = format!("network create --driver viaduct {flags} {name}");
        self.podman.call(&line).map(drop)
    }

    fn inspect(&self, what: &str, name: &str) -> Result<Value> {
        let shown = self.podman.call(&format!("{what} inspect {name}"))?;
        let mut all: Value = serde_json::from_str(&shown)?;
        Ok(all[0].take())
    }

    /// Returns the addresses that a container has in a network, IPv4 first.
    fn addresses(&self, container: &str, network: &str) -> Result<[IpAddr; 2]> {
        let shown = self.inspect("container", container)?;
        let own = &shown["NetworkSettings"]["Networks"][network];
        let address = |key: &str| {
            let text = own[key].as_str().with_context(|| shown.to_string())?;
            anyhow::Ok(text.parse()?)
        };
        Ok([address("IPAddress")?, address("GlobalIPv6Address")?])
    }

    /// Returns the network namespace of a running container.
    fn machine(&self, container: &str) -> Result<Machine> {
        let pid = self.inspect("container", container)?["State"]["Pid"].as_u64();
        let pid = u32::try_from(pid.context("a process")?)?;
        self.sandbox.node.of_process(container, pid)
    }

    /// Returns the networks in which the agent has the container.
    fn attached(&self, container: &str) -> Result<Vec<String>> {
        let attachments = self.agent.get("/v1/attachments")?;
        let own = attachments.as_array().context("a list")?.iter();
        let is_its = |it: &&Value| {
            let pod = &it["pod"];
            pod["namespace"] == "podman" && pod["name"] == container
        };
        let mut networks: Vec<String> = own
            .filter(is_its)
            .filter_map(|it| Some(it["network"].as_str()?.to_owned()))
            .collect();
        networks.sort();
        Ok(networks)
    }

    /// Removes all containers and these networks with podman, and the bridges of the networks,
    /// which stay for the next container.
    fn clean(self, networks: &[&str]) -> Result<()> {
        self.podman.remove_all()?;
        self.agent.await_detached()?;
        for network in networks {
            let bridge = self.inspect("network", network)?["network_interface"].take();
            let bridge = bridge.as_str().context("a bridge")?;
            self.podman.call(&format!("network rm {network}"))?;
            let _unused = self.sandbox.node.call(&format!("ip link delete {bridge}"));
        }
        await_no_residue(&self.before, &self.sandbox.node)
    }
}

#[test]
fn podman_5_runs_a_container_with_ports_on_a_network_of_viaduct() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    scene.create("apps", SUBNETS)?;
    let network = scene.inspect("network", "apps")?;
    assert_eq!(network["driver"], "viaduct");
    let flags = "--network apps --publish 8080:80 --publish 9000-9002:80-82 --publish 5353:53/udp";
    scene.podman.run("web", flags)?;
    await_pages(&scene.sandbox, 8080)?;
    assert_eq!(scene.attached("web")?.len(), 1);
    let listed = scene.agent.ctl("list")?;
    for address in scene.addresses("web", "apps")? {
        ensure!(listed.contains(&address.to_string()), "{listed}");
    }
    let ports = scene.agent.ctl("ports")?;
    for row in ["8080->80/tcp", "9000-9002->80-82/tcp", "5353->53/udp"] {
        ensure!(ports.contains(row), "{ports}");
    }
    // podman has bound them before the network was set up, and conmon keeps them.
    ensure!(ports.contains("container runtime"), "{ports}");
    let web = scene.machine("web")?;
    for world in WORLD {
        ping(&web, world, 1)?;
    }
    scene.podman.call("restart --time 0 web")?;
    await_pages(&scene.sandbox, 8080)?;
    scene.podman.call("stop --time 0 web")?;
    until("a stopped container is detached", || {
        Ok(scene.attached("web")?.is_empty().then_some(()))
    })?;
    scene.podman.call("start web")?;
    await_pages(&scene.sandbox, 8080)?;
    scene.clean(&["apps"])
}

#[test]
fn a_running_container_of_podman_5_joins_and_leaves_a_network() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    scene.create("apps", SUBNETS)?;
    scene.create("data", "--ipv6")?;
    scene
        .podman
        .run("web", "--network apps --publish 8080:80")?;
    scene.podman.run("store", "--network data")?;
    let store = scene.addresses("store", "data")?;
    scene.podman.call("network connect data web")?;
    assert_eq!(scene.attached("web")?.len(), 2);
    let web = scene.machine("web")?;
    for address in store {
        ping(&web, address, 1)?;
    }
    await_pages(&scene.sandbox, 8080)?;
    scene.podman.call("network disconnect data web")?;
    assert_eq!(scene.attached("web")?.len(), 1);
    await_pages(&scene.sandbox, 8080)?;
    scene.clean(&["apps", "data"])
}

/// Ports of a pod are bound with its infra container; with a user namespace, namespaces are made by
/// another process.
#[test]
fn pods_and_user_namespaces_of_podman_5_have_ports() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    scene.create("apps", SUBNETS)?;
    let infra = format!("--infra-image {IMAGE} --infra-command /bin/sleep\\ 600");
    let line = format!("pod create --network apps --publish 8081:80 {infra} --name shop");
    scene.podman.call(&line)?;
    scene.podman.run("web", "--pod shop")?;
    await_pages(&scene.sandbox, 8081)?;
    let flags = "--network apps --publish 8082:80 --uidmap 0:100000:65536";
    scene.podman.run("mapped", flags)?;
    await_pages(&scene.sandbox, 8082)?;
    scene.podman.call("pod rm --force --time 0 shop")?;
    scene.clean(&["apps"])
}

#[test]
fn containers_of_podman_5_keep_their_network_without_an_agent() -> Result<()> {
    let Some(mut scene) = Scene::new()? else {
        return Ok(());
    };
    scene.create("apps", SUBNETS)?;
    scene
        .podman
        .run("web", "--network apps --publish 8080:80")?;
    scene.podman.run("gone", "--network apps")?;
    scene.agent.kill()?;
    await_pages(&scene.sandbox, 8080)?;
    // netavark's teardown is stored, and executed by the next agent.
    scene.podman.call("rm --force --time 0 gone")?;
    let started = scene
        .podman
        .run("late", "--network apps")
        .unwrap_err()
        .to_string();
    ensure!(started.contains("viaduct"), "{started}");
    scene.podman.restart_agent(&mut scene.agent)?;
    until("the teardown is executed", || {
        Ok(scene.attached("gone")?.is_empty().then_some(()))
    })?;
    await_pages(&scene.sandbox, 8080)?;
    scene.podman.call("start late")?;
    assert_eq!(scene.attached("late")?.len(), 1);
    scene.clean(&["apps"])
}

/// The flags of `podman network create`, and its `--opt`.
#[test]
fn options_of_networks_have_their_effect_by_podman_5() -> Result<()> {
    const OUTBOUND: &str = "192.0.2.99";
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let node = &scene.sandbox.node;
    node.call(&format!("ip address add {OUTBOUND}/24 dev {UPLINK}"))?;
    let flags = "--subnet 10.91.0.0/24 --gateway 10.91.0.9 --interface-name br7 --opt mtu=1400 \
                 --opt metric=7 --opt isolate=true --opt mode=managed";
    scene.create("one", &format!("{flags} --opt outbound_addr4={OUTBOUND}"))?;
    scene.create("two", "--subnet 10.92.0.0/24 --opt isolate=true")?;
    scene.create("inner", "--subnet 10.93.0.0/24 --internal")?;
    let flags =
        "--subnet 10.94.0.0/24 --route 198.18.0.0/16,10.94.0.1,3 --opt no_default_route=true";
    scene.create("bare", flags)?;
    scene.create("plain", "--subnet 10.95.0.0/24")?;
    for (container, network) in [
        ("a", "one"),
        ("b", "two"),
        ("c", "inner"),
        ("d", "bare"),
        ("e", "plain"),
    ] {
        scene
            .podman
            .run(container, &format!("--network {network}"))?;
    }
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| scene.machine(name));
    let (a, b, c, d) = (a?, b?, c?, d?);
    let link = a.call("ip link show eth0")?;
    ensure!(link.contains("mtu 1400"), "{link}");
    let route = a.call("ip route show default")?;
    ensure!(
        route.contains("via 10.91.0.9") && route.contains("metric 7"),
        "{route}"
    );
    node.call("ip link show br7")?;
    let route = c.call("ip route show default")?;
    ensure!(route.is_empty(), "an internal network: {route}");
    let routes = d.call("ip route show")?;
    ensure!(!routes.contains("default"), "{routes}");
    ensure!(
        routes.contains("198.18.0.0/16 via 10.94.0.1") && routes.contains("metric 3"),
        "{routes}"
    );

    let port_of = |subnet: u8| SocketAddr::from(([10, subnet, 0, 2], 80));
    ensure!(connects(&b, port_of(95))?, "networks without isolation");
    ensure!(!connects(&a, port_of(92))?, "isolated networks");
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;
    let server = SocketAddr::new(WORLD[0], SERVER);
    ensure!(!connects(&c, server)?, "an internal network");
    until("the container leaves with the outbound address", || {
        let (seen, _) = udp_source(&a, 0, server)?;
        Ok((seen.ip().to_string() == OUTBOUND).then_some(()))
    })?;
    node.call(&format!("ip address del {OUTBOUND}/24 dev {UPLINK}"))?;
    scene.clean(&["one", "two", "inner", "bare", "plain"])
}

#[test]
fn other_options_of_networks_are_refused_by_name_by_podman_5() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    for (flags, words) in [
        ("--opt vrf=red", "option vrf: red"),
        ("--opt colour=red", "option colour: red"),
        ("--opt isolate=strict", "option isolate: strict"),
        ("--opt mode=unmanaged", "option mode: unmanaged"),
        ("--opt vlan=7", "option vlan: 7"),
        ("--opt bclim=5", "option bclim: 5"),
        ("--opt mtu=red", "mtu"),
        ("--opt outbound_addr4=red", "\"red\" is not an IPv4 address"),
        ("--ipam-driver dhcp", "dhcp"),
        ("--dns 192.0.2.53", "network_dns_servers"),
    ] {
        let created = scene.create("apps", flags);
        let error = format!("{:#}", created.err().with_context(|| flags.to_owned())?);
        ensure!(error.contains(words), "{flags}: {error}");
    }
    let networks = scene.podman.call("network ls --quiet")?;
    assert_eq!(networks.trim(), "podman");
    scene.clean(&[])
}
