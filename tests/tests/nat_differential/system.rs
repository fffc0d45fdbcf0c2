//! A node with two pods and a world, under Viaduct or under the reference plugins.

use std::cell::Cell;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{
    Agent, Capture, Config, FrameSender, GATEWAYS, Machine, Mapping, NODE, Sandbox, UPLINK, WORLD,
    addresses, ping,
};
use serde_json::{Value, json};

use super::packet::{Header, octets};

/// Addresses of both pods in each family.
pub(super) const PODS: [[&str; 2]; 2] = [
    ["10.244.1.2", "fd00:10:244:1::2"],
    ["10.244.1.3", "fd00:10:244:1::3"],
];
/// The node's second address on the uplink.
pub(super) const SECOND: [&str; 2] = ["192.0.2.3", "2001:db8:1::3"];
/// Port of the pods that all published ports lead to.
pub(super) const SERVED: u16 = 80;
/// Published ports of each pod.
pub(super) const PUBLISHED: [&[u16]; 2] = [&[8080, 8081], &[8082]];
/// Port of the markers.
const MARK: u16 = 60_999;
/// Flow table entries of Viaduct: more than a batch of traces needs.
const FLOWS: &str = "--flow-table-size=131072";

/// MTUs and settings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) uplink_mtu: usize,
    pub(super) pod_mtu: usize,
    /// `--bypass-netfilter` of the agent.
    bypass: &'static str,
    /// Whether the reference's `portmap` masquerades clients in the pods' subnet.
    pub(super) snat: bool,
    /// Whether rules on Viaduct's node make it track connections, so that netfilter reassembles.
    tracks: bool,
}

impl Scene {
    /// Returns the MTU of a sender.
    pub(super) fn mtu(&self, site: Site) -> usize {
        match site {
            Site::Pod(_) => self.pod_mtu,
            Site::World => self.uplink_mtu,
        }
    }
}

/// All scenes; traces take turns in batches.
pub(super) const SCENES: [Scene; 4] = [
    Scene {
        name: "equal MTUs, fast path",
        uplink_mtu: 1500,
        pod_mtu: 1500,
        bypass: "auto",
        snat: false,
        tracks: false,
    },
    Scene {
        name: "small MTU outside, fast path",
        uplink_mtu: 1400,
        pod_mtu: 1500,
        bypass: "auto",
        snat: false,
        tracks: false,
    },
    Scene {
        name: "small MTU of the pods, no fast path",
        uplink_mtu: 1500,
        pod_mtu: 1400,
        bypass: "never",
        snat: false,
        tracks: false,
    },
    Scene {
        name: "small MTU outside, connection tracking beside Viaduct",
        uplink_mtu: 1400,
        pod_mtu: 1500,
        bypass: "auto",
        snat: true,
        tracks: true,
    },
];

/// A machine that sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Site {
    Pod(usize),
    World,
}

pub(super) const SITES: [Site; 3] = [Site::Pod(0), Site::Pod(1), Site::World];

/// A node with pods and world.
pub(super) struct System {
    pub(super) name: &'static str,
    /// Pods first, then the world.
    ends: Vec<End>,
    bridge: [u8; 6],
    uplink: [u8; 6],
    marks: Cell<u32>,
    _agent: Option<Agent>,
    _sandbox: Sandbox,
}

struct End {
    mac: [u8; 6],
    /// For IPv4 and for IPv6.
    senders: [FrameSender; 2],
    capture: Capture,
    // Its namespace lives as long.
    _machine: Machine,
}

impl System {
    /// Returns a node with the agent.
    pub(super) fn viaduct(scene: &Scene) -> Result<Self> {
        let sandbox = prepared(scene)?;
        if scene.tracks {
            sandbox.node.call_words(&["nft", TRACK])?;
        }
        let mtu = format!("--mtu={}", scene.pod_mtu);
        let bypass = format!("--bypass-netfilter={}", scene.bypass);
        let agent = Agent::start(&sandbox.node, &[FLOWS, &mtu, &bypass])?;
        let mut machines = Vec::new();
        for (number, ports) in PUBLISHED.into_iter().enumerate() {
            let mut pod = sandbox.pod(&format!("pod{number}"))?;
            let mappings = ports.iter().flat_map(|port| Mapping::both(*port, SERVED));
            let config = Config::new("1.1.0").publish(&mappings.collect::<Vec<_>>());
            pod.add_with(config)?;
            check_addresses(number, &pod.addresses)?;
            machines.push(pod.machine);
        }
        Self::connect("Viaduct", sandbox, machines, "cbr0", Some(agent))
    }

    /// Returns a node with the reference plugins `bridge`, with MASQUERADE, and `portmap`.
    pub(super) fn netfilter(scene: &Scene) -> Result<Self> {
        let sandbox = prepared(scene)?;
        let mut machines = Vec::new();
        for (number, ports) in PUBLISHED.into_iter().enumerate() {
            let pod = sandbox.machine(&format!("pod{number}"))?;
            pod.sysctl("ipv6/conf/default/dad_transmits", "0")?;
            let result = reference(scene, ports).add(&sandbox.node, &pod)?;
            check_addresses(number, &addresses(&result)?)?;
            machines.push(pod);
        }
        Self::connect("netfilter", sandbox, machines, "cni0", None)
    }

    fn connect(
        name: &'static str,
        sandbox: Sandbox,
        mut machines: Vec<Machine>,
        bridge: &str,
        agent: Option<Agent>,
    ) -> Result<Self> {
        machines.push(sandbox.world.clone());
        let node = &sandbox.node;
        let ends = machines
            .into_iter()
            .map(|machine| End::new(machine, node))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            name,
            bridge: mac(node, bridge)?,
            uplink: mac(node, UPLINK)?,
            ends,
            marks: Cell::new(0),
            _agent: agent,
            _sandbox: sandbox,
        })
    }

    /// Sends packets, in this order, and returns what arrives where.
    ///
    /// All packets pass queues of the calling thread's CPU, which must not change: a veth pair
    /// appends to the queue of the sender's CPU. A packet passes at most two of them, one into the
    /// node and one out of it, and so does a marker that is sent behind all others. A fragment that
    /// was held passes the first one twice, so a second marker follows the first one.
    pub(super) fn exchange(&self, packets: &[(Site, Vec<u8>)]) -> Result<Vec<(Site, Vec<u8>)>> {
        for (site, packet) in packets {
            self.send(*site, packet)?;
        }
        let mut world = self.until_marker()?;
        world.extend(self.until_marker()?);
        let mut arrived = Vec::new();
        for number in 0..PODS.len() {
            let site = Site::Pod(number);
            let packets = self.end(site).capture.drain()?;
            arrived.extend(packets.into_iter().map(|packet| (site, packet)));
        }
        arrived.extend(world.into_iter().map(|packet| (Site::World, packet)));
        Ok(arrived)
    }

    /// Sends a marker from a pod to the world, and returns what arrives in the world before it.
    fn until_marker(&self) -> Result<Vec<Vec<u8>>> {
        let number = self.marks.get() + 1;
        self.marks.set(number);
        let text = format!("marker {number}");
        let header = Header {
            source: PODS[0][0].parse()?,
            destination: WORLD[0],
            protocol: abi::protocol::UDP,
            dont_fragment: true,
            identification: 0,
        };
        let marker = header.udp([MARK, MARK], text.as_bytes(), true);
        self.send(Site::Pod(0), &header.packet(&marker))?;
        let last = |packet: &[u8]| packet.ends_with(text.as_bytes());
        self.end(Site::World).capture.until(&text, last)
    }

    fn send(&self, site: Site, packet: &[u8]) -> Result<()> {
        let four = packet[0] >> 4 == 4;
        let target = match site {
            Site::World => self.uplink,
            Site::Pod(_) => {
                let destination = if four {
                    &packet[16..20]
                } else {
                    &packet[24..40]
                };
                let neighbour = (0..PODS.len()).find(|&number| {
                    let address = pod_address(number, !four);
                    octets(address) == destination
                });
                neighbour.map_or(self.bridge, |number| self.end(Site::Pod(number)).mac)
            }
        };
        let end = self.end(site);
        let kind: u16 = if four { 0x0800 } else { 0x86dd };
        let ethernet = [&target[..], &end.mac, &kind.to_be_bytes()].concat();
        end.senders[usize::from(!four)]
            .send(&[&ethernet, packet].concat())
            .with_context(|| format!("{site:?} sends {} bytes", packet.len()))
    }

    fn end(&self, site: Site) -> &End {
        match site {
            Site::Pod(number) => &self.ends[number],
            Site::World => &self.ends[PODS.len()],
        }
    }
}

impl End {
    fn new(machine: Machine, node: &Machine) -> Result<Self> {
        let is_world = machine.name() == "world";
        let neighbours = if is_world { NODE } else { GATEWAYS };
        for neighbour in neighbours {
            ping(&machine, neighbour, 1)?;
        }
        let [four, six] = neighbours.map(|neighbour| FrameSender::new(&machine, "eth0", neighbour));
        let mac = mac(&machine, "eth0")?;
        if is_world {
            // Their entries never wait for an answer.
            let lladdr = mac.map(|byte| format!("{byte:02x}")).join(":");
            for address in WORLD {
                node.call(&format!(
                    "ip neigh replace {address} lladdr {lladdr} dev {UPLINK} nud permanent"
                ))?;
            }
        } else {
            for address in GATEWAYS {
                ping(&machine, address, 1)?;
            }
        }
        machine.call_words(&["nft", MUTE])?;
        Ok(Self {
            mac,
            capture: Capture::start(&machine)?,
            senders: [four?, six?],
            _machine: machine,
        })
    }
}

/// Accepts only neighbour discovery, before any other decision of the kernel: no answer of the
/// machine's own disturbs a trace.
const MUTE: &str = "table inet mute { chain input { type filter hook prerouting priority -500; policy drop; icmpv6 type { 133, 134, 135, 136 } accept; }; }";

/// Rules by which a node tracks all connections.
const TRACK: &str = "table inet track { chain seen { type filter hook prerouting priority 0; ct state new accept; }; }";

/// Sysctls of both nodes: ICMP errors are not limited in rate, and a fragment without the others
/// of its packet waits for longer than a test.
const SYSCTLS: [(&str, &str); 9] = [
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv4/icmp_ratemask", "0"),
    ("ipv4/ipfrag_time", "3600"),
    ("ipv4/ipfrag_high_thresh", "268435456"),
    ("ipv4/ipfrag_max_dist", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/ip6frag_time", "3600"),
    ("ipv6/ip6frag_high_thresh", "268435456"),
    ("ipv4/ip_forward", "1"),
];

/// Sysctls that exist once connection tracking does.
const TRACKING_SYSCTLS: [(&str, &str); 2] = [
    ("netfilter/nf_conntrack_frag6_timeout", "3600"),
    ("netfilter/nf_conntrack_frag6_high_thresh", "268435456"),
];

/// Returns node and world, with both addresses of the node.
fn prepared(scene: &Scene) -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call(&format!("ip link set {UPLINK} mtu {}", scene.uplink_mtu))?;
    sandbox
        .world
        .call(&format!("ip link set eth0 mtu {}", scene.uplink_mtu))?;
    for (address, rest) in SECOND.into_iter().zip(["/24", "/64 nodad"]) {
        node.call(&format!("ip address add {address}{rest} dev {UPLINK}"))?;
    }
    node.sysctl("ipv6/conf/all/forwarding", "1")?;
    for (key, value) in SYSCTLS.into_iter().chain(TRACKING_SYSCTLS) {
        // Not every kernel has each of them for each namespace.
        let _ = node.sysctl(key, value);
    }
    Ok(sandbox)
}

/// Returns the list of the reference plugins, as a runtime configures them.
fn reference(scene: &Scene, ports: &[u16]) -> Chain {
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
        "hairpinMode": true, "mtu": scene.pod_mtu,
        "ipam": {
            "type": "host-local",
            "ranges": [[{ "subnet": "10.244.1.0/24" }], [{ "subnet": "fd00:10:244:1::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        },
    });
    let mapping = |port: u16, protocol: &str| -> Value {
        json!({ "hostPort": port, "containerPort": SERVED, "protocol": protocol })
    };
    let mappings = ports
        .iter()
        .flat_map(|port| [mapping(*port, "tcp"), mapping(*port, "udp")])
        .collect::<Vec<_>>();
    Chain::new("1.0.0", "pods")
        .with(PluginSource::Reference, bridge)
        .with(
            PluginSource::Reference,
            json!({ "type": "portmap", "snat": scene.snat, "capabilities": { "portMappings": true } }),
        )
        .with_capability("portMappings", json!(mappings))
}

fn check_addresses(number: usize, found: &[IpAddr]) -> Result<()> {
    let expected = [false, true].map(|six| pod_address(number, six));
    ensure!(found == expected, "pod {number} has {found:?}");
    Ok(())
}

/// Returns the address of a pod.
pub(super) fn pod_address(number: usize, six: bool) -> IpAddr {
    PODS[number][usize::from(six)]
        .parse()
        .expect("the addresses of pods are valid")
}

/// Returns an address of the node: the first or the second one.
pub(super) fn node_address(number: usize, six: bool) -> IpAddr {
    if number == 0 {
        NODE[usize::from(six)]
    } else {
        SECOND[usize::from(six)]
            .parse()
            .expect("the second address is valid")
    }
}

fn mac(machine: &Machine, link: &str) -> Result<[u8; 6]> {
    let links = machine.call_json(&format!("ip -json link show {link}"))?;
    let text = links[0]["address"].as_str().unwrap_or_default();
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<Vec<_>, _>>()?;
    bytes
        .try_into()
        .map_err(|bytes| anyhow::anyhow!("the address of {link} is {bytes:?}"))
}
