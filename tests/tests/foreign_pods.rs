//! Pods of the reference plugins bridge and ptp beside ours: with our portmap in their list, and in
//! the agent's own CIDR. Their links are no uplinks (decision 81).

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{
    Agent, Echo, Machine, NODE, Sandbox, UPLINK, WORLD, addresses, ping, set_bridge_netfilter,
    tcp_echo, tcp_source, udp_seen_as, udp_source,
};
use serde_json::{Value, json};

/// The port that a pod publishes.
const OURS: u16 = 8080;

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

/// Kinds of networks of the reference plugins.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Bridge,
    Ptp,
}

/// A list of the reference's main plugin, and our portmap with these ports where `ports` is set.
fn list(kind: Kind, ranges: &[&str], ports: Option<&[u16]>) -> Chain {
    masquerading_list(kind, ranges, ports, true)
}

fn masquerading_list(
    kind: Kind,
    ranges: &[&str],
    ports: Option<&[u16]>,
    masquerade: bool,
) -> Chain {
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
            "type": "bridge", "bridge": "rb0", "isGateway": true, "ipMasq": masquerade, "ipam": ipam,
        }),
        Kind::Ptp => json!({ "type": "ptp", "ipMasq": masquerade, "ipam": ipam }),
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

/// Pods that another plugin made in the agent's CIDR, and that the network around the node routes:
/// their packets leave with their own addresses.
#[test]
fn routed_pods_of_another_plugin_leave_the_node_with_their_own_addresses() -> Result<()> {
    for kind in [Kind::Bridge, Kind::Ptp] {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        let cidr = "10.55.0.0/24";
        let back = format!("ip route add {cidr} via {}", NODE[0]);
        sandbox.world.call(&back)?;
        let _echo = Echo::start(&sandbox.world, 80)?;
        let list = || masquerading_list(kind, &[cidr], None, false);
        let first = Guest::new(&sandbox, "first", list())?;
        let _agent = Agent::start_with(node, vec![format!("--pod-cidr={cidr}")])?;
        // Before our pod: host-local does not know the addresses of our pods.
        let second = Guest::new(&sandbox, "second", list())?;
        let mut ours = sandbox.pod("ours")?;
        ours.add()?;
        for guest in [&first, &second] {
            let seen = dial(&guest.machine, WORLD[0], 80).with_context(|| format!("{kind:?}"))?;
            assert_eq!(seen, guest.addresses[0], "{kind:?}");
            assert_eq!(
                dial(&sandbox.world, guest.addresses[0], 80)?,
                WORLD[0],
                "{kind:?}"
            );
        }
    }
    Ok(())
}
