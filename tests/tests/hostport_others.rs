//! Hostports and other addresses: a hostport applies to the addresses of the node only.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, ClientKind, Config, Echo, Machine, Mapping, NODE, Pod, Sandbox, WORLD,
    connect_from_process,
};

/// A service address, which no machine has: netfilter translates it to a pod.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// A machine behind the node.
const BEHIND: [&str; 2] = ["198.51.100.2", "2001:db8:7::2"];
const NODE_BEHIND: [&str; 2] = ["198.51.100.1", "2001:db8:7::1"];

/// The port of the hostport, of the service, and of the servers in the world and behind the node.
const PORT: u16 = 443;
const HOSTPORTS: [Mapping; 2] = Mapping::both(PORT, 80);

/// A pod publishes the node's port 443 without a server yet, so that a connection that is
/// translated to it by mistake is refused. Another pod is the endpoint of the service's port 443;
/// the world and the machine behind the node have their own servers.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    owner: Pod,
    client: Pod,
    behind: Machine,
    _serving: [Echo; 3],
    _endpoint: Pod,
}

impl Scene {
    fn new() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let behind = behind(&sandbox)?;
        let [mut owner, mut endpoint, mut client] = [
            sandbox.pod("owner")?,
            sandbox.pod("endpoint")?,
            sandbox.pod("client")?,
        ];
        owner.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
        endpoint.add()?;
        client.add()?;
        for (family, pod) in endpoint.addresses.iter().enumerate() {
            translate_service(&sandbox.node, family, *pod)?;
            sandbox.world.call(&format!(
                "ip route add {} via {}",
                SERVICE[family], NODE[family]
            ))?;
        }
        let serving = [
            Echo::start(&endpoint.machine, 8443)?,
            Echo::start(&sandbox.world, PORT)?,
            Echo::start(&behind, PORT)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            owner,
            client,
            behind,
            _serving: serving,
            _endpoint: endpoint,
        })
    }

    /// Returns all clients of port 443, and the cgroup of the node's own processes.
    fn clients(&self) -> Result<[(&Machine, Option<&Path>); 4]> {
        let cgroup = self.agent.cgroup().context("there is no cgroup2")?;
        Ok([
            (&self.sandbox.world, None),
            (&self.behind, None),
            (&self.client.machine, None),
            (&self.sandbox.node, Some(cgroup)),
        ])
    }
}

/// Creates a machine on a second link of the node, which routes between it and the world.
fn behind(sandbox: &Sandbox) -> Result<Machine> {
    let machine = sandbox.machine("behind")?;
    let path = machine.path();
    let node = &sandbox.node;
    node.call(&format!(
        "ip link add lan0 type veth peer name eth0 netns {path}"
    ))?;
    let parsed = |texts: [&str; 2]| texts.map(str::parse::<IpAddr>);
    let [node_v4, node_v6] = parsed(NODE_BEHIND);
    let [own_v4, own_v6] = parsed(BEHIND);
    sandbox.configure_link(node, "lan0", &[node_v4?, node_v6?])?;
    sandbox.configure_link(&machine, "eth0", &[own_v4?, own_v6?])?;
    for family in [0, 1] {
        let flag = ["-4", "-6"][family];
        machine.call(&format!(
            "ip {flag} route add default via {}",
            NODE_BEHIND[family]
        ))?;
        let net = ["198.51.100.0/24", "2001:db8:7::/64"][family];
        sandbox
            .world
            .call(&format!("ip {flag} route add {net} via {}", NODE[family]))?;
    }
    Ok(machine)
}

/// Adds DNAT rules as a service proxy does, for incoming packets and for those of the node itself.
fn translate_service(node: &Machine, family: usize, pod: IpAddr) -> Result<()> {
    let tool = ["iptables", "ip6tables"][family];
    let (service, to) = (SERVICE[family], SocketAddr::new(pod, 8443));
    for chain in ["PREROUTING", "OUTPUT"] {
        for protocol in ["tcp", "udp"] {
            node.call(&format!(
                "{tool} -t nat -A {chain} -d {service} -p {protocol} --dport {PORT} -j DNAT --to-destination {to}"
            ))?;
        }
    }
    Ok(())
}

/// Asserts that the peer of each connection has the address that the client dialled.
fn met(client: &Machine, cgroup: Option<&Path>, servers: &[SocketAddr]) -> Result<()> {
    let targets: Vec<_> = servers
        .iter()
        .flat_map(|server| ClientKind::ALL.map(|by| (by, *server)))
        .collect();
    let all = connect_from_process(client, cgroup, &targets)?;
    for ((by, server), met) in targets.iter().zip(all) {
        let who = || format!("{} dials {server} by {}", client.name(), by.name());
        let met = met.with_context(who)?;
        ensure!(met.peer == *server, "{}: {met:?}", who());
    }
    Ok(())
}

/// behaviours N1, K32, R13, F40: everything else works while the hostport has no server, and the
/// hostport works once it has one.
#[test]
fn a_hostport_443_leaves_services_and_other_hosts_alone() -> Result<()> {
    let scene = Scene::new()?;
    let at = |address: IpAddr| SocketAddr::new(address, PORT);
    let (mut others, mut own) = (Vec::new(), Vec::new());
    for family in [0, 1] {
        others.extend([
            at(SERVICE[family].parse()?),
            at(WORLD[family]),
            at(BEHIND[family].parse()?),
        ]);
        own.extend([at(NODE[family]), at(NODE_BEHIND[family].parse()?)]);
    }
    for (client, cgroup) in scene.clients()? {
        met(client, cgroup, &others)?;
    }
    let _echo = Echo::start(&scene.owner.machine, 80)?;
    for (client, cgroup) in scene.clients()? {
        met(client, cgroup, &own)?;
        met(client, cgroup, &others)?;
    }
    Ok(())
}
