//! UDP flows without a reply bypass the rules that have accepted them, in their direction; and stay
//! on the stack beside rules that must see each new packet (decision 120).

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::company::RecordedRules;
use e2e::{Connection, ConnectionLoad, Machine, NODE, WORLD, patient, udp_socket, until};

use super::foreign_nat::{
    CLUSTER_IP, CLUSTER_PORT, COUNTING, beside, counted, forget_connections, until_past_netfilter,
};
use super::{EXCHANGES, FEW, Node, ONE_WAY, ONE_WAY_HOSTPORT, PORT};

/// Timeout of a packet that arrives, and of one that does not.
const ARRIVES: Duration = Duration::from_secs(4);
const SILENCE: Duration = Duration::from_millis(250);
/// Destination ports of a pod that opens many flows.
const MANY: std::ops::Range<u16> = 20_000..40_000;

/// Rules that accept new connections of pods only, so that a reply must find its connection.
const ONLY_PODS_OPEN: &str = "add table inet company ; \
    add chain inet company forward { type filter hook forward priority 0 ; policy drop ; } ; \
    add rule inet company forward ct state established,related counter accept ; \
    add rule inet company forward ct state invalid counter drop ; \
    add rule inet company forward oifname up0 ct state new counter accept";

/// A sender, and the socket that receives its packets.
struct OneWay {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl OneWay {
    fn open(from: &Machine, to: &Machine, target: SocketAddr, port: u16) -> Result<Self> {
        let flow = Self {
            sender: from.run(|| udp_socket(0, target))?,
            receiver: to.run(|| UdpSocket::bind(("::", port)))?,
        };
        until("a packet arrives", || {
            Ok(flow.arrives(SILENCE)?.then_some(()))
        })
        .with_context(|| format!("to {target}"))?;
        Ok(flow)
    }

    /// Opens a flow of the client to the world.
    fn to_world(node: &Node) -> Result<Self> {
        let target = SocketAddr::new(WORLD[0], ONE_WAY);
        Self::open(&node.client.machine, &node.sandbox.world, target, ONE_WAY)
    }

    /// Sends a packet; returns whether it arrives in time.
    fn arrives(&self, timeout: Duration) -> Result<bool> {
        self.receiver.set_read_timeout(Some(patient(timeout)))?;
        self.sender.send(b"one way")?;
        Ok(self.receiver.recv(&mut [0; 64]).is_ok())
    }

    fn send(&self) -> Result<()> {
        ensure!(self.arrives(ARRIVES)?, "a packet was lost");
        Ok(())
    }

    /// Returns how many packets of netfilter's forward hook [`EXCHANGES`] packets are.
    fn forwarded(&self, node: &Node) -> Result<u64> {
        let before = counted(node.node())?;
        (0..EXCHANGES).try_for_each(|_| self.send())?;
        Ok(counted(node.node())? - before)
    }

    fn until_past_netfilter(&self, node: &Node) -> Result<()> {
        until("the flow bypasses netfilter", || {
            Ok((self.forwarded(node)? <= FEW).then_some(()))
        })
    }

    /// Sends an answer to the last packet; returns whether it arrives.
    fn is_answered(&self) -> Result<bool> {
        self.receiver.set_read_timeout(Some(patient(ARRIVES)))?;
        self.sender.set_read_timeout(Some(patient(SILENCE)))?;
        self.sender.send(b"one way")?;
        let (_, client) = self.receiver.recv_from(&mut [0; 64])?;
        self.receiver.send_to(b"answer", client)?;
        Ok(self.sender.recv(&mut [0; 64]).is_ok())
    }
}

/// Starts a node beside these rules, and a chain that counts.
fn beside_company(ruleset: &str) -> Result<Node> {
    let node = Node::new(&["--forwarding=leave"])?;
    node.nft(COUNTING)?;
    node.nft(ruleset)?;
    node.until_offloading(true)?;
    Ok(node)
}

#[test]
fn flows_without_a_reply_bypass_the_rules_of_kube_proxy_and_docker() -> Result<()> {
    for (rules, kind) in [
        (RecordedRules::KubeProxy, "nft"),
        (RecordedRules::KubeProxy, "legacy"),
        (RecordedRules::Docker, "nft"),
    ] {
        let node = beside(rules, kind)?;
        let (world, server) = (&node.sandbox.world, &node.server.machine);
        let mut flows = vec![
            OneWay::to_world(&node)?,
            OneWay::open(
                world,
                server,
                SocketAddr::new(NODE[0], ONE_WAY_HOSTPORT),
                ONE_WAY,
            )?,
        ];
        if rules == RecordedRules::KubeProxy {
            let cluster_ip = SocketAddr::new(CLUSTER_IP[0], CLUSTER_PORT + 1);
            node.node().call(&format!(
                "iptables-{kind} -t nat -I KUBE-SERVICES -d {} -p udp --dport {} \
                 -j DNAT --to-destination 10.244.1.2:{}",
                cluster_ip.ip(),
                cluster_ip.port(),
                ONE_WAY + 1
            ))?;
            let client = &node.client.machine;
            flows.push(OneWay::open(client, server, cluster_ip, ONE_WAY + 1)?);
        }
        for flow in &flows {
            flow.until_past_netfilter(&node)
                .with_context(|| format!("{rules:?} by iptables-{kind}: {:?}", flow.sender))?;
        }
        until("the status counts flows without a reply", || {
            flows.iter().try_for_each(OneWay::send)?;
            let status = node.agent.get("/v1/status")?;
            let count = status["bypass"]["offload"]["unreplied"].as_u64();
            Ok(count.filter(|count| *count >= flows.len() as u64))
        })?;
    }
    Ok(())
}

#[test]
fn a_rule_that_forbids_a_flow_without_a_reply_ends_it_at_once() -> Result<()> {
    /// Time after which a new rule of nftables applies to all packets.
    const APPLIES: Duration = Duration::from_millis(50);
    let node = beside_company(ONLY_PODS_OPEN)?;
    let flow = OneWay::to_world(&node)?;
    flow.until_past_netfilter(&node)?;
    node.nft("insert rule inet company forward ip daddr 192.0.2.2 drop")?;
    let started = Instant::now();
    let last = until("packets do not arrive", || {
        let sent = started.elapsed();
        Ok((!flow.arrives(SILENCE)?).then_some(sent))
    })?;
    ensure!(last <= patient(APPLIES), "packets arrive for {last:?}");
    for _ in 0..EXCHANGES / 10 {
        ensure!(!flow.arrives(SILENCE)?, "a packet got past the rule");
    }
    node.nft(
        "flush chain inet company forward ; \
        add rule inet company forward oifname up0 ct state new counter accept",
    )?;
    until("the flow continues", || {
        Ok(flow.arrives(SILENCE)?.then_some(()))
    })?;
    flow.until_past_netfilter(&node)
}

#[test]
fn the_reply_to_an_offloaded_flow_arrives_and_makes_it_an_established_one() -> Result<()> {
    let node = beside_company(ONLY_PODS_OPEN)?;
    let flow = OneWay::to_world(&node)?;
    flow.until_past_netfilter(&node)?;
    ensure!(flow.is_answered()?, "the reply was lost");
    until("both directions bypass netfilter", || {
        let before = counted(node.node())?;
        for _ in 0..EXCHANGES {
            ensure!(flow.is_answered()?, "a reply was lost");
        }
        Ok((counted(node.node())? - before <= FEW).then_some(()))
    })?;
    until("the status counts no flow without a reply", || {
        ensure!(flow.is_answered()?, "a reply was lost");
        let status = node.agent.get("/v1/status")?;
        let offload = &status["bypass"]["offload"];
        Ok((offload["unreplied"] == 0 && offload["offloaded"] == 2).then_some(()))
    })
}

#[test]
fn rules_that_must_see_new_packets_keep_flows_without_a_reply_on_the_stack() -> Result<()> {
    let node = beside_company(ONLY_PODS_OPEN)?;
    let flow = OneWay::to_world(&node)?;
    let connection = Connection::udp(&node.client.machine, SocketAddr::new(WORLD[0], PORT))?;
    for (statement, name) in [
        ("limit rate over 1000000/second drop", "limit"),
        ("log group 7", "log"),
        (
            "numgen random mod 2 vmap { 0 : accept, 1 : accept }",
            "numgen",
        ),
        ("add @seen { ip saddr }", "dynset"),
    ] {
        flow.until_past_netfilter(&node)
            .with_context(|| format!("before {name}"))?;
        node.nft(&format!(
            "add set inet company seen {{ type ipv4_addr ; flags dynamic ; }} ; \
             insert rule inet company forward ct state new {statement}"
        ))?;
        let rule = format!("chain forward, rule 1: {name} needs every packet");
        until("the status names the rule", || {
            let status = node.agent.get("/v1/status")?;
            let rules = status["bypass"]["offload"]["unreplied_rules"].to_string();
            Ok(rules.contains(&rule).then_some(()))
        })?;
        until_past_netfilter(&node, &connection)?;
        until("the agent has decided about the flow", || {
            ensure!(flow.forwarded(&node)? >= EXCHANGES, "{name} was bypassed");
            let status = node.agent.get("/v1/status")?;
            let on_stack = status["bypass"]["offload"]["on_stack"].to_string();
            Ok(on_stack.contains("without a reply").then_some(()))
        })?;
        ensure!(flow.forwarded(&node)? >= EXCHANGES, "{name} was bypassed");
        let list = node.node().call("nft -a list chain inet company forward")?;
        let line = list
            .lines()
            .find(|line| line.contains("ct state new") && !line.contains("up0"));
        let handle = line.and_then(|line| line.rsplit(' ').next());
        node.nft(&format!(
            "delete rule inet company forward handle {}",
            handle.with_context(|| format!("no rule in {list}"))?
        ))?;
    }
    Ok(())
}

#[test]
fn a_flow_that_conntrack_has_dropped_early_goes_on_and_is_tracked_again() -> Result<()> {
    let node = beside_company(ONLY_PODS_OPEN)?;
    let flow = OneWay::to_world(&node)?;
    flow.until_past_netfilter(&node)?;
    // As conntrack does with entries of unreplied flows when its table is full.
    node.node().run(forget_connections)?;
    // Until a packet has taken the stack, the rules do not know what a reply belongs to.
    until("a reply arrives", || {
        for _ in 0..EXCHANGES {
            flow.send()?;
        }
        Ok(flow.is_answered()?.then_some(()))
    })
}

#[test]
fn a_pod_with_many_flows_leaves_the_offload_to_others() -> Result<()> {
    let node = beside_company(ONLY_PODS_OPEN)?;
    // Else the world would answer with errors.
    let quiet = "add table inet quiet ; \
        add chain inet quiet input { type filter hook input priority 0 ; } ; \
        add rule inet quiet input udp dport 20000-40000 drop";
    node.sandbox.world.call_words(&["nft", quiet])?;
    let mut greedy = node.sandbox.pod("greedy")?;
    greedy.add_with(e2e::Config::new("1.1.0"))?.success()?;
    let socket = greedy.machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let flood = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for port in MANY {
                    // A full queue is no failure.
                    let _ = socket.send_to(b"one of many", (WORLD[0], port));
                }
            }
        });
        let result = others_are_offloaded(&node);
        stop.store(true, Ordering::Relaxed);
        let ended = flood.join().is_ok();
        ensure!(ended, "the flood panicked");
        result
    })
}

/// Opens connections of another pod, and waits until they bypass the rules, beside a flood.
fn others_are_offloaded(node: &Node) -> Result<()> {
    let offloaded = |least: u64| {
        until("flows are offloaded", || {
            let status = node.agent.get("/v1/status")?;
            let offload = &status["bypass"]["offload"];
            let count = |name: &str| offload[name].as_u64().unwrap_or(0);
            let established = count("offloaded") - count("unreplied");
            Ok((count("unreplied") > 0 && established >= least).then_some(()))
        })
    };
    offloaded(0)?;
    let world = SocketAddr::new(WORLD[0], PORT);
    let load = ConnectionLoad::start(vec![
        Connection::tcp(&node.client.machine, world)?,
        Connection::udp(&node.client.machine, world)?,
    ]);
    // Both directions of each.
    offloaded(4)?;
    load.end().map(drop)
}
