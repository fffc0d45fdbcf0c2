//! A node with two networks, pods on both and hostports, all planned by the planner.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernel::{Host, Kernel as _};
use model::{Attachment, HairpinMode, Netns, Network, PortMapping, Protocol, RangeSet, Route};
use planner::{NodeIntent, Records, Scope, ShaperMode, SocketHook, Step};

use super::{Node, attachment, execute, parse, pod_steps, run};

/// The node's port that leads to [`POD_PORT`] of the first pod.
pub(crate) const HOSTPORT: u16 = 8080;
/// The pods' port that serves.
pub(crate) const POD_PORT: u16 = 80;
/// The node's addresses on its uplink.
pub(crate) const NODE: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
/// The gateways of the first network.
pub(crate) const GATEWAY: [&str; 2] = ["10.88.0.1", "fd88::1"];

/// A node whose tables are as the planner wants them.
pub(crate) struct Planned {
    pub(crate) host: Host,
}

impl Planned {
    /// Makes uplink and bridges, and fills the node's tables.
    pub(crate) fn new(node: &Node, cgroup: Option<&Path>) -> Self {
        run("ip link add up0 type veth peer name world");
        run(&format!("ip addr add {}/24 dev up0", NODE[0]));
        run(&format!("ip addr add {}/64 dev up0 nodad", NODE[1]));
        run("ip link set up0 up");
        run("ip link set world up");
        Self::again(node, cgroup)
    }

    /// The next agent on such a node.
    pub(crate) fn again(node: &Node, cgroup: Option<&Path>) -> Self {
        let mut planned = Self::before_its_first_look(node, cgroup);
        planned.settle();
        planned
    }

    /// An agent that has only started.
    pub(crate) fn before_its_first_look(node: &Node, cgroup: Option<&Path>) -> Self {
        Self {
            host: node.host_below(cgroup),
        }
    }

    /// Plans and executes until there is nothing left to do.
    pub(crate) fn settle(&mut self) {
        let intent = intent();
        for _ in 0..5 {
            let none = BTreeSet::new();
            let observed = self.look(none);
            let sysctls = planner::node_sysctls(&intent, &observed);
            let observed = self.look(sysctls);
            let planned = planner::plan_node(&intent, &observed, &Records::new());
            assert!(planned.refused.is_empty(), "{:?}", planned.refused);
            if planned.plan.is_empty() {
                return;
            }
            execute(&mut self.host, planned.plan.steps());
        }
        panic!("the plan has no end");
    }

    fn look(&mut self, sysctls: BTreeSet<planner::SysctlKey>) -> planner::Observed {
        let observed = self.host.observe(&Scope::Node { sysctls });
        observed.unwrap_or_else(|error| panic!("{}", super::chain(&error)))
    }

    /// Makes a pod with all that it has.
    pub(crate) fn add(&mut self, attachment: &Attachment) {
        execute(&mut self.host, &pod_steps(attachment));
        self.write(attachment);
    }

    /// Has sockets of the node asked by these programs.
    pub(crate) fn ask_sockets(&mut self, needed: &BTreeSet<SocketHook>) {
        let links = self.look(BTreeSet::new()).socket_hooks;
        let plan = planner::attach_sockets(needed, &links);
        execute(&mut self.host, plan.steps());
    }

    /// Writes a pod's table entries, and has sockets asked.
    pub(crate) fn write(&mut self, attachment: &Attachment) {
        self.ask_sockets(&planner::needed_sockets([attachment], ShaperMode::Auto));
        let entries = planner::attachment_entries(attachment).into_iter();
        let put = entries.map(|(key, entry)| Step::PutEntry {
            key,
            entry,
            previous: None,
        });
        execute(&mut self.host, &put.collect::<Vec<_>>());
    }
}

fn intent() -> NodeIntent {
    NodeIntent {
        networks: vec![
            network("test", "cbr0", ["10.88.0.0/24", "fd88::/64"]),
            network("other", "cbr1", ["10.89.0.0/24", "fd89::/64"]),
        ],
        uplinks: BTreeSet::from([parse("up0")]),
        ..NodeIntent::default()
    }
}

fn network(name: &str, bridge: &str, subnets: [&str; 2]) -> Network {
    let set = |subnet| RangeSet::of_cidr(parse(subnet)).expect("a range");
    Network {
        name: parse(name),
        bridge: parse(bridge),
        ranges: subnets.map(set).to_vec(),
        routes: Vec::new(),
        default_route: true,
        mtu: None,
        hairpin: HairpinMode::HairpinVeth,
        masquerade: true,
        options: model::BridgeOptions::default(),
    }
}

/// A port of the node that leads to [`POD_PORT`].
pub(crate) fn mapping(host_port: u16, protocol: Protocol, address: Option<&str>) -> PortMapping {
    PortMapping {
        host_port: NonZeroU16::new(host_port).expect("a port"),
        container_port: NonZeroU16::new(POD_PORT).expect("a port"),
        protocol,
        host_address: address.map(parse),
    }
}

/// The pod that [`HOSTPORT`] leads to.
pub(crate) fn server(netns: &Netns) -> Attachment {
    let mut server = attachment(netns, 2);
    let protocols = [Protocol::Tcp, Protocol::Udp];
    server.port_mappings = protocols.map(|one| mapping(HOSTPORT, one, None)).to_vec();
    server
}

/// A pod of the other network.
pub(crate) fn stranger(netns: &Netns) -> Attachment {
    let mut stranger = attachment(netns, 4);
    stranger.bridge = parse("cbr1");
    for (assigned, [address, gateway]) in stranger
        .addresses
        .iter_mut()
        .zip([["10.89.0.4/24", "10.89.0.1"], ["fd89::4/64", "fd89::1"]])
    {
        assigned.address = parse(address);
        assigned.gateway = Some(parse(gateway));
    }
    let route = |destination: &str, gateway: &str| Route {
        destination: parse(destination),
        gateway: Some(parse(gateway)),
        options: model::RouteOptions::default(),
    };
    stranger.routes = vec![route("0.0.0.0/0", "10.89.0.1"), route("::/0", "fd89::1")];
    stranger
}

/// The address of one family.
pub(crate) fn address_of(attachment: &Attachment, family: usize) -> IpAddr {
    attachment.addresses[family].address.address
}

/// A port at an address.
pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(parse(address), port)
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// This process, in a cgroup of its own for as long as this lives. Threads cannot be in different ones, so one test
/// waits for the other.
pub(crate) struct InCgroup {
    path: PathBuf,
    home: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl InCgroup {
    pub(crate) fn enter() -> Self {
        let turn = ONE_AT_A_TIME.lock();
        let turn = turn.unwrap_or_else(PoisonError::into_inner);
        let root = kernel::cgroup_root().expect("a list of mounts");
        let root = root.expect("cgroup2 is mounted");
        let own = std::fs::read_to_string("/proc/self/cgroup").expect("a list of cgroups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let home = root.join(own.expect("a cgroup of version 2"));
        let path = home.join(format!("viaduct-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a cgroup");
        move_to(&path);
        Self {
            path,
            home,
            _turn: turn,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for InCgroup {
    fn drop(&mut self) {
        move_to(&self.home);
        std::fs::remove_dir(&self.path).expect("an empty cgroup");
    }
}

fn move_to(cgroup: &Path) {
    let process = std::process::id().to_string();
    std::fs::write(cgroup.join("cgroup.procs"), process).expect("a cgroup to move to");
}
