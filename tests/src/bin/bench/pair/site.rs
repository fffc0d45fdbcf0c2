//! One system on one machine: a node with a pod, or the client.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{Echo, Iperf, Machine, Sandbox, UPLINK, addresses};
use serde_json::Value;

use super::role::Role;
use crate::row::system;
use crate::topology::{Attached, Forwarding, PORTS, Reference, Tables, Viaduct, limits, mappings};

/// The systems, in the order of their cards, of which the first is number 1.
pub(super) const SYSTEMS: [&str; 4] = [
    system::FORWARDING,
    system::LEGACY,
    system::NFT,
    system::VIADUCT,
];

/// A pod's name on each node, and that of its neighbour, whose bandwidth is limited.
const POD: &str = "pod";
const LIMITED: &str = "limited";

/// The limit of that neighbour in both directions, in Mbit/s: far below what translated machines carry.
pub(super) const LIMIT: u32 = 10;

/// All prefixes of pods of the cluster, which both nodes reach without translation.
const CLUSTER: &str = "10.244.0.0/16";

/// One system on this machine. What holds it together is kept for as long as it is measured.
pub(super) struct Site {
    /// Its name in reports.
    pub(super) system: &'static str,
    /// The node's pod, or the client.
    pub(super) usual: Place,
    /// The node's pod with a limit, if the system has such a thing.
    pub(super) limited: Option<Place>,
    /// The cgroup of the node's containers, where the system cares.
    pub(super) cgroup: Option<PathBuf>,
    _parts: Box<dyn std::any::Any + Send + Sync>,
}

/// Where is sent from and to.
pub(super) struct Place {
    pub(super) machine: Machine,
    pub(super) address: Option<IpAddr>,
    _servers: (Iperf, Echo),
}

impl Place {
    fn new(machine: Machine, address: Option<IpAddr>) -> Result<Self> {
        let servers = (
            Iperf::serve(&machine, PORTS[2])?,
            Echo::start(&machine, PORTS[0])?,
        );
        Ok(Self {
            machine,
            address,
            _servers: servers,
        })
    }

    fn attached(pod: Attached) -> Result<Self> {
        let address = addresses(&pod.result)?.first().copied();
        Self::new(pod.machine, address)
    }
}

/// Whether its pods can have limits, and ports of the node that lead to them.
pub(super) fn serves_pods(system: &str) -> bool {
    system != system::FORWARDING
}

/// Every system on this machine.
pub(super) fn all(role: Role) -> Result<Vec<Site>> {
    let desk = role.card(0)?;
    call(&format!("ip address replace {}/24 dev {desk}", role.desk()))?;
    call(&format!("ip link set {desk} up"))?;
    (1..)
        .zip(SYSTEMS)
        .map(|(card, system)| {
            build(role, card, system).with_context(|| format!("{system} as {role:?}"))
        })
        .collect()
}

fn build(role: Role, card: usize, system: &'static str) -> Result<Site> {
    let sandbox = plugged(role, card)?;
    if role == Role::Client {
        return client(sandbox, system);
    }
    match system {
        system::FORWARDING => forwarding(sandbox, role),
        system::LEGACY => reference(sandbox, role, Tables::Legacy),
        system::NFT => reference(sandbox, role, Tables::Nft),
        _ => viaduct(sandbox, role),
    }
}

fn forwarding(sandbox: Sandbox, role: Role) -> Result<Site> {
    let node = Forwarding::on(sandbox, role.pods())?;
    Ok(Site {
        system: system::FORWARDING,
        usual: Place::new(node.plug(POD, 2)?, Some(node.address(2)))?,
        limited: None,
        cgroup: None,
        _parts: Box::new(node),
    })
}

fn reference(sandbox: Sandbox, role: Role, tables: Tables) -> Result<Site> {
    let node = Reference::on(sandbox, tables, &role.pod_cidr())?;
    let usual = node.add(node.sandbox.machine(POD)?, &mappings())?;
    let limited = node.add_limited(node.sandbox.machine(LIMITED)?, &limit())?;
    Ok(Site {
        system: node.system(),
        usual: Place::attached(usual)?,
        limited: Some(Place::attached(limited)?),
        cgroup: None,
        _parts: Box::new(node),
    })
}

fn viaduct(sandbox: Sandbox, role: Role) -> Result<Site> {
    let flags = vec![
        format!("--pod-cidr={}", role.pod_cidr()),
        format!("--non-masquerade-cidr={CLUSTER}"),
    ];
    let node = Viaduct::on(sandbox, flags)?;
    let place = |pod: e2e::Pod| Place::new(pod.machine, pod.addresses.first().copied());
    Ok(Site {
        system: system::VIADUCT,
        usual: place(node.attach(POD, &mappings())?)?,
        limited: Some(place(node.attach_limited(LIMITED, &limit())?)?),
        cgroup: node.agent.cgroup().map(Path::to_owned),
        _parts: Box::new(node),
    })
}

/// What a pod with a limit has.
fn limit() -> Value {
    limits(u64::from(LIMIT) * 1_000_000)
}

/// The client, which knows the way to pods only where nobody translates.
fn client(sandbox: Sandbox, system: &'static str) -> Result<Site> {
    if !serves_pods(system) {
        for node in [Role::NodeA, Role::NodeB] {
            let (pods, via) = (node.pod_cidr(), node.address());
            let route = format!("ip route add {pods} via {via}");
            sandbox.node.call(&route)?;
        }
    }
    Ok(Site {
        system,
        usual: Place::new(sandbox.node.clone(), None)?,
        limited: None,
        cgroup: None,
        _parts: Box::new(sandbox),
    })
}

/// A node whose uplink is a card of this machine, with routes as of a cluster that routes pods.
fn plugged(role: Role, card: usize) -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call(&format!("ip link delete {UPLINK}"))?;
    let card = role.card(card)?;
    let enter = format!("ip link set {card} netns {}", node.path());
    node.mounts().run(|| call(&enter))?;
    node.call(&format!("ip link set {card} name {UPLINK}"))?;
    sandbox.dress(node, UPLINK, &[role.address()])?;
    if let Some(peer) = role.peer() {
        let (pods, via) = (peer.pod_cidr(), peer.address());
        node.call(&format!("ip route add {pods} via {via}"))?;
        let client = Role::Client.address();
        node.call(&format!("ip route add default via {client}"))?;
    }
    Ok(sandbox)
}

/// Runs a tool on the machine itself, outside of all namespaces of ours.
#[expect(
    clippy::disallowed_methods,
    reason = "cards are where the machine was started, and tools move them"
)]
fn call(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = words.next().context("there is no command")?;
    let output = std::process::Command::new(program).args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed: {said}");
    Ok(())
}
