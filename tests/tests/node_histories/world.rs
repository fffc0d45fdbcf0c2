//! The node in its namespace, the engine on it, and the invariants of both.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::{Machine, Pod, Sandbox, UPLINK, bpf_object, until};
use engine::{Engine, EngineError, Report, Settings};
use kernel::{Host, HostOptions, Kernel, Measured, Observe, ObserveError, StepError};
use model::{
    AttachmentKey, Bandwidth, BridgeOptions, HairpinMode, Intent, Limit, ManagedLink, Network,
    PortMapping, Prefixes, Protocol, RangeSet, Requested, ShapedSubnets,
};
use planner::Refusal;
use steps::{Entry, EntryKey, NodeQuery, Observed, Question, Step};
use store::Store;

use crate::event::{Damage, Event, PODS};

/// The fixed time of all calls, in seconds since 1970.
const NOW: u64 = 1_700_000_000;

const CIDRS: [&str; 3] = ["10.1.0.0/28", "10.3.0.0/24", "10.4.0.0/24,fd04::/64"];

/// Commands that create foreign links, addresses, routes and filters.
const FOREIGN: [&str; 8] = [
    "ip link add br-other type bridge",
    "ip address add 10.50.0.1/24 dev br-other",
    "ip link set br-other up",
    "ip link add veth0badcafe type veth peer name other-end",
    "ip route add 198.51.100.0/24 via 192.0.2.2",
    "tc qdisc add dev veth0badcafe root pfifo limit 77",
    "tc qdisc add dev up0 clsact",
    "tc filter add dev up0 ingress protocol ip prio 5 u32 match u32 0 0 classid 1:1",
];

const VIEWS: [&str; 6] = [
    "ip -o link show br-other",
    "ip -o -4 address show br-other",
    "ip -o link show veth0badcafe",
    "ip route show 198.51.100.0/24",
    "tc qdisc show dev veth0badcafe",
    "tc filter show dev up0 ingress pref 5",
];

/// The host's kernel adapter, which outlives an engine as the kernel outlives the agent.
#[derive(Clone)]
struct Shared(Rc<RefCell<Option<Host>>>);

impl Shared {
    fn new() -> Result<Self> {
        let shared = Self(Rc::default());
        shared.open()?;
        Ok(shared)
    }

    /// Opens the host as a new process does, after the previous process, its lock and its sockets
    /// are gone.
    fn open(&self) -> Result<()> {
        drop(self.0.take());
        let options = HostOptions {
            bpffs: "/sys/fs/bpf/lives".into(),
            object: bpf_object(),
            cgroup: None,
            flow_entries: abi::maps::FLOWS_CAPACITY,
            cache_entries: abi::maps::CACHE_CAPACITY_OF_CPU,
            datapath_log: model::DatapathLogLevel::Off,
        };
        *self.0.borrow_mut() = Some(Host::open(&options)?);
        Ok(())
    }

    fn host(&self) -> RefMut<'_, Host> {
        RefMut::map(self.0.borrow_mut(), |host| {
            host.as_mut().expect("the host is open")
        })
    }
}

impl<Q: Question> Observe<Q> for Shared
where
    Host: Observe<Q>,
{
    fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError> {
        self.host().observe(question)
    }
}

impl Kernel for Shared {
    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        self.host().execute(step)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        self.host().measure()
    }

    fn sent(
        &mut self,
        slots: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, abi::Counters>, ObserveError> {
        self.host().sent(slots)
    }
}

/// The node under test: sandbox, kernel, engine and records.
pub(crate) struct World<'a> {
    sandbox: &'a Sandbox,
    kernel: Shared,
    engine: Option<Engine<Shared>>,
    records: tempfile::TempDir,
    pods: Vec<Option<Pod>>,
    /// Attachments whose ADD succeeded and that no event has damaged since.
    healthy: BTreeSet<AttachmentKey>,
    foreign: Vec<String>,
}

impl<'a> World<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox) -> Result<Self> {
        let node = &sandbox.node;
        for line in FOREIGN {
            node.call(line)?;
        }
        let mut world = Self {
            sandbox,
            kernel: Shared::new()?,
            engine: None,
            records: tempfile::tempdir_in("/run")?,
            pods: (0..PODS).map(|_| None).collect(),
            healthy: BTreeSet::new(),
            foreign: view(node)?,
        };
        world.restart()?;
        Ok(world)
    }

    /// Discards engine and records, as on a node that has just booted.
    pub(crate) fn start_over(&mut self) -> Result<()> {
        self.engine = None;
        self.records = tempfile::tempdir_in("/run")?;
        self.healthy.clear();
        self.restart()
    }

    pub(crate) fn foreign_state_is_unchanged(&self) -> Result<()> {
        let now = view(&self.sandbox.node)?;
        ensure!(now == self.foreign, "{:#?} became {now:#?}", self.foreign);
        Ok(())
    }

    fn engine(&mut self) -> Result<&mut Engine<Shared>> {
        self.engine.as_mut().context("the engine runs")
    }

    fn restart(&mut self) -> Result<()> {
        self.engine = None;
        let store = Store::open(&self.records.path().join("records.redb"))?;
        let settings = Settings {
            default_network: network("default", "cbr0", CIDRS[0])?,
            uplinks: BTreeSet::new(),
            non_masquerade: BTreeSet::new(),
            egress: BTreeSet::new(),
            flow_entries: abi::maps::FLOWS_CAPACITY,
            bypass: planner::BypassMode::Auto,
            forwarding: planner::ForwardingMode::Auto,
            shaper: planner::ShaperMode::Auto,
            xdp_prefilter: planner::XdpPrefilterMode::Off,
            peers: planner::PeerOptions::default(),
            boot_id: "this boot".to_owned(),
        };
        let engine = Engine::start(self.kernel.clone(), store, settings, NOW)?;
        self.engine = Some(engine);
        Ok(())
    }

    fn reload(&mut self) -> Result<()> {
        self.engine = None;
        self.kernel.open()?;
        self.restart()
    }

    pub(crate) fn apply(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Add { pod, is_default } => self.add(pod, is_default),
            Event::Del { pod, is_default } => self.del(pod, is_default),
            Event::Reconcile => self.reconcile().map(drop),
            Event::Restart => self.restart(),
            Event::Reload => self.reload(),
            Event::Hairpin(mode) => self.set_hairpin(mode),
            Event::PodCidrs(index) => self.set_pod_cidrs(index),
            Event::Mtu(mtu) => self.set_mtu(mtu),
            Event::Damage(damage) => self.damage(damage),
        }
    }

    fn network(&mut self, is_default: bool) -> Result<Network> {
        if !is_default {
            let mut own = network("own", "br1", "10.2.0.0/28")?;
            own.default_route = false;
            own.options.port.isolated = true;
            return Ok(own);
        }
        let status = self.engine()?.status();
        let default = status.networks.iter().find(|status| status.is_default);
        Ok(default.context("the default network")?.network.clone())
    }

    fn key(&mut self, pod: usize, is_default: bool) -> Result<AttachmentKey> {
        Ok(AttachmentKey {
            network: self.network(is_default)?.name,
            container_id: format!("c{pod}").parse()?,
            ifname: if is_default { "eth0" } else { "net1" }.parse()?,
        })
    }

    fn add(&mut self, pod: usize, is_default: bool) -> Result<()> {
        let slot = &mut self.pods[pod];
        let machine = match slot {
            Some(machine) => machine,
            None => slot.insert(self.sandbox.pod(&format!("c{pod}"))?),
        };
        let netns = machine.machine.path().parse()?;
        let key = self.key(pod, is_default)?;
        let port = 8000 + 2 * u16::try_from(pod)? + u16::from(is_default);
        let intent = Intent {
            key: key.clone(),
            netns,
            network: self.network(is_default)?,
            bandwidth: Bandwidth {
                ingress: None,
                egress: Some(Limit {
                    rate: 10_000_000.try_into()?,
                    burst: None,
                }),
                shaped_subnets: ShapedSubnets::Except(
                    Prefixes::new(["192.0.2.0/24".parse()?]).unwrap_or_default(),
                ),
            },
            port_mappings: vec![PortMapping {
                host_port: port.try_into()?,
                container_port: 80.try_into()?,
                protocol: Protocol::Tcp,
                host_address: None,
            }],
            requested: Requested::default(),
            pod: None,
        };
        let was_known = self.records()?.contains(&key);
        match self.engine()?.add(&intent, NOW) {
            Ok(_) => drop(self.healthy.insert(key)),
            Err(EngineError::Refused(Refusal::AlreadyAttached { .. })) if was_known => {}
            Err(error) => return Err(anyhow!(error).context(format!("ADD of {key}"))),
        }
        Ok(())
    }

    fn del(&mut self, pod: usize, is_default: bool) -> Result<()> {
        let key = self.key(pod, is_default)?;
        self.healthy.remove(&key);
        self.engine()?.del(&key)?;
        ensure!(!self.records()?.contains(&key), "{key} is still on record");
        Ok(())
    }

    fn records(&mut self) -> Result<BTreeSet<AttachmentKey>> {
        let records = self.engine()?.attachments().into_iter();
        Ok(records.map(|record| record.attachment.key).collect())
    }

    fn reconcile(&mut self) -> Result<std::sync::Arc<Report>> {
        let report = self.engine()?.reconcile(NOW);
        ensure!(!report.has_failed(), "{report:#?}");
        Ok(report)
    }

    fn set_hairpin(&mut self, mode: HairpinMode) -> Result<()> {
        self.engine()?.set_hairpin_mode(mode, NOW)?;
        Ok(())
    }

    /// behaviour K11
    fn set_pod_cidrs(&mut self, index: usize) -> Result<()> {
        let default = self.network(true)?;
        let mut keys = self.records()?.into_iter();
        let is_used = keys.any(|key| key.network == default.name);
        let ranges = ranges(CIDRS[index])?;
        let is_same = default.ranges == ranges;
        match self.engine()?.set_pod_cidrs(ranges) {
            Ok(_) => ensure!(is_same || !is_used, "pod CIDRs that pods use were replaced"),
            Err(EngineError::PodCidrsInUse { .. }) => {
                ensure!(is_used && !is_same, "unused pod CIDRs were refused");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// behaviour K1
    fn set_mtu(&mut self, mtu: u32) -> Result<()> {
        self.run(&format!("ip link set {UPLINK} mtu {mtu}"))?;
        self.reconcile()?;
        let links = self.observe()?.links;
        if let Some(bridge) = links.get(&"cbr0".parse()?) {
            ensure!(bridge.mtu == mtu, "the bridge has MTU {}", bridge.mtu);
        }
        Ok(())
    }

    fn observe(&mut self) -> Result<Observed> {
        Ok(self.kernel.observe(&NodeQuery::default())?)
    }

    /// Damages the node and reconciles. Some damage makes a CHECK fail until the next
    /// reconciliation; a deleted interface of a pod is not restored.
    fn damage(&mut self, damage: Damage) -> Result<()> {
        match damage {
            Damage::DeleteVeth(pod) => {
                let link = self.host_link(pod)?;
                self.run(&format!("ip link delete {link}"))?;
                self.forget(pod)?;
            }
            Damage::RemoveNetns(pod) => self.remove_netns(pod)?,
            Damage::FlushBridge => self.run("ip address flush dev cbr0")?,
            Damage::ChangeMac => self.run("ip link set cbr0 address 02:00:00:00:00:99")?,
            Damage::DeleteBridge => self.run("ip link delete cbr0")?,
            Damage::LeaveBridge(pod) => self.damage_port(pod, "ip link set LINK nomaster")?,
            Damage::SetDown(pod) => self.damage_port(pod, "ip link set LINK down")?,
            Damage::Detach(pod) => self.damage_port(pod, "tc filter del dev LINK ingress")?,
            Damage::StopForwarding => self.run("sysctl -qw net.ipv4.ip_forward=0")?,
            Damage::ClearTable(kind) => self.clear(kind)?,
        }
        // The agent reconciles on the netlink notification of each change, or after some seconds.
        self.reconcile()?;
        let again = self.reconcile()?;
        ensure!(
            again.items.is_empty(),
            "a second reconciliation found {:#?}",
            again.items
        );
        Ok(())
    }

    /// Runs a command that may fail because its object does not exist.
    fn run(&self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        self.sandbox.node.output(&words).map(drop)
    }

    fn host_link(&mut self, pod: usize) -> Result<String> {
        let key = self.key(pod, true)?;
        Ok(ManagedLink::of(&key).to_string())
    }

    fn damage_port(&mut self, pod: usize, command: &str) -> Result<()> {
        let link = self.host_link(pod)?;
        self.run(&command.replace("LINK", &link))
    }

    /// Excludes the pod's attachment to the default network from CHECKs: its interface is gone.
    fn forget(&mut self, pod: usize) -> Result<()> {
        let key = self.key(pod, true)?;
        self.healthy.remove(&key);
        Ok(())
    }

    /// Removes a pod's namespace and waits until the kernel has deleted its links.
    fn remove_netns(&mut self, pod: usize) -> Result<()> {
        let Some(gone) = self.pods[pod].take() else {
            return Ok(());
        };
        gone.machine.unbind()?;
        drop(gone);
        let keys = [self.key(pod, true)?, self.key(pod, false)?];
        self.healthy.retain(|key| !keys.contains(key));
        let links = keys.map(|key| ManagedLink::of(&key));
        until("the links of a namespace are gone", || {
            let there = self.observe()?.links;
            Ok((!links.iter().any(|link| there.contains_key(link.name()))).then_some(()))
        })
    }

    fn clear(&mut self, kind: u8) -> Result<()> {
        for (mut key, previous) in self.observe()?.entries {
            let is_of_link = key.links_mut().next().is_some();
            let is_selected = match kind {
                0 => matches!(previous, Entry::Pod { .. }),
                1 => matches!(key, EntryKey::Interface(_)),
                2 => matches!(key, EntryKey::Endpoint(_)),
                3 => matches!(key, EntryKey::Hostport { .. } | EntryKey::Limit(_)),
                4 => key.is_of_node() && is_of_link,
                _ => key.is_of_node() && !is_of_link,
            };
            if is_selected {
                self.kernel.execute(&Step::RemoveEntry { key, previous })?;
            }
        }
        Ok(())
    }

    /// Checks the invariants that hold after every event.
    pub(crate) fn check_now(&mut self) -> Result<()> {
        let records = self.engine()?.attachments();
        let attachments = || records.iter().map(|record| &record.attachment);
        let addresses: Vec<_> = attachments()
            .flat_map(|attachment| attachment.addresses.iter().map(|a| a.address.address))
            .collect();
        let distinct: BTreeSet<_> = addresses.iter().collect();
        ensure!(
            distinct.len() == addresses.len(),
            "an address is assigned twice"
        );
        let slots: BTreeSet<u32> = attachments().map(|attachment| attachment.slot).collect();
        ensure!(slots.len() == records.len(), "a slot is assigned twice");
        for key in self.healthy.clone() {
            let checked = self.engine()?.check(&key);
            checked.with_context(|| format!("CHECK of {key}"))?;
        }
        Ok(())
    }

    /// Checks that the node converges once the events end, and deletes all pods.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.reconcile()?;
        let again = self.reconcile()?;
        ensure!(
            again.items.is_empty(),
            "a second reconciliation found {:#?}",
            again.items
        );
        let known = self.records()?;
        ensure!(known.is_superset(&self.healthy), "a healthy pod was lost");
        for key in known {
            self.engine()?.del(&key)?;
        }
        self.healthy.clear();
        let seen = self.observe()?;
        let left: Vec<&EntryKey> = seen
            .entries
            .iter()
            .filter(|(key, entry)| is_of_pod(key, entry))
            .map(|(key, _)| key)
            .collect();
        ensure!(left.is_empty(), "table entries are left: {left:?}");
        ensure!(
            seen.port_reservations.is_empty(),
            "ports are still reserved: {:?}",
            seen.port_reservations
        );
        let ours = |name: &model::IfName| {
            name.as_str() != "veth0badcafe" && name.as_str().starts_with("veth")
        };
        let links: Vec<_> = seen.links.keys().filter(|name| ours(name)).collect();
        ensure!(links.is_empty(), "links are left: {links:?}");
        Ok(())
    }
}

fn is_of_pod(key: &EntryKey, entry: &Entry) -> bool {
    let of_pod = matches!(
        key,
        EntryKey::Pod(_)
            | EntryKey::Interface(_)
            | EntryKey::Endpoint(_)
            | EntryKey::Hostport { .. }
    );
    of_pod && !matches!(entry, Entry::FreePod { .. })
}

fn view(node: &Machine) -> Result<Vec<String>> {
    VIEWS.into_iter().map(|line| node.call(line)).collect()
}

fn ranges(cidrs: &str) -> Result<Vec<RangeSet>> {
    let set = |cidr: &str| Ok(RangeSet::of_cidr(cidr.parse()?)?);
    cidrs.split(',').map(set).collect()
}

fn network(name: &str, bridge: &str, cidrs: &str) -> Result<Network> {
    Ok(Network {
        name: name.parse()?,
        bridge: bridge.parse()?,
        ranges: ranges(cidrs)?,
        routes: Vec::new(),
        default_route: true,
        mtu: None,
        hairpin: HairpinMode::HairpinVeth,
        masquerade: true,
        options: BridgeOptions::default(),
    })
}
