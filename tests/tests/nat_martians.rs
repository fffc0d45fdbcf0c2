//! Packets that no stack forwards do not pass the datapath either, with and without the fast path:
//! frames are built byte by byte, and the receiving namespace is the oracle (decision 97).

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{
    Agent, Capture, Config, Echo, FrameSender, GATEWAYS, Machine, Mapping, NODE, Pod, Residue,
    Sandbox, UPLINK, WORLD, ping, udp_seen_as, udp_source, until,
};
use serde_json::{Value, json};
use verdict::simulator::frame::{Body, Frame};

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;
/// Payload of packets that must not arrive.
const REFUSED: &[u8] = b"never forwarded";
/// Payload of the packets after them.
const MARKER: &[u8] = b"end marker";
/// The fast path, and the stack alone.
const MODES: [&str; 2] = ["--bypass-netfilter=always", "--bypass-netfilter=never"];

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn parse(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn mac_of(machine: &Machine, link: &str) -> Result<Mac> {
    let shown = machine.call_json(&format!("ip -j link show dev {link}"))?;
    let text = shown[0]["address"].as_str().context("no MAC address")?;
    let mut bytes = [0; 6];
    for (byte, digits) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(Mac::new(bytes))
}

/// A node with a published pod, and senders of frames in the world and in the pod.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    _servers: [Echo; 2],
    world: FrameSender,
    inside: FrameSender,
    world_mac: Mac,
    node_mac: Mac,
    pod_mac: Mac,
    bridge_mac: Mac,
}

impl Scene {
    fn new(mode: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &[mode])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add_with(Config::new("1.1.0").publish(&Mapping::both(HOSTPORT, PORT)))?;
        for (cidr, node) in e2e::POD_CIDRS.into_iter().zip(NODE) {
            sandbox
                .world
                .call(&format!("ip route add {cidr} via {node} dev eth0"))?;
        }
        Ok(Self {
            world: FrameSender::new(&sandbox.world, "eth0", NODE[0])?,
            inside: FrameSender::new(&pod.machine, "eth0", GATEWAYS[0])?,
            world_mac: mac_of(&sandbox.world, "eth0")?,
            node_mac: mac_of(&sandbox.node, UPLINK)?,
            pod_mac: mac_of(&pod.machine, "eth0")?,
            bridge_mac: mac_of(&sandbox.node, "cbr0")?,
            _servers: [
                Echo::start(&sandbox.world, PORT)?,
                Echo::start(&pod.machine, PORT)?,
            ],
            sandbox,
            agent,
            pod,
        })
    }

    /// Returns a frame of the world to the node.
    fn frame_of_world(&self, from: IpAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let body = Body::Udp(41_000, to.port(), payload.to_vec());
        let frame = Frame::new(abi(from), abi(to.ip()), body);
        frame.from_to(self.world_mac, self.node_mac).bytes()
    }

    /// Returns a frame of the pod to its gateway.
    fn frame_of_pod(&self, from: IpAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let body = Body::Udp(41_000, to.port(), payload.to_vec());
        let frame = Frame::new(abi(from), abi(to.ip()), body);
        frame.from_to(self.pod_mac, self.bridge_mac).bytes()
    }

    /// Addresses by which the world reaches the pod.
    fn entries(&self, family: usize) -> Result<[SocketAddr; 2]> {
        let own = self.pod.address(NODE[family])?;
        Ok([
            SocketAddr::new(NODE[family], HOSTPORT),
            SocketAddr::new(own, PORT),
        ])
    }

    /// Sends frames of the world, then valid ones; nothing of the former may arrive in the pod.
    fn must_not_enter(&self, frames: &[Vec<u8>], like: IpAddr) -> Result<()> {
        let capture = Capture::start(&self.pod.machine)?;
        send_all(&self.world, frames)?;
        let hostport = SocketAddr::new(if like.is_ipv4() { NODE[0] } else { NODE[1] }, HOSTPORT);
        let world = if like.is_ipv4() { WORLD[0] } else { WORLD[1] };
        self.world
            .send(&self.frame_of_world(world, hostport, MARKER))?;
        none_arrived(&capture)
    }

    /// Sends frames of the pod, then valid ones; nothing of the former may arrive in the world.
    fn must_not_leave(&self, frames: &[Vec<u8>]) -> Result<()> {
        let capture = Capture::start(&self.sandbox.world)?;
        send_all(&self.inside, frames)?;
        let (own, world) = (self.pod.address(WORLD[0])?, SocketAddr::new(WORLD[0], 9));
        self.inside.send(&self.frame_of_pod(own, world, MARKER))?;
        none_arrived(&capture)
    }

    fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or(0))
    }
}

/// Sends each frame as often as a flow takes to get to the flow cache.
fn send_all(sender: &FrameSender, frames: &[Vec<u8>]) -> Result<()> {
    (0..8).try_for_each(|_| frames.iter().try_for_each(|frame| sender.send(frame)))
}

fn none_arrived(capture: &Capture) -> Result<()> {
    let ends = |packet: &[u8], with: &[u8]| packet.ends_with(with);
    let seen = capture.until("the end marker", |packet| ends(packet, MARKER))?;
    let refused: Vec<_> = seen.iter().filter(|it| ends(it, REFUSED)).collect();
    ensure!(refused.is_empty(), "arrived: {refused:02x?}");
    Ok(())
}

#[test]
fn sources_that_no_router_forwards_reach_no_pod() -> Result<()> {
    let sources = [
        [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            // Broadcast addresses of the node's own subnets.
            "192.0.2.255",
            "10.244.1.255",
            // The node itself.
            "192.0.2.1",
            "10.244.1.1",
        ]
        .as_slice(),
        [
            "::",
            "::1",
            "fe80::1",
            "fe80::7:7",
            "ff02::1",
            "ff0e::9",
            "fd00:10:244:1::77",
            // The node itself.
            "2001:db8:1::1",
            "fd00:10:244:1::1",
        ]
        .as_slice(),
    ];
    for mode in MODES {
        let scene = Scene::new(mode)?;
        for family in [0, 1] {
            let mut frames = Vec::new();
            for source in sources[family] {
                for entry in scene.entries(family)? {
                    frames.push(scene.frame_of_world(parse(source), entry, REFUSED));
                }
            }
            scene
                .must_not_enter(&frames, WORLD[family])
                .with_context(|| mode.to_owned())?;
        }
        ensure!(scene.drops("martian")? > 0, "{mode}");
    }
    Ok(())
}

#[test]
fn destinations_that_no_router_forwards_are_not_reached_by_pods() -> Result<()> {
    let destinations = [
        [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.9",
            "255.255.255.255",
            "192.0.2.255",
        ]
        .as_slice(),
        ["::", "::1", "fe80::2:2", "ff02::1", "ff0e::9"].as_slice(),
    ];
    for mode in MODES {
        let scene = Scene::new(mode)?;
        for (family, destinations) in destinations.iter().enumerate() {
            let own = scene.pod.address(WORLD[family])?;
            let frames: Vec<_> = destinations
                .iter()
                .map(|to| scene.frame_of_pod(own, SocketAddr::new(parse(to), 9), REFUSED))
                .collect();
            scene
                .must_not_leave(&frames)
                .with_context(|| mode.to_owned())?;
        }
    }
    Ok(())
}

/// `route_localnet`, which kube-proxy sets, lets the stack deliver such packets.
#[test]
fn no_packet_from_outside_reaches_or_leaves_the_loopback() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(mode)?;
        let node = &scene.sandbox.node;
        for link in ["all", UPLINK] {
            node.sysctl(&format!("ipv4/conf/{link}/route_localnet"), "1")?;
        }
        let loopback = SocketAddr::new(parse("127.0.0.1"), 5353);
        let open = |at: SocketAddr| {
            let socket = UdpSocket::bind(at)?;
            socket.set_nonblocking(true)?;
            std::io::Result::Ok(socket)
        };
        let private = node.run(|| open(loopback))?;
        let public = node.run(|| open(SocketAddr::new(NODE[0], 5454)))?;
        let dial = |from, to, payload| scene.world.send(&scene.frame_of_world(from, to, payload));
        dial(WORLD[0], loopback, REFUSED)?;
        dial(loopback.ip(), public.local_addr()?, REFUSED)?;
        dial(WORLD[0], public.local_addr()?, MARKER)?;
        let mut buffer = [0; 64];
        let length = until("the end marker", || match public.recv(&mut buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        })?;
        assert_eq!(&buffer[..length], MARKER, "{mode}");
        let received = private.recv(&mut buffer);
        assert!(received.is_err(), "{mode}: {received:?}");
        assert!(scene.drops("martian")? >= 2);
    }
    Ok(())
}

#[test]
fn packets_with_a_wrong_header_checksum_are_not_forwarded() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(mode)?;
        let wrong = |mut frame: Vec<u8>| {
            frame[24] ^= 0x40;
            frame
        };
        let own = scene.pod.address(WORLD[0])?;
        let (world, far) = (WORLD[0], SocketAddr::new(WORLD[0], 9));
        for entry in scene.entries(0)? {
            let valid = scene.frame_of_world(world, entry, b"valid");
            let frames = [wrong(scene.frame_of_world(world, entry, REFUSED))];
            scene.must_not_enter(&frames, world)?;
            // Beside packets of an established flow with the same addresses and ports.
            scene.must_not_enter(&[valid, frames[0].clone()], world)?;
        }
        let valid = scene.frame_of_pod(own, far, b"valid");
        let frames = [wrong(scene.frame_of_pod(own, far, REFUSED))];
        scene.must_not_leave(&frames)?;
        scene.must_not_leave(&[valid, frames[0].clone()])?;
        ensure!(scene.drops("malformed")? > 0, "{mode}");
    }
    Ok(())
}

#[test]
fn frames_for_other_machines_on_a_promiscuous_uplink_reach_no_pod() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(mode)?;
        scene
            .sandbox
            .node
            .call(&format!("ip link set {UPLINK} promisc on"))?;
        for family in [0, 1] {
            let mut frames = Vec::new();
            for entry in scene.entries(family)? {
                let mut frame = scene.frame_of_world(WORLD[family], entry, REFUSED);
                frame[..6].copy_from_slice(&[2, 0xee, 0, 0, 0, 1]);
                frames.push(frame.clone());
                // To every machine: a router forwards no such packet.
                frame[..6].copy_from_slice(&[0xff; 6]);
                frames.push(frame);
            }
            scene
                .must_not_enter(&frames, WORLD[family])
                .with_context(|| mode.to_owned())?;
        }
    }
    Ok(())
}

/// An error of another source about the same flow reaches the pod: routers on the path send them.
#[test]
fn icmp_errors_from_outside_with_the_address_of_a_pod_are_dropped() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(mode)?;
        let mut other = scene.sandbox.pod("other")?;
        other.add()?;
        for family in [0, 1] {
            let server = SocketAddr::new(WORLD[family], PORT);
            let (seen, socket) = udp_source(&scene.pod.machine, 0, server)?;
            let quoted = Frame::new(
                abi(seen.ip()),
                abi(server.ip()),
                Body::Udp(seen.port(), PORT, b"quoted".to_vec()),
            );
            let error = |source: IpAddr| {
                let (kind, code) = [(3, 3), (1, 4)][family];
                let body = Body::Icmp(kind, code, [0; 4], quoted.packet());
                let frame = Frame::new(abi(source), abi(NODE[family]), body);
                frame.from_to(scene.world_mac, scene.node_mac).bytes()
            };
            let spoofed = scene.drops("spoofed-from-outside")?;
            scene.world.send(&error(other.address(server.ip())?))?;
            until("the error is dropped", || {
                let now = scene.drops("spoofed-from-outside")?;
                Ok((now > spoofed).then_some(()))
            })?;
            udp_seen_as(&socket).context("the socket has no error")?;
            scene.world.send(&error(WORLD[family]))?;
            until("an error of the world reaches the socket", || {
                Ok(socket.take_error()?.map(drop))
            })?;
        }
    }
    Ok(())
}

fn fixed(addresses: &[String]) -> Config {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "address": address }))
        .collect();
    Config(json!({
        "cniVersion": "1.0.0", "name": "fixed", "type": "viaduct", "bridge": "br7",
        "ipam": { "type": "static", "addresses": addresses },
    }))
}

#[test]
fn an_add_with_an_address_of_the_node_is_refused_and_leaves_nothing() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    node.call("ip address add 198.51.100.7/32 dev lo")?;
    node.call("ip address add 2001:db8:77::7/128 dev lo nodad")?;
    node.call("ip route add local 198.18.0.0/24 dev lo")?;
    let pod = sandbox.pod("pod")?;
    let before = Residue::of(node, &[&pod.machine])?;
    let owned = [
        "192.0.2.1/31",
        "198.51.100.7/24",
        "127.0.0.1/8",
        "198.18.0.77/24",
        "192.0.2.255/16",
        "2001:db8:1::1/127",
        "2001:db8:77::7/64",
    ];
    for address in owned {
        let config = fixed(&[address.to_owned()]);
        let answer = pod.prepare(e2e::Verb::Add, &config).run(node)?;
        let error = answer.error().with_context(|| address.to_owned())?;
        let (bare, _) = address.split_once('/').context("a prefix length")?;
        let text = format!("{} {}", error.msg, error.details);
        ensure!(
            text.contains(bare) && text.contains("the node itself"),
            "{address}: {text}"
        );
        assert_no_residue(&before, &Residue::of(node, &[&pod.machine])?)
            .with_context(|| address.to_owned())?;
    }
    Ok(())
}

#[test]
fn ranges_skip_addresses_that_the_node_has() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    for address in ["10.244.1.2/32", "10.244.1.3/32", "fd00:10:244:1::2/128"] {
        node.call(&format!("ip address add {address} dev {UPLINK}"))?;
    }
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    assert_eq!(
        pod.addresses,
        [parse("10.244.1.4"), parse("fd00:10:244:1::3")]
    );
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    Ok(())
}

/// The node gets the address of a running pod.
#[test]
fn an_address_that_the_node_gets_later_is_the_nodes_and_is_reported() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(mode)?;
        let (node, world) = (&scene.sandbox.node, &scene.sandbox.world);
        for family in [0, 1] {
            let own = scene.pod.address(WORLD[family])?;
            let server = SocketAddr::new(own, PORT);
            // Packets of the world reach the pod, past the stack or through it.
            let (_, socket) = udp_source(world, 0, server)?;
            let bits = [32, 128][family];
            let nodad = ["", " nodad"][family];
            node.call(&format!("ip address add {own}/{bits} dev {UPLINK}{nodad}"))?;
            let _of_node = Echo::at(node, server)?;
            until("the agent reports the address", || {
                let status = scene.agent.get("/v1/status")?;
                let degraded = status["degraded"].as_array().context("a list")?;
                let is_it = |one: &Value| {
                    one["reason"] == "pod-address-on-node"
                        && one.to_string().contains(&own.to_string())
                };
                Ok(degraded.iter().any(is_it).then_some(()))
            })?;
            let capture = Capture::start(&scene.pod.machine)?;
            for _ in 0..8 {
                udp_seen_as(&socket).context("an answer of the node")?;
            }
            udp_source(world, 0, server).context("an answer of the node to a new client")?;
            node.call(&format!("ip address delete {own}/{bits} dev {UPLINK}"))?;
            let hostport = SocketAddr::new(NODE[family], HOSTPORT);
            let marker = scene.frame_of_world(WORLD[family], hostport, MARKER);
            let seen = until("a marker reaches the pod", || {
                scene.world.send(&marker)?;
                Ok(capture
                    .until("the end marker", |it| it.ends_with(MARKER))
                    .ok())
            })?;
            let is_question = |packet: &Vec<u8>| packet.windows(3).any(|it| it == b"who");
            ensure!(!seen.iter().any(is_question), "{mode}: {seen:02x?}");
        }
        until("the agent no longer reports the address", || {
            let text = scene.agent.get("/v1/status")?["degraded"].to_string();
            Ok((!text.contains("pod-address-on-node")).then_some(()))
        })?;
    }
    Ok(())
}
