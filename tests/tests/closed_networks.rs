//! Closed networks: `directAccess: false` and `internal: true` of a network, and of the agent's
//! own. Each test runs past the stack, through bridge and netfilter, and beside a policy of DROP
//! (decision 105). A packet counts as passed if it arrives in the receiver's namespace.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, Sandbox, WORLD, any_address, connects,
    deadline, ping, set_bridge_netfilter, tcp_echo, tcp_source, udp_bound, udp_source, until,
};
use serde_json::{Value, json};

/// Port that the pod publishes, and its port in the pod.
const PUBLISHED: u16 = 8071;
const PORT: u16 = 80;
/// A port of the pod that is not published.
const UNPUBLISHED: u16 = 81;
/// Port of the servers outside of the network.
const SERVER: u16 = 7000;
/// Port at which datagrams are counted.
const INBOX: u16 = 7001;

/// Subnets of the closed network, and of the agent's default network.
const SUBNETS: [&str; 2] = ["10.7.0.0/24", "fd07::/64"];
const GATEWAYS: [&str; 2] = ["10.7.0.1", "fd07::1"];
/// Subnets of the uplink, from which published ports are reached.
const CLIENTS: [&str; 2] = ["192.0.2.0/24", "2001:db8:1::/64"];
/// An address that clouds serve metadata at.
const METADATA: &str = "169.254.169.254";

/// How packets are forwarded.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// Past bridge and netfilter: always, or for as long as no other software has rules.
    Bypass,
    Auto,
    /// Through bridge and netfilter.
    Stack,
    /// The agent's default, beside a policy that drops, with netfilter on bridges.
    Firewall,
}

const PATHS: [Path; 4] = [Path::Bypass, Path::Auto, Path::Stack, Path::Firewall];

/// A node with a closed network, and pods in it and beside it.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    /// Publishes a port, and is in the closed network as `two` is.
    one: Pod,
    two: Pod,
    /// Is in the agent's default network.
    far: Pod,
    _servers: Vec<Echo>,
}

fn network(settings: &Value) -> Config {
    let ranges = SUBNETS.map(|subnet| json!([{ "subnet": subnet }]));
    // The way back to clients of published ports.
    let routes = CLIENTS.map(|subnet| json!({ "dst": subnet }));
    let config = Config::new("1.1.0")
        .with("name", json!("closed"))
        .with("bridge", json!("br7"))
        .with("isDefaultGateway", json!(true))
        .with(
            "ipam",
            json!({ "type": "host-local", "ranges": ranges, "routes": routes }),
        );
    let settings = settings.as_object().into_iter().flatten();
    settings.fold(config, |config, (key, value)| {
        config.with(key, value.clone())
    })
}

impl Scene {
    fn new(path: Path, settings: &Value) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let flags: &[&str] = match path {
            Path::Bypass => &["--bypass-netfilter=always"],
            Path::Auto => &[],
            Path::Stack => &["--bypass-netfilter=never"],
            Path::Firewall => {
                set_bridge_netfilter(&sandbox.node, true)?;
                for tool in ["iptables", "ip6tables"] {
                    sandbox.node.call(&format!("{tool} -P FORWARD DROP"))?;
                }
                &[]
            }
        };
        let agent = Agent::start(&sandbox.node, flags)?;
        let pod = |name: &str, config: Config| {
            let mut pod = sandbox.pod(name)?;
            pod.add_with(config)?;
            anyhow::Ok(pod)
        };
        let one = pod(
            "one",
            network(settings).publish(&Mapping::both(PUBLISHED, PORT)),
        )?;
        let two = pod("two", network(settings))?;
        let far = pod("far", Config::new("1.1.0"))?;
        let prefixes = SUBNETS.into_iter().zip(NODE);
        for (subnet, node) in prefixes.chain(e2e::POD_CIDRS.into_iter().zip(NODE)) {
            let route = format!("ip route add {subnet} via {node}");
            sandbox.world.call(&route)?;
        }
        let servers = vec![
            Echo::start(&one.machine, PORT)?,
            Echo::start(&one.machine, UNPUBLISHED)?,
            Echo::start(&far.machine, SERVER)?,
            Echo::start(&sandbox.world, SERVER)?,
            Echo::start(&sandbox.node, SERVER)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            one,
            two,
            far,
            _servers: servers,
        })
    }

    /// Fails unless a connection and a datagram are answered.
    fn is_open(what: &str, from: &Machine, to: SocketAddr) -> Result<()> {
        let (_, stream) = tcp_source(from, 0, to).with_context(|| format!("{what}, TCP"))?;
        tcp_echo(&stream)?;
        udp_source(from, 0, to).with_context(|| format!("{what}, UDP"))?;
        Ok(())
    }

    /// Fails if one of these servers accepts a connection, or answers an echo request. All are
    /// tried at the same time, because each silence takes a second.
    fn are_closed(servers: &[(&str, &Machine, SocketAddr)]) -> Result<()> {
        let connects = |&(what, from, to): &(&str, &Machine, SocketAddr)| {
            ensure!(!connects(from, to)?, "{what}: {to} accepts a connection");
            Ok(())
        };
        let answers = |&(what, from, to): &(&str, &Machine, SocketAddr)| {
            ensure!(!is_answered(from, to.ip())?, "{what}: {to} answers a ping");
            Ok(())
        };
        thread::scope(|scope| {
            let tries: Vec<_> = servers
                .iter()
                .flat_map(|server| {
                    [
                        scope.spawn(move || connects(server)),
                        scope.spawn(move || answers(server)),
                    ]
                })
                .collect();
            tries
                .into_iter()
                .try_for_each(|tried| tried.join().expect("no panic"))
        })
    }

    /// Does the same as [`Scene::are_closed`] for one server.
    fn is_closed(what: &str, from: &Machine, to: SocketAddr) -> Result<()> {
        Scene::are_closed(&[(what, from, to)])
    }

    fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or_default())
    }

    /// What holds in every closed network: only the published port is reached from outside of it;
    /// the node and the network's own pods reach everything.
    fn only_the_published_port_is_open(&self, family: usize) -> Result<()> {
        let (node, pod) = (NODE[family], self.one.address(NODE[family])?);
        let (world, far, two) = (&self.sandbox.world, &self.far.machine, &self.two.machine);
        let mut closed = Vec::new();
        for (who, machine) in [("the world", world), ("another network", far)] {
            Scene::is_open(who, machine, (node, PUBLISHED).into())?;
            for port in [PORT, UNPUBLISHED] {
                closed.push((who, machine, (pod, port).into()));
            }
        }
        Scene::are_closed(&closed)?;
        for port in [PORT, UNPUBLISHED] {
            let to = (pod, port).into();
            Scene::is_open("the node", &self.sandbox.node, to)?;
            Scene::is_open("a pod of the network", two, to)?;
        }
        Ok(())
    }
}

/// Returns whether one echo request is answered within a second.
fn is_answered(from: &Machine, to: IpAddr) -> Result<bool> {
    let to = to.to_string();
    let words = ["ping", "-n", "-q", "-c", "1", "-W", "1", &to];
    Ok(from.output(&words)?.status.success())
}

#[test]
fn without_direct_access_only_published_ports_are_reached_from_outside() -> Result<()> {
    for path in PATHS {
        let masquerades = matches!(path, Path::Auto | Path::Firewall);
        let settings = json!({ "directAccess": false, "ipMasq": masquerades });
        let scene = Scene::new(path, &settings)?;
        for family in [0, 1] {
            scene
                .only_the_published_port_is_open(family)
                .with_context(|| format!("{path:?}"))?;
            // Replies enter, to pods that are masqueraded and to pods that are not.
            let far = (scene.far.address(NODE[family])?, SERVER).into();
            for (what, to) in [
                ("the world", (WORLD[family], SERVER).into()),
                ("a pod", far),
            ] {
                Scene::is_open(what, &scene.one.machine, to)
                    .with_context(|| format!("{path:?}"))?;
                ping(&scene.one.machine, to.ip(), 1)?;
            }
        }
        assert!(scene.drops("direct-access")? > 0);
        let seen = scene.agent.get("/v1/attachments/one")?;
        assert_eq!(seen[0]["access"], "published", "{seen}");
        scene.one.check()?.success()?;
    }
    Ok(())
}

/// Sends datagrams to an address of the world, a pod or the node by a route that the pod has added,
/// and returns those that arrive before one of `last`, which reaches the server.
fn arrived(
    from: &Machine,
    (server, to): (&Machine, SocketAddr),
    last: &Machine,
) -> Result<Vec<String>> {
    let inbox = udp_bound(server, to)?;
    inbox.set_read_timeout(Some(deadline()))?;
    let any = any_address(to.ip(), 0);
    let outbox = from.run(|| UdpSocket::bind(any))?;
    for _ in 0..5 {
        // The pod may have no route.
        let _refused = outbox.send_to(b"out", to);
    }
    let end = last.run(|| UdpSocket::bind(any))?;
    let mut seen = Vec::new();
    loop {
        end.send_to(b"end", to)?;
        let mut buffer = [0; 8];
        let (length, _) = inbox.recv_from(&mut buffer).context("no datagram")?;
        if &buffer[..length] == b"end" {
            return Ok(seen);
        }
        seen.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
}

#[test]
fn an_internal_network_is_reached_by_published_ports_and_reaches_its_gateway_only() -> Result<()> {
    for path in PATHS {
        let scene = Scene::new(path, &json!({ "internal": true, "ipMasq": true }))?;
        for family in ["-4", "-6"] {
            let routes = scene.one.machine.call(&format!("ip {family} route"))?;
            assert!(!routes.contains("default"), "{routes}");
        }
        let (one, world) = (&scene.one.machine, &scene.sandbox.world);
        world.call(&format!("ip address add {METADATA}/32 dev eth0"))?;
        let route = format!("ip route add {METADATA}/32 via {} dev up0", WORLD[0]);
        scene.sandbox.node.call(&route)?;
        let link = format!("ip -json link show {}", scene.one.host_link());
        let links: Value = serde_json::from_str(&scene.sandbox.node.call(&link)?)?;
        let veth = links[0]["address"].as_str().context("no MAC address")?;
        for family in [0, 1] {
            let gateway: IpAddr = GATEWAYS[family].parse()?;
            scene
                .only_the_published_port_is_open(family)
                .with_context(|| format!("{path:?}"))?;
            Scene::is_open("the gateway", one, (gateway, SERVER).into())?;
            // The gateway's MAC address, and that of the host's end of the veth, whose frames the
            // bridge delivers to the node as well.
            one.call(&format!("ip route add default via {gateway}"))?;
            for forged in [false, true] {
                if forged {
                    one.call(&format!(
                        "ip neigh replace {gateway} lladdr {veth} nud permanent dev eth0"
                    ))?;
                }
                scene
                    .nothing_leaves(family)
                    .with_context(|| format!("{path:?}, forged: {forged}"))?;
            }
        }
        assert!(scene.drops("internal-network")? > 0);
        let seen = scene.agent.get("/v1/attachments/one")?;
        assert_eq!(seen[0]["access"], "internal", "{seen}");
        scene.one.check()?.success()?;
    }
    Ok(())
}

impl Scene {
    /// Sends to the world, to another network and to another address of the node.
    fn nothing_leaves(&self, family: usize) -> Result<()> {
        let (one, world, far) = (&self.one.machine, &self.sandbox.world, &self.far.machine);
        let node = &self.sandbox.node;
        let mut places = vec![
            (world, WORLD[family], far),
            (far, self.far.address(NODE[family])?, node),
            (node, NODE[family], far),
        ];
        if family == 0 {
            places.push((world, METADATA.parse()?, far));
        }
        let mut closed = Vec::new();
        for (server, to, last) in places {
            let inbox = (server, SocketAddr::new(to, INBOX));
            let seen = arrived(one, inbox, last)?;
            ensure!(seen.is_empty(), "{to} has received {seen:?}");
            closed.push(("an internal pod", one, (to, SERVER).into()));
        }
        Scene::are_closed(&closed)
    }
}

#[test]
fn the_agents_own_network_is_closed_by_flags() -> Result<()> {
    for (flag, access, reason) in [
        ("--direct-access=false", "published", "direct-access"),
        ("--internal", "internal", "internal-network"),
    ] {
        let sandbox = Sandbox::new()?;
        let mut agent = Agent::start(&sandbox.node, &[flag])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add_with(Config::new("1.1.0").publish(&Mapping::both(PUBLISHED, PORT)))?;
        let _servers = [
            Echo::start(&pod.machine, PORT)?,
            Echo::start(&sandbox.world, SERVER)?,
        ];
        for (cidr, node) in e2e::POD_CIDRS.into_iter().zip(NODE) {
            let route = format!("ip route add {cidr} via {node}");
            sandbox.world.call(&route)?;
        }
        if access == "internal" {
            for (subnet, gateway) in CLIENTS.into_iter().zip(e2e::GATEWAYS) {
                let route = format!("ip route add {subnet} via {gateway}");
                pod.machine.call(&route)?;
            }
        }
        for round in 0..2 {
            for family in [0, 1] {
                tcp_source(&sandbox.world, 0, (NODE[family], PUBLISHED).into())?;
                let direct = (pod.address(NODE[family])?, PORT).into();
                assert!(!connects(&sandbox.world, direct)?, "{flag}: {direct}");
                tcp_source(&sandbox.node, 0, direct)?;
                let leaves = connects(&pod.machine, (WORLD[family], SERVER).into())?;
                assert_eq!(leaves, access == "published", "{flag}");
            }
            let counters = agent.get("/v1/counters")?;
            let drops = counters["drops"][reason].as_u64();
            assert!(drops.is_some_and(|drops| drops > 0), "{counters}");
            let status = agent.get("/v1/networks")?;
            assert_eq!(status[0]["access"], access, "{status}");
            if round == 0 {
                agent.kill()?;
                agent.restart()?;
            }
        }
        pod.check()?.success()?;
        let config = Config::new("1.1.0").with("internal", json!(access != "internal"));
        let answer = sandbox.pod("other")?.prepare(e2e::Verb::Add, &config);
        let error = answer.run(&sandbox.node)?.error()?;
        assert_eq!(error.code, 7, "{}", error.msg);
        assert!(error.msg.contains("internal"), "{}", error.msg);
    }
    Ok(())
}

/// A container on a bridge of the reference plugins: its link has no program of ours.
fn container(sandbox: &Sandbox) -> Result<(Machine, Vec<IpAddr>)> {
    let ipam = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.99.0.0/24" }], [{ "subnet": "fd99::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    let bridge = json!({ "type": "bridge", "bridge": "rb0", "isGateway": true, "ipam": ipam });
    let machine = sandbox.machine("container")?;
    let chain = Chain::new("1.0.0", "reference").with(PluginSource::Reference, bridge);
    let result = chain.add(&sandbox.node, &machine)?;
    let addresses = e2e::addresses(&result)?;
    Ok((machine, addresses))
}

#[test]
fn containers_of_other_software_reach_published_ports_of_closed_networks_only() -> Result<()> {
    for (settings, is_internal) in [
        (json!({ "directAccess": false }), false),
        (json!({ "internal": true }), true),
    ] {
        let scene = Scene::new(Path::Auto, &settings)?;
        let node = &scene.sandbox.node;
        let (container, addresses) = container(&scene.sandbox)?;
        let _server = Echo::start(&container, SERVER)?;
        until("the agent has closed the network", || {
            let rules = node.call("nft list table inet viaduct");
            Ok(rules.ok().filter(|rules| rules.contains("chain closed")))
        })?;
        for family in [0, 1] {
            let direct = (scene.one.address(NODE[family])?, PORT).into();
            Scene::is_closed("a container", &container, direct)?;
            Scene::is_open("the node", node, direct)?;
            let own = (addresses[family], SERVER).into();
            let published = (NODE[family], PUBLISHED).into();
            let gateway: IpAddr = GATEWAYS[family].parse()?;
            if is_internal {
                let one = &scene.one.machine;
                one.call(&format!("ip route add default via {gateway}"))?;
                Scene::is_closed("an internal pod", one, own)?;
                let reached = connects(&container, published)?;
                assert!(!reached, "replies have no flow");
            } else {
                Scene::is_open("a pod", &scene.one.machine, own)?;
                Scene::is_open("a container", &container, published)?;
            }
        }
    }
    Ok(())
}

/// As with other keys of a network, a later ADD has its own value, and CHECK compares each pod with
/// its own ADD.
#[test]
fn a_later_add_closes_the_network_for_its_own_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pods = Vec::new();
    let settings = [
        json!({}),
        json!({ "directAccess": false }),
        json!({ "internal": true }),
    ];
    for (name, settings) in ["open", "published", "internal"].iter().zip(&settings) {
        let mut pod = sandbox.pod(name)?;
        pod.add_with(network(settings))?;
        pods.push(pod);
    }
    let _servers: Vec<Echo> = pods
        .iter()
        .map(|pod| Echo::start(&pod.machine, PORT))
        .collect::<Result<_>>()?;
    for (subnet, node) in SUBNETS.into_iter().zip(NODE) {
        let route = format!("ip route add {subnet} via {node}");
        sandbox.world.call(&route)?;
    }
    for node in NODE {
        for (pod, is_open) in pods.iter().zip([true, false, false]) {
            let direct = (pod.address(node)?, PORT).into();
            assert_eq!(connects(&sandbox.world, direct)?, is_open, "{}", pod.id());
            tcp_source(&sandbox.node, 0, direct)?;
        }
    }
    for pod in &pods {
        pod.check()?.success()?;
        let view = agent.get(&format!("/v1/attachments/{}", pod.id()))?;
        let expected = pod.id().replace("open", "direct");
        assert_eq!(view[0]["access"], expected, "{view}");
    }
    let wrong = network(&json!({ "internal": true, "directAccess": true }));
    let refused = sandbox.pod("wrong")?.prepare(e2e::Verb::Add, &wrong);
    let error = refused.run(&sandbox.node)?.error()?;
    assert!(
        error.msg.contains("internal and directAccess"),
        "{}",
        error.msg
    );
    Ok(())
}
