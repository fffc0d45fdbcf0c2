//! Tests of the engine on an in-memory kernel.

mod background;
mod chain;
mod complete;
mod conditions;
mod configure;
mod containers;
mod every_step;
mod failing_kernel;
mod kept_networks;
mod left_ports;
mod lifecycle;
mod limits;
mod migration;
mod missed_dels;
mod model;
mod overrides;
mod peers;
mod policies;
mod ports;
mod refused_adds;
mod sockets;
mod standby_ports;
mod tcx_fast_path;
mod threads;
mod tuning;
mod tunnels;
mod uninstall;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ::model::{
    Attachment, AttachmentKey, Cidr, HairpinMode, Intent, Limit, Network, PortMapping, Protocol,
    RangeSet, Requested,
};
use kernel::fake::Fake;
use steps::{Entry, EntryKey, LinkKind, Observed};
use store::Contents;
use tempfile::TempDir;

use crate::{Engine, EngineError, Report, Settings};
use failing_kernel::FailingKernel;

const NOW: u64 = 1_700_000_000;

/// Node with an in-memory kernel, a directory of records, and an agent that may crash and restart.
struct Node {
    fake: Fake,
    kernel: FailingKernel,
    directory: TempDir,
    default_network: Network,
    non_masquerade: BTreeSet<Cidr>,
    peers: planner::PeerOptions,
    engine: Option<Engine<FailingKernel>>,
    boot_id: String,
}

impl Node {
    /// Returns a node with a started agent, whose default network has 13 free IPv4 addresses.
    fn start() -> Self {
        Self::with(network("default", "cbr0", &["10.1.0.0/28", "fd00:1::/64"]))
    }

    fn with(default_network: Network) -> Self {
        Self::made(Fake::new(), default_network)
    }

    /// Returns a node as [`Node::start`] does, on an existing kernel.
    fn on(fake: Fake) -> Self {
        let subnets = ["10.1.0.0/28", "fd00:1::/64"];
        Self::made(fake, network("default", "cbr0", &subnets))
    }

    fn made(fake: Fake, default_network: Network) -> Self {
        let mut node = Self {
            kernel: FailingKernel::new(fake.clone()),
            fake,
            directory: directory(),
            default_network,
            non_masquerade: BTreeSet::new(),
            peers: planner::PeerOptions::default(),
            engine: None,
            boot_id: "this boot".to_owned(),
        };
        node.restart();
        node
    }

    /// Ends the agent as `kill -9` does, starts another one, and returns the report of its
    /// reconciliation.
    fn restart(&mut self) -> std::sync::Arc<Report> {
        let (store, settings) = self.prepare();
        let engine = Engine::start(self.kernel.clone(), store, settings, NOW).unwrap();
        let engine = self.engine.insert(engine);
        engine
            .status()
            .last_reconcile
            .expect("the start reconciles")
    }

    /// Restarts the agent as [`Node::restart`] does, for an uninstall only.
    fn for_uninstall(&mut self) -> &mut Engine<FailingKernel> {
        let (store, settings) = self.prepare();
        let engine = Engine::for_uninstall(self.kernel.clone(), store, settings).unwrap();
        self.engine.insert(engine)
    }

    /// Replaces the kernel by an empty one with another boot id; no agent runs.
    fn reboot(&mut self) {
        self.engine = None;
        self.fake.reboot();
        self.boot_id.push_str(", and another one");
    }

    fn prepare(&mut self) -> (store::Store, Settings) {
        self.engine = None;
        self.fake.end_agent();
        self.kernel.live();
        let store = store::Store::open(&self.records()).unwrap();
        let settings = Settings {
            default_network: self.default_network.clone(),
            uplinks: BTreeSet::new(),
            non_masquerade: self.non_masquerade.clone(),
            egress: BTreeSet::new(),
            flow_entries: abi::maps::FLOWS_CAPACITY,
            bypass: planner::BypassMode::Auto,
            forwarding: planner::ForwardingMode::Auto,
            shaper: planner::ShaperMode::Auto,
            xdp_prefilter: planner::XdpPrefilterMode::Off,
            peers: self.peers.clone(),
            boot_id: self.boot_id.clone(),
        };
        (store, settings)
    }

    fn records(&self) -> PathBuf {
        self.directory.path().join("records.redb")
    }

    fn engine(&mut self) -> &mut Engine<FailingKernel> {
        self.engine.as_mut().expect("the agent runs")
    }

    fn contents(&mut self) -> Contents {
        self.engine().store.contents().clone()
    }

    fn add(&mut self, intent: &Intent) -> Result<Attachment, EngineError> {
        self.engine().add(intent, NOW)
    }

    /// Returns an intent for a container on the default network, and makes its namespace if it is
    /// missing.
    fn intent(&self, container: &str) -> Intent {
        self.intent_on(&self.default_network, container)
    }

    fn intent_on(&self, network: &Network, container: &str) -> Intent {
        let path = format!("/run/netns/{container}");
        let there = self.fake.namespaces();
        if !there.contains_key(&path.parse().unwrap()) {
            self.fake.add_netns(&path);
        }
        Intent {
            key: key(network, container),
            netns: path.parse().unwrap(),
            network: network.clone(),
            bandwidth: ::model::Bandwidth::default(),
            port_mappings: Vec::new(),
            requested: Requested::default(),
            pod: None,
        }
    }

    /// Returns the state of the kernel and the records, as far as an attachment could leave traces
    /// in them.
    fn traces(&mut self) -> (Observed, Contents) {
        (
            without_leftovers(self.fake.snapshot()),
            traces_in(self.contents()),
        )
    }
}

/// Returns a directory for the records, on a tmpfs if there is one, as on a node.
fn directory() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).unwrap()
}

/// Removes entries that are no trace of an attachment: free rows of the pod table, which keep the
/// generation of their last owner on purpose, and entries of a deleted bridge, which may be removed
/// at any time.
fn without_leftovers(mut observed: Observed) -> Observed {
    observed.entries.retain(|key, entry| {
        let of_gone_bridge = matches!(key, EntryKey::Network(_)) && key.refers_to_gone_link();
        !of_gone_bridge && !matches!(entry, Entry::FreePod { .. })
    });
    observed
}

/// Resets the generation, which never decreases.
fn traces_in(contents: Contents) -> Contents {
    Contents {
        generation: 0,
        ..contents
    }
}

fn network(name: &str, bridge: &str, subnets: &[&str]) -> Network {
    let set = |subnet: &&str| RangeSet::of_cidr(subnet.parse().unwrap()).unwrap();
    Network {
        name: name.parse().unwrap(),
        bridge: bridge.parse().unwrap(),
        ranges: subnets.iter().map(set).collect(),
        routes: Vec::new(),
        default_route: true,
        mtu: None,
        hairpin: HairpinMode::HairpinVeth,
        masquerade: true,
        options: ::model::BridgeOptions::default(),
    }
}

fn key(network: &Network, container: &str) -> AttachmentKey {
    AttachmentKey {
        network: network.name.clone(),
        container_id: container.parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    }
}

fn publish(host_port: u16) -> PortMapping {
    PortMapping {
        host_port: host_port.try_into().unwrap(),
        container_port: 80.try_into().unwrap(),
        protocol: Protocol::Tcp,
        host_address: None,
    }
}

fn limit(rate: u64) -> Limit {
    Limit {
        rate: rate.try_into().unwrap(),
        burst: None,
    }
}

/// Returns the state of pods in the kernel: their host links and their table entries.
fn of_pods(observed: &Observed) -> (Vec<String>, BTreeMap<EntryKey, Entry>) {
    let veths = observed
        .links
        .iter()
        .filter(|(_, link)| link.kind == LinkKind::Veth);
    let entries = observed.entries.iter().filter(|(key, entry)| {
        let of_pod = matches!(
            key,
            EntryKey::Pod(_)
                | EntryKey::Limit(_)
                | EntryKey::Interface(_)
                | EntryKey::Endpoint(_)
                | EntryKey::Hostport { .. }
        );
        of_pod && !matches!(entry, Entry::FreePod { .. })
    });
    (
        veths.map(|(name, _)| name.to_string()).collect(),
        entries.map(|(k, e)| (k.clone(), e.clone())).collect(),
    )
}
