//! Checks of the node below `/proc`, `/sys` and `/etc`: mounts, sysctls, limits, clock and space.

use std::path::Path;

use api::DEFAULT_BPFFS;
use model::{DegradedReason, NodeCheck};
use nix::sys::statvfs::{Statvfs, statvfs};
use planner::{NodeCondition, is_short_of_files};
use steps::Usage;

use super::files::Files;
use super::report::{Check, Section};
use super::unit;

/// Where systemd mounts the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";
/// File of every cgroup but the root of the hierarchy.
const NOT_IN_ROOT: &str = "cgroup.type";
/// Directories that the agent and the plugins write to.
const WRITTEN: [&str; 2] = ["/run/viaduct", "/var/lib/cni"];
/// `CAP_NET_ADMIN`, `CAP_SYS_PTRACE` and `CAP_SYS_ADMIN` (`linux/capability.h`).
const CAPABILITIES: [(u32, &str); 3] = [
    (12, "CAP_NET_ADMIN"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
];
/// The beginning of 2026, in seconds since 1970: no version of this program is older.
const FIRST_RELEASE: u64 = 1_767_225_600;
/// Free space in bytes, and free inodes, below which attachments are about to fail.
const LEAST_SPACE: u64 = 16 << 20;
const LEAST_INODES: u64 = 256;

/// Times in seconds since 1970 (UTC).
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) now: u64,
    /// Modification time of this program; 0 if it is unknown.
    pub(super) program: u64,
}

/// Checks the node; `serves` says whether an agent answers, which repairs some of it, and reports
/// a `configured` cgroup itself.
pub(super) fn section(
    files: Files<'_>,
    serves: bool,
    configured: Option<&Path>,
    times: Times,
) -> Section {
    let mut checks = vec![privileges(files)];
    checks.push(bpffs(files, serves));
    checks.push(datapath(files));
    checks.push(match configured.filter(|_| !serves) {
        Some(path) => configured_cgroup(path),
        None => cgroup(files),
    });
    checks.extend(forwarding(files, serves));
    checks.extend(bridge_netfilter(files));
    checks.extend(conntrack(files));
    checks.extend(open_files(files, serves));
    checks.extend(unit::check(files, serves));
    checks.push(clock(times));
    checks.extend(WRITTEN.iter().map(|directory| space(files, directory)));
    Section {
        name: "node",
        checks,
    }
}

fn privileges(files: Files<'_>) -> Check {
    let status = files.read("proc/self/status").unwrap_or_default();
    let bits = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<&str> = CAPABILITIES
        .into_iter()
        .filter(|(bit, _)| bits & 1 << bit == 0)
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        return Check::ok(NodeCheck::Privileges, "all checks are possible");
    }
    let text = format!(
        "without {}, doctor cannot check pinned programs, firewalls, IPsec and files that only root may read",
        missing.join(", ")
    );
    Check::skip(NodeCheck::Privileges, text)
}

fn bpffs(files: Files<'_>, serves: bool) -> Check {
    let mounts = files.mounts();
    let is_bpf = mounts
        .iter()
        .any(|mount| mount.kind == "bpf" && mount.point == BPFFS);
    if is_bpf {
        return Check::ok(
            NodeCheck::Bpffs,
            format!("a BPF file system is mounted at {BPFFS}"),
        );
    }
    let text = format!("no BPF file system is mounted at {BPFFS}");
    if serves {
        return Check::info(NodeCheck::Bpffs, text);
    }
    Check::warn(
        NodeCheck::Bpffs,
        format!("{text}: the agent's unit does not start"),
    )
}

fn datapath(files: Files<'_>) -> Check {
    if files.exists(DEFAULT_BPFFS) {
        let text = format!(
            "programs are pinned in {DEFAULT_BPFFS}: pods keep their network without the agent"
        );
        Check::ok(NodeCheck::Datapath, text)
    } else {
        Check::info(
            NodeCheck::Datapath,
            format!("nothing is pinned in {DEFAULT_BPFFS}"),
        )
    }
}

/// Checks the cgroup that the agent uses by default: the root of the mounted cgroup2.
fn cgroup(files: Files<'_>) -> Check {
    let mounts = files.mounts();
    let points: Vec<&str> = mounts
        .iter()
        .filter(|mount| mount.kind == "cgroup2")
        .map(|mount| mount.point.as_str())
        .collect();
    let Some(first) = points.first() else {
        let text =
            "no cgroup2 file system is mounted: processes of the node do not reach all hostports";
        return Check::warn(NodeCheck::Cgroup, text);
    };
    let is_root = |point: &&&str| !files.exists(&format!("{point}/{NOT_IN_ROOT}"));
    if let Some(root) = points.iter().find(is_root) {
        let text = format!("{root} is the root of the node's cgroups");
        return Check::ok(NodeCheck::Cgroup, text);
    }
    let text = format!(
        "{first} is the root of a cgroup namespace: processes outside of it do not reach all hostports"
    );
    Check::warn(NodeCheck::Cgroup, text).because(DegradedReason::CgroupUncovered)
}

/// Checks the cgroup that the configuration file names.
fn configured_cgroup(path: &Path) -> Check {
    let shown = path.display();
    match ::kernel::configured_cgroup(path) {
        Ok(coverage) if coverage.is_root => Check::ok(
            NodeCheck::Cgroup,
            format!("{shown} is the root of the node's cgroups"),
        ),
        Ok(coverage) if coverage.is_partial() => {
            let outside = coverage.outside;
            let found = NodeCondition::CgroupUncovered { outside };
            Check::warn(NodeCheck::Cgroup, found.to_string()).because(found.reason())
        }
        Ok(_) => Check::ok(
            NodeCheck::Cgroup,
            format!("the cgroup {shown} contains all processes of the node"),
        ),
        Err(error) => Check::fail(
            NodeCheck::Cgroup,
            format!("the agent does not start with the cgroup {shown}: {error}"),
        )
        .with_advice("Correct `cgroup` in the agent's configuration file."),
    }
}

/// A running agent turns on what its networks need.
fn forwarding(files: Files<'_>, serves: bool) -> Vec<Check> {
    let sysctls = [
        ("net.ipv4.ip_forward", "proc/sys/net/ipv4/ip_forward"),
        (
            "net.ipv6.conf.all.forwarding",
            "proc/sys/net/ipv6/conf/all/forwarding",
        ),
    ];
    let check = |(name, file): (&str, &str)| {
        let value = files.read(file)?;
        let text = format!("{name} is {value}");
        Some(match value.as_str() {
            "0" if serves => Check::info(NodeCheck::Forwarding, text),
            "0" => {
                let text = format!("{text}: packets of pods are not forwarded");
                Check::warn(NodeCheck::Forwarding, text)
                    .because(DegradedReason::ForwardingOff)
                    .with_advice(NodeCheck::Forwarding.advice())
            }
            _ => Check::ok(NodeCheck::Forwarding, text),
        })
    };
    sysctls.into_iter().filter_map(check).collect()
}

fn bridge_netfilter(files: Files<'_>) -> Option<Check> {
    let value = files.read("proc/sys/net/bridge/bridge-nf-call-iptables")?;
    let text = format!("net.bridge.bridge-nf-call-iptables is {value}");
    Some(if value == "0" {
        Check::ok(NodeCheck::BridgeNetfilter, text)
    } else {
        let text =
            format!("{text}: rules of iptables also apply to packets between pods of one bridge");
        Check::warn(NodeCheck::BridgeNetfilter, text)
    })
}

fn conntrack(files: Files<'_>) -> Option<Check> {
    let usage = Usage {
        used: files.number("proc/sys/net/netfilter/nf_conntrack_count")?,
        limit: files.number("proc/sys/net/netfilter/nf_conntrack_max")?,
    };
    // A limit of 0 means that there is none.
    let is_short = usage.limit > 0 && usage.is_nearly_full();
    let text = format!(
        "netfilter tracks {} of at most {} connections",
        usage.used, usage.limit
    );
    Some(if is_short {
        let text = format!("{text}: packets of further ones are dropped");
        Check::fail(NodeCheck::Conntrack, text).because(DegradedReason::ConntrackFull)
    } else {
        Check::ok(NodeCheck::Conntrack, text)
    })
}

/// Checks the limit of an agent that does not run: that of its unit, or of a process that this
/// shell starts. A running agent reports its own.
fn open_files(files: Files<'_>, serves: bool) -> Option<Check> {
    if serves {
        return None;
    }
    let (limit, whose) = match unit::file_limit(files) {
        Some(limit) => (limit, "the unit viaductd.service"),
        None => (own_file_limit(files)?, "a process of this shell"),
    };
    let text = format!("{whose} may open {limit} files");
    Some(if is_short_of_files(Usage { used: 0, limit }) {
        let text = format!("{text}: each published port needs one");
        Check::fail(NodeCheck::Files, text).because(DegradedReason::FileLimit)
    } else {
        Check::ok(NodeCheck::Files, text)
    })
}

/// Returns the hard limit of this process, to which the agent raises its own.
fn own_file_limit(files: Files<'_>) -> Option<u64> {
    let limits = files.read("proc/self/limits")?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    unit::number(line.split_whitespace().nth(1)?)
}

fn clock(times: Times) -> Check {
    let earliest = times.program.max(FIRST_RELEASE);
    if times.now >= earliest {
        return Check::ok(NodeCheck::Clock, "the clock is not older than this program");
    }
    let days = (earliest - times.now).div_ceil(24 * 60 * 60);
    let text =
        format!("the clock is at least {days} days behind: ages and times of events are wrong");
    Check::warn(NodeCheck::Clock, text)
}

/// Checks the file system of a directory, or of the nearest one above that exists.
fn space(files: Files<'_>, directory: &str) -> Check {
    let existing = Path::new(directory)
        .ancestors()
        .find(|path| files.exists(&path.to_string_lossy()));
    let shown = existing.unwrap_or(Path::new("/")).display().to_string();
    match statvfs(&files.path(&shown)) {
        Ok(found) => free(&shown, Free::of(&found)),
        Err(error) => {
            let text = format!("{shown}: the file system cannot be read: {error}");
            Check::skip(NodeCheck::Space, text)
        }
    }
}

/// What a file system has free for processes without privileges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free {
    /// In bytes.
    pub(super) space: u64,
    /// `None` for a file system that does not count inodes.
    pub(super) inodes: Option<u64>,
}

impl Free {
    fn of(found: &Statvfs) -> Self {
        Self {
            space: found
                .blocks_available()
                .saturating_mul(found.fragment_size()),
            inodes: (found.files() > 0).then(|| found.files_available()),
        }
    }
}

pub(super) fn free(directory: &str, free: Free) -> Check {
    let inodes = match free.inodes {
        Some(inodes) => format!(" and {inodes} inodes"),
        None => String::new(),
    };
    let text = format!("{directory} has {} MiB{inodes} free", free.space >> 20);
    if free.space < LEAST_SPACE || free.inodes.is_some_and(|inodes| inodes < LEAST_INODES) {
        let text = format!("{text}: pods cannot be attached once it is full");
        return Check::fail(NodeCheck::Space, text);
    }
    Check::ok(NodeCheck::Space, text)
}
