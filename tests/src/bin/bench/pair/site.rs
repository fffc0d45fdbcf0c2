//! One system on one machine: a node with a pod, or the client.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{Echo, Iperf, Machine, Sandbox, UPLINK, addresses};

use super::role::Role;
use crate::row::system;
use crate::topology::{Forwarding, PORTS, Reference, Tables, Viaduct, mappings};

/// The systems, in the order of their cards, of which the first is number 1.
pub(super) const SYSTEMS: [&str; 4] = [
    system::FORWARDING,
    system::LEGACY,
    system::NFT,
    system::VIADUCT,
];

/// A pod's name on each node.
const POD: &str = "pod";

/// All prefixes of pods of the cluster, which both nodes reach without translation.
const CLUSTER: &str = "10.244.0.0/16";

/// One system on this machine. What holds it together is kept for as long as it is measured.
pub(super) struct Site {
    /// Its name in reports.
    pub(super) system: &'static str,
    /// Who sends: the node's pod, or the client.
    pub(super) sender: Machine,
    /// The pod's address.
    pub(super) pod: Option<IpAddr>,
    _servers: (Iperf, Echo),
    _parts: Box<dyn std::any::Any + Send + Sync>,
}

/// Whether ports of the node lead to pods.
pub(super) fn publishes(system: &str) -> bool {
    system != system::FORWARDING
}

/// Every system on this machine.
pub(super) fn all(role: Role) -> Result<Vec<Site>> {
    let desk = role.card(0)?;
    call(&format!("ip address replace {}/24 dev {desk}", role.desk()))?;
    call(&format!("ip link set {desk} up"))?;
    let sites = (1..).zip(SYSTEMS).map(|(card, system)| {
        build(role, card, system).with_context(|| format!("{system} as {role:?}"))
    });
    sites.collect()
}

fn build(role: Role, card: usize, system: &'static str) -> Result<Site> {
    let sandbox = plugged(role, card)?;
    if role == Role::Client {
        return client(sandbox, system);
    }
    match system {
        system::FORWARDING => {
            let node = Forwarding::on(sandbox, role.pods())?;
            let pod = node.plug(POD, 2)?;
            site(system, pod, Some(node.address(2)), Box::new(node))
        }
        system::LEGACY | system::NFT => {
            let tables = match system {
                system::NFT => Tables::Nft,
                _ => Tables::Legacy,
            };
            let node = Reference::on(sandbox, tables, &role.pod_cidr())?;
            let pod = node.add(node.sandbox.machine(POD)?, &mappings())?;
            let address = addresses(&pod.result)?.first().copied();
            let parts = Box::new(node);
            site(system, pod.machine, address, parts)
        }
        _ => {
            let flags = vec![
                format!("--pod-cidr={}", role.pod_cidr()),
                format!("--non-masquerade-cidr={CLUSTER}"),
            ];
            let node = Viaduct::on(sandbox, flags)?;
            let pod = node.attach(POD, &mappings())?;
            let address = pod.addresses.first().copied();
            site(system, pod.machine, address, Box::new(node))
        }
    }
}

/// The client, which knows the way to pods only where nobody translates.
fn client(sandbox: Sandbox, system: &'static str) -> Result<Site> {
    if !publishes(system) {
        for node in [Role::NodeA, Role::NodeB] {
            let (pods, via) = (node.pod_cidr(), node.address());
            let route = format!("ip route add {pods} via {via}");
            sandbox.node.call(&route)?;
        }
    }
    site(system, sandbox.node.clone(), None, Box::new(sandbox))
}

fn site(
    system: &'static str,
    sender: Machine,
    pod: Option<IpAddr>,
    parts: Box<dyn std::any::Any + Send + Sync>,
) -> Result<Site> {
    let servers = (
        Iperf::serve(&sender, PORTS[2])?,
        Echo::start(&sender, PORTS[0])?,
    );
    Ok(Site {
        system,
        sender,
        pod,
        _servers: servers,
        _parts: parts,
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
