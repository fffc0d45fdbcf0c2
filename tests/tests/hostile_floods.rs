//! Floods of neighbour discovery, of fragments and of ports, from a pod and from the world: the
//! result is how many exchanges of other pods succeed meanwhile. Each attempt is one datagram
//! without retransmission, and all of them must succeed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, FrameFlood, FrameSender, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox,
    WORLD, patient, udp_source,
};
use verdict::simulator::frame::{Body, Frame};

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;
/// Attempts of the victim during a flood.
const ATTEMPTS: usize = 40;
/// Frames that a flood has sent before the first attempt.
const BEFORE: u64 = 2_000;
/// Bytes of a datagram that is sent in fragments.
const FRAGMENTED: usize = 3_000;
/// The fast path, and the stack alone.
const MODES: [&str; 2] = ["--bypass-netfilter=always", "--bypass-netfilter=never"];

/// A node with an attacker and a published victim, and servers in the world and in the victim.
struct Scene {
    sandbox: Sandbox,
    attacker: Pod,
    victim: Pod,
    _agent: Agent,
    _servers: [Echo; 2],
}

impl Scene {
    fn new(mode: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &[mode])?;
        let mut attacker = sandbox.pod("attacker")?;
        attacker.add()?;
        let mut victim = sandbox.pod("victim")?;
        victim.add_with(Config::new("1.1.0").publish(&Mapping::both(HOSTPORT, PORT)))?;
        let scene = Self {
            _servers: [
                Echo::start(&sandbox.world, PORT)?,
                Echo::start(&victim.machine, PORT)?,
            ],
            _agent: agent,
            attacker,
            victim,
            sandbox,
        };
        // No attempt waits for a neighbour.
        for family in [0, 1] {
            let (to_world, to_victim) = Scene::exchanges(family);
            udp_source(&scene.victim.machine, 0, to_world)?;
            udp_source(&scene.sandbox.world, 0, to_victim)?;
        }
        Ok(scene)
    }

    /// Returns a server in the world, and the victim's published port.
    fn exchanges(family: usize) -> (SocketAddr, SocketAddr) {
        (
            SocketAddr::new(WORLD[family], PORT),
            SocketAddr::new(NODE[family], HOSTPORT),
        )
    }

    /// Returns the MAC addresses of frames from the attacker to its gateway, and a sender.
    fn sender_in_pod(&self) -> Result<([Mac; 2], FrameSender)> {
        let own = mac(&self.attacker.machine, "eth0")?;
        let gateway = mac(&self.sandbox.node, "cbr0")?;
        let sender = FrameSender::new(&self.attacker.machine, "eth0", GATEWAYS[0])?;
        Ok(([own, gateway], sender))
    }

    /// Returns the MAC addresses of frames from the world to the node, and a sender.
    fn sender_in_world(&self) -> Result<([Mac; 2], FrameSender)> {
        let own = mac(&self.sandbox.world, "eth0")?;
        let node = mac(&self.sandbox.node, e2e::UPLINK)?;
        let sender = FrameSender::new(&self.sandbox.world, "eth0", NODE[0])?;
        Ok(([own, node], sender))
    }

    /// Requires that all exchanges of the victim succeed during a flood: with the world, from the
    /// world by the published port, and in fragments in both directions.
    fn survives(&self, flood: FrameFlood, title: &str) -> Result<()> {
        flood.await_sent(BEFORE)?;
        for family in [0, 1] {
            let (to_world, to_victim) = Scene::exchanges(family);
            let (victim, world) = (&self.victim.machine, &self.sandbox.world);
            for (from, to) in [(victim, to_world), (world, to_victim)] {
                let count = answered(from, to)?;
                ensure!(count == ATTEMPTS, "{title}: {count} of {ATTEMPTS} to {to}");
            }
            let (outside, inside) = (9_000 + family, 9_010 + family);
            let sink = Sink::open(world, outside)?;
            let count = sink.arrivals(victim, SocketAddr::new(WORLD[family], sink.port))?;
            ensure!(
                count == ATTEMPTS,
                "{title}: {count} fragmented datagrams left"
            );
            let sink = Sink::open(victim, inside)?;
            let own = self.victim.address(WORLD[family])?;
            let count = sink.arrivals(&self.attacker.machine, SocketAddr::new(own, sink.port))?;
            ensure!(
                count == ATTEMPTS,
                "{title}: {count} fragmented datagrams of a pod"
            );
        }
        let sent = flood.end()?;
        ensure!(sent >= BEFORE, "{title}: {sent} frames");
        Ok(())
    }
}

fn mac(machine: &Machine, link: &str) -> Result<Mac> {
    let shown = machine.call_json(&format!("ip -j link show dev {link}"))?;
    let text = shown[0]["address"].as_str().context("no MAC address")?;
    let mut bytes = [0; 6];
    for (byte, digits) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(Mac::new(bytes))
}

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn frame([from, to]: [Mac; 2], source: IpAddr, destination: IpAddr, body: Body) -> Frame {
    Frame::new(abi(source), abi(destination), body).from_to(from, to)
}

/// Returns how many datagrams of new sockets are answered.
fn answered(from: &Machine, to: SocketAddr) -> Result<usize> {
    from.run(|| {
        let mut count = 0;
        for _ in 0..ATTEMPTS {
            let socket = e2e::udp_socket(0, to)?;
            socket.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
            socket.send(b"question\n")?;
            count += usize::from(socket.recv(&mut [0; 64]).is_ok());
        }
        Ok(count)
    })
}

/// A socket that counts whole datagrams of [`FRAGMENTED`] bytes.
struct Sink {
    socket: UdpSocket,
    port: u16,
}

impl Sink {
    fn open(machine: &Machine, port: usize) -> Result<Self> {
        let port = u16::try_from(port)?;
        let socket = machine.run(|| UdpSocket::bind(("::", port)))?;
        socket.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
        Ok(Self { socket, port })
    }

    /// Sends datagrams from a machine, one after the other, and returns how many arrive.
    fn arrivals(&self, from: &Machine, to: SocketAddr) -> Result<usize> {
        let sender = from.run(|| e2e::udp_socket(0, to))?;
        let mut count = 0;
        for _ in 0..ATTEMPTS {
            sender.send(&[7; FRAGMENTED])?;
            let received = self.socket.recv(&mut [0; 2 * FRAGMENTED]);
            count += usize::from(received.is_ok_and(|length| length == FRAGMENTED));
        }
        Ok(count)
    }
}

/// Runs a test with the fast path on, and with the fast path off.
fn on_both_paths(test: impl Fn(&Scene) -> Result<()>) -> Result<()> {
    MODES
        .into_iter()
        .try_for_each(|mode| test(&Scene::new(mode)?).with_context(|| mode.to_owned()))
}

/// Returns another address of the subnet for each number.
fn sibling(like: IpAddr, number: u64) -> IpAddr {
    match like {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let last = 100 + (number % 100).to_le_bytes()[0];
            IpAddr::V4(Ipv4Addr::new(a, b, c, last))
        }
        IpAddr::V6(v6) => {
            let bits = v6.to_bits() & !0xffff_ffff | u128::from(0x1_0000 + number % 0x1_0000);
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
    }
}

#[test]
fn floods_of_neighbour_discovery_cost_other_pods_no_datagram() -> Result<()> {
    on_both_paths(|scene| {
        let ([own, _], sender) = scene.sender_in_pod()?;
        let v4 = scene.attacker.address(WORLD[0])?;
        let v6 = scene.attacker.address(WORLD[1])?;
        let flood = FrameFlood::start(sender, move |number| {
            if number % 2 == 0 {
                request(own, v4, sibling(v4, number / 2))
            } else {
                solicitation(own, v6, sibling(v6, number / 2))
            }
        });
        scene.survives(flood, "neighbour discovery of a pod")
    })
}

/// Returns an ARP request to all stations (RFC 826).
fn request(mac: Mac, sender: IpAddr, target: IpAddr) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend(mac.bytes());
    bytes.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes.extend(mac.bytes());
    for (address, behind) in [(sender, [0_u8; 6].as_slice()), (target, &[])] {
        if let IpAddr::V4(v4) = address {
            bytes.extend(v4.octets());
        }
        bytes.extend(behind);
    }
    bytes
}

/// Returns a solicitation to the group of its target (RFC 4861).
fn solicitation(mac: Mac, source: IpAddr, target: IpAddr) -> Vec<u8> {
    let IpAddr::V6(target) = target else {
        return Vec::new();
    };
    let [.., a, b, c] = target.octets();
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c];
    let mut rest = target.octets().to_vec();
    rest.extend([1, 1]);
    rest.extend(mac.bytes());
    let to = Mac::new([0x33, 0x33, 0xff, a, b, c]);
    let body = Body::Icmp(135, 0, [0; 4], rest);
    let mut bytes = frame([mac, to], source, IpAddr::from(group), body).bytes();
    // The hop limit that receivers demand; no checksum covers it.
    bytes[21] = 255;
    bytes
}

/// Returns a first fragment of another datagram for each number.
fn first_fragment(macs: [Mac; 2], source: IpAddr, to: IpAddr, port: u16, number: u64) -> Vec<u8> {
    let identification = u32::try_from(number % 0xffff).unwrap_or_default();
    let body = Body::Udp(40_000, port, vec![0; 600]);
    frame(macs, source, to, body).fragment(identification, 0..512)
}

#[test]
fn floods_of_fragments_from_a_pod_cost_other_pods_no_datagram() -> Result<()> {
    on_both_paths(|scene| {
        for family in [0, 1] {
            let (macs, sender) = scene.sender_in_pod()?;
            let (own, to) = (scene.attacker.address(WORLD[family])?, WORLD[family]);
            let flood = FrameFlood::start(sender, move |number| {
                first_fragment(macs, own, to, PORT, number)
            });
            scene.survives(flood, "fragments of a pod")?;
        }
        Ok(())
    })
}

#[test]
fn floods_of_fragments_from_the_world_cost_pods_no_datagram() -> Result<()> {
    on_both_paths(|scene| {
        for family in [0, 1] {
            let (macs, sender) = scene.sender_in_world()?;
            let others: IpAddr = ["198.51.100.1", "2001:db8:77::1"][family].parse()?;
            let flood = FrameFlood::start(sender, move |number| {
                let source = sibling(others, number);
                first_fragment(macs, source, NODE[family], HOSTPORT, number)
            });
            scene.survives(flood, "fragments of the world")?;
        }
        Ok(())
    })
}

/// Returns a datagram from or to another port for each number.
fn datagram(
    macs: [Mac; 2],
    (source, source_port): (IpAddr, u16),
    (to, port): (IpAddr, u16),
) -> Vec<u8> {
    let body = Body::Udp(source_port, port, b"port".to_vec());
    frame(macs, source, to, body).bytes()
}

fn port(number: u64) -> u16 {
    1_024 + u16::try_from(number % 60_000).unwrap_or_default()
}

#[test]
fn floods_of_ports_from_a_pod_cost_other_pods_no_datagram() -> Result<()> {
    on_both_paths(|scene| {
        for family in [0, 1] {
            let (macs, sender) = scene.sender_in_pod()?;
            let (own, to) = (scene.attacker.address(WORLD[family])?, WORLD[family]);
            let flood = FrameFlood::start(sender, move |number| {
                // All source ports to one server, then all ports of it.
                let (from, at) = if number % 2 == 0 {
                    (port(number / 2), PORT)
                } else {
                    (40_000, port(number / 2))
                };
                datagram(macs, (own, from), (to, at))
            });
            scene.survives(flood, "ports of a pod")?;
        }
        Ok(())
    })
}

#[test]
fn floods_of_ports_from_the_world_cost_pods_no_datagram() -> Result<()> {
    on_both_paths(|scene| {
        for family in [0, 1] {
            let (macs, sender) = scene.sender_in_world()?;
            let other: IpAddr = ["198.51.100.9", "2001:db8:77::9"][family].parse()?;
            let flood = FrameFlood::start(sender, move |number| {
                // A scan of the node, the published port included.
                datagram(
                    macs,
                    (other, port(number)),
                    (NODE[family], port(number * 7)),
                )
            });
            scene.survives(flood, "ports of the world")?;
        }
        Ok(())
    })
}
