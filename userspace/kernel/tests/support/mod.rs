//! A node for each test: network and mount namespaces that end with the thread, and pods in them.

#![allow(
    dead_code,
    reason = "each test binary uses another part of the support"
)]

pub(crate) mod foreign;
pub(crate) mod hostports;
pub(crate) mod skip;
pub(crate) mod traffic;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aya::{Ebpf, EbpfLoader};
use kernel::{Host, HostOptions, Kernel, Observe, StepError};
use model::{
    Assigned, Attachment, AttachmentKey, IfName, InterfaceAddress, Mac, Netns, NetnsPath, Route,
};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use planner::attachment_query;
use steps::{BridgeSpec, Hook, NodeQuery, Observed, PodSide, PodSpec, RouteEntry, Step, VethSpec};
use tempfile::TempDir;

/// Alias of the bridges of these tests.
pub(crate) const BRIDGE_ALIAS: &str = "viaduct test bridge";

/// Runs a test on a node of its own.
pub(crate) fn on_a_node(test: impl FnOnce(&Node) + Send + 'static) {
    let inside = || {
        let node = Node::enter();
        test(&node);
    };
    let thread = std::thread::spawn(inside);
    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

/// A node: the namespaces that the thread is in.
pub(crate) struct Node {
    directory: TempDir,
}

impl Node {
    fn enter() -> Self {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS);
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private mounts");
        let node = Self {
            directory: tempfile::tempdir().expect("a directory"),
        };
        let tmpfs = Some("tmpfs");
        mount(tmpfs, node.path(), tmpfs, MsFlags::empty(), None::<&str>).expect("a tmpfs");
        run("ip link set lo up");
        node
    }

    /// Returns a directory that only this mount namespace sees.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the directory of this node's pins.
    pub(crate) fn bpffs(&self) -> PathBuf {
        self.path().join("bpf")
    }

    /// Returns the path of a pin, or of a directory of pins.
    pub(crate) fn pins(&self, name: &str) -> PathBuf {
        let version = format!("v{}", abi::ABI_VERSION);
        self.bpffs().join(version).join(name)
    }

    /// Opens the kernel of this node.
    pub(crate) fn host(&self) -> Host {
        self.host_below(None)
    }

    /// Returns the options to open the kernel of this node.
    pub(crate) fn options(&self) -> HostOptions {
        HostOptions {
            bpffs: self.bpffs(),
            object: object(),
            cgroup: None,
            flow_entries: abi::maps::FLOWS_CAPACITY,
            cache_entries: abi::maps::CACHE_CAPACITY_OF_CPU,
            datapath_log: model::DatapathLogLevel::Off,
        }
    }

    /// As [`Node::options`], with an object whose bytes differ in a way that the kernel does not
    /// see.
    pub(crate) fn upgrade(&self) -> HostOptions {
        let mut bytes = std::fs::read(object()).expect("our object");
        bytes.push(0);
        let object = self.path().join("upgrade.o");
        std::fs::write(&object, bytes).expect("a file");
        HostOptions {
            object,
            ..self.options()
        }
    }

    /// Opens the kernel of this node, with the cgroup of its processes.
    pub(crate) fn host_below(&self, cgroup: Option<&Path>) -> Host {
        let options = HostOptions {
            cgroup: cgroup.map(|path| kernel::NodeCgroup {
                path: path.to_owned(),
                is_configured: true,
            }),
            ..self.options()
        };
        Host::open(&options).unwrap_or_else(|error| panic!("{}", chain(&error)))
    }

    /// Creates a namespace as a runtime does.
    pub(crate) fn add_netns(&self, name: &str) -> Netns {
        let path = self.path().join(name);
        std::fs::File::create(&path).expect("a file to mount on");
        let target = path.clone();
        let make = move || {
            unshare(CloneFlags::CLONE_NEWNET);
            let source = Some("/proc/thread-self/ns/net");
            mount(
                source,
                &target,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .expect("a mount");
        };
        std::thread::spawn(make).join().expect("a namespace");
        netns_at(&path)
    }

    /// Removes a namespace; the kernel deletes its links some time later.
    pub(crate) fn remove_netns(&self, name: &str) {
        let path = self.path().join(name);
        nix::mount::umount(&path).expect("a mount");
        std::fs::remove_file(&path).expect("a file");
    }
}

fn netns_at(path: &Path) -> Netns {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).expect("a namespace");
    Netns {
        path: parse(path.to_str().expect("a path")),
        device: metadata.dev(),
        inode: metadata.ino(),
    }
}

/// Loads a foreign object with its own maps; a second copy of ours serves.
pub(crate) fn load_foreign_object(node: &Node) -> Ebpf {
    let pins = tempfile::tempdir_in(node.path())
        .expect("a directory")
        .keep();
    run(&format!("mount -t bpf bpf {}", pins.display()));
    let helpers = kernel::helper_constants();
    let mut loader = EbpfLoader::new();
    for (name, value) in &helpers {
        loader.override_global(name, value, true);
    }
    loader.default_map_pin_directory(pins);
    loader.load_file(object()).expect("our object")
}

/// The BPF object under test.
pub(crate) fn object() -> PathBuf {
    let built = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/bpf/bpfel-unknown-none/release/datapath"
    );
    std::env::var_os("VIADUCT_BPF_OBJECT").map_or(built.into(), PathBuf::from)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test's thread makes namespaces of its own"
)]
fn unshare(flags: CloneFlags) {
    nix::sched::unshare(flags).expect("root, to make namespaces");
}

#[expect(
    clippy::disallowed_methods,
    reason = "an independent view of the kernel's state"
)]
fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words);
    command
}

/// Runs a command on the node and returns its output.
pub(crate) fn run(line: &str) -> String {
    let output = command(line).stderr(Stdio::inherit()).output().expect(line);
    assert!(output.status.success(), "{line}: {}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Whether a command succeeds.
pub(crate) fn succeeds(line: &str) -> bool {
    let mut command = command(line);
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().expect(line).success()
}

/// Starts a command on the node.
pub(crate) fn start(line: &str) -> std::process::Child {
    command(line)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Runs a command in a pod and returns its output.
pub(crate) fn run_in(netns: &Netns, line: &str) -> String {
    run(&format!("nsenter --net={} {line}", netns.path))
}

/// Formats an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Parses a valid text.
pub(crate) fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect(text)
}

/// Executes steps, all of which must succeed.
pub(crate) fn execute(host: &mut Host, steps: &[Step]) {
    for step in steps {
        host.execute(step)
            .unwrap_or_else(|error| panic!("{}: {step:?}", chain(&error)));
    }
}

/// Observes the whole node, without the link-local addresses and routes, which the kernel adds
/// asynchronously.
pub(crate) fn observe(host: &mut impl Observe<NodeQuery>) -> Observed {
    let mut observed = host
        .observe(&NodeQuery::default())
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    for link in observed.links.values_mut() {
        link.addresses.retain(|own| !is_link_local(own.address));
    }
    let plain = |route: &RouteEntry| !is_link_local(route.destination.network());
    observed.routes.retain(plain);
    observed
}

/// Observes the pod's side of an attachment.
pub(crate) fn pod_of(host: &mut Host, attachment: &Attachment) -> Option<PodSide> {
    let observed = host.observe(&attachment_query(attachment));
    observed.expect("an observation").pod().cloned()
}

/// Returns the kernel's error of a step that failed.
pub(crate) fn errno(result: Result<(), StepError>) -> Option<Errno> {
    let error = result.err()?;
    Some(Errno::from_raw(error.source.raw_os_error().unwrap_or(0)))
}

/// Whether an address is in `fe80::/10`.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns the bridge of these tests.
pub(crate) fn bridge() -> BridgeSpec {
    BridgeSpec {
        filters_vlans: false,
        name: parse("cbr0"),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: 1450,
        alias: BRIDGE_ALIAS.to_owned(),
    }
}

/// Returns the steps that create a bridge with gateways of both families.
pub(crate) fn bridge_steps() -> Vec<Step> {
    let link = bridge().name;
    let address = |text| Step::AddAddress {
        link: link.clone(),
        address: parse(text),
    };
    vec![
        Step::CreateBridge(bridge()),
        address("10.88.0.1/24"),
        address("fd88::1/64"),
        Step::SetUp { link: link.clone() },
    ]
}

/// Returns a pod's attachment: number 2 has 10.88.0.2 and `fd88::2`, slot 2.
pub(crate) fn attachment(netns: &Netns, number: u8) -> Attachment {
    let key = AttachmentKey {
        network: parse("test"),
        container_id: parse(&format!("container-{number}")),
        ifname: parse("eth0"),
    };
    let assigned = |address: String, gateway: &str| Assigned {
        address: parse(&address),
        gateway: Some(parse(gateway)),
    };
    let route = |destination: &str, gateway: &str| Route {
        destination: parse(destination),
        gateway: Some(parse(gateway)),
        options: model::RouteOptions::default(),
    };
    Attachment {
        mac: key.pod_mac(),
        key,
        netns: netns.clone(),
        pod: None,
        bridge: bridge().name,
        mtu: 1450,
        addresses: vec![
            assigned(format!("10.88.0.{number}/24"), "10.88.0.1"),
            assigned(format!("fd88::{number:x}/64"), "fd88::1"),
        ],
        routes: vec![route("0.0.0.0/0", "10.88.0.1"), route("::/0", "fd88::1")],
        port_mappings: Vec::new(),
        standby: BTreeSet::new(),
        bandwidth: model::Bandwidth::default(),
        masquerade: true,
        hairpin: true,
        port: model::PortOptions::default(),
        adopted: None,
        slot: number.into(),
        generation: 1,
    }
}

/// Returns the veth of an attachment.
pub(crate) fn veth(attachment: &Attachment) -> VethSpec {
    VethSpec {
        host: host_of(attachment),
        alias: attachment.alias(),
        host_mac: attachment.key.host_mac(),
        pod: attachment.key.ifname.clone(),
        pod_mac: attachment.mac,
        mtu: attachment.mtu,
        netns: attachment.netns.clone(),
    }
}

/// Returns the pod's side of an attachment.
pub(crate) fn inside(attachment: &Attachment) -> PodSpec {
    PodSpec {
        detects_duplicates: false,
        netns: attachment.netns.clone(),
        ifname: attachment.key.ifname.clone(),
        addresses: addresses(attachment),
        routes: attachment.routes.clone(),
        large_packets: attachment.bandwidth.egress.is_some(),
    }
}

/// Returns the addresses of an attachment.
pub(crate) fn addresses(attachment: &Attachment) -> Vec<InterfaceAddress> {
    let assigned = attachment.addresses.iter();
    assigned.map(|assigned| assigned.address).collect()
}

/// Returns the hooks of a pod.
pub(crate) fn pod_hooks() -> BTreeSet<Hook> {
    BTreeSet::from([Hook::FromPod, Hook::ToPod])
}

/// Returns the hooks of an uplink.
pub(crate) fn uplink_hooks() -> BTreeSet<Hook> {
    BTreeSet::from([Hook::UplinkIn, Hook::UplinkOut])
}

/// Returns the step that attaches programs to the host's end of an attachment.
pub(crate) fn attach(attachment: &Attachment) -> Step {
    Step::Attach {
        link: model::ManagedLink::of(&attachment.key).name().clone(),
        hooks: pod_hooks(),
    }
}

/// Returns the steps of an ADD that concern links.
pub(crate) fn pod_steps(attachment: &Attachment) -> Vec<Step> {
    vec![
        Step::CreateVeth(veth(attachment)),
        attach(attachment),
        Step::JoinBridge {
            link: host_of(attachment),
            bridge: attachment.bridge.clone(),
            hairpin: attachment.hairpin,
            options: attachment.port.clone(),
        },
        Step::SetUpPod(inside(attachment)),
    ]
}

/// Returns the steps that write an attachment's table entries: without them, frames of the pod are
/// dropped.
pub(crate) fn entry_steps(attachment: &Attachment) -> Vec<Step> {
    let entries = planner::attachment_entries(attachment).into_iter();
    let put = entries.map(|(key, entry)| Step::PutEntry {
        key,
        entry,
        previous: None,
    });
    put.collect()
}

/// Returns the step that deletes an attachment's veth.
pub(crate) fn delete(attachment: &Attachment) -> Step {
    Step::DeleteVeth {
        link: host_of(attachment),
        alias: attachment.alias(),
    }
}

/// Parses the name of a link.
pub(crate) fn link(name: &str) -> IfName {
    parse(name)
}

/// Parses the path of a namespace.
pub(crate) fn netns_path(text: &str) -> NetnsPath {
    parse(text)
}

/// Returns the host's end of an attachment.
pub(crate) fn host_of(attachment: &Attachment) -> model::ManagedLink {
    model::ManagedLink::of(&attachment.key)
}

/// Creates an uplink with its far end in a namespace.
pub(crate) fn add_uplink(node: &Node) -> Netns {
    let world = node.add_netns("world");
    run(&format!(
        "ip link add up0 type veth peer name eth0 netns {}",
        world.path
    ));
    run("ip addr add 192.0.2.10/24 dev up0");
    run("ip link set up0 up");
    run_in(&world, "ip addr add 192.0.2.1/24 dev eth0");
    run_in(&world, "ip link set eth0 up");
    world
}

pub(crate) fn attach_uplink() -> Step {
    Step::Attach {
        link: link("up0"),
        hooks: uplink_hooks(),
    }
}

/// Waits until an asynchronous change of the kernel is done.
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < skip::patient(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(10));
    }
}
