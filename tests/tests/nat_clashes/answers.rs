//! Answers in fragments, of the pod or of the node's stack, and ICMP errors, on clashing flows.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{
    Agent, Config, Machine, Mapping, NODE, Pod, Sandbox, any_address, patient, udp_bound,
    udp_socket,
};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use serde_json::json;

use super::{FROM, PORT, PUBLISHED};

/// MTU of the network of one of the clients, in bytes. The others have 1,500.
const NARROW: u16 = 1400;
/// Bytes of answers: one that only the larger MTU takes, and one that no MTU takes.
const LENGTHS: [usize; 2] = [1_440, 4_000];
/// Bytes of an answer that every MTU takes.
const SMALL: usize = 16;
/// Requests until an answer must have arrived. By the first answer, a server may learn the path
/// MTU.
const TRIES: usize = 8;

/// A pod with two published ports of one port, a pod on the same network, and one on a network with
/// a smaller MTU.
struct Scene {
    _sandbox: Sandbox,
    _agent: Agent,
    server: Pod,
    clients: [Pod; 2],
}

impl Scene {
    fn new(bypass: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let attached = |name: &str, config: Config| -> Result<Pod> {
            let mut pod = sandbox.pod(name)?;
            pod.add_with(config)?;
            Ok(pod)
        };
        let published = PUBLISHED.map(|host| Mapping::udp(host, PORT));
        let server = attached("server", Config::new("1.1.0").publish(&published))?;
        let near = attached("near", Config::new("1.1.0"))?;
        let narrow = attached("narrow", narrow_network())?;
        Ok(Self {
            _sandbox: sandbox,
            _agent: agent,
            server,
            clients: [near, narrow],
        })
    }

    /// Returns the addresses that a client dials: the pod's own flow clashes with the first one.
    fn targets(&self, family: usize) -> [SocketAddr; 3] {
        let own = SocketAddr::new(self.server.addresses[family], PORT);
        let [first, second] = PUBLISHED.map(|port| SocketAddr::new(NODE[family], port));
        [first, own, second]
    }

    fn all_large_answers_arrive(&self) -> Result<()> {
        for family in [0, 1] {
            let targets = self.targets(family);
            let server = udp_bound(&self.server.machine, targets[1])?;
            with_answers(&server, || {
                for client in &self.clients {
                    let what = || format!("{} to {targets:?}", client.machine.name());
                    let lengths = [SMALL, LENGTHS[0], LENGTHS[1]];
                    check_answers(&client.machine, &targets, &lengths).with_context(what)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn all_errors_arrive(&self) -> Result<()> {
        for family in [0, 1] {
            let targets = self.targets(family);
            for client in &self.clients {
                let server = udp_bound(&self.server.machine, targets[1])?;
                let client = &client.machine;
                with_answers(&server, || check_answers(client, &targets, &[SMALL]))?;
                drop(server);
                for target in targets {
                    check_refused(client, target).with_context(|| client.name().to_owned())?;
                }
            }
        }
        Ok(())
    }
}

/// The configuration of a masqueraded network of both families with the MTU [`NARROW`].
fn narrow_network() -> Config {
    let subnets = ["10.71.0.0/24", "fd00:71::/64"].map(|subnet| json!([{ "subnet": subnet }]));
    Config::new("1.1.0")
        .with("name", json!("narrow"))
        .with("bridge", json!("narrow0"))
        .with("mtu", json!(NARROW))
        .with("isGateway", json!(true))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with("ipam", json!({ "type": "host-local", "ranges": subnets }))
}

/// Runs a test beside a server. A request has the length of its answer, and a number with which
/// the answer begins. IPv4 answers may be fragmented on their way.
fn with_answers(server: &UdpSocket, test: impl FnOnce() -> Result<()>) -> Result<()> {
    if server.local_addr()?.is_ipv4() {
        set_ip_mtu_discover(server, Ipv4PathMtuDiscovery::OMIT)?;
    }
    server.set_read_timeout(Some(Duration::from_millis(100)))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut request = [0; 16];
                let Ok((_, peer)) = server.recv_from(&mut request) else {
                    continue;
                };
                let [length, number] = [0, 8].map(|at| request[at..][..8].try_into());
                let length = length.map_or(0, u64::from_be_bytes);
                let mut answer = number.unwrap_or([0; 8]).to_vec();
                answer.resize(usize::try_from(length).unwrap_or(0), b'x');
                let _ = server.send_to(&answer, peer);
            }
        });
        let outcome = test();
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Requests answers of each length from each target, from one port.
fn check_answers(client: &Machine, targets: &[SocketAddr], lengths: &[usize]) -> Result<()> {
    let socket = udp_bound(client, any_address(targets[0].ip(), FROM))?;
    socket.set_read_timeout(Some(patient(Duration::from_secs(1))))?;
    let mut number = 0;
    // All flows exist before the first large answer.
    for length in lengths {
        for target in targets {
            check_answer(&socket, *target, *length, &mut number)
                .with_context(|| format!("{length} bytes"))?;
        }
    }
    Ok(())
}

/// Requests an answer of this length. An answer from another address than the target is an error.
fn check_answer(
    socket: &UdpSocket,
    target: SocketAddr,
    length: usize,
    number: &mut u64,
) -> Result<()> {
    for _ in 0..TRIES {
        *number += 1;
        let request = [length as u64, *number].map(u64::to_be_bytes).concat();
        socket.send_to(&request, target)?;
        if let Some((from, received)) = answer_to(socket, *number)? {
            ensure!(from == target, "{target} answers from {from}");
            ensure!(received == length, "{received} bytes from {target}");
            return Ok(());
        }
    }
    bail!("{target}: no answer to {TRIES} datagrams")
}

/// Returns source and length of the answer to a request; `None` where none arrives in time.
/// Answers to earlier requests may arrive late.
fn answer_to(socket: &UdpSocket, number: u64) -> Result<Option<(SocketAddr, usize)>> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) if buffer[..8] == number.to_be_bytes() => {
                return Ok(Some((from, length)));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends datagrams to a port without a server. The kernel reports the error to the socket only if
/// it quotes the address that the socket is connected to.
fn check_refused(client: &Machine, target: SocketAddr) -> Result<()> {
    let socket = client.run(|| udp_socket(FROM, target))?;
    socket.set_read_timeout(Some(patient(Duration::from_secs(1))))?;
    // Kernels limit the rate of errors.
    for _ in 0..TRIES {
        let sent = socket.send(b"refused?");
        match sent.and_then(|_| socket.recv(&mut [0; 16])) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
            Ok(_) => bail!("{target} answers"),
        }
    }
    bail!("{target}: no error about {TRIES} datagrams")
}

#[test]
fn errors_about_clashing_flows_quote_the_dialled_address_past_the_stack() -> Result<()> {
    Scene::new("always")?.all_errors_arrive()
}

#[test]
fn errors_about_clashing_flows_quote_the_dialled_address_through_the_stack() -> Result<()> {
    Scene::new("never")?.all_errors_arrive()
}

#[test]
fn large_answers_come_from_the_dialled_address_past_the_stack() -> Result<()> {
    Scene::new("always")?.all_large_answers_arrive()
}

#[test]
fn large_answers_come_from_the_dialled_address_through_the_stack() -> Result<()> {
    Scene::new("never")?.all_large_answers_arrive()
}
