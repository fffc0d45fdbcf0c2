//! A node with three pods, receivers that believe as much as a Linux machine can, and senders of
//! frames in a pod and in the world.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

use abi::Mac;
use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{Agent, FrameSender, Machine, NODE, Sandbox, UPLINK, WORLD, addresses, deadline, ping};
use serde_json::{Value, json};
use verdict::simulator::frame::Body;

use super::net::{Net, Party, Policy, Receiver};
use super::sockets::{PORT, Sockets};
use super::state::State;
use super::wire::ip;

/// Port by which the world reaches the mate.
pub(crate) const PUBLISHED: u16 = 8080;
/// Port of the node on which the packets behind a cell arrive.
const BARRIER: u16 = 9_555;

/// An attached pod.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) machine: Machine,
    list: Chain,
    result: Value,
    addresses: [IpAddr; 2],
}

impl Guest {
    fn new(sandbox: &Sandbox, name: &str, list: Chain) -> Result<Self> {
        let machine = sandbox.machine(name)?;
        believe(&machine, "default")?;
        let result = list.add(&sandbox.node, &machine)?;
        believe(&machine, "eth0")?;
        let found = addresses(&result)?;
        let addresses = found.try_into().ok().context("two addresses")?;
        Ok(Self {
            machine,
            list,
            result,
            addresses,
        })
    }

    /// Attaches the pod again after a DEL.
    fn add(&mut self, node: &Machine) -> Result<()> {
        self.result = self.list.add(node, &self.machine)?;
        let found = addresses(&self.result)?;
        self.addresses = found.try_into().ok().context("two addresses")?;
        believe(&self.machine, "eth0")
    }

    /// Detaches the pod.
    pub(crate) fn del(&self, node: &Machine) -> Result<()> {
        self.list.del(node, &self.machine, &self.result)
    }

    fn party(&self) -> Result<Party> {
        Party::of(&self.machine, "eth0", self.addresses)
    }
}

/// Sets the sysctls of a link to what an attacker hopes for.
fn believe(machine: &Machine, link: &str) -> Result<()> {
    for (key, value) in [
        ("rp_filter", "0"),
        ("accept_local", "1"),
        ("route_localnet", "1"),
        ("arp_accept", "1"),
        ("accept_redirects", "1"),
        ("secure_redirects", "0"),
        ("accept_source_route", "1"),
    ] {
        machine.sysctl(&format!("ipv4/conf/{link}/{key}"), value)?;
        machine.sysctl(&format!("ipv4/conf/all/{key}"), value)?;
    }
    for (key, value) in [
        ("accept_ra", "2"),
        ("accept_redirects", "1"),
        ("accept_source_route", "1"),
    ] {
        machine.sysctl(&format!("ipv6/conf/{link}/{key}"), value)?;
        machine.sysctl(&format!("ipv6/conf/all/{key}"), value)?;
    }
    // Since Linux 6.0; older ones ignore unsolicited advertisements without an entry.
    drop(machine.sysctl(&format!("ipv6/conf/{link}/accept_untracked_na"), "1"));
    Ok(())
}

fn list(number: u8, policy: Policy, published: bool) -> Chain {
    let bridge = json!({
        "type": "bridge", "bridge": format!("br{number}"), "isDefaultGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "ranges": [
            [{ "subnet": format!("10.{number}.0.0/24") }], [{ "subnet": format!("fd00:{number}::/64") }],
        ] },
    });
    let firewall = json!({ "type": "firewall", "ingressPolicy": policy.name() });
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let ports: Vec<Value> = ["tcp", "udp"]
        .into_iter()
        .filter(|_| published)
        .map(|protocol| {
            json!({ "hostPort": PUBLISHED, "containerPort": PORT, "protocol": protocol })
        })
        .collect();
    Chain::new("1.0.0", &format!("net{number}"))
        .with(PluginSource::Ours, bridge)
        .with(PluginSource::Ours, firewall)
        .with(PluginSource::Ours, portmap)
        .with_capability("portMappings", Value::Array(ports))
}

/// The node under attack, with everything that can be observed about it.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) sandbox: Sandbox,
    _agent: Agent,
    pub(crate) attacker: Guest,
    mate: Guest,
    far: Guest,
    pub(crate) net: Net,
    pub(crate) policy: Policy,
    sockets: BTreeMap<Receiver, Sockets>,
    pub(crate) from_pod: FrameSender,
    pub(crate) from_world: FrameSender,
    barrier: UdpSocket,
}

impl Scene {
    /// Starts the agent with this value of `--bypass-netfilter`, and attaches the pods.
    pub(crate) fn new(bypass: &str, policy: Policy) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let attacker = Guest::new(&sandbox, "attacker", list(7, policy, false))?;
        let mate = Guest::new(&sandbox, "mate", list(7, policy, true))?;
        let far = Guest::new(&sandbox, "far", list(8, policy, false))?;
        for link in ["all", UPLINK] {
            let key = format!("ipv4/conf/{link}/route_localnet");
            sandbox.node.sysctl(&key, "1")?;
        }
        for (range, node) in [("10.7.0.0/24", NODE[0]), ("fd00:7::/64", NODE[1])] {
            let route = format!("ip route add {range} via {node} dev eth0");
            sandbox.world.call(&route)?;
        }
        let net = net(&sandbox, [&attacker, &mate, &far])?;
        let machines = [
            (Receiver::Mate, &mate.machine),
            (Receiver::Far, &far.machine),
            (Receiver::Node, &sandbox.node),
            (Receiver::World, &sandbox.world),
        ];
        let sockets = machines
            .into_iter()
            .map(|(receiver, machine)| Ok((receiver, Sockets::open(machine)?)))
            .collect::<Result<_>>()?;
        let barrier = sandbox.node.run(|| UdpSocket::bind(("::", BARRIER)))?;
        barrier.set_read_timeout(Some(deadline()))?;
        let scene = Self {
            from_pod: FrameSender::new(&attacker.machine, "eth0", net.gateway.addresses[0])?,
            from_world: FrameSender::new(&sandbox.world, "eth0", NODE[0])?,
            _agent: agent,
            attacker,
            mate,
            far,
            net,
            policy,
            sockets,
            barrier,
            sandbox,
        };
        scene.resolve()?;
        Ok(scene)
    }

    /// Lets all parties know their neighbours, so that no packet waits for an answer.
    fn resolve(&self) -> Result<()> {
        for family in [0, 1] {
            for guest in [&self.attacker, &self.mate, &self.far] {
                ping(&self.sandbox.node, guest.addresses[family], 1)?;
                ping(&guest.machine, WORLD[family], 1)?;
            }
            if self.policy.lets(Receiver::Mate) {
                ping(&self.attacker.machine, self.mate.addresses[family], 1)?;
            }
        }
        Ok(())
    }

    /// Attaches the attacker after a DEL. It may have other addresses than before.
    pub(crate) fn attach_again(&mut self) -> Result<()> {
        self.attacker.add(&self.sandbox.node)?;
        self.net = net(&self.sandbox, [&self.attacker, &self.mate, &self.far])?;
        self.resolve()
    }

    pub(crate) fn machine(&self, receiver: Receiver) -> &Machine {
        match receiver {
            Receiver::Mate => &self.mate.machine,
            Receiver::Far => &self.far.machine,
            Receiver::Node => &self.sandbox.node,
            Receiver::World => &self.sandbox.world,
        }
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = (Receiver, &Sockets)> {
        self.sockets
            .iter()
            .map(|(receiver, sockets)| (*receiver, sockets))
    }

    /// Returns the state of each receiver.
    pub(crate) fn states(&self) -> Result<BTreeMap<Receiver, State>> {
        self.sockets
            .keys()
            .map(|receiver| Ok((*receiver, State::of(self.machine(*receiver))?)))
            .collect()
    }

    /// Waits until the node has handled all frames that were sent by this thread before: a packet
    /// arrives behind them.
    pub(crate) fn barrier(&self, origin: Origin, number: u32) -> Result<()> {
        let (sender, from, to, address) = match origin {
            Origin::Pod => {
                let (from, to) = (&self.net.attacker, &self.net.gateway);
                (&self.from_pod, from, to.mac, to.addresses[0])
            }
            Origin::World => {
                let (from, to) = (&self.net.world, &self.net.node);
                (&self.from_world, from, to.mac, NODE[0])
            }
        };
        let body = Body::Udp(BARRIER, BARRIER, number.to_be_bytes().to_vec());
        let macs: [Mac; 2] = [from.mac, to];
        let frame = ip(macs, [from.addresses[0], address], body).bytes();
        sender.send(&frame)?;
        let mut buffer = [0; 64];
        loop {
            let length = self.barrier.recv(&mut buffer).context("no barrier")?;
            if buffer[..length] == number.to_be_bytes() {
                return Ok(());
            }
        }
    }

    /// Makes all receivers forget what an attack has told them, and know their true neighbours: no
    /// packet waits for an answer.
    pub(crate) fn forget(&self) -> Result<()> {
        const SCRIPT: &str = "
            ip neigh flush all
            ip -6 route flush proto ra
            ip -4 route flush cache
            ip -6 route flush cache
            ip -6 address flush mngtmpaddr
        ";
        for receiver in self.sockets.keys() {
            let known = self.net.neighbours(*receiver).map(|(address, mac, link)| {
                format!("ip neigh replace {address} lladdr {mac} dev {link} nud reachable\n")
            });
            let script = known.fold(SCRIPT.to_owned(), |script, line| script + &line);
            let machine = self.machine(*receiver);
            machine.call_words(&["sh", "-c", &(script + "true")])?;
        }
        Ok(())
    }
}

/// Which party sends the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Pod,
    World,
}

fn net(sandbox: &Sandbox, [attacker, mate, far]: [&Guest; 3]) -> Result<Net> {
    let node = &sandbox.node;
    let gateway = |link: &str, pod: &Guest| -> Result<Party> {
        let first = |index: usize| -> Result<IpAddr> {
            Ok(match pod.addresses[index] {
                IpAddr::V4(v4) => {
                    let [a, b, c, _] = v4.octets();
                    IpAddr::from([a, b, c, 1])
                }
                IpAddr::V6(v6) => {
                    let mut words = v6.segments();
                    words[7] = 1;
                    IpAddr::from(words)
                }
            })
        };
        Party::of(node, link, [first(0)?, first(1)?])
    };
    let net = Net {
        attacker: attacker.party()?,
        mate: mate.party()?,
        far: far.party()?,
        gateway: gateway("br7", attacker)?,
        far_gateway: gateway("br8", far)?,
        node: Party::of(node, UPLINK, NODE)?,
        world: Party::of(&sandbox.world, "eth0", WORLD)?,
    };
    ensure!(
        net.attacker.mac != net.mate.mac,
        "one MAC address for two pods"
    );
    Ok(net)
}
