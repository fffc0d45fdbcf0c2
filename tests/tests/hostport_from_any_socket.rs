//! Hostports from the node itself, by sockets that the cgroup programs do not see: they reach the
//! pod by netfilter, or are refused at once (decision 99).

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use abi::{Address, protocol};
use anyhow::{Context as _, Result, ensure};
use e2e::{
    ClientKind, Config, Echo, Mapping, NODE, Pod, Process, RawSocket, Sandbox,
    connect_from_process, skipped, tcp_source, until,
};
use verdict::simulator::frame::{Body, Frame, flag};

const HOSTPORT: u16 = 8080;
const PORT: u16 = 7000;
const SCTP: u16 = 3868;
const CLIENT: u16 = 41_000;
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn packet(from: IpAddr, to: IpAddr, body: Body) -> Vec<u8> {
    Frame::new(abi(from), abi(to), body).packet()
}

/// Returns an INIT of SCTP (RFC 9260, 3.3.2) without a checksum: connection tracking accepts no
/// other first packet, and only with a verification tag of zero.
fn init() -> Vec<u8> {
    let mut packet = [CLIENT.to_be_bytes(), SCTP.to_be_bytes()].concat();
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20, 5, 6, 7, 8, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    packet
}

fn published(sandbox: &Sandbox, mappings: &[Mapping]) -> Result<(Pod, Echo)> {
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(mappings))?;
    let server = Echo::start(&pod.machine, PORT)?;
    Ok((pod, server))
}

fn connect_all(sandbox: &Sandbox, cgroup: Option<&Path>, to: &[IpAddr]) -> Result<Vec<Result<()>>> {
    let targets: Vec<_> = to
        .iter()
        .flat_map(|to| ClientKind::ALL.map(|kind| (kind, SocketAddr::new(*to, HOSTPORT))))
        .collect();
    let all = connect_from_process(&sandbox.node, cgroup, &targets)?;
    Ok(all.into_iter().map(|one| one.map(drop)).collect())
}

fn has_chain(sandbox: &Sandbox) -> bool {
    let chain = sandbox.node.call("nft list chain inet viaduct output");
    chain.is_ok()
}

/// Waits until hostports are translated for the node, or are not.
fn await_chain(sandbox: &Sandbox, wanted: bool) -> Result<()> {
    until(&format!("the output chain exists: {wanted}"), || {
        Ok((has_chain(sandbox) == wanted).then_some(()))
    })
}

/// Runs a check while hostports are not translated for the node. It is repeated if it fails and
/// they are by then: on a slow machine a command of the test may have been outside for long enough
/// to count.
fn without_chain(sandbox: &Sandbox, check: impl Fn() -> Result<()>) -> Result<()> {
    until("a check has passed without the output chain", || {
        await_chain(sandbox, false)?;
        match check() {
            Err(_) if has_chain(sandbox) => Ok(None),
            checked => checked.map(Some),
        }
    })
}

/// Sends a SYN from a raw socket of the node, and returns the flags of the answer.
fn raw_syn(sandbox: &Sandbox, node: IpAddr) -> Result<u8> {
    let listener = RawSocket::listener(&sandbox.node, node, protocol::TCP)?;
    let syn = packet(
        node,
        node,
        Body::Tcp(CLIENT, HOSTPORT, flag::SYN, Vec::new()),
    );
    RawSocket::sender(&sandbox.node, node)?.send(&syn, node)?;
    let answers = |payload: &[u8]| {
        payload.len() >= 20
            && payload[..4] == [HOSTPORT.to_be_bytes(), CLIENT.to_be_bytes()].concat()
    };
    let answer = listener.receive("an answer to the SYN", |it| answers(&it.payload))?;
    Ok(answer.payload[13])
}

#[test]
fn processes_outside_of_the_cgroup_reach_hostports() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let Some(cgroup) = agent.cgroup() else {
        skipped("no cgroup2 is mounted");
        return Ok(());
    };
    let (_pod, _server) = published(&sandbox, &Mapping::both(HOSTPORT, PORT))?;
    // Connections are not tracked for nothing. On a slow machine a command of the test may have
    // been outside for long enough to count.
    await_chain(&sandbox, false)?;
    let outside = Process::start(&sandbox.node, &["sleep", "1000"])?;
    await_chain(&sandbox, true)?;
    for one in connect_all(&sandbox, None, &NODE)? {
        one?;
    }
    // Raw sockets are served as well, and those that the programs see still are.
    for node in NODE {
        assert_eq!(raw_syn(&sandbox, node)?, flag::SYN | flag::ACK, "{node}");
        tcp_source(&sandbox.world, 0, SocketAddr::new(node, HOSTPORT))?;
    }
    let inside = connect_all(&sandbox, Some(cgroup), &NODE)?;
    inside.into_iter().collect::<Result<Vec<_>>>()?;
    drop(outside);
    await_chain(&sandbox, false)?;
    let inside = connect_all(&sandbox, Some(cgroup), &NODE)?;
    inside.into_iter().collect::<Result<Vec<_>>>().map(drop)
}

#[test]
fn a_port_that_nothing_translates_is_refused_at_once() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    if agent.cgroup().is_none() {
        skipped("no cgroup2 is mounted");
        return Ok(());
    }
    let (_pod, _server) = published(&sandbox, &Mapping::both(HOSTPORT, PORT))?;
    let loopback = LOOPBACK.map(|text| text.parse::<IpAddr>().unwrap());
    // Sockets that get the kernel's error. A client that waits would count as a process outside.
    let refused = |to: &[IpAddr]| -> Result<()> {
        let targets: Vec<_> = to
            .iter()
            .flat_map(|to| {
                let to = SocketAddr::new(*to, HOSTPORT);
                [(ClientKind::Tcp, to), (ClientKind::Udp, to)]
            })
            .collect();
        let answers = connect_from_process(&sandbox.node, None, &targets)?;
        for (target, answer) in targets.iter().zip(answers) {
            let not_refused = || format!("{target:?} is not refused");
            let error = answer.err().with_context(not_refused)?.to_string();
            ensure!(error.contains("refused"), "{target:?}: {error}");
        }
        Ok(())
    };
    without_chain(&sandbox, || {
        refused(&[NODE.as_slice(), &loopback].concat())?;
        for node in NODE {
            let answer = raw_syn(&sandbox, node)?;
            ensure!(answer == flag::RST | flag::ACK, "{node}: {answer:#x}");
        }
        Ok(())
    })?;
    let _outside = Process::start(&sandbox.node, &["sleep", "1000"])?;
    await_chain(&sandbox, true)?;
    refused(&loopback)
}

/// Not every kernel has SCTP sockets: the packets are those of a raw socket.
#[test]
fn raw_sctp_packets_of_the_node_reach_the_hostport() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let sctp = Mapping {
        host: SCTP,
        container: SCTP,
        protocol: "sctp",
    };
    let (pod, _server) = published(&sandbox, &[sctp])?;
    assert!(has_chain(&sandbox), "with the ADD");
    for node in NODE {
        let own = pod.address(node)?;
        let in_pod = RawSocket::listener(&pod.machine, node, protocol::SCTP)?;
        let sent = packet(node, node, Body::Other(protocol::SCTP, init()));
        RawSocket::sender(&sandbox.node, node)?.send(&sent, node)?;
        // Netfilter writes the checksum.
        let same = |payload: &[u8]| {
            let parts = |bytes: &[u8]| [bytes[..8].to_vec(), bytes[12..].to_vec()];
            payload.len() == init().len() && parts(payload) == parts(&init())
        };
        let seen = in_pod.receive("the INIT", |it| same(&it.payload))?;
        assert_eq!(seen.from, node, "to {own}");
    }
    pod.del()?;
    await_chain(&sandbox, false)
}
