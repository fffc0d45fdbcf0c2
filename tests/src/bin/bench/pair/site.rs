//! One system on one machine: a node with pods, or the client.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{Echo, Iperf, Machine, Sandbox, UPLINK, addresses};
use serde_json::Value;

use super::role::Role;
use crate::row::system;
use crate::topology::{Attached, Forwarding, PORTS, Reference, Tables, Viaduct, limits, mappings};

/// The systems, in the order of their cards, from card 1.
pub(super) const SYSTEMS: [&str; 4] = [
    system::FORWARDING,
    system::LEGACY,
    system::NFT,
    system::VIADUCT,
];

/// Names of the two pods on each node, without and with a bandwidth limit.
const POD: &str = "pod";
const LIMITED: &str = "limited";

/// The limit in both directions, in Mbit/s: far below the throughput of emulated machines.
pub(super) const LIMIT: u32 = 10;

/// Pod CIDR of the cluster, to which nodes do not masquerade.
const CLUSTER: &str = "10.244.0.0/16";

/// One system on this machine. Dropping it removes its namespaces and processes.
pub(super) struct Site {
    /// Name of the system in reports.
    pub(super) system: &'static str,
    /// The node's pod without a limit, or the client.
    pub(super) usual: Place,
    /// The node's pod with a limit, if the system has limits.
    pub(super) limited: Option<Place>,
    /// The cgroup of the node's containers, if the system uses it.
    pub(super) cgroup: Option<PathBuf>,
    _parts: Box<dyn std::any::Any + Send + Sync>,
}

/// A sender and receiver with its servers.
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

/// Returns whether the system has hostports and bandwidth limits.
pub(super) fn has_pod_features(system: &str) -> bool {
    system != system::FORWARDING
}

/// Sets up all systems on this machine.
pub(super) fn all(role: Role) -> Result<Vec<Site>> {
    let control = role.card(0)?;
    let address = role.control_address();
    call(&format!("ip address replace {address}/24 dev {control}"))?;
    call(&format!("ip link set {control} up"))?;
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

/// Returns the CNI bandwidth object of the pod with a limit.
fn limit() -> Value {
    limits(u64::from(LIMIT) * 1_000_000)
}

/// Sets up the client, with routes to pods only for the system without NAT.
fn client(sandbox: Sandbox, system: &'static str) -> Result<Site> {
    if !has_pod_features(system) {
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

/// Creates a node whose uplink is a card of this machine, with routes to the other node's pods, as
/// in a cluster with routed pods.
fn plugged(role: Role, card: usize) -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call(&format!("ip link delete {UPLINK}"))?;
    let card = role.card(card)?;
    let enter = format!("ip link set {card} netns {}", node.path());
    node.mounts().run(|| call(&enter))?;
    node.call(&format!("ip link set {card} name {UPLINK}"))?;
    sandbox.configure_link(node, UPLINK, &[role.address()])?;
    if let Some(peer) = role.peer() {
        let (pods, via) = (peer.pod_cidr(), peer.address());
        node.call(&format!("ip route add {pods} via {via}"))?;
        let client = Role::Client.address();
        node.call(&format!("ip route add default via {client}"))?;
    }
    Ok(sandbox)
}

/// Runs a tool on the machine itself, outside of the benchmark's namespaces.
#[expect(
    clippy::disallowed_methods,
    reason = "the cards are in the initial namespace, and tools move them"
)]
fn call(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = words.next().context("there is no command")?;
    let output = std::process::Command::new(program).args(words).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed: {error}");
    Ok(())
}
