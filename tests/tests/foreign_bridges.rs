//! Containers of other software beside pods: Docker's bridge, and pods of the reference plugins
//! bridge and ptp. Their links are no uplinks, and netfilter translates there (decision 81).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD, addresses, ping,
    set_bridge_netfilter, tcp_echo, tcp_source, udp_seen_as, udp_source, until,
};
use serde_json::{Value, json};

/// The port that our pod publishes, and the one that Docker publishes.
const OURS: u16 = 8080;
const DOCKERS: u16 = 8081;

/// Addresses of Docker's bridge and of its container.
const DOCKER0: [&str; 2] = ["172.17.0.1/16", "fd17::1/64"];
const CONTAINER: [&str; 2] = ["172.17.0.2/16", "fd17::2/64"];

/// The rules of Docker 20.10 with a container that publishes port 8081, as `iptables` arguments.
const RULES: [&str; 17] = [
    "-t nat -N DOCKER",
    "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-t nat -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp --dport 80 -j MASQUERADE",
    "-t nat -A DOCKER -i docker0 -j RETURN",
    "-t nat -A DOCKER ! -i docker0 -p tcp --dport 8081 -j DNAT --to-destination 172.17.0.2:80",
    "-t nat -A DOCKER ! -i docker0 -p udp --dport 8081 -j DNAT --to-destination 172.17.0.2:80",
    "-N DOCKER",
    "-N DOCKER-USER",
    "-A FORWARD -j DOCKER-USER",
    "-A DOCKER-USER -j RETURN",
    "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A FORWARD -o docker0 -j DOCKER",
    "-A FORWARD -i docker0 -j ACCEPT",
    "-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT",
    "-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p udp --dport 80 -j ACCEPT",
];

fn flag(address: &str) -> &'static str {
    if address.contains(':') { "-6" } else { "-4" }
}

fn host(address: &str) -> &str {
    address.split('/').next().unwrap_or(address)
}

/// Creates a bridge with addresses, as Docker does.
fn bridge(node: &Machine, name: &str, addresses: &[&str]) -> Result<()> {
    node.call(&format!("ip link add {name} type bridge"))?;
    for address in addresses {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        node.call(&format!("ip address add {address}{nodad} dev {name}"))?;
    }
    node.call(&format!("ip link set {name} up")).map(drop)
}

/// Creates a container on a bridge, with default routes by the bridge's addresses.
fn container(
    sandbox: &Sandbox,
    name: &str,
    on: &str,
    [own, gateways]: [&[&str]; 2],
) -> Result<Machine> {
    let machine = sandbox.machine(name)?;
    let path = machine.path();
    let node = &sandbox.node;
    node.call(&format!(
        "ip link add v-{name} type veth peer name eth0 netns {path}"
    ))?;
    node.call(&format!("ip link set v-{name} master {on} up"))?;
    for address in own {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        machine.call(&format!("ip address add {address}{nodad} dev eth0"))?;
    }
    machine.call("ip link set eth0 up")?;
    for gateway in gateways {
        let (flag, gateway) = (flag(gateway), host(gateway));
        machine.call(&format!("ip {flag} route add default via {gateway}"))?;
    }
    Ok(machine)
}

/// Dials by TCP and UDP. The sockets are connected, so answers from other addresses are not seen.
/// Returns the client address that the server sees.
fn dial(from: &Machine, node: IpAddr, port: u16) -> Result<IpAddr> {
    let to = SocketAddr::new(node, port);
    let (seen, datagrams) = udp_source(from, 0, to)?;
    let (source, stream) = tcp_source(from, 0, to)?;
    tcp_echo(&stream)?;
    ensure!(
        udp_seen_as(&datagrams)? == seen,
        "the client's address changed"
    );
    Ok(source.ip())
}

fn uplinks(agent: &Agent) -> Result<Vec<String>> {
    let status = agent.get("/v1/status")?;
    let uplinks = status["uplinks"].as_array().context("no uplinks")?;
    let names = uplinks.iter().filter_map(|uplink| uplink["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn has_table(node: &Machine) -> Result<bool> {
    Ok(node.call("nft list tables")?.contains("table inet viaduct"))
}

/// A node with Docker's bridge, one container on it, and one pod that publishes a port.
struct Beside {
    sandbox: Sandbox,
    agent: Agent,
    container: Machine,
    pod: Pod,
    _serving: [Echo; 2],
}

impl Beside {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        bridge(&sandbox.node, "docker0", &DOCKER0)?;
        let container = container(&sandbox, "docked", "docker0", [&CONTAINER, &DOCKER0])?;
        let agent = Agent::start(&sandbox.node, &[])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add_with(Config::new("1.1.0").publish(&Mapping::both(OURS, 80)))?;
        Ok(Self {
            _serving: [Echo::start(&container, 80)?, Echo::start(&pod.machine, 80)?],
            sandbox,
            agent,
            container,
            pod,
        })
    }
}

/// Docker's rules with bridged frames in netfilter and without: both directions answer from the
/// address that was dialled.
#[test]
fn docker_containers_and_pods_reach_each_others_published_ports() -> Result<()> {
    let scene = Beside::new()?;
    let node = &scene.sandbox.node;
    for rule in RULES {
        node.call(&format!("iptables {rule}"))?;
    }
    for bridged in [true, false] {
        set_bridge_netfilter(node, bridged)?;
        for address in NODE {
            dial(&scene.container, address, OURS)
                .with_context(|| format!("container to pod, bridge-nf {bridged}"))?;
            dial(&scene.sandbox.world, address, OURS)?;
        }
        dial(&scene.container, host(DOCKER0[0]).parse()?, OURS)?;
        dial(&scene.pod.machine, NODE[0], DOCKERS)
            .with_context(|| format!("pod to container, bridge-nf {bridged}"))?;
        ping(&scene.pod.machine, WORLD[0], 1)?;
        ping(&scene.container, WORLD[0], 1)?;
    }
    assert_eq!(uplinks(&scene.agent)?, [UPLINK]);
    Ok(())
}

/// Without rules of other software: the container's own address is seen, and a mapping of one
/// address is on that address alone.
#[test]
fn a_foreign_bridges_containers_reach_hostports_as_themselves() -> Result<()> {
    let scene = Beside::new()?;
    for (family, address) in NODE.into_iter().enumerate() {
        let own: IpAddr = host(CONTAINER[family]).parse()?;
        assert_eq!(dial(&scene.container, address, OURS)?, own);
        // Pods and containers reach each other by their own addresses.
        assert_eq!(
            dial(&scene.pod.machine, own, 80)?,
            scene.pod.addresses[family]
        );
        assert_eq!(
            dial(&scene.container, scene.pod.addresses[family], 80)?,
            own
        );
    }
    let mut exact = scene.sandbox.pod("exact")?;
    let on = |address: IpAddr, port| json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": address });
    let ports = json!([on(NODE[0], 9000), on("127.0.0.1".parse()?, 9001)]);
    exact.add_with(Config::new("1.1.0").with("runtimeConfig", json!({ "portMappings": ports })))?;
    let _echo = Echo::start(&exact.machine, 80)?;
    let at = |address: &str, port| -> Result<SocketAddr> {
        Ok(SocketAddr::new(host(address).parse()?, port))
    };
    tcp_source(&scene.container, 0, SocketAddr::new(NODE[0], 9000))?;
    let by_gateway = tcp_source(&scene.container, 0, at(DOCKER0[0], 9000)?);
    assert!(by_gateway.is_err(), "another address of the node");
    let of_loopback = tcp_source(&scene.container, 0, SocketAddr::new(NODE[0], 9001));
    assert!(of_loopback.is_err(), "a port of the loopback");
    Ok(())
}

/// The table follows hostports, a flush by other software, a crash of the agent, and the owner of
/// the port.
#[test]
fn the_table_for_foreign_bridges_follows_hostports_and_survives_a_flush_and_a_crash() -> Result<()>
{
    let mut scene = Beside::new()?;
    let node = scene.sandbox.node.clone();
    let to = SocketAddr::new(NODE[0], OURS);
    let (_, datagrams) = udp_source(&scene.container, 0, to)?;
    node.call("nft flush ruleset")?;
    until("the table is written again", || {
        Ok(has_table(&node)?.then_some(()))
    })?;
    until("the container reaches the port again", || {
        Ok(dial(&scene.container, NODE[0], OURS).ok())
    })?;
    scene.agent.kill()?;
    dial(&scene.container, NODE[1], OURS)?;
    scene.agent.restart()?;
    dial(&scene.container, NODE[0], OURS)?;

    // The next owner gets the next datagram of the same stream.
    scene.pod.del()?;
    let mut next = scene.sandbox.pod("next")?;
    next.add_with(Config::new("1.1.0").publish(&Mapping::both(OURS, 80)))?;
    let _echo = Echo::start(&next.machine, 80)?;
    udp_seen_as(&datagrams).context("the next owner's answer")?;
    next.del()?;
    let refused = tcp_source(&scene.container, 0, to);
    assert!(refused.is_err(), "a port without an owner");
    until("the NAT chains are gone", || {
        let rules = node.call("nft list table inet viaduct")?;
        Ok((!rules.contains("type nat")).then_some(()))
    })?;
    node.call("ip link del docker0")?;
    until("the table is gone", || {
        Ok((!has_table(&node)?).then_some(()))
    })
}

/// A container cannot send with a pod's address: neither IPv4, nor IPv6, which has no reverse path
/// filter.
#[test]
fn a_container_on_a_foreign_bridge_cannot_send_as_a_pod() -> Result<()> {
    let scene = Beside::new()?;
    let mut other = scene.sandbox.pod("other")?;
    other.add()?;
    for (family, victim) in other.addresses.iter().enumerate() {
        let inbox = scene.pod.machine.run(|| {
            let any = if family == 0 {
                "0.0.0.0:9999"
            } else {
                "[::]:9999"
            };
            UdpSocket::bind(any)
        })?;
        inbox.set_read_timeout(Some(e2e::patient(std::time::Duration::from_millis(300))))?;
        let to = SocketAddr::new(scene.pod.addresses[family], 9999);
        let mut buffer = [0; 16];
        let own = scene
            .container
            .run(|| UdpSocket::bind((unspecified(family), 0)))?;
        own.send_to(b"own", to)?;
        ensure!(
            inbox.recv(&mut buffer).is_ok(),
            "the container's own address"
        );
        let flag = ["-4", "-6"][family];
        let length = [32, 128][family];
        scene
            .container
            .call(&format!("ip {flag} address add {victim}/{length} dev lo"))?;
        let forged = scene.container.run(|| UdpSocket::bind((*victim, 0)))?;
        forged.send_to(b"forged", to)?;
        ensure!(
            inbox.recv(&mut buffer).is_err(),
            "the address of pod {victim}"
        );
    }
    Ok(())
}

fn unspecified(family: usize) -> IpAddr {
    [IpAddr::from([0; 4]), IpAddr::from([0; 16])][family]
}

/// A network card as a port turns a bridge into an uplink, and a network of containers that appears
/// later is served at once.
#[test]
fn links_change_their_role_while_the_agent_runs() -> Result<()> {
    let scene = Beside::new()?;
    let node = &scene.sandbox.node;
    bridge(node, "br-late", &["172.18.0.1/16"])?;
    let late = container(
        &scene.sandbox,
        "late",
        "br-late",
        [&["172.18.0.2/16"], &["172.18.0.1"]],
    )?;
    dial(&late, NODE[0], OURS)?;
    node.call("ip tuntap add tap0 mode tap")?;
    node.call("ip link set tap0 master docker0")?;
    assert_eq!(uplinks(&scene.agent)?, [UPLINK]);
    // A link with Ethernet that is neither a veth nor a tap, as a network card.
    node.call("ip link add spare0 type veth peer name spare1")?;
    node.call("ip link add link spare0 name card0 type macvlan")?;
    node.call("ip link set card0 master br-late")?;
    until("the bridge is an uplink", || {
        Ok(uplinks(&scene.agent)?
            .contains(&"br-late".to_owned())
            .then_some(()))
    })?;
    dial(&late, NODE[0], OURS)?;
    node.call("ip link set card0 nomaster")?;
    until("the bridge is none", || {
        Ok((!uplinks(&scene.agent)?.contains(&"br-late".to_owned())).then_some(()))
    })?;
    dial(&late, NODE[0], OURS).map(drop)
}

/// Kinds of networks of the reference plugins.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Bridge,
    Ptp,
}

/// A list of the reference's main plugin, and our portmap with these ports where `ports` is set.
fn list(kind: Kind, ranges: &[&str], ports: Option<&[u16]>) -> Chain {
    let ranges: Vec<Value> = ranges
        .iter()
        .map(|subnet| json!([{ "subnet": subnet }]))
        .collect();
    let ipam = json!({
        "type": "host-local", "ranges": ranges,
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    let main = match kind {
        Kind::Bridge => json!({
            "type": "bridge", "bridge": "rb0", "isGateway": true, "ipMasq": true, "ipam": ipam,
        }),
        Kind::Ptp => json!({ "type": "ptp", "ipMasq": true, "ipam": ipam }),
    };
    let chain = Chain::new("1.0.0", "reference").with(PluginSource::Reference, main);
    let Some(ports) = ports else {
        return chain;
    };
    let mapping = |port: &u16| {
        ["tcp", "udp"]
            .map(|protocol| json!({ "hostPort": port, "containerPort": 80, "protocol": protocol }))
    };
    let mappings: Vec<Value> = ports.iter().flat_map(mapping).collect();
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    chain
        .with(PluginSource::Ours, portmap)
        .with_capability("portMappings", Value::Array(mappings))
}

/// A pod of the reference plugins.
struct Guest {
    machine: Machine,
    chain: Chain,
    result: Value,
    addresses: Vec<IpAddr>,
    _echo: Echo,
}

impl Guest {
    fn new(sandbox: &Sandbox, name: &str, chain: Chain) -> Result<Self> {
        let machine = sandbox.machine(name)?;
        let result = chain.add(&sandbox.node, &machine)?;
        Ok(Self {
            _echo: Echo::start(&machine, 80)?,
            addresses: addresses(&result)?,
            machine,
            chain,
            result,
        })
    }

    fn del(&self, node: &Machine) -> Result<()> {
        self.chain.del(node, &self.machine, &self.result)
    }
}

/// R13, R14: pods of the network that publish nothing, with our portmap in their list and without,
/// and the publishing pod itself reach the port by the node's addresses.
fn pods_of_an_adopted_network_reach_its_ports(kind: Kind) -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let ranges = ["10.66.0.0/24", "fd66::/64"];
    let p1 = Guest::new(&sandbox, "p1", list(kind, &ranges, Some(&[OURS])))?;
    let p2 = Guest::new(&sandbox, "p2", list(kind, &ranges, Some(&[])))?;
    let p3 = Guest::new(&sandbox, "p3", list(kind, &ranges, None))?;
    let mut ours = sandbox.pod("ours")?;
    ours.add()?;
    let clients = [
        &p1.machine,
        &p2.machine,
        &p3.machine,
        &ours.machine,
        &sandbox.world,
    ];
    for bridged in [true, false] {
        set_bridge_netfilter(node, bridged)?;
        for client in clients {
            for address in NODE {
                dial(client, address, OURS).with_context(|| {
                    format!(
                        "{kind:?}: {} to {address}, bridge-nf {bridged}",
                        client.name()
                    )
                })?;
            }
        }
    }
    for (from, to) in [(&p1, &p2), (&p2, &p1), (&p2, &p3)] {
        ping(&from.machine, to.addresses[0], 1)?;
        ping(&from.machine, to.addresses[1], 1)?;
    }
    for guest in [&p1, &p2, &p3] {
        for (own, far) in guest.addresses.iter().zip(WORLD) {
            ping(&guest.machine, far, 1).context("to the world")?;
            ping(node, *own, 1)?;
        }
    }
    assert_eq!(uplinks(&agent)?, [UPLINK]);
    p1.chain.check(node, &p1.machine, &p1.result)?;
    p1.del(node)?;
    let gone = tcp_source(&p2.machine, 0, SocketAddr::new(NODE[0], OURS));
    assert!(gone.is_err(), "a port without an owner");
    p2.del(node)
}

#[test]
fn pods_of_the_reference_bridge_reach_published_ports_of_their_network() -> Result<()> {
    pods_of_an_adopted_network_reach_its_ports(Kind::Bridge)
}

#[test]
fn pods_of_the_reference_ptp_reach_published_ports_of_their_network() -> Result<()> {
    pods_of_an_adopted_network_reach_its_ports(Kind::Ptp)
}

/// The agent starts with the CIDR of pods that the reference plugins made: they keep their
/// connectivity, with a pod of ours beside them as well, and no pod of ours gets their addresses.
fn running_pods_keep_their_connectivity(kind: Kind) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let cidr = "10.55.0.0/24";
    let p1 = Guest::new(&sandbox, "p1", list(kind, &[cidr], None))?;
    let p2 = Guest::new(&sandbox, "p2", list(kind, &[cidr], None))?;
    let check = |when: &str| -> Result<()> {
        for (from, to) in [(&p1, &p2), (&p2, &p1)] {
            let what = || format!("{kind:?}, {when}: {}", from.machine.name());
            ping(&from.machine, to.addresses[0], 1).with_context(what)?;
            ping(&from.machine, WORLD[0], 1).with_context(what)?;
            ping(node, from.addresses[0], 1).with_context(what)?;
        }
        Ok(())
    };
    check("before")?;
    let agent = Agent::start_with(node, vec![format!("--pod-cidr={cidr}")])?;
    check("with the agent")?;
    assert_eq!(uplinks(&agent)?, [UPLINK]);
    let mut ours = sandbox.pod("ours")?;
    ours.add()?;
    check("with a pod of ours")?;
    let taken = [p1.addresses[0], p2.addresses[0]];
    let own = &ours.addresses;
    assert!(
        own.iter().all(|address| !taken.contains(address)),
        "{own:?}"
    );
    Ok(())
}

#[test]
fn running_pods_of_the_reference_bridge_keep_their_connectivity_when_the_agent_starts() -> Result<()>
{
    running_pods_keep_their_connectivity(Kind::Bridge)
}

#[test]
fn running_pods_of_the_reference_ptp_keep_their_connectivity_when_the_agent_starts() -> Result<()> {
    running_pods_keep_their_connectivity(Kind::Ptp)
}
