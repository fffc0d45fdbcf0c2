//! Tests of `viaductctl doctor`: each check on a root directory of its own.

mod peers;
mod pod_cidrs;

use api::{Degraded, FeatureView, NetworkView, Version};
use model::DegradedReason;
use planner::{DefaultState, DroppingDefault, ForwardingMode};
use steps::{FilterFamily, FilterTable, ForwardTables, TableState};

use super::node::{Free, free};
use super::report::Outcome;
use super::*;

/// A time long after the release.
const NOW: u64 = 1_900_000_000;

/// A root directory with the files of a node that is well, without systemd.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        let mounts = "23 1 0:21 / /sys/fs/bpf rw - bpf bpf rw\n24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
             Max open files            1024                 524288               files\n";
        for (file, text) in [
            ("proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
            ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
            ("proc/sys/net/core/bpf_jit_enable", "1\n"),
            ("proc/sys/net/ipv4/ip_forward", "1\n"),
            ("proc/sys/net/ipv6/conf/all/forwarding", "1\n"),
            ("proc/sys/net/netfilter/nf_conntrack_count", "10\n"),
            ("proc/sys/net/netfilter/nf_conntrack_max", "1000\n"),
            ("proc/self/mountinfo", mounts),
            ("proc/self/limits", limits),
            (
                "proc/self/status",
                "Name:\tctl\nCapEff:\t000001ffffffffff\n",
            ),
            ("sys/fs/bpf/viaduct/maps", ""),
            ("sys/fs/cgroup/cgroup.procs", "1\n"),
            ("run/lock", ""),
            ("var/lib/cni/lock", ""),
        ] {
            root.write(file, text);
        }
        root
    }

    fn files(&self) -> Files<'_> {
        Files::below(self.0.path())
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.files().path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.files().path(file)).unwrap();
    }

    /// Installs and enables the unit, with a process in it.
    fn install_unit(&self, limit: &str) {
        fs::create_dir_all(self.files().path("run/systemd/system")).unwrap();
        let text = format!("[Service]\nLimitNOFILE={limit}\n");
        self.write("usr/lib/systemd/system/viaductd.service", &text);
        self.write(
            "etc/systemd/system/multi-user.target.wants/viaductd.service",
            "",
        );
        self.write(
            "sys/fs/cgroup/system.slice/viaductd.service/cgroup.procs",
            "7\n",
        );
    }

    fn node(&self, serves: bool) -> Section {
        self.node_with(serves, None)
    }

    fn node_with(&self, serves: bool, cgroup: Option<&Path>) -> Section {
        let times = Times {
            now: NOW,
            program: 0,
        };
        node::section(self.files(), serves, cgroup, times)
    }

    fn kernel(&self) -> Section {
        kernel::section(self.files(), &[])
    }
}

fn status() -> Status {
    Status {
        version: Version {
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            ..Version::default()
        },
        networks: vec![NetworkView {
            name: "default".to_owned(),
            is_default: true,
            ..NetworkView::default()
        }],
        ..Status::default()
    }
}

fn doctor(directory: &Path) -> Doctor {
    Doctor {
        configurations: directory.to_owned(),
        path: directory.display().to_string(),
        config: directory.join("viaductd.toml").display().to_string(),
        output: Output::default(),
    }
}

fn write(directory: &Path, name: &str, plugin: &str) {
    let text =
        format!(r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"{plugin}"}}]}}"#);
    fs::write(directory.join(name), text).unwrap();
}

/// Returns word and outcome of each check that is neither ok nor a fact.
fn faults(section: &Section) -> Vec<(&str, Outcome)> {
    let checks = section.checks.iter();
    checks
        .filter(|check| !matches!(check.outcome, Outcome::Ok | Outcome::Info))
        .map(|check| {
            (
                check.reason.as_ref().unwrap_or(&check.name).as_str(),
                check.outcome,
            )
        })
        .collect()
}

fn find<'a>(section: &'a Section, name: &str) -> &'a Check {
    let mut checks = section.checks.iter();
    checks
        .find(|check| check.name == name)
        .unwrap_or_else(|| panic!("{name}: {section:?}"))
}

#[test]
fn a_node_that_is_well_has_no_fault() {
    let root = Root::new();
    for serves in [true, false] {
        assert_eq!(faults(&root.node(serves)), []);
    }
    assert_eq!(faults(&root.kernel()), []);
    root.install_unit("1048576");
    assert_eq!(faults(&root.node(false)), []);
    assert_eq!(find(&root.node(false), "unit").outcome, Outcome::Ok);
}

#[test]
fn each_fault_of_the_kernel_is_a_check() {
    let root = Root::new();
    root.write("proc/sys/kernel/osrelease", "5.14.0-91-generic\n");
    root.write("proc/sys/net/core/bpf_jit_enable", "0\n");
    let config = "CONFIG_BPF_SYSCALL=y\nCONFIG_NET_CLS_ACT=y\nCONFIG_NET_CLS_BPF=m\nCONFIG_NET_SCH_INGRESS=m\n\
        CONFIG_BRIDGE=m\nCONFIG_VETH=m\nCONFIG_CGROUPS=y\n# CONFIG_CGROUP_BPF is not set\n";
    root.write("boot/config-5.14.0-91-generic", config);
    let section = root.kernel();
    assert_eq!(
        faults(&section),
        [
            ("kernel-version", Outcome::Warn),
            ("kernel-config", Outcome::Fail),
            ("kernel-modules", Outcome::Fail),
            ("bpf-jit", Outcome::Warn),
        ]
    );
    let message = &find(&section, "kernel-config").message;
    assert!(message.ends_with("without CONFIG_CGROUP_BPF"), "{message}");
    root.write("lib/modules/5.14.0-91-generic/modules.dep", "");
    let module = find(&root.kernel(), "kernel-modules").outcome;
    assert_eq!(module, Outcome::Ok);
    root.remove("proc/sys/kernel/unprivileged_bpf_disabled");
    let message = find(&root.kernel(), "kernel-config").message.clone();
    assert!(message.contains("no system call bpf"), "{message}");
}

#[test]
fn missing_mounts_are_faults_of_a_node_without_an_agent() {
    let root = Root::new();
    root.write("proc/self/mountinfo", "20 1 0:20 / / rw - ext4 /dev/vda rw");
    assert_eq!(
        faults(&root.node(false)),
        [("bpffs", Outcome::Warn), ("cgroup", Outcome::Warn)]
    );
    assert_eq!(find(&root.node(true), "bpffs").outcome, Outcome::Info);
}

#[test]
fn the_root_of_a_cgroup_namespace_is_not_that_of_the_node() {
    let root = Root::new();
    root.write("sys/fs/cgroup/cgroup.type", "domain\n");
    assert_eq!(
        faults(&root.node(false)),
        [(DegradedReason::CgroupUncovered.word(), Outcome::Warn)]
    );
}

#[test]
fn a_configured_cgroup_that_is_none_keeps_the_agent_from_starting() {
    let root = Root::new();
    let directory = tempfile::tempdir().unwrap();
    let section = root.node_with(false, Some(directory.path()));
    let check = find(&section, "cgroup");
    assert_eq!(check.outcome, Outcome::Fail);
    let words = "no directory of a cgroup2 file system";
    assert!(check.message.contains(words), "{check:?}");
}

#[test]
fn doctor_without_root_says_which_checks_it_cannot_do() {
    let root = Root::new();
    root.write("proc/self/status", "CapEff:\t0000000000000000\n");
    let section = root.node(false);
    assert_eq!(faults(&section), [("privileges", Outcome::Skip)]);
    let check = find(&section, "privileges");
    assert!(check.message.contains("CAP_NET_ADMIN"), "{check:?}");
    assert!(check.advice.contains("as root"), "{check:?}");
}

#[test]
fn sysctls_that_concern_pods_are_checked_without_an_agent() {
    let root = Root::new();
    root.write("proc/sys/net/ipv4/ip_forward", "0\n");
    root.write("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n");
    root.write("proc/sys/net/netfilter/nf_conntrack_count", "980\n");
    assert_eq!(
        faults(&root.node(false)),
        [
            ("forwarding-off", Outcome::Warn),
            ("bridge-netfilter", Outcome::Warn),
            ("conntrack-full", Outcome::Fail),
        ]
    );
    root.write("proc/sys/net/netfilter/nf_conntrack_max", "0\n");
    assert_eq!(find(&root.node(true), "conntrack").outcome, Outcome::Ok);
    assert_eq!(find(&root.node(true), "forwarding").outcome, Outcome::Info);
}

#[test]
fn a_low_limit_of_open_files_is_that_of_the_unit_or_of_the_shell() {
    let root = Root::new();
    root.write("proc/self/limits", "Max open files   64   128   files\n");
    assert_eq!(faults(&root.node(false)), [("file-limit", Outcome::Fail)]);
    root.install_unit("1048576");
    assert_eq!(faults(&root.node(false)), []);
    let drop_in = "[Service]\nLimitNOFILE=64:100\n";
    root.write("etc/systemd/system/viaductd.service.d/limits.conf", drop_in);
    let section = root.node(false);
    assert_eq!(faults(&section), [("file-limit", Outcome::Fail)]);
    let message = &find(&section, "files").message;
    assert!(message.contains("may open 100 files"), "{message}");
    assert_eq!(faults(&root.node(true)), [], "the agent reports its own");
}

#[test]
fn each_state_of_the_unit_is_told_from_the_others() {
    let root = Root::new();
    let unit = |serves| {
        let section = root.node(serves);
        let check = find(&section, "unit");
        (check.outcome, check.message.clone())
    };
    fs::create_dir_all(root.files().path("run/systemd/system")).unwrap();
    assert_eq!(unit(false).0, Outcome::Info);
    root.install_unit("1048576");
    root.write(
        "sys/fs/cgroup/system.slice/viaductd.service/cgroup.procs",
        "",
    );
    assert_eq!(unit(true).0, Outcome::Info);
    let (outcome, message) = unit(false);
    assert_eq!(outcome, Outcome::Warn);
    assert!(message.contains("it was stopped, or killed"), "{message}");
    root.write("run/viaduct/last-failure", "mtu: 7: too small");
    let (_, message) = unit(false);
    assert!(
        message.ends_with("it has failed: mtu: 7: too small"),
        "{message}"
    );
    root.remove("etc/systemd/system/multi-user.target.wants/viaductd.service");
    let (outcome, message) = unit(false);
    assert_eq!(outcome, Outcome::Warn);
    assert!(message.contains("not enabled"), "{message}");
    let masked = root.files().path("etc/systemd/system/viaductd.service");
    std::os::unix::fs::symlink("/dev/null", masked).unwrap();
    assert!(unit(false).1.contains("is masked"));
}

#[test]
fn a_clock_before_the_release_or_the_build_is_behind() {
    let root = Root::new();
    let at = |now, program| {
        let section = node::section(root.files(), true, None, Times { now, program });
        faults(&section)
            .iter()
            .map(|(word, _)| word.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(at(0, 0), ["clock"]);
    assert_eq!(at(NOW, NOW + 1), ["clock"]);
    assert_eq!(at(NOW, NOW), [""; 0]);
}

#[test]
fn little_space_or_few_inodes_are_a_fault() {
    let of = |space, inodes| free("/run", Free { space, inodes }).outcome;
    assert_eq!(of(1 << 30, Some(100_000)), Outcome::Ok);
    assert_eq!(of(1 << 30, None), Outcome::Ok);
    assert_eq!(of(1 << 20, Some(100_000)), Outcome::Fail);
    assert_eq!(of(1 << 30, Some(3)), Outcome::Fail);
}

#[test]
fn doctor_without_an_agent_reports_it_and_still_checks_the_installation() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "00-other.conflist", "bridge");
    write(directory.path(), "10-viaduct.conflist", "viaduct");
    let client = Client::new("/nonexistent/viaduct.sock");
    let report = doctor(directory.path()).run(&client, NOW, |_| Some("Start it."));
    assert!(!report.healthy);
    let text = render(&report, None);
    for words in [
        "agent-unreachable",
        "no agent listens on /nonexistent/viaduct.sock",
        "=> Start it.\n",
        "conflist-shadowed",
        "00-other.conflist comes before 10-viaduct.conflist",
        "plugin-missing",
        "=> Rename one of the files",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let parsed: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(parsed["healthy"], false);
    let first = &parsed["sections"][0]["checks"][0];
    assert_eq!(first["name"], "agent");
    assert_eq!(first["reason"], "agent-unreachable");
    assert_eq!(first["outcome"], "fail");
}

#[test]
fn a_report_has_each_fault_once_and_fits_into_80_columns() {
    let root = Root::new();
    root.write("proc/sys/net/netfilter/nf_conntrack_count", "1000\n");
    root.write("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n");
    let degraded = Status {
        degraded: vec![Degraded {
            reason: "conntrack-full".to_owned(),
            message: "netfilter tracks 1000 of at most 1000 connections: packets of further ones are dropped".to_owned(),
            advice: DegradedReason::ConntrackFull.advice().to_owned(),
        }],
        ..status()
    };
    let mut sections = vec![agent(&degraded), root.node(true), root.kernel()];
    // The space depends on the machine of the test.
    for section in &mut sections {
        section.checks.retain(|check| check.name != "space");
    }
    let report = Report::of(sections);
    let text = render(&report, Some(80));
    assert_eq!(text.matches("conntrack-full").count(), 1, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn doctor_shows_missing_kernel_features_with_the_kernels_error() {
    let features = [FeatureView {
        name: "socket-hooks".to_owned(),
        available: false,
        chosen: "processes of the node do not reach all hostports".to_owned(),
        reason: "there is no cgroup".to_owned(),
    }];
    let root = Root::new();
    let report = Report::of(vec![kernel::section(root.files(), &features)]);
    let text = render(&report, None);
    let missing = "socket-hooks    Kernel feature missing (there is no cgroup): processes of the node do not reach all hostports";
    assert!(text.contains(missing), "{text}");
    assert!(report.healthy);
}

#[test]
fn doctor_compares_the_versions_of_plugin_agent_and_itself() {
    assert_eq!(
        installation::release("CNI viaduct plugin v1.2.3\nCNI protocol versions supported: 1.0.0"),
        Some("1.2.3")
    );
    assert_eq!(installation::release("CNI bridge plugin v1.1.1"), None);
    let missing = installation::plugin(&["/nonexistent".into()]);
    assert_eq!(missing.reason.as_deref(), Some("plugin-missing"));
    let mut older = status();
    older.version.agent = "0.0.9".to_owned();
    assert_eq!(faults(&agent(&older)), [("version", Outcome::Warn)]);
    assert_eq!(faults(&agent(&status())), []);
}

#[test]
fn a_conflist_for_the_default_network_needs_a_pod_cidr_and_capabilities() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "10-viaduct.conflist", "viaduct");
    fs::write(directory.path().join("viaduct"), "").unwrap();
    let names = |status: &Status| -> Vec<String> {
        let path = [directory.path().to_owned()];
        let found = invoke::installation(directory.path(), &path).unwrap();
        let checks = installation::configurations(directory.path(), &found, Some(status));
        let word = |check: Check| check.reason.unwrap_or(check.name);
        checks.into_iter().map(word).collect()
    };
    assert_eq!(
        names(&status()),
        ["conflist", "capabilities", "no-pod-cidr"]
    );
    let mut served = status();
    served.networks[0].pools.push(api::PoolView::default());
    assert_eq!(names(&served), ["conflist", "capabilities"]);
}

#[test]
fn a_dropping_default_is_a_fault_only_where_no_agent_would_carry_packets_past_it() {
    let default = |state| DroppingDefault {
        what: "policy DROP of chain FORWARD of table ip filter".to_owned(),
        state,
    };
    let carried = network::dropped(&default(DefaultState::Carried)).unwrap();
    assert_eq!(carried.reason.as_deref(), Some("forwarding-dropped"));
    assert_eq!(carried.outcome, Outcome::Warn);
    let drops = default(DefaultState::Drops("accept them".to_owned()));
    let drops = network::dropped(&drops).unwrap();
    assert_eq!(drops.outcome, Outcome::Fail);
    assert!(
        drops
            .message
            .ends_with("drops the packets of pods: accept them")
    );
    assert_eq!(network::dropped(&default(DefaultState::Left)), None);
}

#[test]
fn software_with_rules_is_named_by_its_chains_and_tables() {
    let state = |chains: &[&str]| TableState {
        rules: chains
            .iter()
            .map(|chain| ((*chain).to_owned(), Vec::new()))
            .collect(),
        ..TableState::default()
    };
    let table = |family, name: &str| FilterTable {
        name: name.to_owned(),
        ..FilterTable::iptables(family)
    };
    let tables = |list: Vec<(FilterTable, TableState)>| ForwardTables {
        has_nftables: true,
        tables: list.into_iter().collect(),
    };
    let none = network::software(&tables(Vec::new()));
    assert_eq!(none.outcome, Outcome::Ok);
    let found = network::software(&tables(vec![
        (
            table(FilterFamily::Ip, "filter"),
            state(&["FORWARD", "DOCKER-USER", "KUBE-FORWARD"]),
        ),
        (
            table(FilterFamily::Inet, "firewalld"),
            state(&["filter_FORWARD"]),
        ),
    ]));
    assert_eq!(found.outcome, Outcome::Info);
    assert_eq!(
        found.message,
        "software with rules for forwarded packets: Docker (table ip filter), firewalld (table inet firewalld), \
         kube-proxy (table ip filter)"
    );
}
