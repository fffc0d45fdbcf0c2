//! Containers of other software beside pods, on bridges such as Docker's. These are no uplinks, and
//! netfilter translates there (decision 81).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD, ping,
    set_bridge_netfilter, tcp_echo, tcp_source, udp_seen_as, udp_source, until,
};
use serde_json::json;

/// The port that our pod publishes, and the one that Docker publishes.
const OURS: u16 = 8080;
const DOCKERS: u16 = 8081;

/// Addresses of Docker's bridge and of its container.
const DOCKER0: [&str; 2] = ["172.17.0.1/16", "fd17::1/64"];
const CONTAINER: [&str; 2] = ["172.17.0.2/16", "fd17::2/64"];

/// Docker's NAT rules with a container that publishes port 8081, as `iptables` arguments.
const NAT: [&str; 7] = [
    "-t nat -N DOCKER",
    "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-t nat -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp --dport 80 -j MASQUERADE",
    "-t nat -A DOCKER ! -i docker0 -p tcp --dport 8081 -j DNAT --to-destination 172.17.0.2:80",
    "-t nat -A DOCKER ! -i docker0 -p udp --dport 8081 -j DNAT --to-destination 172.17.0.2:80",
];

/// The filter rules of Docker 20.10.
const DOCKER_20: [&str; 10] = [
    "-t nat -I DOCKER -i docker0 -j RETURN",
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

/// The filter rules of Docker 28, which also drop packets to a container's own address.
const DOCKER_28: [&str; 21] = [
    "-N DOCKER",
    "-N DOCKER-BRIDGE",
    "-N DOCKER-CT",
    "-N DOCKER-FORWARD",
    "-N DOCKER-ISOLATION-STAGE-1",
    "-N DOCKER-ISOLATION-STAGE-2",
    "-N DOCKER-USER",
    "-A FORWARD -j DOCKER-USER",
    "-A FORWARD -j DOCKER-FORWARD",
    "-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT",
    "-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p udp --dport 80 -j ACCEPT",
    "-A DOCKER ! -i docker0 -o docker0 -j DROP",
    "-A DOCKER-BRIDGE -o docker0 -j DOCKER",
    "-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A DOCKER-FORWARD -j DOCKER-CT",
    "-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1",
    "-A DOCKER-FORWARD -j DOCKER-BRIDGE",
    "-A DOCKER-FORWARD -i docker0 -j ACCEPT",
    "-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2",
    "-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
    "-t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP",
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
fn published_ports_are_reached_with(filter: &[&str]) -> Result<()> {
    let scene = Beside::new()?;
    let node = &scene.sandbox.node;
    for rule in NAT.iter().chain(filter) {
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

#[test]
fn docker_20_containers_and_pods_reach_each_others_published_ports() -> Result<()> {
    published_ports_are_reached_with(&DOCKER_20)
}

#[test]
fn docker_28_containers_and_pods_reach_each_others_published_ports() -> Result<()> {
    published_ports_are_reached_with(&DOCKER_28)
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
        // Without duplicate address detection, also on lo: the kernel ends it on another thread,
        // and refuses sockets with the address until then.
        let length = ["/32", "/128 nodad"][family];
        scene
            .container
            .call(&format!("ip address add {victim}{length} dev lo"))?;
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
