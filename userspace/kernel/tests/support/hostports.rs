//! A node with two networks, pods on both, and hostports, all set up by the planner.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abi::{DropCount, DropReason};
use kernel::{Host, Kernel as _, Observe as _};
use model::testing::network_of;
use model::{Attachment, Netns, PortMapping, Protocol, Route};
use planner::{NodeIntent, Records, ShaperMode};
use steps::{NodeQuery, SocketHook};

use super::{Node, attachment, entry_steps, execute, parse, pod_steps, run};

/// Hostport of [`POD_PORT`] of the first pod.
pub(crate) const HOSTPORT: u16 = 8080;
/// Port of the pods' servers.
pub(crate) const POD_PORT: u16 = 80;
/// Addresses of the uplink.
pub(crate) const NODE: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
/// Gateways of the first network.
pub(crate) const GATEWAY: [&str; 2] = ["10.88.0.1", "fd88::1"];

/// A node that is set up by the planner.
pub(crate) struct Planned {
    pub(crate) host: Host,
}

impl Planned {
    /// Creates an uplink, then opens the kernel and executes the node's plans.
    pub(crate) fn new(node: &Node, cgroup: Option<&Path>) -> Self {
        run("ip link add up0 type veth peer name world");
        run(&format!("ip addr add {}/24 dev up0", NODE[0]));
        run(&format!("ip addr add {}/64 dev up0 nodad", NODE[1]));
        run("ip link set up0 up");
        run("ip link set world up");
        Self::reopened(node, cgroup)
    }

    /// Opens the kernel as the next agent does, and executes the node's plans.
    pub(crate) fn reopened(node: &Node, cgroup: Option<&Path>) -> Self {
        let mut planned = Self::opened(node, cgroup);
        planned.converge();
        planned
    }

    /// Opens the kernel without executing a plan.
    pub(crate) fn opened(node: &Node, cgroup: Option<&Path>) -> Self {
        Self {
            host: node.host_below(cgroup),
        }
    }

    /// Plans and executes until the plan is empty.
    pub(crate) fn converge(&mut self) {
        let intent = intent();
        for _ in 0..5 {
            let none = BTreeSet::new();
            let observed = self.observe(none);
            let sysctls = planner::node_sysctls(&intent, &observed);
            let observed = self.observe(sysctls);
            let planned = planner::plan_node(&intent, &observed, &Records::new());
            assert!(planned.refused.is_empty(), "{:?}", planned.refused);
            if planned.plan.is_empty() {
                return;
            }
            execute(&mut self.host, planned.plan.steps());
        }
        panic!("the plan has no end");
    }

    fn observe(&mut self, sysctls: BTreeSet<steps::SysctlKey>) -> steps::Observed {
        let observed = self.host.observe(&NodeQuery { sysctls });
        observed.unwrap_or_else(|error| panic!("{}", super::chain(&error)))
    }

    /// Creates a pod with its links and table entries.
    pub(crate) fn add(&mut self, attachment: &Attachment) {
        execute(&mut self.host, &pod_steps(attachment));
        self.write(attachment);
    }

    /// Returns the drop counters, without what the kernels of pods sent before the pods' entries
    /// were written.
    pub(crate) fn drops(&mut self) -> BTreeMap<DropReason, DropCount> {
        let mut drops = self.host.measure().expect("the counters").drops;
        drops.remove(&DropReason::UnknownPod);
        drops
    }

    /// Attaches these cgroup programs.
    pub(crate) fn attach_socket_hooks(&mut self, needed: &BTreeSet<SocketHook>) {
        let links = self.observe(BTreeSet::new()).socket_hooks;
        let plan = planner::plan_attach_socket_hooks(needed, &links);
        execute(&mut self.host, plan.steps());
    }

    /// Writes a pod's table entries, and attaches the cgroup programs that it requires.
    pub(crate) fn write(&mut self, attachment: &Attachment) {
        self.attach_socket_hooks(&planner::required_socket_hooks(
            [attachment],
            ShaperMode::Auto,
        ));
        execute(&mut self.host, &entry_steps(attachment));
    }
}

fn intent() -> NodeIntent {
    NodeIntent {
        networks: vec![
            network_of("test", "cbr0", &["10.88.0.0/24", "fd88::/64"]),
            network_of("other", "cbr1", &["10.89.0.0/24", "fd89::/64"]),
        ],
        uplinks: BTreeSet::from([parse("up0")]),
        ..NodeIntent::default()
    }
}

/// Makes a port mapping to [`POD_PORT`].
pub(crate) fn mapping(host_port: u16, protocol: Protocol, address: Option<&str>) -> PortMapping {
    PortMapping {
        host_port: NonZeroU16::new(host_port).expect("a port"),
        container_port: NonZeroU16::new(POD_PORT).expect("a port"),
        protocol,
        host_address: address.map(parse),
    }
}

/// Makes the pod that has [`HOSTPORT`].
pub(crate) fn server(netns: &Netns) -> Attachment {
    let mut server = attachment(netns, 2);
    let protocols = [Protocol::Tcp, Protocol::Udp];
    server.port_mappings = protocols.map(|one| mapping(HOSTPORT, one, None)).to_vec();
    server
}

/// Makes a pod of the other network.
pub(crate) fn pod_of_other_network(netns: &Netns) -> Attachment {
    let mut other = attachment(netns, 4);
    other.bridge = parse("cbr1");
    for (assigned, [address, gateway]) in other
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
    other.routes = vec![route("0.0.0.0/0", "10.89.0.1"), route("::/0", "fd89::1")];
    other
}

/// Returns the address of one family: 0 is IPv4, 1 is IPv6.
pub(crate) fn address_of(attachment: &Attachment, family: usize) -> IpAddr {
    attachment.addresses[family].address.address
}

/// Makes a socket address.
pub(crate) fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(parse(address), port)
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Keeps this process in a cgroup of its own. All threads of a process have one cgroup, so tests
/// that use it run one after the other.
pub(crate) struct InCgroup {
    path: PathBuf,
    home: PathBuf,
    _lock: MutexGuard<'static, ()>,
}

impl InCgroup {
    pub(crate) fn enter() -> Self {
        let lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let root = kernel::cgroup_root()
            .expect("a list of mounts")
            .expect("cgroup2 is mounted");
        let memberships = std::fs::read_to_string("/proc/self/cgroup").expect("a list of cgroups");
        let own = memberships
            .lines()
            .find_map(|line| line.strip_prefix("0::/"));
        let home = root.join(own.expect("a cgroup of version 2"));
        let path = home.join(format!("viaduct-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a cgroup");
        move_to(&path);
        Self {
            path,
            home,
            _lock: lock,
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
