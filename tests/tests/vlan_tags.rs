//! Frames with VLAN tags (IEEE 802.1Q): the datapath leaves frames of a VLAN to the bridge, and
//! treats priority-tagged frames (VLAN 0) as untagged ones (decision 70).

use std::net::{IpAddr, UdpSocket};

use abi::{Address, Mac};
use anyhow::{Context as _, Result};
use e2e::{
    Agent, Capture, Config, FrameSender, Machine, Mapping, NODE, Pod, Sandbox, WORLD, deadline,
};
use serde_json::Value;
use verdict::simulator::frame::{Body, Frame};

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;
const TIMES: usize = 20;

/// No tag, the tag of VLAN 5, and a priority tag (VLAN 0).
const TAGS: [&[u8]; 3] = [&[], &[0x81, 0, 0, 5], &[0x81, 0, 0xe0, 0]];
/// Payloads of equal length: a cached verdict applies to packets that are no longer than the first.
const WORDS: [&str; 3] = ["simple", "tagged", "urgent"];

struct Scene {
    sandbox: Sandbox,
    pod: Pod,
    _agent: Agent,
}

impl Scene {
    fn new(bypass: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let mut pod = sandbox.pod("pod")?;
        let config = Config::new("1.1.0").publish(&Mapping::both(HOSTPORT, PORT));
        pod.add_with(config)?.success()?;
        Ok(Self {
            sandbox,
            pod,
            _agent: agent,
        })
    }
}

/// Returns three frames that differ only in tag and payload, and an end marker from another port.
fn frames(from: &Machine, to: IpAddr, port: u16, own: IpAddr) -> Result<[Vec<u8>; 4]> {
    let link = from.call_json("ip -j link show dev eth0")?;
    let route = from.call_json(&format!("ip -j route get {to}"))?;
    let next = route[0]["gateway"]
        .as_str()
        .map_or_else(|| to.to_string(), str::to_owned);
    let neighbour = from.call_json(&format!("ip -j neigh show {next} dev eth0"))?;
    let (source, destination) = (mac(&link[0]["address"])?, mac(&neighbour[0]["lladdr"])?);
    let frame = |source_port, tag: &[u8], word: &str| {
        let body = Body::Udp(source_port, port, word.into());
        let frame = Frame::new(abi(own), abi(to), body)
            .from_to(source, destination)
            .bytes();
        let (addresses, rest) = frame.split_at(12);
        [addresses, tag, rest].concat()
    };
    let [none, vlan, urgent] = TAGS;
    Ok([
        frame(44_000, none, WORDS[0]),
        frame(44_000, vlan, WORDS[1]),
        frame(44_000, urgent, WORDS[2]),
        frame(44_001, none, "end!"),
    ])
}

/// Sends each frame many times, so that the verdict on the first is cached when the others come,
/// and the end marker once.
fn send(sender: &FrameSender, [simple, tagged, urgent, end]: &[Vec<u8>; 4]) -> Result<()> {
    for frame in [simple, tagged, urgent] {
        (0..TIMES).try_for_each(|_| sender.send(frame))?;
    }
    sender.send(end)
}

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

fn mac(value: &Value) -> Result<Mac> {
    let text = value.as_str().context("no address")?;
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<Vec<u8>, _>>()?;
    Ok(Mac::new(bytes.try_into().ok().context("six bytes")?))
}

/// Returns the source address of an IPv4 or IPv6 packet.
fn source(packet: &[u8]) -> Address {
    if packet[0] >> 4 == 4 {
        let v4 = <[u8; 4]>::try_from(&packet[12..16]);
        Address::v4(v4.unwrap_or_default())
    } else {
        let v6 = <[u8; 16]>::try_from(&packet[8..24]);
        Address::v6(v6.unwrap_or_default())
    }
}

/// On the fast path a frame would keep its tag and reach a VLAN of the uplink without masquerade.
#[test]
fn frames_tagged_by_a_pod_reach_no_vlan_of_the_uplinks() -> Result<()> {
    for bypass in ["always", "never"] {
        let scene = Scene::new(bypass)?;
        let world = &scene.sandbox.world;
        let _server = world.run(|| UdpSocket::bind(("::", 9)))?;
        let capture = Capture::start(world)?;
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let pod = &scene.pod.machine;
            let sender = FrameSender::new(pod, "eth0", world)?;
            let own = scene.pod.address(world)?;
            send(&sender, &frames(pod, world, 9, own)?)?;
            let heard = capture.until("the end marker", |packet| packet.ends_with(b"end!"))?;
            let counts = WORDS.map(|word| {
                let marked = || heard.iter().filter(|it| it.ends_with(word.as_bytes()));
                let of_node = marked().filter(|packet| source(packet) == abi(node));
                (marked().count(), of_node.count())
            });
            assert_eq!(
                counts,
                [(TIMES, TIMES), (0, 0), (TIMES, TIMES)],
                "{bypass}, {world}"
            );
        }
    }
    Ok(())
}

#[test]
fn hostports_ignore_vlan_frames_and_accept_priority_tagged_frames() -> Result<()> {
    for bypass in ["always", "never"] {
        let scene = Scene::new(bypass)?;
        let server = scene.pod.machine.run(|| UdpSocket::bind(("::", PORT)))?;
        server.set_read_timeout(Some(deadline()))?;
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let client = &scene.sandbox.world;
            let sender = FrameSender::new(client, "eth0", node)?;
            send(&sender, &frames(client, node, HOSTPORT, world)?)?;
            let heard = words(&server)?;
            let counts = WORDS.map(|word| heard.iter().filter(|it| *it == word).count());
            assert_eq!(counts, [TIMES, 0, TIMES], "{bypass}, {node}");
        }
    }
    Ok(())
}

/// Returns the payloads that a socket receives before the end marker.
fn words(socket: &UdpSocket) -> Result<Vec<String>> {
    let mut heard = Vec::new();
    let mut buffer = [0; 64];
    loop {
        let length = socket
            .recv(&mut buffer)
            .context("the end marker did not arrive")?;
        let word = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if word == "end!" {
            return Ok(heard);
        }
        heard.push(word);
    }
}
