//! NAT of fragments that arrive in any order, twice, or interleaved with those of other datagrams:
//! on every path, in both families, with the fast path on and off. What a socket of the receiver
//! reads is the oracle.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Machine, Mapping, NODE, Pod, RawSocket, Sandbox, UPLINK, WORLD, patient, ping,
    udp_bound,
};
use verdict::simulator::frame::{Body, Frame};

const HOSTPORT: Mapping = Mapping::udp(5353, 53);
/// Bytes of a datagram's payload.
const LENGTH: usize = 3_500;
/// Where the second and the third fragment begin, behind the IP header.
const CUTS: [usize; 2] = [1_400, 2_800];
/// The orders in which three fragments arrive, with and without duplicates.
const ORDERS: [&[usize]; 9] = [
    &[0, 1, 2],
    &[0, 2, 1],
    &[1, 0, 2],
    &[1, 2, 0],
    &[2, 0, 1],
    &[2, 1, 0],
    &[2, 2, 1, 1, 0, 0],
    &[0, 0, 1, 2, 1],
    &[1, 2, 1, 2, 0],
];

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn frame(from: IpAddr, to: IpAddr, body: Body) -> Frame {
    let mut frame = Frame::new(abi(from), abi(to), body);
    frame.ethernet = None;
    frame
}

/// Returns a datagram; each byte of its payload is `letter`.
fn datagram(from: SocketAddr, to: SocketAddr, letter: u8) -> Frame {
    let body = Body::Udp(from.port(), to.port(), vec![letter; LENGTH]);
    frame(from.ip(), to.ip(), body)
}

/// Sends the fragments of a frame in an order.
fn send(
    machine: &Machine,
    frame: &Frame,
    to: IpAddr,
    identification: u32,
    order: &[usize],
) -> Result<()> {
    let pieces = frame.fragments_at(identification, &CUTS);
    let raw = RawSocket::sender(machine, to)?;
    order
        .iter()
        .try_for_each(|index| raw.send(&pieces[*index], to))
}

fn sink(machine: &Machine, at: SocketAddr) -> Result<UdpSocket> {
    let socket = udp_bound(machine, at)?;
    socket.set_read_timeout(Some(patient(Duration::from_secs(4))))?;
    Ok(socket)
}

/// Waits for a datagram, which must be complete and consist of one letter.
fn arrival(sink: &UdpSocket) -> Result<(SocketAddr, u8)> {
    let mut buffer = [0; 10_000];
    let (length, from) = sink.recv_from(&mut buffer).context("no datagram arrived")?;
    let letter = buffer[0];
    ensure!(length == LENGTH, "{length} bytes");
    ensure!(buffer[..length].iter().all(|byte| *byte == letter), "mixed");
    Ok((from, letter))
}

fn letter(index: usize) -> u8 {
    b'a' + u8::try_from(index).unwrap_or_default()
}

/// Two attached pods; the first one has [`HOSTPORT`].
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    server: Pod,
    client: Pod,
}

impl Scene {
    fn new(arguments: &[&str]) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, arguments)?;
        let attached = |name: &str, config: Config| -> Result<Pod> {
            let mut pod = sandbox.pod(name)?;
            pod.add_with(config)?;
            for world in WORLD {
                // This also completes the pod's neighbour discovery.
                ping(&pod.machine, world, 1)?;
            }
            Ok(pod)
        };
        let server = attached("server", Config::new("1.1.0").publish(&[HOSTPORT]))?;
        let client = attached("client", Config::new("1.1.0"))?;
        Ok(Self {
            sandbox,
            agent,
            server,
            client,
        })
    }

    fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or(0))
    }
}

/// Requests of a client and their answers, all as fragments.
struct Exchange<'a> {
    client: &'a Machine,
    /// The client's own address, and the one that the server sees.
    from: IpAddr,
    seen: IpAddr,
    /// Address of the requests.
    to: SocketAddr,
    server: &'a Machine,
    /// Address of the server's socket.
    inside: SocketAddr,
    /// Source port of the first request; the following ones have the following ports.
    port: u16,
}

impl Exchange<'_> {
    /// Asserts that requests and answers arrive in every order of their fragments.
    fn arrives_in_any_order(&self) -> Result<()> {
        let requests = sink(self.server, self.inside)?;
        for (index, order) in ORDERS.into_iter().enumerate() {
            let port = self.port + u16::try_from(index)?;
            let id = u32::from(port);
            let client = SocketAddr::new(self.from, port);
            let seen = SocketAddr::new(self.seen, port);
            let answers = sink(self.client, client)?;
            let request = datagram(client, self.to, letter(index));
            send(self.client, &request, self.to.ip(), id, order)?;
            assert_eq!(arrival(&requests)?, (seen, letter(index)), "{order:?}");
            let answer = datagram(self.inside, seen, letter(index));
            send(self.server, &answer, self.seen, id, order)?;
            assert_eq!(arrival(&answers)?, (self.to, letter(index)), "{order:?}");
        }
        Ok(())
    }
}

/// Runs a test with the fast path on, and with the fast path off.
fn on_both_paths(test: impl Fn(&Scene) -> Result<()>) -> Result<()> {
    test(&Scene::new(&[])?).context("with the fast path")?;
    test(&Scene::new(&["--bypass-netfilter", "never"])?).context("without the fast path")
}

#[test]
fn fragments_of_a_pod_reach_the_world_in_any_order_and_so_do_replies() -> Result<()> {
    on_both_paths(|scene| {
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let server = SocketAddr::new(world, 7000);
            let exchange = Exchange {
                client: &scene.client.machine,
                from: scene.client.address(world)?,
                seen: node,
                to: server,
                server: &scene.sandbox.world,
                inside: server,
                port: 41_000,
            };
            exchange.arrives_in_any_order()?;
        }
        assert_eq!(scene.drops("fragment-without-first")?, 0);
        Ok(())
    })
}

#[test]
fn fragments_reach_a_hostport_in_any_order_and_so_do_replies() -> Result<()> {
    on_both_paths(|scene| {
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let exchange = Exchange {
                client: &scene.sandbox.world,
                from: world,
                seen: world,
                to: SocketAddr::new(node, HOSTPORT.host),
                server: &scene.server.machine,
                inside: SocketAddr::new(scene.server.address(world)?, 53),
                port: 42_000,
            };
            exchange.arrives_in_any_order()?;
        }
        Ok(())
    })
}

#[test]
fn fragments_of_a_pod_reach_a_hostport_of_the_node_in_any_order_and_so_do_replies() -> Result<()> {
    on_both_paths(|scene| {
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let client = scene.client.address(world)?;
            let exchange = Exchange {
                client: &scene.client.machine,
                from: client,
                seen: client,
                to: SocketAddr::new(node, HOSTPORT.host),
                server: &scene.server.machine,
                inside: SocketAddr::new(scene.server.address(world)?, 53),
                port: 43_000,
            };
            exchange.arrives_in_any_order()?;
        }
        Ok(())
    })
}

#[test]
fn fragments_to_a_pods_own_address_arrive_in_any_order_and_so_do_replies() -> Result<()> {
    on_both_paths(|scene| {
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let inside = SocketAddr::new(scene.server.address(world)?, 54);
            let family = if world.is_ipv4() { "-4" } else { "-6" };
            let route = format!("ip {family} route add {} via {node}", inside.ip());
            scene.sandbox.world.call(&route)?;
            let exchange = Exchange {
                client: &scene.sandbox.world,
                from: world,
                seen: world,
                to: inside,
                server: &scene.server.machine,
                inside,
                port: 44_000,
            };
            exchange.arrives_in_any_order()?;
        }
        Ok(())
    })
}

#[test]
fn fragments_to_the_nodes_own_socket_arrive_in_any_order() -> Result<()> {
    let scene = Scene::new(&[])?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let own = SocketAddr::new(node, 7100);
        let sink = sink(&scene.sandbox.node, own)?;
        for (index, order) in ORDERS.into_iter().enumerate() {
            let client = SocketAddr::new(world, 45_000);
            let request = datagram(client, own, letter(index));
            let id = 0x500 + u32::try_from(index)?;
            send(&scene.sandbox.world, &request, node, id, order)?;
            assert_eq!(arrival(&sink)?, (client, letter(index)), "{order:?}");
        }
    }
    Ok(())
}

#[test]
fn fragmented_pings_and_other_protocols_pass_in_any_order() -> Result<()> {
    const EXPERIMENTAL: u8 = 253;
    on_both_paths(|scene| {
        let pod = &scene.client.machine;
        for (family, (node, world)) in NODE.into_iter().zip(WORLD).enumerate() {
            let own = scene.client.address(world)?;
            let replies = RawSocket::listener(pod, world, [1, 58][family])?;
            let others = RawSocket::listener(&scene.sandbox.world, world, EXPERIMENTAL)?;
            for (index, order) in ORDERS.into_iter().enumerate() {
                let id = 0x600 + u32::try_from(index)?;
                let payload = vec![letter(index); LENGTH];
                let head = [letter(index), 1, 0, 7];
                let ping = Body::Icmp([8, 128][family], 0, head, payload.clone());
                send(pod, &frame(own, world, ping), world, id, order)?;
                replies.receive("the echo reply", |packet| {
                    packet.payload.first() == Some(&[0, 129][family])
                        && packet.payload.get(4..8) == Some(&head)
                        && packet.payload.get(8..) == Some(&payload)
                })?;
                let other = Body::Other(EXPERIMENTAL, payload.clone());
                send(pod, &frame(own, world, other), world, id, order)?;
                others.receive("the packet of the other protocol", |packet| {
                    packet.from == node && packet.payload == payload
                })?;
            }
        }
        Ok(())
    })
}

#[test]
fn datagrams_of_two_pods_with_one_identification_both_arrive() -> Result<()> {
    on_both_paths(|scene| {
        let pods = [&scene.server, &scene.client];
        for world in WORLD {
            let server = SocketAddr::new(world, 7000);
            let sink = sink(&scene.sandbox.world, server)?;
            for (index, order) in ORDERS.into_iter().enumerate() {
                let id = 0x700 + u32::try_from(index)?;
                let mut waiting = Vec::new();
                for (pod, letter) in pods.into_iter().zip([b'x', b'y']) {
                    let from = SocketAddr::new(pod.address(world)?, 46_000);
                    let pieces = datagram(from, server, letter).fragments_at(id, &CUTS);
                    waiting.push((RawSocket::sender(&pod.machine, world)?, pieces));
                }
                for index in order {
                    for (raw, pieces) in &waiting {
                        raw.send(&pieces[*index], world)?;
                    }
                }
                let mut letters = [arrival(&sink)?.1, arrival(&sink)?.1];
                letters.sort_unstable();
                assert_eq!(letters, [b'x', b'y'], "{order:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn overlapping_fragments_are_dropped_by_name_and_their_datagram_with_them() -> Result<()> {
    let scene = Scene::new(&[])?;
    let mut dropped = 0;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = SocketAddr::new(world, 7000);
        let sink = sink(&scene.sandbox.world, server)?;
        let hostport = SocketAddr::new(node, HOSTPORT.host);
        let inside = SocketAddr::new(scene.server.address(world)?, 53);
        let in_pod = self::sink(&scene.server.machine, inside)?;
        let own = SocketAddr::new(scene.client.address(world)?, 47_000);
        let outside = SocketAddr::new(world, 47_000);
        for (machine, from, to, sink) in [
            (&scene.client.machine, own, server, &sink),
            (&scene.sandbox.world, outside, hostport, &in_pod),
        ] {
            let raw = RawSocket::sender(machine, world)?;
            let bad = datagram(from, to, b'n');
            for range in [0..1_400, 1_392..2_800, 1_400..2_800, 2_800..LENGTH + 8] {
                raw.send(&bad.fragment(0x81, range), to.ip())?;
            }
            // All after the first fragment.
            dropped += 3;
            send(
                machine,
                &datagram(from, to, b'g'),
                to.ip(),
                0x82,
                &[0, 1, 2],
            )?;
            assert_eq!(arrival(sink)?.1, b'g');
            assert_eq!(scene.drops("overlapping-fragment")?, dropped);
        }
    }
    Ok(())
}

#[test]
fn a_pods_forged_first_fragment_does_not_redirect_anothers_reply() -> Result<()> {
    let scene = Scene::new(&[])?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = SocketAddr::new(world, 7000);
        let victim = SocketAddr::new(scene.client.address(world)?, 48_000);
        let socket = sink(&scene.client.machine, victim)?;
        let listener = sink(&scene.sandbox.world, server)?;
        socket.send_to(b"request", server)?;
        let mut request = [0; 16];
        let (_, seen) = listener.recv_from(&mut request)?;
        let reply = datagram(server, seen, b'r');
        let pieces = reply.fragments_at(0x91, &CUTS);
        let hostport = SocketAddr::new(node, HOSTPORT.host);
        let forged = datagram(server, hostport, b'f').fragment(0x91, 0..1_400);
        let attacker = RawSocket::sender(&scene.server.machine, world)?;
        let honest = RawSocket::sender(&scene.sandbox.world, world)?;
        let before = scene.drops("spoofed-address")?;
        for (index, piece) in pieces.iter().enumerate() {
            attacker.send(&forged, node)?;
            // A raw socket sends synchronously: the packet has been through `from_pod`.
            assert_eq!(scene.drops("spoofed-address")?, before + index as u64 + 1);
            honest.send(piece, node)?;
        }
        assert_eq!(arrival(&socket)?, (server, b'r'));
    }
    Ok(())
}

#[test]
fn a_flood_of_first_fragments_does_not_push_out_those_of_another_pod() -> Result<()> {
    let scene = Scene::new(&[])?;
    let elsewhere = ["198.51.100.7", "2001:db8:f::7"];
    for (world, elsewhere) in WORLD.into_iter().zip(elsewhere) {
        let elsewhere: IpAddr = elsewhere.parse()?;
        let server = SocketAddr::new(world, 7000);
        let sink = sink(&scene.sandbox.world, server)?;
        let from =
            |pod: &Pod| -> Result<SocketAddr> { Ok(SocketAddr::new(pod.address(world)?, 49_000)) };
        let honest = datagram(from(&scene.client)?, server, b'h');
        let pieces = honest.fragments_at(0xa1, &CUTS);
        let raw = RawSocket::sender(&scene.client.machine, world)?;
        let flooder = RawSocket::sender(&scene.server.machine, world)?;
        // Another destination: the world's own memory for reassembly must not overflow.
        let body = Body::Udp(49_000, 7000, vec![b'f'; 64]);
        let flood = frame(from(&scene.server)?.ip(), elsewhere, body);
        raw.send(&pieces[2], world)?;
        for identification in 0..2_000 {
            let range = [0..16, 16..72][identification as usize % 2].clone();
            flooder.send(&flood.fragment(identification, range), elsewhere)?;
        }
        raw.send(&pieces[0], world)?;
        for identification in 2_000..4_000 {
            flooder.send(&flood.fragment(identification, 0..16), elsewhere)?;
        }
        raw.send(&pieces[1], world)?;
        assert_eq!(arrival(&sink)?.1, b'h');
    }
    Ok(())
}

#[test]
fn fragments_wait_for_the_first_one_without_an_agent() -> Result<()> {
    let scene = Scene::new(&[])?;
    let Scene {
        sandbox,
        mut agent,
        server,
        client,
    } = scene;
    agent.kill()?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let to = SocketAddr::new(world, 7000);
        let in_world = sink(&sandbox.world, to)?;
        let from = SocketAddr::new(client.address(world)?, 50_000);
        send(
            &client.machine,
            &datagram(from, to, b'o'),
            world,
            0xb1,
            &[2, 1, 0],
        )?;
        assert_eq!(arrival(&in_world)?, (SocketAddr::new(node, 50_000), b'o'));
        let hostport = SocketAddr::new(node, HOSTPORT.host);
        let in_pod = sink(&server.machine, SocketAddr::new(server.address(world)?, 53))?;
        let from = SocketAddr::new(world, 50_000);
        send(
            &sandbox.world,
            &datagram(from, hostport, b'i'),
            node,
            0xb2,
            &[2, 1, 0],
        )?;
        assert_eq!(arrival(&in_pod)?, (from, b'i'));
    }
    Ok(())
}

/// Fragments of 9,000 bytes take several elements of the map of held fragments.
#[test]
fn jumbo_fragments_wait_for_the_first_one() -> Result<()> {
    const LONG: usize = 24_000;
    let sandbox = Sandbox::new()?;
    sandbox
        .node
        .call(&format!("ip link set {UPLINK} mtu 9000"))?;
    sandbox.world.call("ip link set eth0 mtu 9000")?;
    let _agent = Agent::start(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("pod")?;
    // Pods have the uplink's MTU.
    pod.add_with(Config::new("1.1.0").publish(&[HOSTPORT]))?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        ping(&pod.machine, world, 1)?;
        let hostport = SocketAddr::new(node, HOSTPORT.host);
        let sink = sink(&pod.machine, SocketAddr::new(pod.address(world)?, 53))?;
        let payload: Vec<u8> = (0..LONG)
            .map(|at| (at / 7 % 251).to_le_bytes()[0])
            .collect();
        let request = frame(
            world,
            node,
            Body::Udp(51_000, HOSTPORT.host, payload.clone()),
        );
        let raw = RawSocket::sender(&sandbox.world, world)?;
        let mut pieces = request.fragments_at(0xc1, &[8_800, 17_600]);
        pieces.reverse();
        for piece in pieces {
            raw.send(&piece, hostport.ip())?;
        }
        let mut buffer = vec![0; 1 << 16];
        let (length, from) = sink.recv_from(&mut buffer)?;
        assert_eq!(from, SocketAddr::new(world, 51_000));
        ensure!(buffer[..length] == payload, "{length} other bytes arrived");
    }
    Ok(())
}
