//! A pod that sends much gets the short way in front of its hook, and nothing else changes: not what arrives, not what is
//! counted, not who has a say.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TcAttachType};
use e2e::{Agent, Pod, Sandbox, patient, skipped, udp_socket, until, until_within};

const PORT: u16 = 7000;
/// Datagrams that are sent before they are received: what a socket's buffer holds in any case.
const BURST: u64 = 32;
/// More than what makes a pod busy.
const MUCH: u64 = 300_032;
/// Packets between two looks, and behind them.
const BATCH: u64 = 8_192;
/// How long one that arrives may take, and how long none is waited for that shall not.
const ARRIVES: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_millis(100);
/// The agent looks who is busy every five seconds, and acts when nobody asks for anything.
const LOOKS: Duration = Duration::from_secs(20);

/// A node with two pods, one of which sends to the other.
struct Node {
    sandbox: Sandbox,
    agent: Agent,
    from: Pod,
    to: Pod,
    outbox: UdpSocket,
    inbox: UdpSocket,
}

impl Node {
    /// `None` where the kernel has no room for the short way.
    fn new() -> Result<Option<Self>> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", "auto"])?;
        if !agent.can("tcx")? {
            skipped("no TCX");
            return Ok(None);
        }
        let (mut from, mut to) = (sandbox.pod("from")?, sandbox.pod("to")?);
        from.add()?.success()?;
        to.add()?.success()?;
        let at = SocketAddr::new(to.addresses[0], PORT);
        let inbox = to.machine.run(|| UdpSocket::bind(at))?;
        inbox.set_read_timeout(Some(patient(ARRIVES)))?;
        let outbox = from.machine.run(|| udp_socket(0, at))?;
        Ok(Some(Self {
            sandbox,
            agent,
            from,
            to,
            outbox,
            inbox,
        }))
    }

    /// Sends so many datagrams, and tells how many arrive.
    fn send(&self, count: u64) -> Result<u64> {
        let mut arrived = 0;
        for _ in 0..count / BURST {
            for _ in 0..BURST {
                self.outbox.send(b"datagram")?;
            }
            arrived += (0..BURST)
                .map_while(|_| self.inbox.recv(&mut [0; 16]).ok())
                .count() as u64;
        }
        Ok(arrived)
    }

    /// Sends until the pod counts as busy; each datagram arrives.
    fn make_busy(&self) -> Result<()> {
        ensure!(self.send(MUCH)? == MUCH, "a datagram was lost");
        until_within(LOOKS, "a busy pod has the short way", || {
            ensure!(self.send(BATCH)? == BATCH, "a datagram was lost");
            Ok(self.is_busy(&self.from)?.then_some(()))
        })
    }

    fn is_busy(&self, pod: &Pod) -> Result<bool> {
        let link = pod.host_link().to_owned();
        let programs = self.sandbox.node.run(move || {
            let (_, programs) = SchedClassifier::query_tcx(&link, TcAttachType::Ingress)?;
            let named = programs
                .iter()
                .any(|it| it.name_as_str() == Some("from_busy_pod"));
            Ok::<_, aya::programs::ProgramError>(named)
        });
        Ok(programs?)
    }

    /// Packets that the agent has counted: sent by pods, received by pods.
    fn counted(&self) -> Result<[u64; 2]> {
        let counters = self.agent.get("/v1/counters")?;
        let of = |name: &str| counters[name].as_u64();
        let (sent, received) = of("tx_packets")
            .zip(of("rx_packets"))
            .with_context(|| format!("no packets in {counters}"))?;
        Ok([sent, received])
    }
}

#[test]
fn a_busy_pods_packets_arrive_and_are_counted_as_before() -> Result<()> {
    let Some(mut node) = Node::new()? else {
        return Ok(());
    };
    ensure!(!node.is_busy(&node.from)?, "not before it has sent much");
    node.make_busy()?;
    ensure!(!node.is_busy(&node.to)?, "the other one has sent nothing");
    let before = node.counted()?;
    ensure!(node.send(BATCH)? == BATCH);
    let after = node.counted()?;
    // Neighbours ask for each other now and then.
    let few = BATCH..BATCH + 20;
    for (before, after) in before.into_iter().zip(after) {
        ensure!(few.contains(&(after - before)), "{before} and then {after}");
    }
    node.agent.kill()?;
    ensure!(node.send(BATCH)? == BATCH, "nothing needs the agent");
    node.agent.restart()?;
    ensure!(node.is_busy(&node.from)?, "it outlives the agent");
    node.from.del()?.success()?;
    let links = node.sandbox.node.call("ip -o link show")?;
    ensure!(!links.contains(node.from.host_link()), "{links}");
    Ok(())
}

#[test]
fn a_rule_that_appears_holds_for_a_busy_pod_at_once() -> Result<()> {
    let Some(node) = Node::new()? else {
        return Ok(());
    };
    node.make_busy()?;
    let drop = format!(
        "nft add table bridge strict ; \
         add chain bridge strict between {{ type filter hook forward priority 0 ; }} ; \
         add rule bridge strict between udp dport {PORT} drop"
    );
    let machine = &node.sandbox.node;
    machine.call_words(&["nft", drop.trim_start_matches("nft ")])?;
    node.inbox.set_read_timeout(Some(SILENCE))?;
    until("the rule holds", || {
        Ok((node.send(BURST)? == 0).then_some(()))
    })?;
    ensure!(node.send(BURST * 8)? == 0, "it holds for all that follow");
    machine.call("nft delete table bridge strict")?;
    node.inbox.set_read_timeout(Some(patient(ARRIVES)))?;
    until("datagrams arrive again", || {
        Ok((node.send(BURST)? == BURST).then_some(()))
    })
}
