//! Two pods of one bridge, and senders of arbitrary frames in one of them and in the world.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::IpAddr;

use abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, FrameCapture, FrameSender, GATEWAYS, Machine, Mapping, NODE, POD_CIDRS, Pod,
    Sandbox, UPLINK, contains, until,
};
use serde_json::json;
use verdict::simulator::frame::{Body, Frame};

pub(crate) const PORT: u16 = 7000;
pub(crate) const HOSTPORT: u16 = 8080;
/// Payload of packets that must not arrive.
pub(crate) const REFUSED: &[u8] = b"never forwarded";
/// Payload of the packets after them.
pub(crate) const MARKER: &[u8] = b"end marker";
/// The fast path, and the stack alone.
pub(crate) const MODES: [&str; 2] = ["--bypass-netfilter=always", "--bypass-netfilter=never"];

/// A node with the pods `sender` and `victim`, of which the victim is published.
pub(crate) struct Scene {
    pub(crate) sandbox: Sandbox,
    pub(crate) agent: Agent,
    pub(crate) sender: Pod,
    pub(crate) victim: Pod,
    pub(crate) inside: FrameSender,
    pub(crate) outside: FrameSender,
    pub(crate) sender_mac: Mac,
    pub(crate) victim_mac: Mac,
    pub(crate) bridge_mac: Mac,
    pub(crate) gateways: [IpAddr; 2],
    world_mac: Mac,
    node_mac: Mac,
}

/// Gateways of the declared network, IPv4 first.
pub(crate) const DECLARED_GATEWAYS: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 7, 0, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 1)),
];

/// Returns the configuration of a network on the bridge `br7`.
pub(crate) fn declared() -> Config {
    let range = |subnet: &str| json!([{ "subnet": subnet }]);
    let ranges = [range("10.7.0.0/24"), range("fd00:7::/64")];
    Config::new("1.1.0")
        .with("name", json!("declared"))
        .with("bridge", json!("br7"))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with("ipam", json!({ "type": "host-local", "ranges": ranges }))
}

impl Scene {
    pub(crate) fn new(flags: &[&str]) -> Result<Self> {
        Self::on("cbr0", GATEWAYS, flags, &Config::new("1.1.0"))
    }

    /// As [`Scene::new`], with pods of a network made from [`declared`].
    pub(crate) fn with(flags: &[&str], config: &Config) -> Result<Self> {
        Self::on("br7", DECLARED_GATEWAYS, flags, config)
    }

    fn on(bridge: &str, gateways: [IpAddr; 2], flags: &[&str], config: &Config) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, flags)?;
        let mut sender = sandbox.pod("sender")?;
        sender.add_with(config.clone())?.success()?;
        let mut victim = sandbox.pod("victim")?;
        let published = config.clone().publish(&Mapping::both(HOSTPORT, PORT));
        victim.add_with(published)?.success()?;
        for (cidr, node) in POD_CIDRS.into_iter().zip(NODE) {
            let world = &sandbox.world;
            world.call(&format!("ip route add {cidr} via {node} dev eth0"))?;
        }
        Ok(Self {
            inside: FrameSender::new(&sender.machine, "eth0", gateways[0])?,
            gateways,
            outside: FrameSender::new(&sandbox.world, "eth0", NODE[0])?,
            sender_mac: mac_of(&sender.machine, "eth0")?,
            victim_mac: mac_of(&victim.machine, "eth0")?,
            bridge_mac: mac_of(&sandbox.node, bridge)?,
            world_mac: mac_of(&sandbox.world, "eth0")?,
            node_mac: mac_of(&sandbox.node, UPLINK)?,
            sandbox,
            agent,
            sender,
            victim,
        })
    }

    /// Returns a frame of the sending pod to the victim.
    pub(crate) fn to_victim(&self, from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
        let frame = Frame::new(abi(from), abi(to), datagram(payload));
        frame.from_to(self.sender_mac, self.victim_mac).bytes()
    }

    /// Returns a frame of the sending pod to its gateway.
    pub(crate) fn to_gateway(&self, from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
        let frame = Frame::new(abi(from), abi(to), datagram(payload));
        frame.from_to(self.sender_mac, self.bridge_mac).bytes()
    }

    /// Returns a frame of the world to a port of the node or of a pod.
    pub(crate) fn frame_of_world(
        &self,
        from: IpAddr,
        to: IpAddr,
        port: u16,
        data: &[u8],
    ) -> Vec<u8> {
        let body = Body::Udp(41_000, port, data.to_vec());
        let frame = Frame::new(abi(from), abi(to), body);
        frame.from_to(self.world_mac, self.node_mac).bytes()
    }

    /// Returns the bytes of a frame of the world to the node.
    pub(crate) fn outside_to_node(&self, frame: &Frame) -> Vec<u8> {
        let frame = frame.clone();
        frame.from_to(self.world_mac, self.node_mac).bytes()
    }

    /// Returns the bytes of the first fragment of a packet of the world to the node.
    pub(crate) fn first_fragment_of_world(&self, frame: &Frame) -> Vec<u8> {
        let addressed = frame.clone().from_to(self.world_mac, self.node_mac);
        addressed.fragment(1, 0..32)
    }

    /// The addresses of the sender and of the victim in a family.
    pub(crate) fn own(&self, family: usize) -> Result<[IpAddr; 2]> {
        let like = NODE[family];
        Ok([self.sender.address(like)?, self.victim.address(like)?])
    }

    /// Sends frames of the pod, then a valid one; nothing of the former may arrive at the victim.
    pub(crate) fn must_not_reach_victim(&self, frames: &[Vec<u8>]) -> Result<()> {
        let capture = FrameCapture::start(&self.victim.machine)?;
        send_all(&self.inside, frames)?;
        let [own, victim] = self.own(0)?;
        self.inside.send(&self.to_victim(own, victim, MARKER))?;
        none_arrived(&capture)
    }

    /// As [`Scene::must_not_reach_victim`], where only the published port is reachable.
    pub(crate) fn must_not_reach_isolated(&self, frames: &[Vec<u8>]) -> Result<()> {
        let capture = FrameCapture::start(&self.victim.machine)?;
        send_all(&self.inside, frames)?;
        let [own, _] = self.own(0)?;
        let body = Body::Udp(41_000, HOSTPORT, MARKER.to_vec());
        let marker = Frame::new(abi(own), abi(NODE[0]), body)
            .from_to(self.sender_mac, self.bridge_mac)
            .bytes();
        self.inside.send(&marker)?;
        none_arrived(&capture)
    }

    /// Sends frames of the pod one by one, each with the payload [`REFUSED`]; each must arrive at
    /// the victim.
    pub(crate) fn must_reach_victim(&self, frames: &[Vec<u8>]) -> Result<()> {
        for frame in frames {
            let capture = FrameCapture::start(&self.victim.machine)?;
            self.inside.send(frame)?;
            capture
                .until(REFUSED)
                .with_context(|| format!("{frame:02x?}"))?;
        }
        Ok(())
    }

    /// Returns a frame of the sending pod to any addresses.
    pub(crate) fn frame(&self, from: Address, to: Address, mac: Mac, body: Body) -> Vec<u8> {
        Frame::new(from, to, body)
            .from_to(self.sender_mac, mac)
            .bytes()
    }

    /// Sends frames of the world, then a valid one; nothing of the former may arrive at the victim.
    pub(crate) fn must_not_enter(&self, frames: &[Vec<u8>]) -> Result<()> {
        let capture = FrameCapture::start(&self.victim.machine)?;
        send_all(&self.outside, frames)?;
        let marker = self.frame_of_world(e2e::WORLD[0], NODE[0], HOSTPORT, MARKER);
        self.outside.send(&marker)?;
        none_arrived(&capture)
    }

    /// Opens the sender's socket again, on its new link.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.inside = FrameSender::new(&self.sender.machine, "eth0", self.gateways[0])?;
        self.sender_mac = mac_of(&self.sender.machine, "eth0")?;
        Ok(())
    }

    pub(crate) fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or(0))
    }

    /// Waits until `count` packets have been dropped for this reason.
    pub(crate) fn await_drops(&self, reason: &str, count: u64) -> Result<()> {
        until(&format!("{count} packets are dropped as {reason}"), || {
            Ok((self.drops(reason)? >= count).then_some(()))
        })
    }
}

fn datagram(payload: &[u8]) -> Body {
    Body::Udp(41_000, PORT, payload.to_vec())
}

/// Sends each frame as often as a flow takes to get to the flow cache.
fn send_all(sender: &FrameSender, frames: &[Vec<u8>]) -> Result<()> {
    (0..10).try_for_each(|_| frames.iter().try_for_each(|frame| sender.send(frame)))
}

fn none_arrived(capture: &FrameCapture) -> Result<()> {
    let seen = capture.until(MARKER)?;
    let refused: Vec<_> = seen.iter().filter(|it| contains(it, REFUSED)).collect();
    ensure!(refused.is_empty(), "arrived: {refused:02x?}");
    Ok(())
}

pub(crate) fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

pub(crate) fn mac_of(machine: &Machine, link: &str) -> Result<Mac> {
    let shown = machine.call_json(&format!("ip -j link show dev {link}"))?;
    let text = shown[0]["address"].as_str().context("no MAC address")?;
    let mut bytes = [0; 6];
    for (byte, digits) in bytes.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(Mac::new(bytes))
}
