//! netavark, driven as podman 5 drives it, sets up containers by the plugin. The JSON is podman's.

#[path = "netavark/names.rs"]
mod names;
#[path = "netavark/options.rs"]
mod options;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::company::newest;
use e2e::residue::await_no_residue;
use e2e::{
    Agent, Echo, Machine, NODE, Residue, Sandbox, WORLD, connects, program, skipped, tcp_echo,
    tcp_source, udp_source,
};
use serde_json::{Value, json};

/// The port that the container publishes, and the one that it listens on.
const PUBLISHED: u16 = 8080;
const PORT: u16 = 80;
const SERVER: u16 = 7000;

const ID: &str = "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9";
const SUBNETS: [&str; 2] = ["10.90.0.0/24", "fd90::/64"];
const ADDRESSES: [&str; 2] = ["10.90.0.50", "fd90::50"];

/// Debian's aardvark-dns.
const AARDVARK: &str = "/usr/lib/podman/aardvark-dns";

/// netavark of `cargo xtask setup`, and a node with an agent.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    netavark: PathBuf,
    before: Residue,
}

impl Scene {
    /// Returns `None` where there is no netavark.
    fn new() -> Result<Option<Self>> {
        let Some((_, folder)) = newest("netavark", "bin/netavark") else {
            skipped("netavark");
            return Ok(None);
        };
        let (sandbox, agent) = Sandbox::with_agent()?;
        let before = Residue::of(&sandbox.node, &[])?;
        Ok(Some(Self {
            sandbox,
            agent,
            netavark: folder.join("bin/netavark"),
            before,
        }))
    }

    /// Executes netavark with `input` on standard input, and returns the JSON that it prints; none
    /// for a successful teardown. An error is the text of its JSON.
    fn netavark(&self, arguments: &str, input: &Value) -> Result<Value> {
        let (node, netavark) = (&self.sandbox.node, self.netavark.display());
        let folder = program("cni");
        let plugins = folder.display();
        node.run(|| std::fs::write("/run/input.json", input.to_string()))?;
        let line = format!(
            "{netavark} --firewall-driver none --config /run/networks --aardvark-binary {AARDVARK} \
             --plugin-directory {plugins} {arguments} < /run/input.json"
        );
        let output = node.output(&["sh", "-c", &line])?;
        let text = String::from_utf8(output.stdout)?;
        if output.status.success() {
            return Ok(serde_json::from_str(&text).unwrap_or_default());
        }
        let error: Value = serde_json::from_str(&text)
            .with_context(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
        bail!("{}", error["error"].as_str().context("no error")?)
    }

    /// Creates a network of this name with the settings in `changes`, and returns it as podman
    /// stores it.
    fn create(&self, name: &str, changes: &Value) -> Result<Value> {
        let mut network = json!({
            "name": name, "id": ID, "driver": "viaduct", "dns_enabled": true, "internal": false,
            "ipv6_enabled": false,
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            network[key] = value.clone();
        }
        let input = json!({
            "network": network,
            "used": { "interfaces": [], "names": {}, "subnets": [] },
            "options": { "subnet_pools": [], "check_used_subnets": false },
        });
        self.netavark("create", &input)
    }

    /// Attaches a container, whose name is that of the namespace, and returns the status block.
    fn setup(&self, container: &Container) -> Result<Value> {
        let path = container.machine.path();
        let answer = self.netavark(&format!("setup {path}"), &container.input)?;
        Ok(answer[container.network()].clone())
    }

    fn teardown(&self, container: &Container) -> Result<()> {
        let path = container.machine.path();
        self.netavark(&format!("teardown {path}"), &container.input)
            .map(drop)
    }

    /// Waits until no attachment is left, and removes the bridges of these networks, which stay for
    /// the next container.
    fn clean(self, networks: &[&Value]) -> Result<()> {
        let node = &self.sandbox.node;
        self.agent.await_detached()?;
        for network in networks {
            let bridge = network["network_interface"].as_str().context("a bridge")?;
            node.call(&format!("ip link delete {bridge}"))?;
        }
        await_no_residue(&self.before, node)
    }
}

/// A container, with the input for netavark.
struct Container {
    machine: Machine,
    input: Value,
}

impl Container {
    /// Returns a container of the network that publishes a port. `options` are those of the network
    /// for this container.
    fn new(scene: &Scene, name: &str, network: &Value, options: &Value) -> Result<Self> {
        let machine = scene.sandbox.machine(name)?;
        let mut own = json!({ "interface_name": "eth0", "aliases": [name] });
        for (key, value) in options.as_object().into_iter().flatten() {
            own[key] = value.clone();
        }
        let network_name = network["name"].as_str().context("a network has a name")?;
        let input = json!({
            "container_id": format!("{name}0123456789"), "container_name": name,
            "networks": { network_name: own }, "network_info": { network_name: network },
            "port_mappings": null,
        });
        Ok(Self { machine, input })
    }

    fn publish(mut self, mappings: Value) -> Self {
        self.input["port_mappings"] = mappings;
        self
    }

    fn network(&self) -> &str {
        let networks = self.input["network_info"].as_object();
        let first = networks.and_then(|networks| networks.keys().next());
        first.map_or("", String::as_str)
    }
}

fn subnets() -> Value {
    SUBNETS.map(|subnet| json!({ "subnet": subnet })).into()
}

fn address(status: &Value, index: usize) -> Result<IpAddr> {
    let subnet = &status["interfaces"]["eth0"]["subnets"][index];
    let text = subnet["ipnet"].as_str().context("no address")?;
    let (address, _) = text.split_once('/').context("no prefix length")?;
    Ok(address.parse()?)
}

fn addresses() -> Result<[IpAddr; 2]> {
    let [v4, v6] = ADDRESSES;
    Ok([v4.parse()?, v6.parse()?])
}

#[test]
fn netavark_attaches_publishes_and_detaches_a_container() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let settings = json!({ "subnets": subnets(), "options": { "mtu": "1400", "metric": "7" } });
    let network = scene.create("apps", &settings)?;
    assert_eq!(network["network_interface"], "vd2f259bab93");
    assert_eq!(network["dns_enabled"], false);
    let options = json!({ "static_ips": ADDRESSES, "static_mac": "aa:bb:cc:dd:aa:00" });
    let web = Container::new(&scene, "web", &network, &options)?.publish(json!([
        { "container_port": PORT, "host_port": PUBLISHED, "host_ip": "", "protocol": "tcp,udp", "range": 1 },
        { "container_port": 9000, "host_port": 9100, "host_ip": NODE[0], "protocol": "udp", "range": 3 },
    ]));
    let status = scene.setup(&web)?;
    let interface = json!({ "mac_address": "aa:bb:cc:dd:aa:00", "subnets": [
        { "gateway": "10.90.0.1", "ipnet": "10.90.0.50/24" },
        { "gateway": "fd90::1", "ipnet": "fd90::50/64" },
    ] });
    assert_eq!(status["interfaces"], json!({ "eth0": interface }));
    let link = web.machine.call("ip link show eth0")?;
    ensure!(
        link.contains("mtu 1400") && link.contains("aa:bb:cc:dd:aa:00"),
        "{link}"
    );
    for family in ["-4", "-6"] {
        let routes = web
            .machine
            .call(&format!("ip {family} route show default"))?;
        ensure!(routes.contains("metric 7"), "{routes}");
    }
    let list = scene.agent.ctl("list")?;
    ensure!(list.contains("podman/web"), "{list}");

    let _server = Echo::start(&web.machine, PORT)?;
    let _range = Echo::start(&web.machine, 9002)?;
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;
    for family in [0, 1] {
        let published = SocketAddr::new(NODE[family], PUBLISHED);
        let (seen, stream) = tcp_source(&scene.sandbox.world, 0, published)?;
        assert_eq!(seen.ip(), WORLD[family], "the client's address");
        tcp_echo(&stream)?;
        udp_source(&scene.sandbox.world, 0, published)?;
        let (seen, stream) = tcp_source(&web.machine, 0, (WORLD[family], SERVER).into())?;
        assert_eq!(seen.ip(), NODE[family], "masqueraded");
        tcp_echo(&stream)?;
    }
    udp_source(&scene.sandbox.world, 0, (NODE[0], 9102).into())?;
    let why = scene
        .agent
        .ctl(&format!("why podman/web {}:{SERVER} --proto tcp", WORLD[0]))?;
    ensure!(why.contains("podman/web"), "{why}");

    let again = scene.setup(&web).unwrap_err().to_string();
    ensure!(again.contains("plugin \"viaduct\" failed"), "{again}");
    for _ in 0..2 {
        scene.teardown(&web)?;
    }
    let left = web.machine.call("ip link show type veth")?;
    ensure!(left.is_empty(), "{left}");
    scene.clean(&[&network])
}

/// A range is one entry of the record and one row of the lists, and leads to each of its ports.
#[test]
fn a_range_of_ports_is_one_row_for_netavark() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let network = scene.create("apps", &json!({ "subnets": subnets() }))?;
    let options = json!({ "static_ips": ADDRESSES });
    let web = Container::new(&scene, "web", &network, &options)?.publish(json!([
        { "container_port": 8000, "host_port": 9000, "host_ip": "", "protocol": "tcp", "range": 1000 },
    ]));
    scene.setup(&web)?;
    for port in [8000, 8500, 8999] {
        let _server = Echo::start(&web.machine, port)?;
        for node in NODE {
            tcp_source(&scene.sandbox.world, 0, (node, port + 1000).into())?;
        }
    }
    let ports = scene.agent.get("/v1/hostports")?;
    assert_eq!(ports.as_array().map(Vec::len), Some(1000));
    let listed = scene.agent.ctl("ports")?;
    ensure!(
        listed.matches("9000-9999->8000-8999/tcp").count() == 1,
        "{listed}"
    );
    ensure!(
        scene.agent.ctl("ports 9500")?.contains("9000-9999"),
        "{listed}"
    );
    ensure!(
        scene.agent.ctl("ports 8999")?.contains("No pod publishes"),
        "{listed}"
    );
    scene.teardown(&web)?;
    scene.clean(&[&network])
}

#[test]
fn networks_that_netavark_creates_have_subnets_of_their_own() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let first = scene.create("first", &json!({ "ipv6_enabled": true }))?;
    let one = Container::new(&scene, "one", &first, &json!({}))?;
    let status = scene.setup(&one)?;
    // The same first digits of the ID, as by a rare chance.
    let id = ID.replace("1bb9", "0000");
    let settings = json!({ "id": id, "ipv6_enabled": true, "network_interface": "br7" });
    let second = scene.create("second", &settings)?;
    let two = Container::new(&scene, "two", &second, &json!({}))?;
    let other = scene.setup(&two)?;
    let _server = Echo::start(&two.machine, PORT)?;
    for family in [0, 1] {
        let subnet = |network: &Value| network["subnets"][family]["subnet"].clone();
        assert_ne!(subnet(&first), subnet(&second));
        let server = address(&other, family)?;
        let (seen, _) = tcp_source(&one.machine, 0, (server, PORT).into())?;
        assert_eq!(seen.ip(), address(&status, family)?, "not masqueraded");
    }
    for container in [&one, &two] {
        scene.teardown(container)?;
    }
    scene.clean(&[&first, &second])
}

#[test]
fn isolate_and_internal_of_netavark_networks_hold() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let network = |name: &str, number: u8, settings: Value| {
        let mut changes = settings;
        changes["id"] = json!(ID.replace("2f25", &format!("2f{number:02}")));
        changes["subnets"] = json!([{ "subnet": format!("10.90.{number}.0/24") }]);
        scene.create(name, &changes)
    };
    let isolate = json!({ "options": { "isolate": "true" } });
    let networks = [
        network("red", 1, isolate.clone())?,
        network("blue", 2, isolate)?,
        network("inner", 3, json!({ "internal": true }))?,
    ];
    let mapping = json!([{ "container_port": PORT, "host_port": PUBLISHED, "host_ip": "", "protocol": "tcp", "range": 1 }]);
    let red = Container::new(&scene, "red0", &networks[0], &json!({}))?;
    let blue = Container::new(&scene, "blue0", &networks[1], &json!({}))?.publish(mapping);
    let inner = Container::new(&scene, "inner0", &networks[2], &json!({}))?;
    scene.setup(&red)?;
    let blue_status = scene.setup(&blue)?;
    let inner_status = scene.setup(&inner)?;
    assert_eq!(
        inner_status["interfaces"]["eth0"]["subnets"][0]["gateway"],
        Value::Null,
        "{inner_status}"
    );
    let _server = Echo::start(&blue.machine, PORT)?;
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;

    let own = (address(&blue_status, 0)?, PORT).into();
    ensure!(!connects(&red.machine, own)?, "isolated networks are apart");
    let published = SocketAddr::new(NODE[0], PUBLISHED);
    tcp_source(&red.machine, 0, published).context("published ports are open")?;
    let world = (WORLD[0], SERVER).into();
    tcp_source(&red.machine, 0, world).context("the world is open")?;
    ensure!(
        !connects(&inner.machine, world)?,
        "an internal network is not"
    );
    let routes = inner.machine.call("ip route show default")?;
    assert_eq!(routes, "");
    for container in [&red, &blue, &inner] {
        scene.teardown(container)?;
    }
    scene.clean(&networks.each_ref())
}

#[test]
fn a_teardown_without_an_agent_is_executed_at_its_next_start() -> Result<()> {
    let Some(mut scene) = Scene::new()? else {
        return Ok(());
    };
    let network = scene.create("apps", &json!({ "subnets": subnets() }))?;
    let options = json!({ "static_ips": ADDRESSES });
    let web = Container::new(&scene, "web", &network, &options)?;
    let status = scene.setup(&web)?;
    for (family, own) in addresses()?.into_iter().enumerate() {
        assert_eq!(address(&status, family)?, own);
    }
    scene.agent.kill()?;
    let refused = scene.setup(&web).unwrap_err().to_string();
    ensure!(refused.contains("no agent listens"), "{refused}");
    scene.teardown(&web)?;
    scene.agent.restart()?;
    scene.clean(&[&network])
}
