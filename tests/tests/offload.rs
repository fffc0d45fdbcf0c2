//! Established connections bypass the netfilter rules of other software that have accepted them
//! (decisions 118 and 122): beside rules of nftables and of iptables-legacy, also where these
//! translate them, through changes of rules, and never past a rule that forbids them or that must
//! see every packet.

#[path = "offload/foreign_nat.rs"]
mod foreign_nat;
#[path = "offload/without_reply.rs"]
mod without_reply;

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::company::RecordedRules;
use e2e::{
    Agent, Config, Connection, Echo, Machine, Mapping, NODE, Pod, Sandbox, WORLD,
    udp_gets_no_answer, udp_seen_as, udp_source, until,
};

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;
/// Port on which packets without an answer are received, and the hostport that leads to it.
const ONE_WAY: u16 = 7001;
const ONE_WAY_HOSTPORT: u16 = 8081;
/// Exchanges between two looks at the counters.
const EXCHANGES: u64 = 100;
/// Packets of these that may take the stack: each connection sends some there now and then.
const FEW: u64 = 20;

struct Node {
    sandbox: Sandbox,
    agent: Agent,
    client: Pod,
    server: Pod,
    _servers: [Echo; 2],
}

impl Node {
    fn new(flags: &[&str]) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, flags)?;
        let [mut client, mut server] = [sandbox.pod("client")?, sandbox.pod("server")?];
        let published = [
            Mapping::tcp(HOSTPORT, PORT),
            Mapping::udp(HOSTPORT, PORT),
            Mapping::udp(ONE_WAY_HOSTPORT, ONE_WAY),
        ];
        // The first addresses: those of the endpoint in the recorded rules of kube-proxy.
        (server.add_with(Config::new("1.1.0").publish(&published)))?.success()?;
        client.add_with(Config::new("1.1.0"))?.success()?;
        let servers = [
            Echo::start(&sandbox.world, PORT)?,
            Echo::start(&server.machine, PORT)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            client,
            server,
            _servers: servers,
        })
    }

    fn node(&self) -> &Machine {
        &self.sandbox.node
    }

    /// Executes `nft` with a ruleset of one line.
    fn nft(&self, ruleset: &str) -> Result<()> {
        self.node().call_words(&["nft", ruleset]).map(drop)
    }

    /// Waits until the agent offloads connections, or does not.
    fn until_offloading(&self, active: bool) -> Result<()> {
        until(&format!("connections are offloaded: {active}"), || {
            let status = self.agent.get("/v1/status")?;
            let now = status["bypass"]["offload"]["active"]
                .as_bool()
                .with_context(|| format!("no offload in {status}"))?;
            Ok((now == active && status["bypass"]["active"] == false).then_some(()))
        })
    }

    /// Opens a TCP and a UDP connection of the client to the world, and of the world to the
    /// hostport.
    fn connections(&self, family: usize) -> Result<[Connection; 4]> {
        let world = SocketAddr::new(WORLD[family], PORT);
        let hostport = SocketAddr::new(NODE[family], HOSTPORT);
        let outside = &self.sandbox.world;
        Ok([
            Connection::tcp(&self.client.machine, world)?,
            Connection::udp(&self.client.machine, world)?,
            Connection::tcp(outside, hostport)?,
            Connection::udp(outside, hostport)?,
        ])
    }

    /// Returns how many packets the stack forwards during [`EXCHANGES`] exchanges.
    fn forwarded(&self, family: usize, connection: &Connection) -> Result<u64> {
        let before = self.node().forwarded(family)?;
        (0..EXCHANGES).try_for_each(|_| connection.exchange())?;
        Ok(self.node().forwarded(family)? - before)
    }

    fn until_offloaded(&self, family: usize, connection: &Connection) -> Result<()> {
        until("the connection bypasses the rules", || {
            Ok((self.forwarded(family, connection)? <= FEW).then_some(()))
        })
        .with_context(|| format!("{connection:?}"))
    }
}

/// A ruleset that accepts what has been accepted, counts it, and has a counter.
const STATEFUL: &str = "add table inet company ; \
    add chain inet company forward { type filter hook forward priority 0 ; policy drop ; } ; \
    add rule inet company forward ct state established,related counter accept ; \
    add rule inet company forward ct state invalid counter drop ; \
    add rule inet company forward ct state new counter accept";

#[test]
fn established_connections_bypass_rules_of_nftables() -> Result<()> {
    let node = Node::new(&["--forwarding=leave"])?;
    node.nft(STATEFUL)?;
    node.until_offloading(true)?;
    for family in [0, 1] {
        for connection in node.connections(family)? {
            node.until_offloaded(family, &connection)?;
        }
    }
    let status = node.agent.ctl("status")?;
    ensure!(status.contains("offload beside rules"), "{status}");
    Ok(())
}

#[test]
fn established_connections_bypass_the_rules_of_kube_proxy() -> Result<()> {
    for kind in ["nft", "legacy"] {
        let node = Node::new(&[])?;
        RecordedRules::KubeProxy.restore_by(node.node(), kind)?;
        node.until_offloading(true)
            .with_context(|| format!("iptables-{kind}"))?;
        for connection in node.connections(0)? {
            node.until_offloaded(0, &connection)?;
        }
    }
    Ok(())
}

/// The commands that forbid what the client sends to the world, and allow it again.
const FORBIDDING: [[&str; 2]; 2] = [
    [
        "nft insert rule inet company forward ip daddr 192.0.2.2 drop",
        "nft flush table inet company",
    ],
    [
        "iptables-legacy -I FORWARD -d 192.0.2.2 -j DROP",
        "iptables-legacy -F FORWARD",
    ],
];

#[test]
fn a_rule_that_forbids_an_offloaded_connection_ends_it() -> Result<()> {
    let node = Node::new(&["--forwarding=leave"])?;
    node.nft(
        "add table inet company ; \
        add chain inet company forward { type filter hook forward priority 0 ; } ; \
        add rule inet company forward ct state invalid counter drop",
    )?;
    node.until_offloading(true)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let connection = Connection::udp(&node.client.machine, world)?;
    node.until_offloaded(0, &connection)?;
    let Connection::Udp(socket, _) = &connection else {
        bail!("no UDP connection")
    };
    for [forbid, allow] in FORBIDDING {
        node.node().call(forbid)?;
        until("the rule applies", || {
            Ok(udp_gets_no_answer(socket)?.then_some(()))
        })?;
        for _ in 0..EXCHANGES / 10 {
            ensure!(
                udp_gets_no_answer(socket)?,
                "a packet got past the rule: {forbid}"
            );
        }
        node.node().call(allow)?;
        until("the connection continues", || Ok(udp_seen_as(socket).ok()))?;
        node.until_offloaded(0, &connection)?;
    }
    Ok(())
}

#[test]
fn a_rule_that_needs_every_packet_keeps_connections_on_the_stack() -> Result<()> {
    let node = Node::new(&["--forwarding=leave"])?;
    node.nft(
        "add table inet company ; \
        add chain inet company forward { type filter hook forward priority 0 ; } ; \
        add rule inet company forward ct state invalid counter drop",
    )?;
    node.until_offloading(true)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let connection = Connection::tcp(&node.client.machine, world)?;
    node.until_offloaded(0, &connection)?;
    node.nft("add rule inet company forward quota over 100000 mbytes drop")?;
    node.until_offloading(false)?;
    let forwarded = node.forwarded(0, &connection)?;
    ensure!(
        forwarded >= 2 * EXCHANGES,
        "{forwarded} packets through the stack"
    );
    let status = node.agent.ctl("status")?;
    let rule = "table inet company, chain forward, rule 2: quota needs every packet";
    ensure!(status.contains(rule), "{status}");
    Ok(())
}

#[test]
fn offloaded_connections_return_to_the_stack_without_an_agent() -> Result<()> {
    let mut node = Node::new(&["--forwarding=leave"])?;
    node.nft(STATEFUL)?;
    node.until_offloading(true)?;
    let connections = node.connections(0)?;
    for connection in &connections {
        node.until_offloaded(0, connection)?;
    }
    node.agent.kill()?;
    for connection in &connections {
        until("the connection takes the stack", || {
            let forwarded = node.forwarded(0, connection)?;
            Ok((forwarded >= 2 * EXCHANGES).then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn mode_offload_sends_new_connections_through_the_stack() -> Result<()> {
    let node = Node::new(&["--bypass-netfilter=offload"])?;
    node.until_offloading(true)?;
    // Without a rule, no connection is tracked and none is offloaded.
    let world = SocketAddr::new(WORLD[0], PORT);
    let (_, socket) = udp_source(&node.client.machine, 0, world)?;
    udp_seen_as(&socket)?;
    node.nft(STATEFUL)?;
    for connection in node.connections(0)? {
        node.until_offloaded(0, &connection)?;
    }
    Ok(())
}
