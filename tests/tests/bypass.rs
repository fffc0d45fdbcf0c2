//! Past bridge and stack, where nobody has a say in a packet; through both again, from the moment that somebody has.

use std::net::SocketAddr;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Capture, Config, Conversation, Echo, Machine, Mapping, NODE, Pod, Raw, Sandbox, WORLD,
    udp_ask, udp_is_silent, udp_source, until,
};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Ipv4Tos;
use verdict::simulator::frame::{Body, Frame};

const PORT: u16 = 7000;
/// Exchanges of each kind: many more than what goes through the stack besides (neighbours, first packets).
const EXCHANGES: u64 = 100;

const HOSTPORTS: [Mapping; 2] = Mapping::both(8080, PORT);

/// A node with two pods, one of them with hostports, and a server in each place.
struct Node {
    sandbox: Sandbox,
    agent: Agent,
    client: Pod,
    server: Pod,
    published: Pod,
    _servers: [Echo; 3],
}

impl Node {
    fn new(flags: &[&str]) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, flags)?;
        let mut pods = ["client", "server", "published"].map(|name| sandbox.pod(name));
        for (at, pod) in pods.iter_mut().enumerate() {
            let pod = pod.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            let config = Config::new("1.0.0");
            let config = if at == 2 {
                config.publish(&HOSTPORTS)
            } else {
                config
            };
            pod.add_with(config)?.success()?;
        }
        let [client, server, published] = pods;
        let (client, server, published) = (client?, server?, published?);
        let servers = [
            Echo::start(&server.machine, PORT)?,
            Echo::start(&published.machine, PORT)?,
            Echo::start(&sandbox.world, PORT)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            client,
            server,
            published,
            _servers: servers,
        })
    }

    fn node(&self) -> &Machine {
        &self.sandbox.node
    }

    fn is_active(&self) -> Result<bool> {
        let status = self.agent.get("/v1/status")?;
        let active = &status["bypass"]["active"];
        active
            .as_bool()
            .with_context(|| format!("no bypass in {status}"))
    }

    fn until_active(&self, active: bool) -> Result<()> {
        until("the bypass follows the rules", || {
            Ok((self.is_active()? == active).then_some(()))
        })
    }

    /// Talks much from pod to pod, one of which publishes ports, from pod to world, and from the world to the hostport, by
    /// both protocols; each server must see whom it would see through the stack.
    fn talk(&self, family: usize) -> Result<()> {
        let (client, world) = (&self.client.machine, &self.sandbox.world);
        let own = self.client.addresses[family];
        let neighbour = SocketAddr::new(self.server.addresses[family], PORT);
        let beside = SocketAddr::new(self.published.addresses[family], PORT);
        let outside = SocketAddr::new(WORLD[family], PORT);
        let hostport = SocketAddr::new(NODE[family], 8080);
        for (client, server, seen) in [
            (client, neighbour, own),
            (client, beside, own),
            (client, outside, NODE[family]),
            (world, hostport, WORLD[family]),
        ] {
            for conversation in [
                Conversation::tcp(client, server)?,
                Conversation::udp(client, server)?,
            ] {
                ensure!(conversation.seen().ip() == seen, "{server}");
                (0..EXCHANGES).try_for_each(|_| conversation.go_on())?;
            }
        }
        Ok(())
    }

    /// Packets that the node's stack has forwarded, and that its bridge has sent to pods.
    fn through_the_stack(&self, family: usize) -> Result<u64> {
        Ok(
            self.forwarded(family)?
                + self.bridged(&self.server)?
                + self.bridged(&self.published)?,
        )
    }

    fn forwarded(&self, family: usize) -> Result<u64> {
        if family == 1 {
            let table = self.node().call("cat /proc/net/snmp6")?;
            return number(&table, "Ip6OutForwDatagrams");
        }
        let table = self.node().call("cat /proc/net/snmp")?;
        let mut lines = table.lines().filter(|line| line.starts_with("Ip:"));
        let (names, values) = (lines.next(), lines.next());
        let mut columns = names.iter().flat_map(|line| line.split_whitespace());
        let at = columns.position(|name| name == "ForwDatagrams");
        let value = values
            .zip(at)
            .and_then(|(line, at)| line.split_whitespace().nth(at));
        Ok(value.context("no ForwDatagrams")?.parse()?)
    }

    fn bridged(&self, pod: &Pod) -> Result<u64> {
        let link = pod.host_link();
        let shown = self
            .node()
            .call_json(&format!("ip -s -j link show dev {link}"))?;
        let packets = &shown[0]["stats64"]["tx"]["packets"];
        packets
            .as_u64()
            .with_context(|| format!("no packets in {shown}"))
    }
}

fn number(table: &str, name: &str) -> Result<u64> {
    let line = table.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(value.with_context(|| format!("no {name}"))?.parse()?)
}

#[test]
fn nothing_goes_through_the_stack_that_nobody_has_rules_for() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    for family in [0, 1] {
        let before = node.through_the_stack(family)?;
        node.talk(family)?;
        let through = node.through_the_stack(family)? - before;
        ensure!(
            through < EXCHANGES,
            "family {family}: {through} packets through the stack"
        );
    }
    Ok(())
}

#[test]
fn everything_goes_through_the_stack_where_the_operator_says_never() -> Result<()> {
    let node = Node::new(&["--bypass-netfilter", "never"])?;
    ensure!(!node.is_active()?);
    for family in [0, 1] {
        let before = node.through_the_stack(family)?;
        node.talk(family)?;
        // Four for each exchange that is routed, by each of two protocols; the bridge's come on top.
        let through = node.through_the_stack(family)? - before;
        ensure!(
            through > 8 * EXCHANGES,
            "family {family}: {through} packets through the stack"
        );
    }
    Ok(())
}

/// Rules that forbid forwarding, by each of the tools that can: how they come, and how they go.
const FORBIDDING: [[&str; 2]; 5] = [
    [
        "nft add table inet strict ; add chain inet strict forward { type filter hook forward priority 0 ; policy drop ; }",
        "nft delete table inet strict",
    ],
    [
        "iptables-legacy -I FORWARD -p udp -j DROP",
        "iptables-legacy -F FORWARD",
    ],
    [
        "iptables-legacy -P FORWARD DROP",
        "iptables-legacy -P FORWARD ACCEPT",
    ],
    // IPsec: one that encrypts would be passed by in the same way.
    [
        "ip xfrm policy add src 10.244.0.0/16 dst 192.0.2.0/24 dir out action block",
        "ip xfrm policy flush",
    ],
    // Traffic control behind ours, which has packets of its own ways.
    [
        "tc filter add dev up0 ingress pref 50000 protocol ip u32 match u32 0 0 action mirred egress redirect dev sink",
        "tc filter del dev up0 ingress",
    ],
];

#[test]
fn a_rule_that_appears_is_obeyed_and_forgotten_when_it_goes() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let (_, socket) = udp_source(&node.client.machine, 0, world)?;
    node.node().call("ip link add sink up type bridge")?;
    node.node().call("tc qdisc replace dev up0 clsact")?;
    for [forbid, allow] in FORBIDDING {
        // Often enough that nothing is asked about any more.
        for _ in 0..EXCHANGES {
            udp_ask(&socket)?;
        }
        let words: Vec<&str> = forbid.split(' ').collect();
        node.node().call_words(&words)?;
        until("the rule holds", || {
            Ok(udp_is_silent(&socket)?.then_some(()))
        })?;
        ensure!(!node.is_active()?, "{forbid}");
        node.node().call(allow)?;
        node.until_active(true)?;
        until("the flow goes on", || Ok(udp_ask(&socket).ok()))?;
    }
    Ok(())
}

#[test]
fn packets_take_the_route_of_their_kind_of_service() -> Result<()> {
    const LOW_DELAY: u8 = 0x10;
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let (_, plain) = udp_source(&node.client.machine, 0, world)?;
    let (_, urgent) = udp_source(&node.client.machine, 0, world)?;
    setsockopt(&urgent, Ipv4Tos, &LOW_DELAY.into())?;
    (0..EXCHANGES).try_for_each(|_| udp_ask(&urgent).map(drop))?;
    let route = format!("blackhole 192.0.2.2 tos {LOW_DELAY:#x}");
    node.node().call(&format!("ip route add {route}"))?;
    until("the route holds", || {
        Ok(udp_is_silent(&urgent)?.then_some(()))
    })?;
    (0..EXCHANGES).try_for_each(|_| udp_ask(&plain).map(drop))?;
    ensure!(udp_is_silent(&urgent)?, "another route was found");
    node.node().call(&format!("ip route del {route}"))?;
    node.until_active(true)?;
    until("the flow goes on", || Ok(udp_ask(&urgent).ok()))?;
    Ok(())
}

/// Out of its sight they would move on, and the rule, when it comes back, would take them for invalid.
#[test]
fn connections_that_netfilter_knows_stay_in_its_sight() -> Result<()> {
    let mut node = Node::new(&[])?;
    node.until_active(true)?;
    // As on a node with a firewall of its own: connections are tracked in any case.
    node.node()
        .call("iptables -A INPUT -m conntrack --ctstate INVALID -j ACCEPT")?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let conversation = Conversation::tcp(&node.client.machine, world)?;
    let rule = "FORWARD -m conntrack --ctstate INVALID -j DROP";
    for _ in 0..3 {
        node.node().call(&format!("iptables -A {rule}"))?;
        node.until_active(false)?;
        (0..EXCHANGES).try_for_each(|_| conversation.go_on())?;
        node.node().call(&format!("iptables -D {rule}"))?;
        until("the reason is told", || {
            let rules = node.agent.get("/v1/status")?["bypass"]["rules"].to_string();
            let only = rules.contains("connection tracking") && !rules.contains("forward");
            Ok(only.then_some(()))
        })?;
        ensure!(!node.is_active()?);
        (0..EXCHANGES).try_for_each(|_| conversation.go_on())?;
    }
    drop(conversation);
    for pod in [&mut node.client, &mut node.server, &mut node.published] {
        pod.del()?;
    }
    node.until_active(true)
}

#[test]
fn rules_of_the_bridge_end_the_bypass_between_its_pods() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let server = SocketAddr::new(node.server.addresses[0], PORT);
    let (_, socket) = udp_source(&node.client.machine, 0, server)?;
    udp_ask(&socket)?;
    let drop = "{ type filter hook forward priority 0 ; policy drop ; }";
    let forbid = format!("nft add table bridge strict ; add chain bridge strict between {drop}");
    node.node()
        .call_words(&forbid.split(' ').collect::<Vec<&str>>())?;
    until("the rule holds", || {
        Ok(udp_is_silent(&socket)?.then_some(()))
    })?;
    node.node().call("nft delete table bridge strict")?;
    until("the flow goes on", || Ok(udp_ask(&socket).ok()))?;
    Ok(())
}

#[test]
fn a_rule_is_passed_by_where_the_operator_says_always() -> Result<()> {
    let node = Node::new(&["--bypass-netfilter", "always"])?;
    node.node().call("iptables-legacy -P FORWARD DROP")?;
    node.talk(0)?;
    let status = node.agent.get("/v1/status")?;
    ensure!(status["bypass"]["active"] == true, "{status}");
    until("the rules are told all the same", || {
        let status = node.agent.get("/v1/status")?;
        let rules = status["bypass"]["rules"].as_array().map_or(0, Vec::len);
        Ok((rules > 0).then_some(()))
    })
}

/// A packet that is too old or too long for the way gets the answer that a router owes it.
#[test]
fn errors_are_answered_by_the_stack_as_ever() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let pod = &node.client.machine;
    let answer = pod.output(&["ping", "-c1", "-W5", "-t1", "192.0.2.2"])?;
    let text = String::from_utf8_lossy(&answer.stdout);
    ensure!(text.contains("Time to live exceeded"), "{text}");
    node.node().call("ip link set up0 mtu 1300")?;
    let answer = pod.output(&["ping", "-c1", "-W5", "-Mdo", "-s1350", "192.0.2.2"])?;
    let text = [answer.stdout, answer.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    ensure!(text.contains("1300") || text.contains("too long"), "{text}");
    Ok(())
}

/// What a route takes may be less than what its link does, and the kernel tells programs only of what is locked.
#[test]
fn a_route_that_takes_less_than_its_link_is_respected() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let pod = &node.client.machine;
    for (world, number, mtu) in [
        ("192.0.2.2", "4", "1290"),
        ("192.0.2.2", "4", "lock 1280"),
        ("2001:db8:1::2", "6", "1300"),
    ] {
        let least = mtu.trim_start_matches("lock ");
        node.node().call(&format!(
            "ip -{number} route replace {world} dev up0 mtu {mtu}"
        ))?;
        until("the sender is told what the route takes", || {
            let words = ["ping", "-c1", "-W1", "-Mdo", "-s1350", world];
            let answer = pod.output(&words)?;
            let text = [answer.stdout, answer.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            Ok(text.contains(least).then_some(()))
        })?;
        ensure!(node.is_active()?, "the others still go past the stack");
        pod.call("ip route flush cache")?;
        pod.call("ip -6 route flush cache")?;
    }
    Ok(())
}

/// A source that answers would not go back to by the same link: the stack knows whether it has to be believed.
#[test]
fn forged_sources_are_judged_by_the_stack() -> Result<()> {
    const ELSEWHERE: [u8; 4] = [198, 51, 100, 9];
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let capture = Capture::start(&node.published.machine)?;
    let raw = Raw::sender(&node.sandbox.world, NODE[0])?;
    let send = |source: Address, word: &str| {
        let to = Address::v4([192, 0, 2, 1]);
        let mut frame = Frame::new(source, to, Body::Udp(44_000, 8080, word.into()));
        frame.ethernet = None;
        (0..20).try_for_each(|_| raw.send(&frame.packet(), NODE[0]))
    };
    for command in [
        "ip link add away0 type veth peer name away1",
        "ip link set away0 up",
        "ip link set away1 up",
        "ip route add 198.51.100.0/24 dev away0",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0",
    ] {
        node.node().call(command)?;
    }
    for (strict, believed) in [(1, 0), (0, 20)] {
        node.node()
            .call(&format!("sysctl -qw net.ipv4.conf.up0.rp_filter={strict}"))?;
        send(Address::v4([192, 0, 2, 1]), "node's own")?;
        send(Address::v4(ELSEWHERE), "elsewhere")?;
        send(Address::v4([192, 0, 2, 2]), "over")?;
        let mut heard = Vec::new();
        for _ in 0..20 {
            heard.extend(capture.until("the mark", |packet| packet.ends_with(b"over"))?);
        }
        let counts = ["node's own", "elsewhere"].map(|word| {
            heard
                .iter()
                .filter(|packet| packet.ends_with(word.as_bytes()))
                .count()
        });
        assert_eq!(counts, [0, believed], "rp_filter {strict}");
    }
    Ok(())
}
