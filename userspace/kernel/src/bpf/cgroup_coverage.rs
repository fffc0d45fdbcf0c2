//! Which processes of the node a cgroup contains.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// File of every cgroup but the root of the hierarchy.
const NOT_IN_ROOT: &str = "cgroup.type";
/// Age in clock ticks (1/100 s) from which a process counts: commands come and go.
const LEAST_AGE: u64 = 300;
/// Processes whose names are returned.
const NAMED: usize = 3;

/// Returns whether the directory is the root of the cgroup2 hierarchy, not only that of a cgroup
/// namespace.
pub(crate) fn is_root(cgroup: &Path) -> bool {
    !cgroup.join(NOT_IN_ROOT).exists()
}

/// Returns the names of processes that use the network namespace of the calling thread and are not
/// in `cgroup`, some of them. Without this process, kernel threads and those that just started.
///
/// Compares process ids: paths of cgroups depend on the cgroup namespace and on the mount.
pub(crate) fn outside(cgroup: &Path) -> io::Result<BTreeSet<String>> {
    let mut members = BTreeSet::new();
    add_members(cgroup, &mut members);
    let netns = fs::read_link("/proc/thread-self/ns/net")?;
    let uptime = uptime()?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
        let process = entry.path();
        let is_other = is_process(&process) && !is_self(&process);
        if is_other && is_outside(&process, &members, &netns, uptime).unwrap_or(false) {
            names.extend(name(&process));
        }
        if names.len() == NAMED {
            break;
        }
    }
    Ok(names)
}

/// Adds the ids of the processes in `cgroup` and all cgroups below. One that is gone, or whose
/// processes its parent lists (`cgroup.type` `threaded`), has none.
fn add_members(cgroup: &Path, members: &mut BTreeSet<u32>) {
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    members.extend(processes.lines().filter_map(|id| id.parse::<u32>().ok()));
    let Ok(entries) = fs::read_dir(cgroup) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add_members(&entry.path(), members);
        }
    }
}

fn is_process(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_self(process: &Path) -> bool {
    let own = std::process::id().to_string();
    process.file_name().is_some_and(|name| name == own.as_str())
}

/// `None` if the process has ended meanwhile, or is a kernel thread, which has no program.
fn is_outside(process: &Path, members: &BTreeSet<u32>, netns: &Path, uptime: u64) -> Option<bool> {
    let id: u32 = process.file_name()?.to_str()?.parse().ok()?;
    if members.contains(&id) {
        return Some(false);
    }
    if fs::read_link(process.join("ns/net")).ok()? != netns {
        return Some(false);
    }
    fs::read_link(process.join("exe")).ok()?;
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let age = uptime.saturating_sub(started(&stat)?);
    Some(age >= LEAST_AGE)
}

/// Returns the start of a process in clock ticks since the boot: field 22 of `proc_pid_stat(5)`,
/// counted behind the name, which may contain blanks.
fn started(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the time since the boot in clock ticks.
fn uptime() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text
        .split('.')
        .next()
        .and_then(|text| text.parse::<u64>().ok())
        .ok_or_else(|| io::Error::other("/proc/uptime has no number"))?;
    Ok(seconds.saturating_mul(100))
}

/// Returns the name of a process, without control characters.
fn name(process: &Path) -> Option<String> {
    let name = fs::read_to_string(process.join("comm")).ok()?;
    let printable = name
        .trim_end()
        .chars()
        .filter(|symbol| !symbol.is_control());
    Some(printable.collect())
}

/// Returns the cgroup as a path below the mounted hierarchy, without links.
pub(crate) fn resolved(cgroup: &Path) -> PathBuf {
    cgroup.canonicalize().unwrap_or_else(|_| cgroup.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{add_members, started};

    #[test]
    fn the_members_of_a_cgroup_are_those_of_all_cgroups_below() {
        let root = tempfile::tempdir().unwrap();
        for (below, processes) in [("", "1\n22\n"), ("a", ""), ("a/b", "333\n"), ("c", "0\n")] {
            let directory = root.path().join(below);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.procs"), processes).unwrap();
        }
        let mut members = BTreeSet::new();
        add_members(root.path(), &mut members);
        assert_eq!(members, BTreeSet::from([0, 1, 22, 333]));
    }

    #[test]
    fn the_start_of_a_process_is_read_behind_its_name() {
        let fields = "S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 8 9";
        assert_eq!(started(&format!("12 (a ) b) {fields}")), Some(4711));
        assert_eq!(started("12 (a) S"), None);
    }
}
