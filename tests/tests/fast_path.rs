//! The fast path: packets bypass bridge and stack unless other software has rules that apply to
//! them.

use std::net::SocketAddr;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Capture, Config, Connection, Echo, Machine, Mapping, NODE, Pod, RawSocket, Sandbox,
    WORLD, udp_gets_no_answer, udp_seen_as, udp_source, until,
};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Ipv4Tos;
use verdict::simulator::frame::{Body, Frame};

const PORT: u16 = 7000;
/// Exchanges of each kind: many more than the packets that always use the stack (neighbour
/// discovery, first packets).
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
        until(&format!("the fast path is active: {active}"), || {
            Ok((self.is_active()? == active).then_some(()))
        })
    }

    /// Exchanges many packets pod to pod (one of which publishes ports), pod to world, and world to
    /// hostport, by both protocols. Each server must see the same client address as through the
    /// stack.
    fn exchange_all(&self, family: usize) -> Result<()> {
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
            for connection in [
                Connection::tcp(client, server)?,
                Connection::udp(client, server)?,
            ] {
                ensure!(connection.seen().ip() == seen, "{server}");
                (0..EXCHANGES).try_for_each(|_| connection.exchange())?;
            }
        }
        Ok(())
    }

    /// Returns how many packets the stack has forwarded and the bridge has sent to pods.
    fn through_the_stack(&self, family: usize) -> Result<u64> {
        Ok(self.node().forwarded(family)?
            + self.bridged(&self.server)?
            + self.bridged(&self.published)?)
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

#[test]
fn packets_bypass_the_stack_without_foreign_rules() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    for family in [0, 1] {
        let before = node.through_the_stack(family)?;
        node.exchange_all(family)?;
        let through = node.through_the_stack(family)? - before;
        ensure!(
            through < EXCHANGES,
            "family {family}: {through} packets through the stack"
        );
    }
    Ok(())
}

#[test]
fn packets_go_through_the_stack_with_bypass_netfilter_never() -> Result<()> {
    let node = Node::new(&["--bypass-netfilter", "never"])?;
    ensure!(!node.is_active()?);
    for family in [0, 1] {
        let before = node.through_the_stack(family)?;
        node.exchange_all(family)?;
        // Four packets of each routed exchange, by each of two protocols, and those of the bridge.
        let through = node.through_the_stack(family)? - before;
        ensure!(
            through > 8 * EXCHANGES,
            "family {family}: {through} packets through the stack"
        );
    }
    Ok(())
}

/// Rules that block forwarding, one for each tool that can: the commands to add and to remove it.
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
    // IPsec: a policy that encrypts would be bypassed in the same way.
    [
        "ip xfrm policy add src 10.244.0.0/16 dst 192.0.2.0/24 dir out action block",
        "ip xfrm policy flush",
    ],
    // A TC filter after Viaduct's, which redirects packets.
    [
        "tc filter add dev up0 ingress pref 50000 protocol ip u32 match u32 0 0 action mirred egress redirect dev sink",
        "tc filter del dev up0 ingress",
    ],
];

#[test]
fn the_fast_path_stops_for_a_new_rule_and_resumes_after_its_removal() -> Result<()> {
    // A policy drops packets of pods only where the agent leaves it at work.
    let node = Node::new(&["--forwarding=leave"])?;
    node.until_active(true)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let (_, socket) = udp_source(&node.client.machine, 0, world)?;
    node.node().call("ip link add sink up type bridge")?;
    node.node().call("tc qdisc replace dev up0 clsact")?;
    for [forbid, allow] in FORBIDDING {
        // Enough packets that the verdict is cached.
        for _ in 0..EXCHANGES {
            udp_seen_as(&socket)?;
        }
        let words: Vec<&str> = forbid.split(' ').collect();
        node.node().call_words(&words)?;
        until("the rule applies", || {
            Ok(udp_gets_no_answer(&socket)?.then_some(()))
        })?;
        ensure!(!node.is_active()?, "{forbid}");
        node.node().call(allow)?;
        node.until_active(true)?;
        until("the flow continues", || Ok(udp_seen_as(&socket).ok()))?;
    }
    Ok(())
}

#[test]
fn packets_take_the_route_of_their_tos() -> Result<()> {
    const LOW_DELAY: u8 = 0x10;
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let (_, plain) = udp_source(&node.client.machine, 0, world)?;
    let (_, urgent) = udp_source(&node.client.machine, 0, world)?;
    setsockopt(&urgent, Ipv4Tos, &LOW_DELAY.into())?;
    (0..EXCHANGES).try_for_each(|_| udp_seen_as(&urgent).map(drop))?;
    let route = format!("blackhole 192.0.2.2 tos {LOW_DELAY:#x}");
    node.node().call(&format!("ip route add {route}"))?;
    until("the route applies", || {
        Ok(udp_gets_no_answer(&urgent)?.then_some(()))
    })?;
    (0..EXCHANGES).try_for_each(|_| udp_seen_as(&plain).map(drop))?;
    ensure!(udp_gets_no_answer(&urgent)?, "a packet took another route");
    node.node().call(&format!("ip route del {route}"))?;
    node.until_active(true)?;
    until("the flow continues", || Ok(udp_seen_as(&urgent).ok()))?;
    Ok(())
}

/// On the fast path their state would advance unseen by netfilter, and a later rule would treat
/// them as invalid.
#[test]
fn connections_tracked_by_netfilter_stay_off_the_fast_path() -> Result<()> {
    let mut node = Node::new(&[])?;
    node.until_active(true)?;
    // As on a node with its own firewall: connections are tracked in any case.
    node.node()
        .call("iptables -A INPUT -m conntrack --ctstate INVALID -j ACCEPT")?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let connection = Connection::tcp(&node.client.machine, world)?;
    let rule = "FORWARD -m conntrack --ctstate INVALID -j DROP";
    for _ in 0..3 {
        node.node().call(&format!("iptables -A {rule}"))?;
        node.until_active(false)?;
        (0..EXCHANGES).try_for_each(|_| connection.exchange())?;
        node.node().call(&format!("iptables -D {rule}"))?;
        until(
            "the status names connection tracking as the only reason",
            || {
                let rules = node.agent.get("/v1/status")?["bypass"]["rules"].to_string();
                let only = rules.contains("connection tracking") && !rules.contains("forward");
                Ok(only.then_some(()))
            },
        )?;
        ensure!(!node.is_active()?);
        (0..EXCHANGES).try_for_each(|_| connection.exchange())?;
    }
    drop(connection);
    for pod in [&mut node.client, &mut node.server, &mut node.published] {
        pod.del()?;
    }
    node.until_active(true)
}

#[test]
fn bridge_family_rules_stop_the_fast_path_between_pods() -> Result<()> {
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let server = SocketAddr::new(node.server.addresses[0], PORT);
    let (_, socket) = udp_source(&node.client.machine, 0, server)?;
    udp_seen_as(&socket)?;
    let drop = "{ type filter hook forward priority 0 ; policy drop ; }";
    let forbid = format!("nft add table bridge strict ; add chain bridge strict between {drop}");
    node.node()
        .call_words(&forbid.split(' ').collect::<Vec<&str>>())?;
    until("the rule applies", || {
        Ok(udp_gets_no_answer(&socket)?.then_some(()))
    })?;
    node.node().call("nft delete table bridge strict")?;
    until("the flow continues", || Ok(udp_seen_as(&socket).ok()))?;
    Ok(())
}

#[test]
fn bypass_netfilter_always_ignores_rules_and_reports_them() -> Result<()> {
    let node = Node::new(&["--bypass-netfilter", "always"])?;
    node.node().call("iptables-legacy -P FORWARD DROP")?;
    node.exchange_all(0)?;
    let status = node.agent.get("/v1/status")?;
    ensure!(status["bypass"]["active"] == true, "{status}");
    until("the status lists the rules", || {
        let status = node.agent.get("/v1/status")?;
        let rules = status["bypass"]["rules"].as_array().map_or(0, Vec::len);
        Ok((rules > 0).then_some(()))
    })
}

/// Packets whose TTL expires or that exceed the MTU get the ICMP error that a router has to send.
#[test]
fn the_stack_answers_expired_ttl_and_too_big_packets() -> Result<()> {
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

/// A route can have a smaller MTU than its link, and the kernel's FIB lookup returns it to programs
/// only if it is locked.
#[test]
fn the_mtu_of_a_route_is_respected() -> Result<()> {
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
        until("the sender gets the MTU of the route", || {
            let words = ["ping", "-c1", "-W1", "-Mdo", "-s1350", world];
            let answer = pod.output(&words)?;
            let text = [answer.stdout, answer.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            Ok(text.contains(least).then_some(()))
        })?;
        ensure!(node.is_active()?, "the fast path stopped for all routes");
        pod.call("ip route flush cache")?;
        pod.call("ip -6 route flush cache")?;
    }
    Ok(())
}

/// A source address whose return route uses another link is subject to the stack's `rp_filter`.
#[test]
fn rp_filter_applies_to_packets_with_forged_sources() -> Result<()> {
    const ELSEWHERE: [u8; 4] = [198, 51, 100, 9];
    let node = Node::new(&[])?;
    node.until_active(true)?;
    let capture = Capture::start(&node.published.machine)?;
    let raw = RawSocket::sender(&node.sandbox.world, NODE[0])?;
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
    for (strict, accepted) in [(1, 0), (0, 20)] {
        node.node()
            .call(&format!("sysctl -qw net.ipv4.conf.up0.rp_filter={strict}"))?;
        send(Address::v4([192, 0, 2, 1]), "node's own")?;
        send(Address::v4(ELSEWHERE), "elsewhere")?;
        send(Address::v4([192, 0, 2, 2]), "end")?;
        let mut heard = Vec::new();
        for _ in 0..20 {
            heard.extend(capture.until("the end marker", |packet| packet.ends_with(b"end"))?);
        }
        let counts = ["node's own", "elsewhere"].map(|word| {
            heard
                .iter()
                .filter(|packet| packet.ends_with(word.as_bytes()))
                .count()
        });
        assert_eq!(counts, [0, accepted], "rp_filter {strict}");
    }
    Ok(())
}

#[test]
fn a_temporary_bypass_mode_ends_by_itself_and_with_a_restart_of_the_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = Agent::start(&sandbox.node, &["--bypass-netfilter=always"])?;
    let mode = |agent: &Agent| -> Result<String> {
        let status = agent.get("/v1/status")?;
        Ok(status["bypass"]["mode"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    agent.ctl("bypass never --for 1h")?;
    ensure!(mode(&agent)? == "never");
    agent.ctl("bypass configured")?;
    ensure!(mode(&agent)? == "always");
    // The timer of the first mode does not end the second one.
    agent.ctl("bypass offload --for 1s")?;
    agent.ctl("bypass never --for 5s")?;
    ensure!(mode(&agent)? == "never");
    until("the configured mode is in effect again", || {
        let mode = mode(&agent)?;
        ensure!(mode == "never" || mode == "always", "{mode}");
        Ok((mode == "always").then_some(()))
    })?;
    agent.ctl("bypass never --for 1h")?;
    agent.kill()?;
    agent.restart()?;
    ensure!(mode(&agent)? == "always");
    let refused = agent.put("/v1/bypass", r#"{"mode":"never","seconds":86401}"#);
    ensure!(refused.is_err(), "{refused:?}");
    agent.ctl("log-level debug")?;
    let debug = || Ok(agent.log().contains("DEBUG").then_some(()));
    agent.ctl("list")?;
    agent.ctl("bypass never")?;
    until("the log has lines of level debug", debug)
}
