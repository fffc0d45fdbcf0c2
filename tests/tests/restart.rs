//! The datapath outlives the agent, and a restarted agent keeps its attachments.

use std::net::SocketAddr;
use std::thread;

use anyhow::{Context as _, Result};
use e2e::residue::assert_no_residue;
use e2e::{
    Agent, Config, Echo, Iperf, Mapping, NODE, Pod, Residue, Sandbox, Throughput, WORLD, tcp_echo,
    tcp_source, udp_seen_as, udp_source, until,
};
use serde_json::Value;

const HOSTPORTS: [Mapping; 3] = [
    Mapping::tcp(8080, 80),
    Mapping::udp(5353, 80),
    Mapping::tcp(5201, 5201),
];

/// Returns the agent's attachments without the fields that traffic changes.
fn attachments(agent: &Agent) -> Result<Value> {
    let mut list = agent.get("/v1/attachments")?;
    for attachment in list.as_array_mut().context("a list")? {
        attachment["counters"] = Value::Null;
    }
    Ok(list)
}

fn published(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("server")?;
    pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    Ok(pod)
}

/// Opens a connection of each kind in each direction, with one exchange.
fn open_all(sandbox: &Sandbox, pod: &Pod) -> Result<Vec<Connection>> {
    let mut open = Vec::new();
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let outward = SocketAddr::new(world, 7000);
        open.push(Connection::tcp(&pod.machine, outward)?);
        open.push(Connection::udp(&pod.machine, outward)?);
        let inward = SocketAddr::new(node, 8080);
        open.push(Connection::tcp(&sandbox.world, inward)?);
        let inward = SocketAddr::new(node, 5353);
        open.push(Connection::udp(&sandbox.world, inward)?);
    }
    Ok(open)
}

/// An open connection, and the client address that its server sees.
enum Connection {
    Tcp(std::net::TcpStream),
    Udp(std::net::UdpSocket, SocketAddr),
}

impl Connection {
    fn tcp(client: &e2e::Machine, server: SocketAddr) -> Result<Self> {
        let (_, stream) = tcp_source(client, 0, server)?;
        Ok(Self::Tcp(stream))
    }

    fn udp(client: &e2e::Machine, server: SocketAddr) -> Result<Self> {
        let (seen, socket) = udp_source(client, 0, server)?;
        Ok(Self::Udp(socket, seen))
    }

    fn exchange(&self) -> Result<()> {
        match self {
            Self::Tcp(stream) => tcp_echo(stream),
            Self::Udp(socket, seen) => {
                assert_eq!(
                    udp_seen_as(socket)?,
                    *seen,
                    "the flow has another translation"
                );
                Ok(())
            }
        }
    }
}

fn all_continue(connections: &[Connection], when: &str) -> Result<()> {
    connections
        .iter()
        .try_for_each(Connection::exchange)
        .with_context(|| format!("a connection broke {when}"))
}

#[test]
fn a_killed_agent_breaks_no_connection_and_blocks_no_new_one() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let _in_pod = Echo::start(&pod.machine, 80)?;
    let _in_world = Echo::start(&sandbox.world, 7000)?;
    let known = attachments(&agent)?;

    let before = open_all(&sandbox, &pod)?;
    agent.kill()?;
    all_continue(&before, "at the kill")?;
    let meanwhile = open_all(&sandbox, &pod)?;
    agent.restart()?;
    all_continue(&before, "at the restart")?;
    all_continue(&meanwhile, "at the restart")?;
    all_continue(&open_all(&sandbox, &pod)?, "after the restart")?;

    assert_eq!(attachments(&agent)?, known);
    let mut late = sandbox.pod("late")?;
    late.add()?;
    late.check()?.success()?;
    pod.check()?.success()?;
    late.del()?;
    pod.del().map(drop)
}

#[test]
fn bulk_traffic_flows_on_while_the_agent_is_killed_and_restarted() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let to_world = Iperf::serve(&sandbox.world, 5202)?;
    let to_pod = Iperf::serve(&pod.machine, 5201)?;

    let (outward, inward) = thread::scope(|scope| -> Result<(Throughput, Throughput)> {
        let outward = scope.spawn(|| to_world.send(&pod.machine, WORLD[0], 4));
        let inward = scope.spawn(|| to_pod.send(&sandbox.world, NODE[0], 4));
        for server in [&to_world, &to_pod] {
            until("both transfers run", || {
                Ok(server
                    .output()
                    .contains("Accepted connection")
                    .then_some(()))
            })?;
        }
        agent.kill()?;
        agent.restart()?;
        let join = |run: thread::ScopedJoinHandle<'_, Result<Throughput>>| {
            run.join().ok().context("a transfer panicked")?
        };
        Ok((join(outward)?, join(inward)?))
    })?;
    for run in [outward, inward] {
        assert!(run.slowest > 0.0, "a transfer stalled: {run:?}");
    }
    Ok(())
}

#[test]
fn a_terminated_agent_leaves_the_datapath_running() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox)?;
    let _in_pod = Echo::start(&pod.machine, 80)?;
    let _in_world = Echo::start(&sandbox.world, 7000)?;
    let before = open_all(&sandbox, &pod)?;

    let status = agent.terminate()?;
    assert!(status.success(), "{status}");
    all_continue(&before, "at the stop of the agent")?;
    all_continue(&open_all(&sandbox, &pod)?, "after the stop of the agent")?;
    agent.restart()?;
    all_continue(&before, "at the restart")
}

#[test]
fn a_kill_in_the_middle_of_adds_leaves_nothing_that_del_does_not_remove() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let pods = (0..12)
        .map(|number| sandbox.pod(&format!("pod-{number}")))
        .collect::<Result<Vec<_>>>()?;

    thread::scope(|scope| -> Result<()> {
        for pod in &pods {
            let mut pod = pod.clone();
            // Some of these succeed, some fail and some get no response, depending on the moment of
            // the kill.
            scope.spawn(move || drop(pod.add()));
        }
        until("the first pod is attached", || {
            let links = sandbox.node.call("ip -o link show type veth")?;
            Ok(links.contains("veth").then_some(()))
        })?;
        agent.kill()
    })?;
    agent.restart()?;
    for pod in &pods {
        pod.del()?;
    }
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}

#[test]
fn a_kill_in_the_middle_of_dels_leaves_nothing_that_another_del_does_not_remove() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let mut pods = Vec::new();
    for number in 0..12 {
        let mut pod = sandbox.pod(&format!("pod-{number}"))?;
        pod.add()?;
        pods.push(pod);
    }

    let links = || -> Result<usize> {
        let shown = sandbox.node.call("ip -o link show type veth")?;
        Ok(shown.lines().filter(|line| line.contains("veth")).count())
    };
    let all = links()?;
    thread::scope(|scope| -> Result<()> {
        for pod in &pods {
            // As above, the moment of the kill decides which of these succeed.
            scope.spawn(move || drop(pod.del()));
        }
        until("the first pod is deleted", || {
            Ok((links()? < all).then_some(()))
        })?;
        agent.kill()
    })?;
    agent.restart()?;
    for pod in &pods {
        pod.del()?;
    }
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}
