//! The same packets through Viaduct and through netfilter's MASQUERADE give the same packets, byte
//! for byte.
//!
//! docs/decisions/0010-match-netfilters-masquerade-except-for-listed-differences.md lists the
//! differences. Random traces are compared modulo translated ports and identifications: see
//! docs/decisions/0100-compare-random-traces-with-the-reference-plugins.md.

#[path = "nat_differential/random.rs"]
mod random;
#[path = "nat_differential/traces.rs"]
mod traces;

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Capture, Config, GATEWAYS, Machine, Mapping, NODE, RawSocket, Sandbox, UPLINK, WORLD,
    on_cpu, ping,
};
use nix::sched::sched_getcpu;
use traces::{Step, Trace, Way, frame};
use verdict::simulator::frame::Body;

/// The addresses of the first pod on Viaduct's node, and of the pod on netfilter's node.
const POD: [&str; 2] = ["10.244.1.2", "fd00:10:244:1::2"];
const PUBLISHED: u16 = 8080;
/// Port of the markers, which end the packets of a step.
const MARK: u16 = 60_999;

/// A pod, its node and the world, with either translation on the node.
struct Path {
    sandbox: Sandbox,
    pod: Machine,
    addresses: [IpAddr; 2],
    _agent: Option<Agent>,
}

impl Path {
    fn through_viaduct() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let mut pod = sandbox.pod("pod")?;
        let published = Mapping::both(PUBLISHED, 80);
        pod.add_with(Config::new("1.1.0").publish(&published))?;
        let path = Self {
            addresses: [pod.addresses[0], pod.addresses[1]],
            pod: pod.machine,
            sandbox,
            _agent: Some(agent),
        };
        let expected = POD.map(str::parse::<IpAddr>);
        ensure!(
            expected.into_iter().eq(path.addresses.map(Ok)),
            "other addresses"
        );
        path.mute()?;
        Ok(path)
    }

    /// A node as kubenet sets it up.
    fn through_netfilter() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        let pod = sandbox.machine("pod")?;
        node.sysctl("ipv4/ip_forward", "1")?;
        node.sysctl("ipv6/conf/all/forwarding", "1")?;
        node.call("ip link add cbr0 type bridge")?;
        sandbox.configure_link(node, "cbr0", &GATEWAYS)?;
        let veth = format!(
            "ip link add veth0 type veth peer name eth0 netns {}",
            pod.path()
        );
        node.call(&veth)?;
        node.call("ip link set veth0 master cbr0 up")?;
        let addresses = [POD[0].parse()?, POD[1].parse()?];
        sandbox.configure_link(&pod, "eth0", &addresses)?;
        for (tool, (gateway, address)) in TOOLS.into_iter().zip(GATEWAYS.into_iter().zip(addresses))
        {
            let family = if gateway.is_ipv4() { "-4" } else { "-6" };
            pod.call(&format!("ip {family} route add default via {gateway}"))?;
            for rule in netfilter_rules(address) {
                node.call(&format!("{tool} -t nat {rule}"))?;
            }
        }
        let path = Self {
            sandbox,
            pod,
            addresses,
            _agent: None,
        };
        path.mute()?;
        Ok(path)
    }

    /// Drops all input of pod and world except neighbour discovery, so that their kernels send no
    /// replies of their own.
    fn mute(&self) -> Result<()> {
        for machine in [&self.pod, &self.sandbox.world] {
            // Resolve the neighbours before the rules drop everything else.
            let peers = if machine.name() == "pod" { WORLD } else { NODE };
            for peer in peers {
                ping(machine, peer, 1)?;
            }
            machine.call_words(&["nft", MUTE])?;
        }
        Ok(())
    }

    /// Sends the packets of a step, and returns what arrived at the pod and in the world.
    fn run(&self, step: &Step, captures: &[Capture; 2]) -> Result<[Vec<Vec<u8>>; 2]> {
        let family = usize::from(step.six);
        let (machine, to) = match step.way {
            Way::Out => (&self.pod, WORLD[family]),
            Way::In => (&self.sandbox.world, NODE[family]),
        };
        let raw = RawSocket::sender(machine, to)?;
        for packet in &step.packets {
            raw.send(packet, to)?;
        }
        let mut heard = [Vec::new(), Vec::new()];
        // Two markers in sequence: a packet of the step is not slower than both of them together.
        for _ in 0..2 {
            for (heard, part) in heard.iter_mut().zip(self.marked(family, captures)?) {
                heard.extend(part);
            }
        }
        Ok(heard)
    }

    /// Sends a marker in each direction, and returns what arrived at pod and world before it.
    fn marked(
        &self,
        family: usize,
        [at_pod, at_world]: &[Capture; 2],
    ) -> Result<[Vec<Vec<u8>>; 2]> {
        let (pod, node, world) = (self.addresses[family], NODE[family], WORLD[family]);
        let mark = |text: &str| Body::Udp(MARK, MARK, text.into());
        let out = frame(pod, world, &mark("out")).packet();
        RawSocket::sender(&self.pod, world)?.send(&out, world)?;
        let to_world = at_world.until("a marker", |packet| packet.ends_with(b"out"))?;
        let back = frame(world, node, &mark("back")).packet();
        RawSocket::sender(&self.sandbox.world, node)?.send(&back, node)?;
        let to_pod = at_pod.until("a marker", |packet| packet.ends_with(b"back"))?;
        Ok([to_pod, to_world])
    }

    fn captures(&self) -> Result<[Capture; 2]> {
        Ok([
            Capture::start(&self.pod)?,
            Capture::start(&self.sandbox.world)?,
        ])
    }
}

const TOOLS: [&str; 2] = ["iptables", "ip6tables"];

/// Accepts only neighbour discovery.
const MUTE: &str = "table inet mute { chain input { type filter hook input priority 0; policy drop; icmpv6 type { 133, 134, 135, 136 } accept; }; }";

fn netfilter_rules(pod: IpAddr) -> Vec<String> {
    let to = std::net::SocketAddr::new(pod, 80);
    let publish = |protocol| {
        format!(
            "-A PREROUTING -i {UPLINK} -p {protocol} --dport {PUBLISHED} -m addrtype --dst-type LOCAL -j DNAT --to-destination {to}"
        )
    };
    vec![
        format!("-A POSTROUTING -o {UPLINK} -m addrtype ! --dst-type LOCAL -j MASQUERADE"),
        publish("tcp"),
        publish("udp"),
    ]
}

/// Returns the packets of a step as readable text for the comparison.
fn described([pod, world]: &[Vec<Vec<u8>>; 2]) -> String {
    let lines = |whose: &str, packets: &[Vec<u8>]| -> String {
        packets
            .iter()
            .filter(|packet| !is_of_neighbours(packet))
            .map(|packet| format!("{whose} gets {}\n", traces::fields(packet)))
            .collect::<Vec<_>>()
            .concat()
    };
    lines("the pod", pod) + &lines("the world", world)
}

/// Returns whether a packet is neighbour discovery or multicast listener discovery, whose timing
/// differs between kernels.
fn is_of_neighbours(packet: &[u8]) -> bool {
    let [four, groups] = [0x40, 2];
    let [six, hop_by_hop, icmp] = [0x60, 0, 58];
    if packet[0] & 0xf0 == four {
        return packet[9] == groups;
    }
    packet[0] & 0xf0 == six
        && (packet[6] == hop_by_hop
            || (packet[6] == icmp && (130..=137).contains(&packet[40]) || packet[40] == 143))
}

#[test]
fn translated_packets_equal_netfilters_except_for_documented_differences() -> Result<()> {
    let (ours, theirs) = (Path::through_viaduct()?, Path::through_netfilter()?);
    let addresses = [0, 1].map(|family| (ours.addresses[family], NODE[family], WORLD[family]));
    let (our_captures, their_captures) = (ours.captures()?, theirs.captures()?);
    let mut wrong = Vec::new();
    for Trace {
        name,
        explained,
        steps,
    } in addresses.into_iter().flat_map(traces::all)
    {
        let mut differences = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let at = || format!("{name}, step {number}");
            let us = described(&ours.run(step, &our_captures).with_context(at)?);
            let them = described(&theirs.run(step, &their_captures).with_context(at)?);
            if us != them {
                differences.push(format!("{}:\nours:\n{us}netfilter's:\n{them}\n", at()));
            }
        }
        match (explained, differences.is_empty()) {
            (None, true) | (Some(_), false) => {}
            (None, false) => wrong.extend(differences),
            (Some(why), true) => wrong.push(format!("{name}: no longer differs: {why}")),
        }
    }
    ensure!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}

/// Returns the number in an environment variable, or `default` where it is not set.
fn number(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text}")),
        Err(_) => Ok(default),
    }
}

/// `cargo xtask differential` sets the variables.
#[test]
fn random_traces_arrive_as_through_the_reference_plugins() -> Result<()> {
    let count = number("VIADUCT_DIFFERENTIAL_TRACES", 2000)?;
    let first = number("VIADUCT_DIFFERENTIAL_SEED", 1)?;
    // The queue that orders packets is that of one CPU.
    on_cpu(sched_getcpu()?, || random::run(first, count))
}

#[test]
fn the_document_lists_the_allowed_differences_of_random_traces() {
    let document = include_str!("../../docs/masquerade.md");
    let (_, section) = document
        .split_once("## Differences in random traces\n")
        .expect("the document has the section");
    let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let listed = rows
        .filter_map(|row| Some(row.split_once(" |")?.0))
        .skip(1)
        .collect::<Vec<_>>();
    assert_eq!(listed, random::allowed().collect::<Vec<_>>());
}
