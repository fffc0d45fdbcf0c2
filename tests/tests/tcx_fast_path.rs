//! The TCX fast path of high-traffic pods: packets still arrive, counters still count, and rules of
//! other software still apply.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TcAttachType};
use e2e::{Agent, Pod, Sandbox, patient, skipped, udp_socket, until, until_within};

const PORT: u16 = 7000;
/// Datagrams that are sent before any is received; a socket's buffer always holds as many.
const BURST: u64 = 32;
/// Datagrams beyond the threshold for a high-traffic pod.
const MANY: u64 = 300_032;
/// Datagrams between two checks, and after them.
const BATCH: u64 = 8_192;
/// How long an expected datagram may take, and how long to wait where none may arrive.
const ARRIVES: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_millis(100);
/// The agent looks for high-traffic pods every five seconds, and attaches the program while it is
/// idle.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(20);

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
    /// Returns `None` on a kernel without TCX.
    fn new() -> Result<Option<Self>> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", "auto"])?;
        if !agent.has_feature("tcx")? {
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

    /// Sends `count` datagrams, and returns how many arrive.
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

    /// Sends until the pod has the TCX fast path; each datagram must arrive.
    fn enter_fast_path(&self) -> Result<()> {
        ensure!(self.send(MANY)? == MANY, "a datagram was lost");
        until_within(ATTACH_TIMEOUT, "the pod has the TCX fast path", || {
            ensure!(self.send(BATCH)? == BATCH, "a datagram was lost");
            Ok(self.has_fast_path(&self.from)?.then_some(()))
        })
    }

    fn has_fast_path(&self, pod: &Pod) -> Result<bool> {
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

    /// Returns the agent's counters of packets sent and received by pods.
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
fn a_high_traffic_pods_packets_arrive_and_are_counted_on_the_tcx_fast_path() -> Result<()> {
    let Some(mut node) = Node::new()? else {
        return Ok(());
    };
    ensure!(
        !node.has_fast_path(&node.from)?,
        "the fast path is attached to an idle pod"
    );
    node.enter_fast_path()?;
    ensure!(
        !node.has_fast_path(&node.to)?,
        "the fast path is attached to the receiver"
    );
    let before = node.counted()?;
    ensure!(node.send(BATCH)? == BATCH);
    let after = node.counted()?;
    // Some packets of neighbour discovery are counted as well.
    let few = BATCH..BATCH + 20;
    for (before, after) in before.into_iter().zip(after) {
        ensure!(few.contains(&(after - before)), "{before} and then {after}");
    }
    node.agent.kill()?;
    ensure!(
        node.send(BATCH)? == BATCH,
        "a datagram was lost without the agent"
    );
    node.agent.restart()?;
    ensure!(
        node.has_fast_path(&node.from)?,
        "the fast path is gone after the restart"
    );
    node.from.del()?.success()?;
    let links = node.sandbox.node.call("ip -o link show")?;
    ensure!(!links.contains(node.from.host_link()), "{links}");
    Ok(())
}

#[test]
fn a_new_bridge_rule_applies_to_a_high_traffic_pod_at_once() -> Result<()> {
    let Some(node) = Node::new()? else {
        return Ok(());
    };
    node.enter_fast_path()?;
    let drop = format!(
        "nft add table bridge strict ; \
         add chain bridge strict between {{ type filter hook forward priority 0 ; }} ; \
         add rule bridge strict between udp dport {PORT} drop"
    );
    let machine = &node.sandbox.node;
    machine.call_words(&["nft", drop.trim_start_matches("nft ")])?;
    node.inbox.set_read_timeout(Some(patient(SILENCE)))?;
    until("the rule applies", || {
        Ok((node.send(BURST)? == 0).then_some(()))
    })?;
    ensure!(
        node.send(BURST * 8)? == 0,
        "a later datagram passed the rule"
    );
    machine.call("nft delete table bridge strict")?;
    node.inbox.set_read_timeout(Some(patient(ARRIVES)))?;
    until("datagrams arrive again", || {
        Ok((node.send(BURST)? == BURST).then_some(()))
    })
}
